"""Scales laid over a weight as a grid: one a tensor, a row, a run of a row or a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from quantscope.decode.parts import Array, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.small_floats import float_table
from quantscope.errors import UndecodableError
from quantscope.families.base import ceil_div, element_span
from quantscope.model import BitSpan, GroupLevel, Plane

GROUP_SIZES = (16, 32, 64, 128, 256, 512, 1024)
BLOCKS = ((128, 128), (64, 64), (32, 32), (256, 256), (1, 128), (128, 1))


class GridWindow(msgspec.Struct, frozen=True):
    """The part of a grid that a window uses."""

    values: Array
    """float32 [rows or 1, groups]."""
    group_of_column: Array
    """integer [columns], index into the groups."""


def grid_shape(plane: Plane) -> tuple[int, ...]:
    """The plane's shape as a grid: [R, 1, C, 1] of ModelOpt's blocks is [R, C], trailing axes of one go."""
    shape = plane.shape
    if len(shape) == 4 and shape[1] == shape[3] == 1:
        return shape[0], shape[2]
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def flat_grid(plane: Plane) -> Plane:
    """The plane under `grid_shape`."""
    shape = grid_shape(plane)
    return plane if shape == plane.shape else msgspec.structs.replace(plane, shape=shape)


def run_sizes(extent: int, n_groups: int, declared: Iterable[int] = ()) -> list[int]:
    """Sizes g with ceil(extent/g) = n_groups, likely ones only, the likeliest first.

    A declared size comes first where it fits; then an exact quotient of a usual size, then usual sizes
    that leave a short last group; another quotient only where none of these fits.
    """
    if n_groups <= 0 or extent <= 0:
        return []
    sizes = [size for size in declared if size > 0 and ceil_div(extent, size) == n_groups]
    exact = extent // n_groups if extent % n_groups == 0 else 0
    if exact in GROUP_SIZES:
        sizes.append(exact)
    sizes += [size for size in GROUP_SIZES if ceil_div(extent, size) == n_groups]
    if not sizes and ceil_div(extent, ceil_div(extent, n_groups)) == n_groups:
        sizes = [exact or ceil_div(extent, n_groups)]
    elif exact and exact not in sizes and exact % 16 == 0:
        sizes.append(exact)
    return list(dict.fromkeys(sizes))


def row_counts(scales: Plane, zeros: Plane | None) -> list[int]:
    """Numbers of groups that a [G, N] scale plane and its zero plane have: one where they fit together."""
    planes = [plane for plane in (scales, zeros) if plane is not None and len(plane.shape) == 2]
    return list(dict.fromkeys(plane.shape[0] for plane in planes)) or [1]


def in_levels(n_in: int, n_groups: int, declared: Iterable[int] = ()) -> list[GroupLevel]:
    """Levels along the input axis for G scales a row; one group is a whole row unless declared otherwise."""
    if n_groups == 1:
        runs = [size for size in declared if size >= n_in]
        return [
            GroupLevel(axis="channel"),
            *(GroupLevel(axis="in", size=size) for size in dict.fromkeys(runs)),
        ]
    return [GroupLevel(axis="in", size=size) for size in run_sizes(n_in, n_groups, declared)]


def block_levels(
    shape: tuple[int, int], grid: tuple[int, int], declared: Iterable[tuple[int, int]] = ()
) -> list[GroupLevel]:
    """Levels of blocks [r, c] with a ceil-sized grid; an odd quotient only where no usual block fits."""
    blocks = [
        block
        for block in dict.fromkeys((*declared, *BLOCKS))
        if min(block) > 0
        and (ceil_div(shape[0], block[0]), ceil_div(shape[1], block[1])) == tuple(grid)
    ]
    if not blocks and min(grid) > 0 and min(shape) > 0:
        odd = (ceil_div(shape[0], grid[0]), ceil_div(shape[1], grid[1]))
        if (ceil_div(shape[0], odd[0]), ceil_div(shape[1], odd[1])) == tuple(grid):
            blocks = [odd]
    return [GroupLevel(axis="block", size=block) for block in blocks]


def levels_of(
    shape: tuple[int, int],
    grid: tuple[int, ...],
    *,
    sizes: Sequence[int] = (),
    blocks: Sequence[tuple[int, int]] = (),
) -> list[GroupLevel]:
    """Every level that a scale plane of shape `grid` can have over a weight [N, K], likely ones first."""
    n_out, n_in = shape
    if grid in ((), (1,), (1, 1)):
        levels = [GroupLevel(axis="tensor")]
        if n_out == 1:
            levels.append(GroupLevel(axis="channel"))
        if len(grid) == 2:
            levels += block_levels(shape, (1, 1), blocks)
        return levels
    if len(grid) == 1:
        return [GroupLevel(axis="channel")] if grid[0] == n_out else []
    if len(grid) != 2:
        return []
    levels = []
    if grid[0] == n_out:
        levels += in_levels(n_in, grid[1], sizes)
    if grid[0] < n_out:
        levels += block_levels(shape, (grid[0], grid[1]), blocks)
    return levels


def expected_grid(
    level: GroupLevel, shape: tuple[int, int]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], str]:
    """Shape that a level demands of its scale plane, shapes that mean the same, and the demand in symbols."""
    n_out, n_in = shape
    if level.axis == "tensor":
        return (), ((1,), (1, 1)), "[1]"
    if level.axis == "channel":
        return (n_out, 1), ((n_out,), (n_out, 1, 1)), "[N, 1]"
    if isinstance(level.size, tuple):
        rows, cols = (ceil_div(n_out, level.size[0]), ceil_div(n_in, level.size[1]))
        return (rows, cols), ((rows, 1, cols, 1),), "[ceil(N/r), ceil(K/c)]"
    groups = ceil_div(n_in, level.size or n_in or 1)
    return (n_out, groups), ((n_out, groups, 1),), "[N, ceil(K/g)]"


def substituted_grid(level: GroupLevel, shape: tuple[int, int]) -> str:
    """The numbers of `expected_grid` before they are divided."""
    n_out, n_in = shape
    if level.axis == "tensor":
        return "[1]"
    if level.axis == "channel":
        return f"[{n_out}, 1]"
    if isinstance(level.size, tuple):
        return f"[ceil({n_out}/{level.size[0]}), ceil({n_in}/{level.size[1]})]"
    return f"[{n_out}, ceil({n_in}/{level.size})]"


def read_grid(
    plane: Plane,
    level: GroupLevel,
    window: Window,
    reader: PlaneReader,
    table: str = "",
) -> GridWindow:
    """Scales of a window.

    Args:
        plane: the scale plane.
        level: what one scale covers.
        window: rows and columns of the weight.
        reader: bounded reads.
        table: name of the number type that stored bytes stand for; the plane's own dtype by default.

    Raises:
        UndecodableError: the level has no grid.
        WindowError: the plane is too small for the window.
    """
    plane = flat_grid(plane)
    rows, cols = window.rows, window.cols
    nothing = np.zeros(len(cols), dtype=np.int64)
    if level.axis == "tensor":
        return GridWindow(_floats(reader, plane, range(1), range(1), table), nothing)
    if level.axis == "channel":
        if len(plane.shape) == 1:
            return GridWindow(_floats(reader, plane, range(1), rows, table).T, nothing)
        return GridWindow(_floats(reader, plane, rows, range(1), table), nothing)
    if level.axis == "in" and isinstance(level.size, int):
        groups, first = _runs(cols, level.size)
        used = range(first, first + int(groups[-1]) + 1 if groups.size else first)
        return GridWindow(_floats(reader, plane, rows, used, table), groups)
    if level.axis == "block" and isinstance(level.size, tuple):
        blocks, first_row = _runs(rows, level.size[0])
        groups, first = _runs(cols, level.size[1])
        if not blocks.size or not groups.size:
            return GridWindow(np.zeros((len(rows), 1), dtype=np.float32), nothing)
        tile = _floats(
            reader,
            plane,
            range(first_row, first_row + int(blocks[-1]) + 1),
            range(first, first + int(groups[-1]) + 1),
            table,
        )
        return GridWindow(tile[blocks], groups)
    raise UndecodableError(f"scales over axis {level.axis} form no grid")


def grid_span(plane: Plane, level: GroupLevel, row: int, col: int) -> tuple[BitSpan, ...]:
    """Where the scale of an element lies."""
    return (element_span(plane, grid_element(plane, level, row, col)),)


def grid_element(plane: Plane, level: GroupLevel, row: int, col: int) -> int:
    """Flat number of the scale of an element in its plane."""
    shape = grid_shape(plane)
    width = shape[-1] if shape else 1
    if level.axis == "tensor":
        return 0
    if level.axis == "channel":
        return row
    if isinstance(level.size, tuple):
        return row // level.size[0] * width + col // level.size[1]
    return row * width + col // (level.size or 1)


def group_number(level: GroupLevel, col: int) -> int:
    """Which group of its row a column is in."""
    if isinstance(level.size, tuple):
        return col // level.size[1]
    return col // level.size if level.size else 0


def _runs(wanted: range, size: int) -> tuple[Array, int]:
    first = wanted.start // size
    return np.arange(wanted.start, wanted.stop) // size - first, first


def _floats(reader: PlaneReader, plane: Plane, rows: range, cols: range, table: str) -> Array:
    if not table:
        return reader.floats(plane, rows, cols)
    values: Array = float_table(table)[reader.read(plane, rows, cols)]
    return values
