"""QQQ (W4A8): 4-bit codes in the tile order of its kernel, with scales a group and a channel.

With groups the code becomes an int8 value first, round((code - 8) * s_group) clamped to -128..127, which the
channel's scale multiplies. Per channel the nibble is signed and the stored scale belongs to 16 times the code.
Source: ModelCloud/GPTQModel, gptqmodel/nn_modules/qlinear/qqq.py (pack, _get_perms).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import ClassVar

import numpy as np
from quantscope.decode import bits
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.roundings import round_to
from quantscope.families.base import FamilyBase, ceil_div, demand, element_span
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
    Plane,
    Reading,
    ScaleLevel,
)

from quantscope_plugins.families import scale_grid
from quantscope_plugins.families.marlin_tile import RUN, RUN_COLUMNS, TILE, scale_places

FORMAT_KEYS = ("quant_method", "method", "checkpoint_format", "format")
WORDS_OF_RUN = RUN // 8


class Qqq(FamilyBase):
    """B, s_channel and s_group."""

    name: ClassVar[str] = "qqq"
    title: ClassVar[str] = "QQQ (int4 in kernel tiles, two scales)"

    def signature(self) -> Signature:
        """`s_channel`."""
        return Signature(last_parts=("s_channel", "s_group"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with B and s_channel."""
        for module in dict.fromkeys(
            index.modules_with("s_channel") + index.modules_with("s_group")
        ):
            words, channel = index.get(module, "B"), index.get(module, "s_channel")
            if words is None or channel is None:
                missing = tuple(s for s, t in (("B", words), ("s_channel", channel)) if t is None)
                for suffix in ("B", "s_channel", "s_group"):
                    stored = index.get(module, suffix)
                    if stored is not None:
                        yield Orphan(
                            stored_name=stored.name,
                            module=module,
                            family=self.name,
                            missing=missing,
                        )
                continue
            if words.dtype not in ("I32", "U32") or len(words.shape) != 2:
                continue
            planes = (
                index.plane("codes", module, "B"),
                index.plane("scale", module, "s_group"),
                index.plane("scale2", module, "s_channel"),
                index.plane("bias", module, "bias"),
                index.plane("companion", module, "workspace"),
            )
            yield LogicalTensor(
                name=f"{module}.weight" if module else "weight",
                module=module,
                family=self.name,
                word="qqq",
                shape=(words.shape[1] // 2, words.shape[0] * TILE),
                planes=tuple(plane for plane in planes if plane is not None),
                certainty=3,
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """bits, group_size, sym and the format word of GPTQModel's configs."""
        for section in declared.sections:
            words = {str(section.get(key)).lower() for key in FORMAT_KEYS}
            if "qqq" not in words:
                continue
            size = section.get("group_size")
            grouped = isinstance(size, int) and size > 0
            if section.get("bits") == 4:
                yield section.claim("element", "u4" if grouped else "s4", "bits")
            if isinstance(size, int) and not isinstance(size, bool):
                level = {"axis": "in", "size": size} if size > 0 else {"axis": "channel"}
                yield section.claim("group", level, "group_size")
            if isinstance(section.get("sym"), bool):
                yield section.claim("symmetric", section.get("sym"), "sym")
            for key in ("checkpoint_format", "format"):
                if str(section.get(key)).lower() == "qqq":
                    yield section.claim("placement", "qqq", key, basis="by_definition")
                    zero = "fixed" if grouped else "none"
                    yield section.claim("zero", zero, key, basis="by_definition")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Group sizes that s_group allows; per channel where it is empty."""
        n_out, n_in = tensor.shape
        group = tensor.plane("scale")
        if group is None or not all(group.shape):
            yield _reading((n_out, n_in), GroupLevel(axis="channel"))
            return
        rows = group.shape[0] if len(group.shape) == 2 else 1
        for size in scale_grid.run_sizes(n_in, rows, (128,)):
            yield _reading((n_out, n_in), GroupLevel(axis="in", size=size))

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """B in tiles, one channel scale a column, one group scale a run."""
        n_out, n_in = reading.shape
        grouped = reading.group[0].axis == "in"
        equations = [
            demand(
                tensor.plane("codes"),
                "B",
                "I32 [K/16, 2*N]",
                (ceil_div(n_in, TILE), ceil_div(n_out, RUN_COLUMNS) * WORDS_OF_RUN),
                dtypes=("I32", "U32"),
                substituted=f"[{n_in}/16, 2*{n_out}]",
            ),
            demand(
                tensor.plane("scale2"),
                "s_channel",
                "F32 [1, N]",
                (1, n_out),
                dtypes=("F32", "BF16", "F16"),
            ),
        ]
        if grouped:
            equations.append(
                demand(
                    tensor.plane("scale"),
                    "s_group",
                    "F16 [K/g, N]",
                    (ceil_div(n_in, reading.group_size), n_out),
                    dtypes=("F16", "BF16"),
                    substituted=f"[{n_in}/{reading.group_size}, {n_out}]",
                )
            )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window out of their tiles, group scales, and channel scales in `extra`."""
        words, group, channel = (tensor.plane(r) for r in ("codes", "scale", "scale2"))
        assert words is not None
        assert channel is not None
        grouped = reading.group[0].axis == "in"
        codes = _codes(words, window, grouped, reader)
        per_channel = _scales(channel, range(1), window.rows, grouped=False, reader=reader)
        if not grouped or group is None:
            return Parts(codes=codes, combine="affine", scale=(per_channel * np.float32(16),))
        size = reading.group_size
        first = window.cols.start // size
        used = range(first, max(first, ceil_div(window.cols.stop, size)))
        return Parts(
            codes=codes,
            combine="vector",
            scale=(_scales(group, used, window.rows, grouped=True, reader=reader), per_channel),
            zero=np.full((1, 1), 8, np.int16),
            group_of_column=np.arange(window.cols.start, window.cols.stop) // size - first,
        )

    def combine(self, parts: Parts, reading: Reading, as_producer: bool) -> Array:
        """round((code - 8) * s_group) clamped to int8, times s_channel; GPTQModel's loader casts scales to bf16."""
        if parts.combine != "vector":
            return super().combine(parts, reading, as_producer)
        value = parts.codes.astype(np.float32) - np.float32(8)
        group, channel = parts.scale
        if as_producer:
            group, channel = round_to(group, "bf16"), round_to(channel, "bf16")
        value *= parts.per_element(group)
        np.rint(value, out=value)
        np.clip(value, -128, 127, out=value)
        weights: Array = value * channel
        return weights

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The nibble in its tile, and both scales in their permuted places."""
        words, group, channel = (tensor.plane(r) for r in ("codes", "scale", "scale2"))
        assert words is not None
        grouped = reading.group[0].axis == "in"
        run, column = divmod(row, RUN_COLUMNS)
        tile, within = divmod(column, TILE)
        place = int(code_places(grouped)[tile * 256 + col % TILE * TILE + within])
        word = col // TILE * words.shape[1] + run * WORDS_OF_RUN + place // 8
        number = col // reading.group_size if grouped else 0
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if group is not None and grouped:
            at = number * reading.shape[0] + _scale_place(row, grouped=True)
            per_plane["scale"] = (element_span(group, at),)
        if channel is not None:
            role = "scale2" if grouped else "scale"
            per_plane[role] = (element_span(channel, _scale_place(row, grouped=False)),)
        return Cell(
            row=row,
            col=col,
            group=number,
            bits=(element_span(words, word, place % 8 * 4, 4),),
            per_plane=per_plane,
        )


@cache
def code_places(grouped: bool) -> Array:
    """Stored position of code number tile * 256 + row * 16 + column of a run of 16 rows by 64 columns."""
    lane = np.arange(32)[:, None, None, None]
    tile = np.arange(4)[None, :, None, None]
    half = np.arange(2)[None, None, :, None]
    step = np.arange(4)[None, None, None, :]
    source = 256 * tile + 16 * (4 * (lane % 4) + step) + lane // 4 + 8 * half
    order = [0, 2, 4, 6, 1, 3, 5, 7] if grouped else [4, 0, 5, 1, 6, 2, 7, 3]
    place = np.empty(RUN, dtype=np.int64)
    place[source.reshape(-1, 8)[:, order].ravel()] = np.arange(RUN)
    return place


def _codes(plane: Plane, window: Window, grouped: bool, reader: PlaneReader) -> Array:
    """Codes [rows, columns] of a window: whole runs of 64 output columns are read."""
    rows, cols = window.rows, window.cols
    if not len(rows) or not len(cols):
        return np.zeros(window.shape, np.uint8)
    first_run, last_run = rows.start // RUN_COLUMNS, ceil_div(rows.stop, RUN_COLUMNS)
    first_tile, last_tile = cols.start // TILE, ceil_div(cols.stop, TILE)
    words = reader.read(
        plane,
        range(first_tile, last_tile),
        range(first_run * WORDS_OF_RUN, last_run * WORDS_OF_RUN),
    )
    stored = bits.unpack_words(words, 4).reshape(last_tile - first_tile, -1, RUN)
    natural = stored[:, :, code_places(grouped)].reshape(*stored.shape[:2], 4, TILE, TILE)
    matrix = natural.transpose(1, 2, 4, 0, 3).reshape(
        (last_run - first_run) * RUN_COLUMNS, (last_tile - first_tile) * TILE
    )
    skip_row, skip_col = rows.start - first_run * RUN_COLUMNS, cols.start - first_tile * TILE
    cut = matrix[skip_row : skip_row + len(rows), skip_col : skip_col + len(cols)]
    return cut if grouped else bits.sign_extend(np.ascontiguousarray(cut), 4)


def _scale_place(row: int, *, grouped: bool) -> int:
    places = scale_places(grouped)
    return row // len(places) * len(places) + int(places[row % len(places)])


def _scales(plane: Plane, used: range, rows: range, *, grouped: bool, reader: PlaneReader) -> Array:
    """Scales [rows, groups], put back in the order of output columns."""
    places = scale_places(grouped)
    run = len(places)
    first, last = rows.start // run, ceil_div(rows.stop, run)
    stored = reader.floats(plane, used, range(first * run, last * run))
    natural = stored.reshape(len(used), last - first, run)[:, :, places].reshape(len(used), -1)
    skip = rows.start - first * run
    return natural[:, skip : skip + len(rows)].T


def _reading(shape: tuple[int, int], level: GroupLevel) -> Reading:
    grouped = level.axis == "in"
    channel = ScaleLevel(dtype="f32", name="s_channel", per="channel")
    return Reading(
        element="u4" if grouped else "s4",
        bit_width=4,
        shape=shape,
        group=(level,),
        scale=(ScaleLevel(dtype="f16*f32", name="s_group"), channel) if grouped else (channel,),
        zero="fixed" if grouped else "none",
        midpoint=8 if grouped else 0,
        packing=Packing(word="I32", axis="none", order="tile"),
        placement="qqq",
        symmetric=True,
        arithmetic=Arithmetic(
            scale_cast="bf16" if grouped else "",
            rule="clamp(round((code - 8) * s_group), -128, 127) * s_channel"
            if grouped
            else "code * 16 * s_channel",
        ),
    )
