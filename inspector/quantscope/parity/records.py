"""Of which backends the project itself keeps the record of a run on an NVIDIA device."""

from __future__ import annotations

CUDA_RECORDS: frozenset[str] = frozenset()
"""Names of backends with a record in docs/evidence; written by hand when benchmarks/gpu_parity.py gave one."""

NOT_RUN = "not yet run on CUDA by the project"
