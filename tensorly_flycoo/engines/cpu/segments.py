"""MTTKRP by segments: places of one row in one tile, whose ends are found beforehand.

A loop over a segment compares no rows, and prefetches the records of a later segment.

The nonzeros of a row ascend in one other mode. Where the factor of that mode does not fit a core's
cache, segments also end at the edges of blocks of its rows, and those of a window of places are
computed block by block, so a block stays in the cache. Meanwhile sums of rows wait in memory. A
row's products are added in the order of its places, as by `mttkrp_tiles`: results are equal to the bit.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from ...format.layout import Layout
from ...format.primitives import Step, index_dtype
from . import mttkrp
from .compiling import kernel
from .mttkrp import add_multiple, add_product, advance, fill_row, point_at_row, store_row
from .records import Storage, Tiles, clear_empty_rows, prefetch_record, read_row, read_rows

#: The fewest nonzeros of a row, or of a row in a block, for which segments are worth it.
_LEAST_NONZEROS = 32

#: The smallest L2 cache with blocks, which fill half of it. Measured with factors of 4 MB: 1.7
#: times faster on a Xeon with 2 MB, 5 % slower on an EPYC with 1 MB, whose L3 is fast.
_LEAST_CACHE_NBYTES = 2**21

#: Nonzeros of a window of blocks: the more, the more often a block is read while it is cached. And
#: the fewest windows, lest threads have nothing to do.
_WINDOW_SIZE, _LEAST_WINDOWS = 2**18, 32


class Segments(NamedTuple):
    """Segments in the order in which they are computed."""

    places: Array  # (n, 2): where each begins and ends
    starts: Array  # (num_windows + 1,): the first segment of each window
    window_tiles: int
    num_ahead: int  # how many segments ahead records are prefetched


def find_segments(layout: Layout, step: Step, mode: int, factors: Any) -> Segments | None:
    """Return the segments of a mode for the factors of the other modes.

    They are found once for a layout. None if rows are too short, or records not in place order.
    """
    num_rows = max(1, layout.count_nonempty_rows(mode))
    most_blocks = layout.nnz // (_LEAST_NONZEROS * num_rows)
    if step.pull_ids is not None or layout.merged.ndim < 2 or most_blocks < 1:
        return None
    factor, cache_nbytes, block_bits = factors[max(mode - 1, 0)], _count_cache_nbytes(), 32
    if factor.nbytes > cache_nbytes >= _LEAST_CACHE_NBYTES:
        bits = (cache_nbytes // (2 * factor.shape[1] * factor.itemsize)).bit_length() - 1
        block_bits = bits if 0 < len(factor) >> max(bits, 0) < most_blocks else 32
    key = ("segments", mode, block_bits)
    if key not in layout.prepared:
        layout.prepared[key] = _list_segments(layout, step.records, mode, block_bits)
    return layout.prepared[key]


def _list_segments(layout: Layout, records: Array, mode: int, block_bits: int) -> Segments:
    """List segments of records in place order, by blocks of ``2**block_bits`` indices."""
    nnz, tile_size, window_size = len(records), layout.tile_size, layout.tile_size
    if block_bits < 32:
        most = min(_WINDOW_SIZE, nnz // _LEAST_WINDOWS)
        window_size *= max(1, most // tile_size)
    # Order 0 is sorted by mode 1 within a row, the others by the mode before.
    rows, blocks = (layout.merged.rows(records, n) for n in (mode, mode - 1 if mode else 1))
    blocks >>= np.uint32(block_bits)
    is_first = np.ones(nnz, bool)
    is_first[1:] = (rows[1:] != rows[:-1]) | (blocks[1:] != blocks[:-1])
    is_first[::tile_size] = True
    firsts = np.flatnonzero(is_first)
    places = np.stack([firsts, np.append(firsts[1:], nnz)], axis=1).astype(index_dtype(nnz))
    windows = firsts // window_size
    starts = np.searchsorted(windows, np.arange(windows[-1] + 2))
    order = np.lexsort((blocks[firsts], windows))
    num_ahead = 2 if block_bits < 32 else 0
    return Segments(places[order], starts, window_size // tile_size, num_ahead)


@functools.cache
def _count_cache_nbytes() -> int:
    """Return the bytes of a core's L2 cache; 0 if Linux does not say."""
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text()
    except OSError:
        return 0
    return 1024 * int(size.strip().removesuffix("K"))


@kernel
def mttkrp_segments(
    first_window: int, last_window: int, segments: Segments, tiles: Tiles, storage: Storage,
    operands: mttkrp.Operands,
) -> None:  # fmt: skip
    """Compute some windows of MTTKRP."""
    places, starts, window_tiles, num_ahead = segments
    records, values, value_slot, _, _, _, _ = storage
    fields, factors, out_field, out, partial_rows, lanes = operands
    tile_size, one = np.uint64(tiles.size), values.dtype.type(1)
    total = mttkrp.new_row_of_zeros(one, lanes)
    for window in range(first_window, last_window):
        for r in range(0, out.shape[1], len(lanes)):
            # The last columns may overlap those before; both begin their sums anew.
            column = np.uint64(min(r, out.shape[1] - len(lanes)))
            for s in range(np.uint64(starts[window]), np.uint64(starts[window + 1])):
                first, last = np.uint64(places[s, 0]), np.uint64(places[s, 1])
                # That segment may be shorter: to prefetch what follows it does no harm.
                later = places[min(s + np.uint64(num_ahead), np.uint64(len(places) - 1)), 0]
                ahead = np.uint64(later) - first
                tile, row = first // tile_size, read_row(records, first, out_field)
                before = first - np.uint64(1)
                goes_on = first % tile_size > 0 and read_row(records, before, out_field) == row
                target, target_row = out, row
                if np.int64(row) == tiles.carry_rows[tile]:
                    target, target_row = partial_rows, tile
                fill_row(total, -0.0 if goes_on else 0.0, lanes)
                if goes_on:  # -0.0 changes nothing that is added to it
                    sums = advance(point_at_row(target, target_row), column)
                    add_multiple(total, one, sums, lanes)
                for place in range(first, last):
                    prefetch_record(records, place + ahead)
                    indices = read_rows(records, place, fields)
                    add_product(total, values[place, value_slot], factors, indices, column, lanes)
                store_row(total, target, target_row, column, lanes)
        first_tile = window * window_tiles
        for t in range(first_tile, min(first_tile + window_tiles, tiles.carry_rows.shape[0])):
            clear_empty_rows(tiles, t, out)
