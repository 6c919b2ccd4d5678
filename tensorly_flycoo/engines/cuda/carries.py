"""Carry-outs: partial rows of tiles that continue an earlier row, added in a fixed order."""

import functools
import itertools
from typing import Any, NamedTuple

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...format.packing import round_up
from ..row_blocks import Rows, list_blocks
from . import launch, tuning
from .structs import make_row_blocks

#: Arrays begin at multiples of this many bytes.
_ALIGNMENT = 16

#: Warps of a block: with more, registers would spill.
_MAX_WARPS = 16


class Level(NamedTuple):
    """The partial rows of all tiles, or of segments of tiles, or of segments of these.

    A launch adds them, a segment in each block, which leaves one partial row for the next level.
    """

    size: int  # how many partial rows there are
    rows: int  # offset in memory of int64 (size,): the rows of the result to which they belong
    sums: int  # offset in memory of the partial rows (size, R)
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
    tiles = levels[0]
    rows = memory.ptr + tiles.rows if carry_rows is None else carry_rows.data.ptr
    return Carries(memory, rows, memory.ptr + tiles.sums, levels)


@functools.lru_cache(maxsize=1024)
def _lay_out(
    num_tiles: int, num_columns: int, itemsize: int, segment: int
) -> tuple[list[Level], int]:
    """Lay out all levels in one piece of memory; return them, and its bytes."""
    levels = []
    nbytes = 0
    size = num_tiles
    num_warps = _count_warps(segment)
    while True:
        rows = nbytes
        sums = rows + round_up(8 * size, _ALIGNMENT)
        # All warps of the last block have tiles, even if there are few.
        run = min(segment, round_up(size, num_warps)) // num_warps
        levels.append(Level(size=size, rows=rows, sums=sums, run=run))
        nbytes = sums + round_up(size * num_columns * itemsize, _ALIGNMENT)
        if size <= 1:
            return levels, nbytes
        size = -(-size // (run * num_warps))


def _count_warps(segment: int) -> int:
    """Return the warps of a block that adds segments; no more than a segment has partial rows."""
    return min(_MAX_WARPS, segment)


def add_carries(carries: Carries, out: Rows) -> None:
    """Add the partial rows of all tiles to `out`; very long rows take several launches."""
    num_warps = _count_warps(tuning.SEGMENT)
    num_columns = out.shape[1]
    memory = carries.memory
    blocks = list_blocks(out)
    row_blocks = make_row_blocks(blocks)
    kernel = launch.get_direct_kernel(
        "partial_rows.cu",
        "add_partial_rows",
        # The arguments' types, as of `struct`: from `size` to the structure `out`, and the rest.
        f"qiQiQ{len(row_blocks)}s2Q",
        memory.device_id,  # this GPU; another one may have lent `out`
        VALUE=out.dtype,
        NUM_WARPS=num_warps,
        OUT_BLOCKS=len(blocks),
    )
    rows = carries.rows
    sums = carries.sums
    for level, segments in itertools.pairwise(carries.levels):
        segment_rows = memory.ptr + segments.rows
        segment_sums = memory.ptr + segments.sums
        kernel(
            (segments.size, -(-num_columns // 32)),
            32 * num_warps,
            level.size,
            level.run,
            rows,
            num_columns,
            sums,
            row_blocks,
            segment_rows,
            segment_sums,
        )
        # The rows that segments continue from earlier ones are left to the next launch.
        rows = segment_rows
        sums = segment_sums
