"""Carry-outs: partial rows of tiles that continue an earlier row, added in a fixed order."""

import functools
import itertools
from typing import Any, NamedTuple

import cupy
import numpy as np

from ...base.array_modules import Array
from . import launch, tuning

#: Arrays begin at multiples of this many bytes.
_ALIGNMENT = 16

#: Warps of a block: with more, registers would spill.
_MAX_WARPS = 16


class Level(NamedTuple):
    """Tiles, or segments of tiles, or segments of these, and which of them a launch adds to one."""

    size: int
    rows: int  # address of int64 (size,): the rows that they inherit
    sums: int  # address of their partial rows (size, R); in `_lay_out` both are offsets
    run: int  # how many a warp adds


class Carries(NamedTuple):
    """Partial rows, and the rows of the result to which they belong."""

    memory: Any  # a MemoryPointer; holds all of them
    levels: list[Level]  # from the tiles to a single segment


def allocate_carries(
    num_tiles: int, num_columns: int, dtype: np.dtype, carry_rows: Array | None = None
) -> Carries:
    """Allocate memory for the partial rows of tiles; for their rows too if `carry_rows` is None."""
    levels, nbytes = _lay_out(num_tiles, num_columns, dtype.itemsize, tuning.SEGMENT)
    memory = cupy.cuda.alloc(nbytes)
    start = memory.ptr
    placed = [Level(count, start + rows, start + sums, run) for count, rows, sums, run in levels]
    if carry_rows is not None:
        placed[0] = placed[0]._replace(rows=carry_rows.data.ptr)
    return Carries(memory, placed)


@functools.lru_cache(maxsize=1024)
def _lay_out(
    num_tiles: int, num_columns: int, itemsize: int, segment: int
) -> tuple[list[Level], int]:
    """Return the levels, with offsets for addresses, and the bytes of all."""
    levels, nbytes, count, num_warps = [], 0, num_tiles, _count_warps(segment)
    while True:
        sums = nbytes + _round_up(8 * count)
        # All warps of the last block have tiles, even if there are few.
        run = min(segment, -(-count // num_warps) * num_warps) // num_warps
        levels.append(Level(count, nbytes, sums, run))
        nbytes = sums + _round_up(count * num_columns * itemsize)
        if count <= 1:
            return levels, nbytes
        count = -(-count // (run * num_warps))


def _count_warps(segment: int) -> int:
    return min(_MAX_WARPS, segment)


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def add_carries(carries: Carries, out: Array) -> None:
    """Add the partial rows of all tiles to `out`; very long rows take several launches."""
    num_warps, num_columns, address = _count_warps(tuning.SEGMENT), out.shape[1], out.data.ptr
    macros = {"VALUE": out.dtype, "NUM_WARPS": num_warps}
    kernel = launch.get_direct_kernel(
        "partial_rows.cu", "add_partial_rows", "qiQi4Q", out.data.device_id, **macros
    )
    for (count, rows, sums, run), segments in itertools.pairwise(carries.levels):
        arguments = (count, run, rows, num_columns, sums, address, segments.rows, segments.sums)
        kernel((segments.size, -(-num_columns // 32)), 32 * num_warps, *arguments)
