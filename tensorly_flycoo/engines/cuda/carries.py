"""Carry-outs: partial rows of tiles that continue an earlier row, added in a fixed order."""

import functools
import itertools
from typing import Any, NamedTuple

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...format.packing import round_up
from . import launch, tuning

#: Arrays begin at multiples of this many bytes.
_ALIGNMENT = 16

#: Warps of a block: with more, registers would spill.
_MAX_WARPS = 16


class Level(NamedTuple):
    """Tiles, or segments of tiles, or segments of these, and which of them a launch adds to one."""

    size: int
    rows: int  # offset of int64 (size,): the rows that they inherit
    sums: int  # offset of their partial rows (size, R)
    run: int  # how many a warp adds


class Carries(NamedTuple):
    """Partial rows, and the rows of the result to which they belong."""

    memory: Any  # a MemoryPointer; holds all of them
    rows: int  # address of the tiles' rows
    sums: int  # address of the tiles' partial rows
    levels: list[Level]  # from the tiles to a single segment


def allocate_carries(
    num_tiles: int, num_columns: int, dtype: np.dtype, carry_rows: Array | None = None
) -> Carries:
    """Allocate memory for the partial rows of tiles; for their rows too if `carry_rows` is None."""
    levels, nbytes = _lay_out(num_tiles, num_columns, dtype.itemsize, tuning.SEGMENT)
    memory = cupy.cuda.alloc(nbytes)
    start, (_, rows, sums, _) = memory.ptr, levels[0]
    first = start + rows if carry_rows is None else carry_rows.data.ptr
    return Carries(memory, first, start + sums, levels)


@functools.lru_cache(maxsize=1024)
def _lay_out(
    num_tiles: int, num_columns: int, itemsize: int, segment: int
) -> tuple[list[Level], int]:
    """Return the levels, and the bytes of all."""
    levels = []
    nbytes = 0
    count = num_tiles
    num_warps = _count_warps(segment)
    while True:
        sums = nbytes + round_up(8 * count, _ALIGNMENT)
        # All warps of the last block have tiles, even if there are few.
        run = min(segment, -(-count // num_warps) * num_warps) // num_warps
        levels.append(Level(count, nbytes, sums, run))
        nbytes = sums + round_up(count * num_columns * itemsize, _ALIGNMENT)
        if count <= 1:
            return levels, nbytes
        count = -(-count // (run * num_warps))


def _count_warps(segment: int) -> int:
    return min(_MAX_WARPS, segment)


def add_carries(carries: Carries, out: Array) -> None:
    """Add the partial rows of all tiles to `out`; very long rows take several launches."""
    num_warps = _count_warps(tuning.SEGMENT)
    num_columns = out.shape[1]
    address = out.data.ptr
    memory, rows, sums, levels = carries  # on this GPU: another one may have lent `out`
    macros = {"VALUE": out.dtype, "NUM_WARPS": num_warps}
    gpu = memory.device_id
    kernel = launch.get_direct_kernel(
        "partial_rows.cu", "add_partial_rows", "qiQi4Q", gpu, **macros
    )
    for (count, _, _, run), segments in itertools.pairwise(levels):
        added = memory.ptr + segments.rows, memory.ptr + segments.sums
        grid = (segments.size, -(-num_columns // 32))
        kernel(grid, 32 * num_warps, count, run, rows, num_columns, sums, address, *added)
        rows, sums = added
