"""Load balance: the paper's Algorithm 1 against tiles of equal size."""

import numpy as np

#: From this number on, rows of one size are assigned together.
_FEW_ROWS = 32


def largest_partition(sizes, num_rows, num_partitions):
    """Return the nonzeros of the fullest partition of Algorithm 1, exactly.

    It is `reference.partition_mode` without the assignment itself: rows in descending order of
    their nonzeros, each to the emptiest partition.

    Parameters
    ----------
    sizes : int array (n,)
        Distinct numbers of nonzeros in a row, ascending.
    num_rows : int array (n,)
        Number of rows of each size.
    num_partitions : int
    """
    loads = np.zeros(num_partitions, np.int64)
    pairs = zip(sizes[::-1].tolist(), num_rows[::-1].tolist(), strict=True)
    for size, count in pairs:
        if count < _FEW_ROWS:
            for _ in range(count):
                loads[loads.argmin()] += size
        elif size > 0:
            _give_equal_rows(loads, size, count)
    return int(loads.max())


def _give_equal_rows(loads, size, count):
    """Give `count` rows of one size to the emptiest partitions, as if one by one.

    The emptiest partition gets the next row. So every partition below some level gets rows until
    it reaches that level, and some partitions at the level get one more.
    """

    def rows_below(level):
        return np.maximum(0, -((loads - level) // size))

    low, high = int(loads.min()), int(loads.min()) + size * count + 1
    while high - low > 1:  # rows_below(low) are few enough, rows_below(high) too many
        middle = (low + high) // 2
        if rows_below(middle).sum() <= count:
            low = middle
        else:
            high = middle
    given = rows_below(low)
    loads += size * given
    at_level = np.flatnonzero(loads == low)
    loads[at_level[: count - given.sum()]] += size


def largest_share_of_tiles(nnz, tile_size, num_workers):
    """Return the nonzeros of the busiest worker when tiles are dealt out evenly."""
    num_tiles = -(-nnz // tile_size)
    return min(nnz, tile_size * -(-num_tiles // num_workers))
