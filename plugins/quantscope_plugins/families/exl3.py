"""EXL3: trellis-coded tiles of 16 x 16 weights, in a basis rotated on both sides, with a scale a channel each way.

Source: turboderp-org/exllamav3, exllamav3/modules/quant/exl3.py, exllamav3_ext/quant/exl3_dq.cuh and codebook.cuh,
exllamav3/modules/quant/exl3_lib/quantize.py, conversion/quant_config.py; checked against GPTQModel 7.7.0,
gptqmodel/nn_modules/exllamav3_torch.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import ClassVar

import numpy as np
from quantscope.decode.interleaved import trellis_bits, trellis_states
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.errors import UndecodableError
from quantscope.families.base import FamilyBase, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Arithmetic,
    BitSpan,
    Cell,
    Claim,
    Companion,
    Equation,
    GroupLevel,
    LogicalTensor,
    Orphan,
    Packing,
    Reading,
    Role,
    ScaleLevel,
    Source,
)

from quantscope_plugins.families.listed import orphans_of, planes_of

TILE = 16
BLOCK = 128
"""Side of the Hadamard blocks."""

ROLES: dict[str, Role] = {
    "trellis": "codes",
    "svh": "scale",
    "suh": "scale2",
    "sv": "sign",
    "su": "sign",
    "mcg": "codebook",
    "mul1": "codebook",
    "bias": "bias",
}
MULTIPLIERS = {"3inst": 89226354, "mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
ROTATED = "rotated: 128-point Hadamard on both sides"
OLD_SIGNS = "signs stored as bits (su, sv) without scales, a layout of early versions"


class Exl3(FamilyBase):
    """trellis, suh, svh and the codebook's multiplier."""

    name: ClassVar[str] = "exl3"
    title: ClassVar[str] = "EXL3 (trellis-coded tiles)"

    def signature(self) -> Signature:
        """`trellis`."""
        return Signature(last_parts=("trellis", "suh", "svh"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with a trellis and both scales, or both sign fields."""
        modules = dict.fromkeys(m for s in ("trellis", "suh", "svh") for m in index.modules_with(s))
        for module in modules:
            old = index.get(module, "su") is not None and index.get(module, "sv") is not None
            needed = ("trellis",) if old else ("trellis", "suh", "svh")
            alone = orphans_of(index, module, self.name, tuple(ROLES), needed)
            if alone:
                yield from alone
                continue
            trellis = index.get(module, "trellis")
            assert trellis is not None
            if trellis.dtype not in ("I16", "U16") or len(trellis.shape) != 3:
                continue
            codebook = next((c for c in ("mcg", "mul1") if index.get(module, c)), "3inst")
            yield LogicalTensor(
                name=f"{module}.weight" if module else "weight",
                module=module,
                family=self.name,
                word="exl3",
                shape=(trellis.shape[1] * TILE, trellis.shape[0] * TILE),
                planes=planes_of(index, module, ROLES),
                certainty=3,
                basis=ROTATED,
                facts=(
                    ("codebook", codebook),
                    ("multiplier", str(_multiplier(index, module, codebook))),
                    ("signs", "bits" if index.get(module, "suh") is None else ""),
                ),
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The codebook of the config, and the module's own entry of quantization_config.json."""
        for section in declared.with_method("exl3"):
            if section.get("codebook") in MULTIPLIERS:
                yield section.claim("element", f"codebook({section.get('codebook')})", "codebook")
        config = declared.configs.get("quantization_config.json")
        data = config.data if config is not None else None
        storage = data.get("tensor_storage") if isinstance(data, dict) else None
        entry = storage.get(tensor.module) if isinstance(storage, dict) else None
        if isinstance(entry, dict) and entry.get("quant_format") == "exl3":
            pointer = f"/tensor_storage/{tensor.module}/quant_format"
            yield Claim(
                field="basis",
                value=ROTATED,
                source=Source("quantization_config.json", pointer),
                basis="by_definition",
                written="exl3",
            )

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The codebook that the stored multiplier names."""
        trellis = tensor.plane("codes")
        if trellis is None or len(trellis.shape) != 3:
            return
        bits = trellis.shape[2] // TILE
        yield Reading(
            element=f"codebook({tensor.fact('codebook')})",
            bit_width=0,
            shape=tensor.shape,
            group=(GroupLevel(axis="channel"),),
            scale=(
                ScaleLevel(dtype="f16", name="svh", signed=True),
                ScaleLevel(dtype="f16", name="suh", signed=True, per="input channel"),
            ),
            zero="none",
            packing=Packing(word="I16", axis="none", order="tile"),
            placement="exl3",
            basis=tensor.basis,
            effective_bits=float(bits),
            arithmetic=Arithmetic(rule="svh * (suh * (H * table[state] * H))"),
        )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Tiles of 16*b words, one scale a channel each way; both extents in whole blocks of 128."""
        n_out, n_in = reading.shape
        trellis = tensor.plane("codes")
        bits = max(1, trellis.shape[2] // TILE) if trellis is not None else 1
        equations = [
            demand(
                trellis,
                "trellis",
                "I16 [K/16, N/16, 16*b]",
                (n_in // TILE, n_out // TILE, TILE * min(bits, 8)),
                dtypes=("I16", "U16"),
                substituted=f"[{n_in}/16, {n_out}/16, 16*{bits}]",
            ),
            Equation(
                plane="blocks",
                symbolic="K % 128 = 0, N % 128 = 0",
                substituted=f"{n_in} % 128 = {n_in % BLOCK}, {n_out} % 128 = {n_out % BLOCK}",
                expected_shape=None,
                actual_shape=None,
                expected_bytes=None,
                actual_bytes=None,
                holds=n_in % BLOCK == 0 and n_out % BLOCK == 0,
            ),
        ]
        if not tensor.fact("signs"):
            equations.append(demand(tensor.plane("scale2"), "suh", "F16 [K]", (n_in,)))
            equations.append(demand(tensor.plane("scale"), "svh", "F16 [N]", (n_out,)))
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Weights of the window: whole blocks of 128 by 128 are decoded and rotated back.

        Raises:
            UndecodableError: the extents are no whole blocks.
        """
        rows, cols = window.rows, window.cols
        if not len(rows) or not len(cols):
            return Parts(codes=np.zeros(window.shape, np.float32), combine="value")
        if any(extent % BLOCK for extent in reading.shape):
            raise UndecodableError(f"{tensor.name} is no whole number of 128 x 128 blocks")
        n_blocks = range(rows.start // BLOCK, -(-rows.stop // BLOCK))
        k_blocks = range(cols.start // BLOCK, -(-cols.stop // BLOCK))
        inner = _inner(tensor, k_blocks, n_blocks, reader)
        suh, svh = tensor.plane("scale2"), tensor.plane("scale")
        assert suh is not None
        assert svh is not None
        k_span = range(k_blocks.start * BLOCK, k_blocks.stop * BLOCK)
        n_span = range(n_blocks.start * BLOCK, n_blocks.stop * BLOCK)
        left = _rotate(inner.reshape(len(k_blocks), BLOCK, len(n_span)))
        weight = left.reshape(len(k_span), len(n_span))
        weight *= reader.floats(suh, None, k_span).T
        turned = np.ascontiguousarray(weight.T).reshape(len(n_blocks), BLOCK, len(k_span))
        weight = _rotate(turned).reshape(len(n_span), len(k_span))
        weight *= reader.floats(svh, None, n_span).T
        cut = weight[
            rows.start - n_span.start : rows.stop - n_span.start,
            cols.start - k_span.start : cols.stop - k_span.start,
        ]
        return Parts(codes=np.ascontiguousarray(cut), combine="value")

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The state of the trellis at the element's place, before the rotation mixes its 128 x 128 block."""
        trellis = tensor.plane("codes")
        assert trellis is not None
        bits = trellis.shape[2] // TILE
        tile = (col // TILE) * trellis.shape[1] + row // TILE
        base = trellis.byte_offset + tile * trellis.shape[2] * 2
        place = int(_places()[col % TILE, row % TILE])
        spans = tuple(
            BitSpan(
                file_id=trellis.file_id,
                byte_offset=base + 4 * word,
                nbytes=4,
                low_bit=low,
                bit_width=width,
            )
            for word, low, width in trellis_bits(place, bits)
        )
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        suh, svh = tensor.plane("scale2"), tensor.plane("scale")
        if suh is not None and svh is not None:
            per_plane = {"scale": (element_span(svh, row),), "scale2": (element_span(suh, col),)}
        return Cell(row=row, col=col, group=0, bits=spans, per_plane=per_plane)

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """Early files, and widths beyond eight bits."""
        trellis = tensor.plane("codes")
        if tensor.fact("signs"):
            return OLD_SIGNS
        if trellis is not None and (trellis.shape[2] % TILE or not 0 < trellis.shape[2] <= 128):
            return f"tiles of {trellis.shape[2]} words are no whole number of bits a weight"
        return None


def _multiplier(index: TensorIndex, module: str, codebook: str) -> int:
    """The stored multiplier, or the codebook's own."""
    stored = index.get(module, codebook)
    if stored is not None and stored.dtype in ("I32", "U32"):
        data = index.small(stored)
        if len(data) == 4:
            return int(struct.unpack("<I", data)[0])
    return MULTIPLIERS[codebook]


@cache
def _places() -> Array:
    """Position in the stream of element (row of K, column of N) of a tile, int64 [16, 16]."""
    lane, step = np.arange(32)[:, None], np.arange(8)[None, :]
    row = 2 * (lane % 4) + np.array([0, 1, 8, 9])[step % 4]
    column = lane // 4 + 8 * (step // 4)
    places = np.empty((TILE, TILE), np.int64)
    places[row, column] = 8 * lane + step
    return places


def _rotate(values: Array) -> Array:
    """Multiply axis 1 of [blocks, 128, columns] by the Hadamard matrix over sqrt(128), in place.

    Sums and differences in one fixed order, so that a weight has the same bits in every window.
    """
    blocks, _, columns = values.shape
    stride = 1
    while stride < BLOCK:
        pairs = values.reshape(blocks, BLOCK // (2 * stride), 2, stride, columns)
        upper, lower = pairs[:, :, 0], pairs[:, :, 1]
        total = upper + lower
        np.subtract(upper, lower, out=lower)
        upper[...] = total
        stride *= 2
    values *= np.float32(1 / np.sqrt(BLOCK))
    return values


@cache
def _table(codebook: str, multiplier: int) -> Array:
    """Value of each 16-bit state, float32 [65536]."""
    product = np.arange(1 << 16, dtype=np.uint64) * np.uint64(multiplier)
    if codebook == "mul1":
        raw = product.astype(np.uint32)
        total = raw.view(np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.uint16)
        half = (total + np.uint16(0x6400)).view(np.float16).astype(np.float32)
        step, bias = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16).astype(np.float32)
        scaled: Array = half * step + bias
        return scaled
    if codebook == "3inst":
        product = product + np.uint64(64248484)
    raw = (product.astype(np.uint32) & np.uint32(0x8FFF8FFF)) ^ np.uint32(0x3B603B60)
    halves = raw.view(np.float16).reshape(-1, 2).astype(np.float32)
    summed: Array = halves[:, 0] + halves[:, 1]
    return summed


def _inner(tensor: LogicalTensor, k_blocks: range, n_blocks: range, reader: PlaneReader) -> Array:
    """Values of whole blocks in the rotated basis, float32 [K', N']."""
    trellis = tensor.plane("codes")
    assert trellis is not None
    per_block = BLOCK // TILE
    bits, n_tiles = trellis.shape[2] // TILE, trellis.shape[1]
    first, last = n_blocks.start * per_block, n_blocks.stop * per_block
    table = _table(tensor.fact("codebook"), int(tensor.fact("multiplier")))
    places = _places()
    out = np.empty((len(k_blocks) * BLOCK, (last - first) * TILE), np.float32)
    for number, tile_row in enumerate(range(k_blocks.start * per_block, k_blocks.stop * per_block)):
        words = reader.read(trellis, range(tile_row * n_tiles + first, tile_row * n_tiles + last))
        values = table[trellis_states(words, bits)][:, places]
        target = out[number * TILE : (number + 1) * TILE]
        target[...] = values.transpose(1, 0, 2).reshape(TILE, -1)
    return out
