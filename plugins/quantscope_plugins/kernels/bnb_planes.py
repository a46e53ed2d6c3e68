"""bitsandbytes planes as the package's own loader takes them, and a fixture of known bytes."""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.parity.protocol import Fixture, RawWeight, Refusal, Weight

NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The sixteen levels of NF4. Source: Dettmers et al., QLoRA, appendix E."""

FP4 = (0.0, 0.0625 / 12, 8 / 12, 12 / 12, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
"""Levels of bitsandbytes' FP4 without sign, over 12. Source: bitsandbytes, csrc/kernels.cu, dDequantizeFP4Tree."""

N, K, BLOCK = 128, 256, 64


def problem(weight: Weight) -> Refusal | None:
    """Why these are no 4-bit planes of bitsandbytes, or None."""
    if weight.tensor.family != "bnb_4bit":
        detail = f"family {weight.tensor.family} stores no bitsandbytes 4-bit planes"
        return Refusal(reason="contract_unsupported", detail=detail)
    if weight.reading.element not in ("nf4", "fp4") or len(weight.reading.shape) != 2:
        detail = f"takes nf4 and fp4 matrices, this is {weight.reading.element}"
        return Refusal(reason="contract_unsupported", detail=detail)
    if weight.tensor.plane("meta") is None:
        detail = "the package's loader needs the stored quant_state"
        return Refusal(reason="contract_unsupported", detail=detail)
    return None


def read(weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
    """Planes by the names that the package's loader wants, cut to the first rows; the stored shape follows."""
    arrays: dict[str, Array] = {}
    n_cols = weight.n_cols
    size = weight.reading.group_size
    kept = {
        "weight": n_rows * n_cols // 2,
        "absmax": -(-n_rows * n_cols // size),
    }
    state: dict[str, object] = {}
    for plane in weight.tensor.planes:
        if plane.role == "bias":
            continue
        if plane.role == "meta":
            state = json.loads(reader.raw(plane))
            continue
        name = "weight" if plane.role == "codes" else plane.suffix.removeprefix("weight.")
        values = reader.read(plane).reshape(-1)
        arrays[name] = values[: kept.get(name, values.size)]
    state["shape"] = [n_rows, n_cols]
    return RawWeight(
        contract="bnb_4bit",
        arrays=arrays,
        shape=(n_rows, n_cols),
        bit_width=4,
        group_size=size,
        facts={"quant_type": weight.reading.element, "state": json.dumps(state)},
    )


def corrupted(raw: RawWeight) -> tuple[str, RawWeight] | None:
    """Halves of every byte of codes exchanged."""
    codes = raw.arrays["weight"]
    swapped = ((codes << 4) | (codes >> 4)).astype(np.uint8)
    if bool((swapped == codes).all()):
        return None
    return "halves of every byte of codes exchanged", raw.with_arrays(weight=swapped)


def levels(quant_type: str) -> NDArray[np.float32]:
    """Value of every code, float32 [16]."""
    if quant_type == "nf4":
        return np.array(NF4, dtype=np.float32)
    return np.array([*FP4, *(-value for value in FP4)], dtype=np.float32)


def fixture(quant_type: str) -> Fixture:
    """Codes 0..15 in turn, the first of a byte above; one power of two for every 64 in row-major order."""
    codes = np.arange(N * K) % 16
    octets = (codes[0::2] << 4 | codes[1::2]).astype(np.uint8)
    absmax = (2.0 ** -(np.arange(N * K // BLOCK) % 4)).astype(np.float32)
    table = levels(quant_type)
    state = {"quant_type": quant_type, "blocksize": BLOCK, "dtype": "bfloat16", "shape": [N, K]}
    weights = table[codes].astype(np.float64) * np.repeat(absmax, BLOCK)
    raw = RawWeight(
        contract="bnb_4bit",
        arrays={"weight": octets, "absmax": absmax, "quant_map": table},
        shape=(N, K),
        bit_width=4,
        group_size=BLOCK,
        facts={"quant_type": quant_type, "state": json.dumps(state)},
    )
    return Fixture(name=f"{quant_type} blocks of 64", raw=raw, weights=weights.reshape(N, K))
