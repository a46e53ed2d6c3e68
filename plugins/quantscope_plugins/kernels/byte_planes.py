"""Weights stored as one byte a code with one scale a channel or a tensor: int8 and FP8."""

from __future__ import annotations

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.parity.protocol import RawWeight, Refusal, Weight

from quantscope_plugins.kernels import layouts, unpacking


def int8_problem(weight: Weight) -> Refusal | None:
    """Why a weight is no signed byte plane with one scale a channel, or None."""
    reading = weight.reading
    if reading.element != "s8" or reading.packing.order != "one_per_word":
        return _no(
            f"takes signed bytes, these are {reading.element} in {reading.packing.order} order"
        )
    return _per_channel(weight)


def e4m3_problem(weight: Weight) -> Refusal | None:
    """Why a weight is no E4M3 plane with one scale a channel or tensor, or None."""
    reading = weight.reading
    if reading.element != "e4m3fn" or reading.packing.order != "one_per_word":
        return _no(
            f"takes e4m3fn bytes, these are {reading.element} in {reading.packing.order} order"
        )
    return _per_channel(weight)


def _per_channel(weight: Weight) -> Refusal | None:
    reading = weight.reading
    axis = reading.group[0].axis if reading.group else "none"
    if axis not in ("channel", "tensor") or len(reading.scale) != 1 or len(reading.group) > 1:
        return _no(f"takes one scale a channel or a tensor, these lie along {axis}")
    if len(reading.shape) != 2 or weight.tensor.plane("scale") is None:
        return _no("takes a plain matrix with a scale plane")
    return None


def _no(detail: str) -> Refusal:
    return Refusal(reason="contract_unsupported", detail=detail)


def read(weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
    """Bytes [rows, columns] and scales as stored; a scalar stays [1, 1]."""
    tensor, reading = weight.tensor, weight.reading
    codes = reader.read(layouts.plane(tensor, "codes"), range(n_rows))
    stored = reader.read(layouts.plane(tensor, "scale"))
    scale = stored.reshape(-1, 1)
    arrays: dict[str, Array] = {"weight": codes, "scale": scale[:n_rows]}
    zero = tensor.plane("zero")
    if zero is not None and reading.zero == "integer":
        arrays["zero_point"] = reader.read(zero).reshape(-1, 1)[:n_rows]
    return RawWeight(
        contract="int8_channel" if reading.element == "s8" else "fp8_channel",
        arrays=arrays,
        shape=(n_rows, weight.n_cols),
        bit_width=8,
        group_size=weight.n_cols,
        facts={
            "element": reading.element,
            "divides": "1" if reading.scale[0].direction == "divide" else "",
            "over_127": "1" if tensor.family == "bnb_int8" else "",
        },
    )


def scales(raw: RawWeight) -> Array:
    """float64 [rows, 1] multipliers. SCB of bitsandbytes is the row's largest magnitude, so it counts over 127.

    Source: bitsandbytes, bitsandbytes/autograd/_functions.py, MatmulLtState.SCB.
    """
    stored = unpacking.as_float(raw.arrays["scale"])
    if raw.facts.get("divides"):
        stored = 1.0 / stored
    if raw.facts.get("over_127"):
        stored = stored / 127.0
    return np.broadcast_to(stored, (raw.shape[0], 1))


def halves_exchanged(raw: RawWeight) -> tuple[str, RawWeight] | None:
    """Codes moved by one input channel."""
    codes = raw.arrays["weight"]
    moved = np.roll(codes, 1, axis=1)
    if bool((moved == codes).all()):
        return None
    return "codes moved by one input channel", raw.with_arrays(weight=moved)
