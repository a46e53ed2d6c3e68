"""Stored planes of each family as kernels read them, cut to the first rows, and what they mean as codes.

One reader a family word; the arrays keep the stored names, dtypes and order. `affine_of` unpacks them by
`unpacking`, which shares no code with the inspector's decoder.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.errors import UndecodableError
from quantscope.model import LogicalTensor, Plane
from quantscope.parity.protocol import RawWeight, Weight

from quantscope_plugins.kernels import unpacking
from quantscope_plugins.kernels.unpacking import Affine

AFFINE_FAMILIES = (
    "gptq",
    "awq_gemm",
    "awq_gemv",
    "ct_pack",
    "mlx_affine",
    "hqq",
    "quanto",
    "modelopt_int4",
    "torchao",
)
"""Families whose weights are integer codes with a scale and an offset per group along the input axis."""

ZERO_RULES = ("as_is", "minus_one", "minus_one_unwrapped", "not_applicable")


def plane(tensor: LogicalTensor, role: str) -> Plane:
    """A plane that must be there.

    Raises:
        UndecodableError: it is not.
    """
    found = next((p for p in tensor.planes if p.role == role), None)
    if found is None:
        raise UndecodableError(f"{tensor.name} stores no {role} plane", source=tensor.name)
    return found


def read_affine(weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
    """Stored planes of an affine weight, cut to the first `n_rows` output channels."""
    reading = weight.reading
    arrays = _READERS[weight.tensor.family](weight, n_rows, reader)
    facts = {"zeros": reading.zero_convention, "zero": reading.zero, "element": reading.element}
    facts["midpoint"] = str(reading.midpoint)
    return RawWeight(
        contract=weight.tensor.family,
        arrays=arrays,
        shape=(n_rows, weight.n_cols),
        bit_width=reading.bit_width,
        group_size=reading.group_size,
        facts=facts,
    )


def _words(count: int, bit_width: int, plane_: Plane) -> int:
    word = {"I32": 32, "U32": 32, "I16": 16, "U8": 8, "I8": 8, "I64": 64}[plane_.dtype]
    return -(-count * bit_width // word)


def _gptq(weight: Weight, n: int, reader: PlaneReader) -> dict[str, Array]:
    tensor, width = weight.tensor, weight.reading.bit_width
    arrays = {
        "qweight": reader.read(plane(tensor, "codes"), None, range(n)),
        "scales": reader.read(plane(tensor, "scale"), None, range(n)),
    }
    zero, g_idx = tensor.plane("zero"), tensor.plane("group_index")
    if zero is not None and weight.reading.zero == "integer":
        arrays["qzeros"] = reader.read(zero, None, range(_words(n, width, zero)))
    if g_idx is not None:
        arrays["g_idx"] = reader.read(g_idx)[0]
    return arrays


def _awq_gemm(weight: Weight, n: int, reader: PlaneReader) -> dict[str, Array]:
    tensor = weight.tensor
    arrays = {
        "qweight": reader.read(plane(tensor, "codes"), None, range(n // 8)),
        "scales": reader.read(plane(tensor, "scale"), None, range(n)),
    }
    if tensor.plane("zero") is not None:
        arrays["qzeros"] = reader.read(plane(tensor, "zero"), None, range(n // 8))
    return arrays


def _rows(names: dict[str, str]) -> Callable[[Weight, int, PlaneReader], dict[str, Array]]:
    """A reader for planes that all have one row an output channel."""

    def read(weight: Weight, n: int, reader: PlaneReader) -> dict[str, Array]:
        arrays = {}
        for role, name in names.items():
            found = next((p for p in weight.tensor.planes if p.role == role), None)
            if found is not None:
                arrays[name] = reader.read(found, range(n))
        return arrays

    return read


def _ct_pack(weight: Weight, n: int, reader: PlaneReader) -> dict[str, Array]:
    tensor, width = weight.tensor, weight.reading.bit_width
    arrays = {
        "weight_packed": reader.read(plane(tensor, "codes"), range(n)),
        "weight_scale": reader.read(plane(tensor, "scale"), range(n)),
    }
    zero, g_idx = tensor.plane("zero"), tensor.plane("group_index")
    if zero is not None and weight.reading.zero == "integer":
        arrays["weight_zero_point"] = reader.read(zero, range(_words(n, width, zero)))
    if g_idx is not None:
        arrays["g_idx"] = reader.read(g_idx)[0]
    return arrays


def _chunks(weight: Weight, n: int, reader: PlaneReader) -> dict[str, Array]:
    """HQQ and quanto: bytes hold rows of opposite ends, so the whole plane is needed."""
    tensor = weight.tensor
    groups = n * weight.n_cols // weight.reading.group_size
    arrays = {
        "codes": reader.read(plane(tensor, "codes")),
        "scale": reader.read(plane(tensor, "scale"), range(groups)),
    }
    if tensor.plane("zero") is not None:
        arrays["zero"] = reader.read(plane(tensor, "zero"), range(groups))
    if tensor.plane("minimum") is not None:
        arrays["shift"] = reader.read(plane(tensor, "minimum"), range(groups))
    return arrays


def _modelopt(weight: Weight, n: int, reader: PlaneReader) -> dict[str, Array]:
    tensor = weight.tensor
    return {
        "weight": reader.read(plane(tensor, "codes"), range(n // 2)),
        "weight_scale": reader.read(plane(tensor, "scale"), range(n)),
    }


_READERS: dict[str, Callable[[Weight, int, PlaneReader], dict[str, Array]]] = {
    "gptq": _gptq,
    "awq_gemm": _awq_gemm,
    "awq_gemv": _rows({"codes": "qweight", "scale": "scales", "zero": "qzeros"}),
    "ct_pack": _ct_pack,
    "mlx_affine": _rows({"codes": "weight", "scale": "scales", "minimum": "biases"}),
    "hqq": _chunks,
    "quanto": _chunks,
    "modelopt_int4": _modelopt,
    "torchao": _rows({"codes": "qdata", "scale": "scale", "zero": "zero_point"}),
}


def affine_of(raw: RawWeight) -> Affine:
    """Codes, scales and offsets of stored affine planes, unpacked bit by bit."""
    return _UNPACKERS[raw.contract](raw)


def _true_zeros(stored: Array, raw: RawWeight) -> Array:
    if raw.facts.get("zeros") == "minus_one":
        return (stored + 1) & ((1 << raw.bit_width) - 1)
    if raw.facts.get("zeros") == "minus_one_unwrapped":
        return stored + 1
    return stored


def _midpoint(raw: RawWeight) -> float:
    return float(raw.facts.get("midpoint", "0"))


def _unpack_gptq(raw: RawWeight) -> Affine:
    (n, k), width = raw.shape, raw.bit_width
    codes = unpacking.dense_codes(raw.arrays["qweight"], width, k, axis=0).T
    scale = unpacking.as_float(raw.arrays["scales"]).T
    if "qzeros" in raw.arrays:
        stored = unpacking.dense_codes(raw.arrays["qzeros"], width, n, axis=1).T
        zero = _true_zeros(stored, raw).astype(np.float64)
    else:
        zero = np.full_like(scale, _midpoint(raw))
    return _ordered(codes, scale, zero, raw)


def _ordered(codes: Array, scale: Array, zero: Array, raw: RawWeight) -> Affine:
    """Columns sorted by their group where g_idx is not in order."""
    g_idx = raw.arrays.get("g_idx")
    if g_idx is None or bool((np.diff(g_idx.astype(np.int64)) >= 0).all()):
        return Affine(codes, scale, raw.group_size, zero=zero)
    order = np.argsort(g_idx, kind="stable")
    counts = np.bincount(g_idx.astype(np.int64), minlength=scale.shape[1])
    if bool((counts != raw.group_size).any()):
        raise UndecodableError("g_idx does not give every group the same number of channels")
    return Affine(codes[:, order], scale, raw.group_size, zero=zero, order=order.astype(np.int64))


def _unpack_awq_gemm(raw: RawWeight) -> Affine:
    codes = unpacking.awq_codes(raw.arrays["qweight"]).T
    scale = unpacking.as_float(raw.arrays["scales"]).T
    if "qzeros" in raw.arrays:
        zero = unpacking.awq_codes(raw.arrays["qzeros"]).T.astype(np.float64)
    else:
        zero = np.full_like(scale, 8.0)
    return Affine(codes, scale, raw.group_size, zero=zero)


def _unpack_awq_gemv(raw: RawWeight) -> Affine:
    groups = -(-raw.shape[1] // raw.group_size)
    codes = unpacking.dense_codes(raw.arrays["qweight"], 4, raw.shape[1], axis=1)
    scale = unpacking.as_float(raw.arrays["scales"])[:, :groups]
    zero = unpacking.dense_codes(raw.arrays["qzeros"], 4, groups, axis=1).astype(np.float64)
    return Affine(codes, scale, raw.group_size, zero=zero)


def _unpack_ct_pack(raw: RawWeight) -> Affine:
    (n, k), width = raw.shape, raw.bit_width
    codes = unpacking.dense_codes(raw.arrays["weight_packed"], width, k, axis=1)
    scale = unpacking.as_float(raw.arrays["weight_scale"])
    if "weight_zero_point" in raw.arrays:
        stored = unpacking.dense_codes(raw.arrays["weight_zero_point"], width, n, axis=0)
        zero = stored.astype(np.float64)
    else:
        zero = np.full_like(scale, float(1 << (width - 1)))
    return _ordered(codes, scale, zero, raw)


def _unpack_mlx(raw: RawWeight) -> Affine:
    codes = unpacking.dense_codes(raw.arrays["weight"], raw.bit_width, raw.shape[1], axis=1)
    scale = unpacking.as_float(raw.arrays["scales"])
    return Affine(codes, scale, raw.group_size, offset=unpacking.as_float(raw.arrays["biases"]))


def _unpack_chunks(raw: RawWeight) -> Affine:
    n, k = raw.shape
    octets = raw.arrays["codes"]
    halves = unpacking.nibbles(octets[..., None], high_first=raw.contract == "hqq")
    codes = np.concatenate([halves[..., 0], halves[..., 1]], axis=0).reshape(-1, k)[:n]
    groups = k // raw.group_size
    scale = unpacking.as_float(raw.arrays["scale"]).reshape(n, groups)
    if "zero" in raw.arrays:
        zero = unpacking.as_float(raw.arrays["zero"]).reshape(n, groups)
        return Affine(codes, scale, raw.group_size, zero=zero)
    shift = unpacking.as_float(raw.arrays["shift"]).reshape(n, groups)
    return Affine(codes, scale, raw.group_size, offset=-shift)


def _unpack_modelopt(raw: RawWeight) -> Affine:
    low_high = unpacking.nibbles(raw.arrays["weight"][..., None], high_first=False)
    codes = low_high.transpose(0, 2, 1).reshape(-1, raw.shape[1])[: raw.shape[0]]
    signed = codes - 16 * (codes > 7)
    return Affine(signed, unpacking.as_float(raw.arrays["weight_scale"]), raw.group_size)


def _unpack_torchao(raw: RawWeight) -> Affine:
    scale = unpacking.as_float(raw.arrays["scale"])
    zero = raw.arrays.get("zero_point")
    return Affine(
        raw.arrays["qdata"].astype(np.int32),
        scale,
        raw.group_size,
        zero=np.zeros_like(scale) if zero is None else zero.astype(np.float64),
    )


_UNPACKERS: dict[str, Callable[[RawWeight], Affine]] = {
    "gptq": _unpack_gptq,
    "awq_gemm": _unpack_awq_gemm,
    "awq_gemv": _unpack_awq_gemv,
    "ct_pack": _unpack_ct_pack,
    "mlx_affine": _unpack_mlx,
    "hqq": _unpack_chunks,
    "quanto": _unpack_chunks,
    "modelopt_int4": _unpack_modelopt,
    "torchao": _unpack_torchao,
}


def affine_problem(weight: Weight) -> str | None:
    """Why the independent unpacker does not take this weight, or None."""
    reading, tensor = weight.reading, weight.tensor
    if tensor.family not in AFFINE_FAMILIES:
        return f"family {tensor.family} is not an affine one"
    axis = reading.group[0].axis if reading.group else "none"
    if axis not in ("in", "channel"):
        return f"groups lie along {axis}"
    if (
        len(reading.group) > 1
        or len(reading.scale) != 1
        or reading.scale[0].direction != "multiply"
    ):
        return "more than one level of scales, or scales that divide"
    if reading.placement != "linear":
        return f"codes lie in {reading.placement} tiles"
    if reading.zero_convention not in ZERO_RULES:
        return f"zeros read as {reading.zero_convention}"
    if reading.packing.order in ("planar", "padded", "tile"):
        return f"codes lie in {reading.packing.order} order"
    if tensor.family in ("hqq", "quanto"):
        if reading.bit_width != 4 or reading.fact("groups_are", "rows") != "rows":
            return "only 4-bit codes in groups along rows are unpacked"
        if reading.packing.word != "U8" or len(reading.shape) != 2:
            return "only byte-packed planes are unpacked"
    if tensor.family == "torchao" and reading.packing.order != "one_per_word":
        return "packed torchao classes are not unpacked here"
    if weight.n_cols % max(1, reading.group_size):
        return f"{weight.n_cols} columns are no whole groups of {reading.group_size}"
    return None
