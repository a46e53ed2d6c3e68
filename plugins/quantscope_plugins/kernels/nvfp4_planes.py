"""NVFP4 planes: two E2M1 codes a byte, one E4M3 scale for 16, one float32 scale a tensor."""

from __future__ import annotations

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.parity.protocol import Fixture, RawWeight, Refusal, Weight

from quantscope_plugins.kernels import layouts, unpacking

N, K, GROUP = 128, 256, 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of E2M1 codes 0..7; bit 3 is the sign. Source: OCP Microscaling Formats 1.0."""

E4M3_ONE = 0x38
"""Exponent 7, mantissa 0: 1.0."""


def problem(weight: Weight) -> Refusal | None:
    """Why these are no plain NVFP4 planes, or None."""
    reading, tensor = weight.reading, weight.tensor
    scale = tensor.plane("scale")
    if reading.element != "e2m1" or reading.packing.order != "low_first" or scale is None:
        detail = f"takes NVFP4 planes, two codes a byte, low first; not {weight.contract}"
        return Refusal(reason="contract_unsupported", detail=detail)
    if reading.group_size != GROUP or scale.dtype != "F8_E4M3" or reading.placement != "linear":
        detail = "takes E4M3 scales for 16 codes in rows"
        return Refusal(reason="contract_unsupported", detail=detail)
    if len(reading.shape) != 2 or weight.n_rows % 32 or weight.n_cols % 32:
        return Refusal(reason="shape_unsupported", detail="takes matrices of whole tiles of 32")
    return None


def read(weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
    """Codes [rows, K/2], scales [rows, K/16] as bytes, the tensor's scale [1]."""
    tensor = weight.tensor
    arrays = {
        "weight": reader.read(layouts.plane(tensor, "codes"), range(n_rows)),
        "scale": reader.read(layouts.plane(tensor, "scale"), range(n_rows)),
    }
    second = tensor.plane("scale2")
    if second is not None:
        arrays["scale2"] = reader.read(second).reshape(-1)[:1]
    divides = len(weight.reading.scale) > 1 and weight.reading.scale[1].direction == "divide"
    return RawWeight(
        contract="nvfp4",
        arrays=arrays,
        shape=(n_rows, weight.n_cols),
        bit_width=4,
        group_size=GROUP,
        facts={"divides": "1" if divides else ""},
    )


def tensor_scale(raw: RawWeight) -> float:
    """The factor that the tensor's scale puts on every weight."""
    stored = raw.arrays.get("scale2")
    if stored is None:
        return 1.0
    value = float(unpacking.as_float(stored)[0])
    return 1.0 / value if raw.facts.get("divides") else value


def corrupted(raw: RawWeight) -> tuple[str, RawWeight] | None:
    """Halves of every byte of codes exchanged."""
    codes = raw.arrays["weight"]
    swapped = ((codes << 4) | (codes >> 4)).astype(np.uint8)
    if bool((swapped == codes).all()):
        return None
    return "halves of every byte of codes exchanged", raw.with_arrays(weight=swapped)


def tiled(scales: Array) -> Array:
    """Scales [rows, groups] in tiles of 128 rows by 4 groups, padded with zeros, flat in [rows, groups] padded.

    Inside a tile the byte of (row, group) is row % 32 * 16 + row // 32 * 4 + group. Source: NVIDIA, cuBLAS
    documentation, 1D block scaling factors layout.
    """
    rows, groups = scales.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-groups // 4) * 4), dtype=np.uint8)
    padded[:rows, :groups] = scales.view(np.uint8)
    tall, wide = padded.shape[0] // 128, padded.shape[1] // 4
    moved = padded.reshape(tall, 4, 32, wide, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(moved).reshape(padded.shape)


def activations(x: Array) -> tuple[Array, Array]:
    """(codes [M, K/2], block scales of 1.0 in tiles) of values on the E2M1 grid."""
    magnitude = np.searchsorted(np.array(E2M1), np.abs(x))
    codes = (magnitude | np.where(np.signbit(x), 8, 0)).astype(np.uint8)
    octets = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    ones = np.full((x.shape[0], x.shape[1] // GROUP), E4M3_ONE, dtype=np.uint8)
    return octets, tiled(ones)


def fixture() -> Fixture:
    """Codes 0..15 in turn, the first of a byte below; block scales 1.0 and 2.0; the tensor's scale 1/4."""
    codes = np.broadcast_to(np.arange(K) % 16, (N, K))
    octets = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    groups = np.arange(K // GROUP)[None, :] + np.arange(N)[:, None]
    scale = np.where(groups % 2 == 0, E4M3_ONE, E4M3_ONE + 8).astype(np.uint8)
    values = np.array([*E2M1, *(-value for value in E2M1)])[codes]
    factor = np.repeat(np.where(groups % 2 == 0, 1.0, 2.0), GROUP, axis=1) / 4
    raw = RawWeight(
        contract="nvfp4",
        arrays={"weight": octets, "scale": scale, "scale2": np.array([0.25], np.float32)},
        shape=(N, K),
        bit_width=4,
        group_size=GROUP,
    )
    return Fixture(name="NVFP4 blocks of 16", raw=raw, weights=values * factor)
