"""Bounds on the rounding errors of each engine and layout, from its order of additions.

The CPU engine adds the terms of a tile one after the other, and then the tiles' sums. A group of
threads of a GPU adds a run of a tile; the sums of the runs follow, then those of the tiles, by
segments, in which each warp has a run. Slabs are added along a tree. A group of modes adds the
terms of each of its rows so, and then its rows. Narrow rows change no bit, so no order.
"""

import math

import numpy as np
import reference
import reference_ratios

from tensorly_flycoo.engines.cuda import tuning

#: Steps that add the carries of all tiles: with the smallest segment, of 2, those of 2**31.
_MOST_STEPS = 31


def list_pieces(x):
    """List the layouts of the slabs of a tensor, or the one of a tensor in one piece."""
    return [slab.layout for slab in x._layout.slabs] if x.slabs > 1 else [x._layout]


def bound_mttkrp(x, coords, values, factors, mode):
    """Bound the errors of an MTTKRP of `x`, whose nonzeros are given; see `reference`."""
    return reference.mttkrp_error_bound(
        *(coords, values, tuple(map(len, factors)), factors, mode, x.dtype),
        additions=count_additions(x, coords, mode, factors[0].shape[1]),
        flush_to_zero=x.device == "cuda",
    )


def bound_ttmc(x, coords, values, shape, factors, mode):
    """Bound the errors of a TTMc of `x`, whose nonzeros are given; `shape` may lack empty rows."""
    ranks = [factor.shape[1] for n, factor in enumerate(factors) if n != mode]
    widths = _list_ttmc_widths(x, math.prod(ranks))
    return reference.ttmc_error_bound(
        *(coords, values, shape, factors, mode, x.dtype),
        additions=_count_for_pieces(x, coords, shape, mode, widths),
        flush_to_zero=x.device == "cuda",
    )


def bound_ratios(x, coords, values, factors, mode, smallest):
    """Bound the errors of an MTTKRP of ratios of `x` and of its sum of logarithms."""
    return reference_ratios.ratios_error_bound(
        *(coords, values, x.shape, factors, mode, smallest, x.dtype),
        additions=count_additions(x, coords, mode, factors[0].shape[1]),
    )


def count_additions(x, coords, mode, rank):
    """Count the additions of the MTTKRP of a tensor with the nonzeros `coords`: (I_mode,) ints."""
    return _count_for_pieces(x, coords, x.shape, mode, _list_widths(x, rank))


def _list_widths(x, rank):
    """List the widths of the parts of a piece's row."""
    tile_size = list_pieces(x)[0].tile_size
    if x.device == "cpu":
        return (tile_size,)
    block_size = tuning.choose_block_size(tile_size)
    num_groups = block_size // tuning.cut_rank(rank, x.dtype.itemsize, 16, 16).group_size
    return (tile_size // num_groups, num_groups, *_list_segments())


def _list_ttmc_widths(x, num_columns):
    """List the widths of the parts of a piece's row; on a GPU the sum of each run is a carry."""
    tile_size = list_pieces(x)[0].tile_size
    if x.device == "cpu":
        return (tile_size,)
    group_size = tuning.cut_columns(num_columns, x.ndim - 1).group_size
    run = tile_size * group_size // tuning.choose_block_size(tile_size)
    return (run, *_list_segments())


def _list_segments():
    """List the widths of the steps that add the carries of tiles on a GPU."""
    num_warps = min(16, tuning.SEGMENT)
    return (max(1, tuning.SEGMENT // num_warps), num_warps) * _MOST_STEPS


def _count_for_pieces(x, coords, shape, mode, widths):
    """Count the additions of a piece, as if it had all nonzeros; and those of pieces' results."""
    group = next(group for group in x.groups if mode in group)
    row_nnz = np.bincount(coords[mode], minlength=shape[mode])
    additions = reference.count_additions(row_nnz, widths)
    if len(group) > 1:
        additions = _count_in_group(coords, mode, group, shape, widths)
    of_duplicates = 0
    if x.nnz < coords.shape[1]:  # they are added first
        _, repeats = np.unique(coords, axis=1, return_counts=True)
        of_duplicates = repeats.max(initial=1) - 1
    of_pieces = (len(list_pieces(x)) - 1).bit_length()
    return additions + of_duplicates + of_pieces


def _count_in_group(coords, mode, group, shape, widths):
    """Count the additions of a row of a group, and then those of the group's rows in each index."""
    rows, group_nnz = np.unique(coords[list(group)], axis=1, return_counts=True)
    indices = rows[list(group).index(mode)]
    longest = np.zeros(shape[mode], np.int64)
    np.maximum.at(longest, indices, reference.count_additions(group_nnz, widths))
    return longest + np.bincount(indices, minlength=shape[mode])
