"""Block scales in the tile order of cuBLAS and CUTLASS: 128 rows by 4 groups a tile of 512 bytes.

Element (r, c) of the padded matrix lies in tile (r div 128, c div 4), tiles row by row, at
(r mod 32) * 16 + (r mod 128 div 32) * 4 + c mod 4. Source: comfy-kitchen, comfy_kitchen/float_utils.py.
"""

from __future__ import annotations

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import ceil_div
from quantscope.model import Plane

TILE_ROWS = 128
TILE_COLUMNS = 4
TILE = TILE_ROWS * TILE_COLUMNS


def padded(rows: int, groups: int) -> tuple[int, int]:
    """Shape of the padded scale matrix."""
    return (
        ceil_div(rows, TILE_ROWS) * TILE_ROWS,
        ceil_div(groups, TILE_COLUMNS) * TILE_COLUMNS,
    )


def place(row: int, group: int, groups: int) -> int:
    """Flat number of scale (row, group) in a matrix of that many groups a row before padding."""
    tile = row // TILE_ROWS * ceil_div(groups, TILE_COLUMNS) + group // TILE_COLUMNS
    inside = row % 32 * 16 + row % TILE_ROWS // 32 * 4 + group % TILE_COLUMNS
    return tile * TILE + inside


def places(rows: Array, used: Array, groups: int) -> Array:
    """`place` of every pair of rows and groups, int64 [rows, groups]."""
    row, group = rows[:, None], used[None, :]
    tile = row // TILE_ROWS * ceil_div(groups, TILE_COLUMNS) + group // TILE_COLUMNS
    inside = row % 32 * 16 + row % TILE_ROWS // 32 * 4 + group % TILE_COLUMNS
    result: Array = tile * TILE + inside
    return result


def read(plane: Plane, rows: range, used: range, groups: int, reader: PlaneReader) -> Array:
    """Stored bytes of the scales of some rows and groups, [rows, groups]; reads whole rows of tiles."""
    width = ceil_div(groups, TILE_COLUMNS) * TILE
    first = rows.start // TILE_ROWS
    last = ceil_div(rows.stop, TILE_ROWS)
    base = plane.byte_offset + first * width
    data = reader.read_bytes(plane.role, plane.file_id, base, (last - first) * width)
    stored = np.frombuffer(data, dtype=np.uint8)
    wanted = places(np.arange(rows.start, rows.stop), np.arange(used.start, used.stop), groups)
    values: Array = stored[wanted - first * width]
    return values


def real(numbers: Array, rows: int, groups: int) -> Array:
    """Which flat numbers of a padded matrix are scales of the unpadded one, boolean of the same shape."""
    width = ceil_div(groups, TILE_COLUMNS)
    tile, inside = numbers // TILE, numbers % TILE
    row = tile // width * TILE_ROWS + inside % 16 // 4 * 32 + inside // 16
    group = tile % width * TILE_COLUMNS + inside % 4
    result: Array = (row < rows) & (group < groups)
    return result
