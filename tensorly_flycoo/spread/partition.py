"""Cut a tensor along its longest mode into slabs with about equally many nonzeros.

Everything here depends on the nonzeros and on the number of slabs only, so that results do not
depend on what holds the slabs.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..base.array_modules import Array, array_module
from ..format.groups import find_longest_mode

#: The fewest nonzeros that are counted at a time.
_COUNT_BLOCK = 2**24


def find_slab_shape(shape: Sequence[int], num_rows: int) -> tuple[int, ...]:
    """Return the shape of a slab with `num_rows` rows of the longest mode.

    >>> find_slab_shape((3, 7, 7), 2)
    (3, 2, 7)
    """
    mode = find_longest_mode(shape)
    return (*shape[:mode], num_rows, *shape[mode + 1 :])


def count_rows(rows: Array, size: int) -> Array:
    """Count the nonzeros of each row from 0 to size - 1, in blocks; int64 (size,)."""
    xp = array_module(rows)
    counts = xp.zeros(size, np.int64)
    # Each block costs a pass over the counts.
    block_size = max(_COUNT_BLOCK, 4 * size)
    for start in range(0, rows.shape[0], block_size):
        block = rows[start : start + block_size].astype(np.int64, copy=False)
        counts += xp.bincount(block, minlength=size)
    return counts


def find_edges(counts: Array, num_slabs: int) -> tuple[int, ...]:
    """Find the rows (num_slabs + 1,) at which slabs begin and end, from the rows' nonzeros.

    Each edge is the row before which the number of nonzeros is nearest to its share. Rows are not
    split. Empty rows belong to the slab of the next row with nonzeros; those at the end to the last
    slab that has rows. Equal neighbours enclose a slab without rows: there are some if rows or
    nonzeros are fewer than slabs, or if a row has more nonzeros than a slab should.

    >>> find_edges(np.array([2, 1, 0, 1, 2, 0]), 3)
    (0, 1, 4, 6)
    >>> find_edges(np.array([0, 3, 0, 1, 0]), 3)
    (0, 0, 2, 5)
    """
    xp, size = array_module(counts), counts.shape[0]
    # before[r]: nonzeros in rows below r.
    before = xp.zeros(size + 1, np.int64)
    before[1:] = xp.cumsum(counts)
    nnz = int(before[-1])
    if nnz == 0:
        return (0,) * num_slabs + (size,)
    shares = xp.asarray([slab * nnz // num_slabs for slab in range(num_slabs)], np.int64)
    above = xp.searchsorted(before, shares)  # the first row that has the share before it
    more, less = before[above], before[xp.maximum(above - 1, 0)]
    nearest = xp.where(more - shares < shares - less, more, less)
    edges = [int(edge) for edge in xp.searchsorted(before, nearest)]
    # No slab begins after the last nonzero.
    last = int(xp.searchsorted(before, nnz))
    return (*(edge if edge < last else size for edge in edges), size)


def list_rows(edges: Sequence[int]) -> list[range]:
    """List the rows of each slab that has some."""
    return [range(start, stop) for start, stop in pairwise(edges) if start < stop]
