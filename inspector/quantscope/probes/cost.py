"""What a logits check would read, compute and hold, from headers alone."""

from __future__ import annotations

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
BASE_BYTES = 550_000_000
"""A Python process with torch and transformers."""


def estimate(inspection: Inspection, request: ProbeRequest) -> Cost:
    """What a request would cost on this checkpoint.

    Args:
        inspection: of the examined checkpoint; headers suffice.
        request: sides, tokens, streaming.
    """
    sizes, nbytes = _sizes(inspection)
    parameters = sum(sizes)
    largest = max(sizes, default=0)
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
    # A decoded weight, its copy in the compute dtype, and what is being decoded; the head twice where it is tied.
    resident = 3 * largest * 4 if request.stream else parameters * 4 + 2 * largest * 4
    return Cost(
        passes=decodes,
        bytes_read=nbytes * decodes,
        parameters=parameters,
        tokens=tokens,
        seconds=round(seconds, 1),
        memory_bytes=BASE_BYTES + resident + (len(request.sides) + 3) * logits * 4,
        how="weights decoded and hashed once a pass, 2 FLOPs a weight and token, two CPU threads",
    )


def _sizes(inspection: Inspection) -> tuple[list[int], int]:
    """Elements of every weight, and bytes of all planes."""
    sizes: list[int] = []
    nbytes = 0
    for state in inspection.states:
        shape = state.reading.shape if state.reading is not None else state.tensor.shape
        sizes.append(_product(shape))
        nbytes += sum(plane.nbytes for plane in state.tensor.planes)
    for stored in inspection.checkpoint.grouping.plain:
        sizes.append(_product(stored.shape))
        nbytes += stored.nbytes
    return sizes, nbytes


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
