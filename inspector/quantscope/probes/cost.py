"""What a logits check would read, compute and hold, from headers alone."""

from __future__ import annotations

import re

from quantscope.probes.model import Cost, ProbeRequest
from quantscope.session.inspection import Inspection

START_SECONDS = 5.0
"""Importing torch and transformers, building the model, inspecting: CPU time on the machine measured."""
DECODE_SECONDS_PER_WEIGHT = 1.0e-8
"""Decoding and hashing one weight."""
FLOPS = 4.0e10
"""Float32 products and sums a second of two threads."""
KL_SECONDS_PER_LOGIT = 1.2e-7
"""Float64 divergence, per logit of one pair."""
BASE_BYTES = 650_000_000
"""A Python process with torch and transformers, and the temporaries of a divergence."""
UNIT_SHARE = 1.25
"""Resident share of the largest unit while it is loaded; a stack of experts is held twice while it is joined."""
STACK_SHARE = 2.0


_LAYER = re.compile(r"\.\d+\.")


def estimate(inspection: Inspection, request: ProbeRequest) -> Cost:
    """What a request would cost on this checkpoint.

    Args:
        inspection: of the examined checkpoint; headers suffice.
        request: sides, tokens, streaming.
    """
    sizes, nbytes = _sizes(inspection)
    parameters = sum(sizes.values())
    largest = max(sizes.values(), default=0) * 4
    vocabulary = _vocabulary(inspection)
    passes = len(request.sides) + 3
    decodes = passes + (3 if request.by_layer and len(request.sides) > 1 else 0)
    tokens = request.tokens.targets + 1
    logits = tokens * vocabulary
    pairs = len(request.sides) + 3
    seconds = (
        START_SECONDS
        + decodes * (parameters * DECODE_SECONDS_PER_WEIGHT + 2.0 * parameters * tokens / FLOPS)
        + pairs * logits * KL_SECONDS_PER_LOGIT
    )
    resident = _unit_bytes(sizes) if request.stream else sum(sizes.values()) * 4 + largest
    if request.dtype != "float32":
        resident = resident * 3 // 2
    return Cost(
        passes=decodes,
        bytes_read=nbytes * decodes,
        parameters=parameters,
        tokens=tokens,
        seconds=round(seconds, 1),
        memory_bytes=BASE_BYTES + resident + (len(request.sides) + 3) * logits * 4,
        how="weights decoded and hashed once a pass, 2 FLOPs a weight and token, two CPU threads",
    )


def _sizes(inspection: Inspection) -> tuple[dict[str, int], int]:
    """Elements of every weight by name, and bytes of all planes."""
    sizes: dict[str, int] = {}
    nbytes = 0
    for state in inspection.states:
        shape = state.reading.shape if state.reading is not None else state.tensor.shape
        sizes[state.tensor.name] = _product(shape)
        nbytes += sum(plane.nbytes for plane in state.tensor.planes)
    for stored in inspection.checkpoint.grouping.plain:
        sizes[stored.name] = _product(stored.shape)
        nbytes += stored.nbytes
    return sizes, nbytes


def _unit_bytes(sizes: dict[str, int]) -> int:
    """Bytes that the largest unit takes while it is loaded: a decoder layer by the first number in its names."""
    units: dict[str, float] = {}
    for name, size in sizes.items():
        head, number, _ = (
            re.split(r"\.(\d+)\.", name, maxsplit=1) if _LAYER.search(name) else (name, "", "")
        )
        share = STACK_SHARE if "expert" in name or "_exps" in name else UNIT_SHARE
        key = f"{head}.{number}"
        units[key] = units.get(key, 0.0) + size * 4 * share
    return int(max(units.values(), default=0.0))


def _vocabulary(inspection: Inspection) -> int:
    """Rows of the embedding, by its usual names; 0 where none is found."""
    rows = 0
    for state in inspection.states:
        if "embd" in state.tensor.name or "embed" in state.tensor.name:
            shape = state.reading.shape if state.reading is not None else state.tensor.shape
            rows = max(rows, *shape[-2:-1], 0)
    for stored in inspection.checkpoint.grouping.plain:
        if "embd" in stored.name or "embed" in stored.name or "wte" in stored.name:
            rows = max(rows, *stored.shape[-2:-1], 0)
    return rows


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
