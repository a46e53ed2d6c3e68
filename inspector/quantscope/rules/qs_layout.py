"""QS01x: how scales lie in their plane and which 8-bit float the codes are of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from quantscope.decode.parts import Array
from quantscope.model import Plane, Reading
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts
from quantscope.session.inspection import TensorState

TILE_ROWS, TILE_COLS = 128, 4
TILE_GAP = 0.15
"""How much more of the variance of log scales row and column means must explain in tiled order."""


def untile(scales: Array) -> Array:
    """Scales in cuBLAS 128x4 tile order put into rows and columns.

    Args:
        scales: [N, G] with N a multiple of 128 and G of 4, holding tiles in row-major tile order.

    Source: comfy-kitchen, comfy_kitchen/float_utils.py: inside a tile offset =
    (r mod 32) * 16 + (r div 32) * 4 + c.
    """
    rows, cols = scales.shape
    tiles = scales.reshape(rows // TILE_ROWS, cols // TILE_COLS, 32, 4, TILE_COLS)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(rows, cols)


def coherence(scales: Array) -> float:
    """Share of the variance of log scales that row and column means explain, corrected for their number."""
    rows, cols = scales.shape
    logs = np.log2(np.maximum(np.abs(scales), 1e-30))
    total = float(((logs - logs.mean()) ** 2).sum())
    if total <= 0 or rows < 8 or cols < 4:
        return 0.0
    fitted = logs.mean(axis=1, keepdims=True) + logs.mean(axis=0, keepdims=True) - logs.mean()
    left = float(((logs - fitted) ** 2).sum())
    freedom = (rows - 1) * (cols - 1)
    return float(1.0 - (left / freedom) / (total / (rows * cols - 1)))


class ScaleTiled(Rule):
    """A scale plane lies in kernel tiles although nothing says so."""

    code = "QS014"
    name = "scale-tiled"
    kind = "SCALE-LAYOUT"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Scale planes of block formats whose shape fits both orders: whether rows and columns explain their "
        "values better in 128x4 tile order than in plain order.",
        why="A tiled plane read in plain order pairs every block with another block's scale: fluent garbage.",
        evidence="A variance statistic on the whole plane under both orders.",
        proves_not="Without structure between rows nothing decides; the plane stays open.",
        sample="nvfp4-scale-tiled",
        reports=("vllm#50084", "ao#4477"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Two-dimensional block scales of full tiles."""
        for state in facts.states:
            plane = state.tensor.plane("scale")
            reading = state.reading or state.solved.chosen
            if plane is not None and reading is not None and self._padded(facts, state, reading):
                yield self._padded_hit(facts, state, plane, reading)
                continue
            if (
                plane is None
                or reading is None
                or len(plane.shape) != 2
                or plane.spans[0].count > 1
            ):
                continue
            if reading.placement != "linear" or reading.element not in (
                "e2m1",
                "fp4",
                "e4m3fn",
                "e4m3",
            ):
                continue
            rows, cols = plane.shape
            if rows % TILE_ROWS or cols % TILE_COLS or cols < 2 * TILE_COLS:
                continue
            values = self._values(facts, plane)
            if values is None or not np.isfinite(values).all():
                continue
            plain, tiled = coherence(values), coherence(untile(values))
            if tiled - plain < TILE_GAP:
                continue
            yield self.hit(
                facts.of_tensor(state, plane, "placement"),
                f"scale order does not follow rows and columns in plain order (explains {plain:.0%}); "
                f"128x4 tiles fit ({tiled:.0%})",
                fold="tiled",
                many="the scale order of {count} planes does not follow rows and columns; 128x4 tiles fit",
                impact="every block is scaled by another block's scale",
                try_="write the scales in plain order, or declare the tiles",
                confidence="strong",
                data={"plain": round(plain, 4), "tiled": round(tiled, 4)},
                would_settle="the unquantized weights of one row",
            )

    @staticmethod
    def _padded(facts: Facts, state: TensorState, reading: Reading) -> bool:
        """Whether a scale plane fits tiles only, under a method whose planes are linear."""
        linear = facts.methods & {"modelopt", "modelopt_fp4", "compressed-tensors", "quark"}
        return bool(
            linear
            and state.solved.solutions
            and reading.placement != "linear"
            and not state.contract["placement"].declared
        )

    def _padded_hit(self, facts: Facts, state: TensorState, plane: Plane, reading: Reading) -> Hit:
        return self.hit(
            facts.of_tensor(state, plane, "placement"),
            f"{plane.suffix} {list(plane.shape)} fits padded tiles ({reading.placement}), the method's planes are linear",
            fold="padded",
            many="{count} scale planes fit padded tiles, the method's planes are linear",
            impact="readers of linear planes refuse the scales or pair blocks with other blocks' scales",
            try_="write the scales in plain order",
            data={"shape": list(plane.shape), "placement": reading.placement},
        )

    @staticmethod
    def _values(facts: Facts, plane: Plane) -> Array | None:
        if facts.reader is None or plane.nbytes > 1 << 24:
            return None
        from quantscope.errors import QuantscopeError

        try:
            return facts.reader.floats(plane).astype(np.float64)
        except QuantscopeError:
            return None


class FloatVariant(Rule):
    """Bytes that mean different things in the variants of 8-bit floats."""

    code = "QS015"
    name = "float8-variant"
    kind = "FP8-VARIANT"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="NaN bytes among FP8 codes, and bytes 0x80 that are -0 in one variant and NaN in the other.",
        why="fn and fnuz differ by a factor of two and in what they call NaN; nothing but the dtype tag tells them apart.",
        evidence="Counts over the code bytes that were read.",
        proves_not="That the tag is wrong: -0 occurs in sound fn planes and is then a note.",
        sample="fp8-nan-codes",
        reports=("vllm#7210", "sglang#28455", "uccl#804", "triton#10745"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """FP8 code planes."""
        told = facts.declares
        for state in facts.states:
            windows, codes = state.exam.windows, state.tensor.plane("codes")
            if windows is None or codes is None or not codes.dtype.startswith("F8_E"):
                continue
            bad = _NOT_FINITE.get(codes.dtype, ("80",))
            nan = sum(windows.odd_bytes.get(byte, 0) for byte in bad)
            minus = 0 if "80" in bad else windows.odd_bytes.get("80", 0)
            places = [windows.odd_at[b] for b in (bad if nan else ("80",)) if b in windows.odd_at]
            subject = facts.of_tensor(state, codes, "element")
            if places:
                first = min(places)
                subject = msgspec.structs.replace(subject, byte_range=(first, first + 1))
            data: dict[str, Any] = {
                "nan": nan,
                "minus_zero": minus,
                "bytes": windows.bytes_examined,
            }
            if nan:
                yield self.hit(
                    subject,
                    f"{nan} of {windows.bytes_examined} codes are NaN in {codes.dtype}",
                    fold="nan",
                    many=f"{{nan}} codes of {{count}} tensors are NaN in {codes.dtype}",
                    impact="the weights concerned are NaN, unless the bytes are of another variant",
                    try_="check that the dtype tag is that of the writer",
                    data=data,
                )
            elif minus and codes.dtype == "F8_E4M3":
                yield self.hit(
                    subject,
                    f"byte 0x80 occurs {minus} times: -0 in fn, NaN in fnuz",
                    fold="minus",
                    many="byte 0x80 occurs {minus_zero} times in {count} tensors: -0 in fn, NaN in fnuz",
                    impact="none for readers of fn",
                    try_="",
                    who="reader",
                    severity="note" if told else None,
                    data=data,
                )


_NOT_FINITE = {
    "F8_E4M3": ("7f", "ff"),
    "F8_E5M2": ("7c", "7d", "7e", "7f", "fc", "fd", "fe", "ff"),
}
"""Code bytes that are NaN or infinite, by dtype; only 0x80 in the fnuz variants."""


RULES = (ScaleTiled, FloatVariant)
