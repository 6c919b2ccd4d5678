"""MTTKRP block by block of a factor that does not fit a core's cache.

The nonzeros of a row ascend in one other mode. A segment is those of one row and one tile in a
block of that mode's indices. The segments of a window of places are computed block by block, so a
block of the factor stays in the cache; between its segments the sum of a row waits in memory. Its
products are added in the order of places, as by `mttkrp_tiles`: results are equal to the bit.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy import ndarray as Array

from ...format.layout import Layout
from ...format.primitives import Step, index_dtype
from . import mttkrp
from .compiling import kernel
from .mttkrp import add_product, add_to_tail, begin_sums, begin_tail, store_row, store_tail
from .records import Storage, Tiles, clear_empty_rows, prefetch_record, read_row, read_rows

#: The smallest L2 cache for which blocks, which fill half of it, are worth it. Measured on factors
#: of 4 MB: 1.2 to 2 times faster on a Xeon with 2 MB, slower on an EPYC with 1 MB and a faster L3.
_LEAST_CACHE_NBYTES = 2**21

#: The fewest nonzeros of a row in a block, and for each row of the factor, on average.
_LEAST_NONZEROS = 16

#: The fewest nonzeros of a tensor: smaller ones, which Python slows down, are not looked at.
LEAST_NNZ = 2**17

#: The most nonzeros of a window: the more, the more often a block is read while it is cached.
_WINDOW_SIZE = 2**18


class Segments(NamedTuple):
    """Segments in the order in which they are computed."""

    places: Array  # (n, 2): where each begins and ends
    starts: Array  # (num_windows + 1,): the first segment of each window
    window_tiles: int


def find_segments(layout: Layout, step: Step, mode: int, factors: Any) -> Segments | None:
    """Return the segments of `mode` if they are worth it for these factors of the other modes."""
    if step.pull_ids is not None or not factors:
        return None
    factor = factors[max(mode - 1, 0)]  # of the mode in which a row's nonzeros ascend
    cache_nbytes = _count_cache_nbytes()
    if not factor.nbytes > cache_nbytes >= _LEAST_CACHE_NBYTES:
        return None
    row_nbytes = factor.shape[1] * factor.itemsize
    most_rows = max(1, cache_nbytes // (2 * row_nbytes))  # of the factor, in half of the cache
    bits = most_rows.bit_length() - 1
    num_sums = layout.count_nonempty_rows(mode) * ((len(factor) >> bits) + 1)
    if layout.nnz < _LEAST_NONZEROS * max(num_sums, len(factor)):
        return None
    key = ("segments", mode, bits)
    if key not in layout.prepared:
        layout.prepared[key] = _list_segments(layout, step.records, mode, np.uint32(bits))
    return layout.prepared[key]


def _list_segments(layout: Layout, records: Array, mode: int, bits: np.uint32) -> Segments:
    """List segments in blocks of ``2**bits`` indices of records in the order of places."""
    nnz = len(records)
    tile_size = layout.tile_size
    num_threads = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    share_tiles = -(-nnz // (num_threads * tile_size))  # of a thread
    window_tiles = min(_WINDOW_SIZE // tile_size, share_tiles)
    # Within a row, order 0 is sorted by mode 1; others by the mode before.
    ascending_mode = mode - 1 if mode else 1
    rows = layout.merged.rows(records, mode)
    blocks = layout.merged.rows(records, ascending_mode)
    blocks >>= bits
    is_first = np.ones(nnz, bool)
    is_first[1:] = (rows[1:] != rows[:-1]) | (blocks[1:] != blocks[:-1])
    is_first[::tile_size] = True
    firsts = np.flatnonzero(is_first)
    ends = np.append(firsts[1:], nnz)
    places = np.stack([firsts, ends], axis=1).astype(index_dtype(nnz))
    windows = firsts // (window_tiles * tile_size)
    starts = np.searchsorted(windows, np.arange(windows[-1] + 2))
    block_by_block = np.lexsort((blocks[firsts], windows))  # in each window
    return Segments(places[block_by_block], starts, window_tiles)


@functools.cache
def _count_cache_nbytes() -> int:
    """Return the bytes of a core's L2 cache; 0 if Linux does not say."""
    file = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    if not file.exists():
        return 0
    kilobytes = file.read_text().strip().removesuffix("K")
    return 1024 * int(kilobytes)


@kernel
def mttkrp_segments(
    first_window: int,
    last_window: int,
    segments: Segments,
    tiles: Tiles,
    storage: Storage,
    operands: mttkrp.Operands,
) -> None:
    """Compute the MTTKRP of windows `first_window` to `last_window` - 1."""
    places, starts, window_tiles = segments
    records, values, value_slot, _, _, _, _ = storage
    fields, factors, out_field, out, partial_rows, lanes, tail_lanes, _ = operands
    tile_size = np.uint64(tiles.size)
    one = values.dtype.type(1)
    total = mttkrp.new_row_of_zeros(one, lanes)
    tail = mttkrp.new_row_of_zeros(one, tail_lanes)
    num_steps = out.shape[1] // len(lanes)
    for window in range(first_window, last_window):
        for step in range(num_steps):
            column = np.uint64(step * len(lanes))
            has_tail = step == num_steps - 1
            for s in range(np.uint64(starts[window]), np.uint64(starts[window + 1])):
                first = np.uint64(places[s, 0])
                last = np.uint64(places[s, 1])
                # Prefetch the segment after the next one, place by place. If it is shorter than
                # this one, the records behind it are prefetched too, which does no harm.
                later = places[min(s + np.uint64(2), np.uint64(len(places) - 1)), 0]
                ahead = np.uint64(later) - first
                tile = first // tile_size
                row = read_row(records, first, out_field)
                target = out
                target_row = row
                if np.int64(row) == tiles.carry_rows[tile]:  # inherited from the tile before
                    target = partial_rows
                    target_row = tile
                # Go on with the sums if an earlier segment of this tile began the row.
                before = first - np.uint64(1)
                goes_on = first % tile_size > 0 and read_row(records, before, out_field) == row
                begin_sums(total, goes_on, one, target, target_row, column, lanes)
                begin_tail(tail, has_tail, goes_on, one, target, target_row, tail_lanes)
                for place in range(first, last):
                    prefetch_record(records, place + ahead)
                    indices = read_rows(records, place, fields)
                    value = values[place, value_slot]
                    add_product(total, value, factors, indices, column, lanes)
                    add_to_tail(tail, has_tail, value, factors, indices, out.shape[1], tail_lanes)
                store_row(total, target, target_row, column, lanes)
                store_tail(tail, has_tail, target, target_row, tail_lanes)
        first_tile = window * window_tiles
        for t in range(first_tile, min(first_tile + window_tiles, tiles.carry_rows.shape[0])):
            clear_empty_rows(tiles, t, out)
