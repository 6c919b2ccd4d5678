"""Memory for the carry-outs of tiles, their partial rows, and the launches that add them."""

import functools
import itertools
from typing import NamedTuple

import cupy
import numpy as np

from ...array_modules import Array
from . import launch, tuning
from .direct import DirectKernel
from .macros import partial_rows_macros

#: Arrays begin at multiples of this many bytes.
_ALIGNMENT = 16


class Carries(NamedTuple):
    """Partial rows, and the rows of the result to which they belong.

    Attributes
    ----------
    memory : array
        Holds all of them.
    levels : list of (int, int, int)
        First of the tiles, then of segments of tiles, then of segments of these, down to one: their
        number, and the addresses of their rows, int64 (n,), and of their partial rows (n, R).
    """

    memory: Array
    levels: list[tuple[int, int, int]]


def allocate_carries(
    num_tiles: int, num_columns: int, dtype: np.dtype, carry_rows: Array | None = None
) -> Carries:
    """Allocate memory for the partial rows of tiles; for their rows too if `carry_rows` is None."""
    levels, nbytes = _lay_out(num_tiles, num_columns, dtype.itemsize, tuning.SEGMENT)
    memory = cupy.empty(nbytes, np.int8)
    start = memory.data.ptr
    placed = [(count, start + rows, start + sums) for count, rows, sums in levels]
    if carry_rows is not None:
        placed[0] = (num_tiles, carry_rows.data.ptr, placed[0][2])
    return Carries(memory, placed)


def count_carries_nbytes(num_tiles: int, num_columns: int, itemsize: int) -> int:
    """Count the bytes that `allocate_carries` allocates."""
    return _lay_out(num_tiles, num_columns, itemsize, tuning.SEGMENT)[1]


@functools.lru_cache(maxsize=1024)
def _lay_out(
    num_tiles: int, num_columns: int, itemsize: int, segment: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Return the levels, with offsets for addresses, and the bytes of all."""
    counts = [num_tiles]
    while counts[-1] > 1:
        counts.append(-(-counts[-1] // segment))
    levels, nbytes = [], 0
    for count in counts:
        sums = nbytes + _round_up(8 * count)
        levels.append((count, nbytes, sums))
        nbytes = sums + _round_up(count * num_columns * itemsize)
    return levels, nbytes


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def add_carries(carries: Carries, out: Array) -> None:
    """Add the partial rows of all tiles to `out`; very long rows take several launches."""
    kernel = _get_kernel(out.dtype, tuning.SEGMENT, out.data.device_id)
    num_columns = out.shape[1]
    num_parts, block_size = -(-num_columns // 32), 32 * min(32, tuning.SEGMENT)
    for (count, rows, sums), segments in itertools.pairwise(carries.levels):
        arguments = (count, rows, num_columns, sums, out.data.ptr, *segments[1:])
        kernel((segments[0], num_parts), block_size, *arguments)


@functools.cache
def _get_kernel(dtype: np.dtype, segment: int, device_id: int) -> DirectKernel:
    """Return the specialisation for the current device, `device_id`."""
    macros = partial_rows_macros(dtype, segment)
    kernel = launch.get_kernel("partial_rows.cu", "add_partial_rows", **macros)
    return DirectKernel(kernel, "qQi4Q")
