"""How even the load is: the paper's Algorithm 1 against tiles of equal size."""

import numpy as np

#: From this many rows of one size on they are given away all at once.
_FEW_ROWS = 32


def largest_partition(sizes, num_rows, num_partitions):
    """Return the nonzeros of the fullest partition of Algorithm 1, exactly.

    It is `reference.partition_mode` without saying which row goes where: rows come by falling
    number of nonzeros, each to the emptiest partition.

    Parameters
    ----------
    sizes : int array (n,)
        Different numbers of nonzeros of a row, rising.
    num_rows : int array (n,)
        How many rows have each of them.
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
    """Give `count` rows of one size to the emptiest partitions, as if one after the other.

    A partition is given a row whenever it is the emptiest. So there is a level such that each was
    given one at every load below it, and some of those at the level one more.
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
    """Return the most nonzeros of one worker, where tiles are dealt out evenly."""
    num_tiles = -(-nnz // tile_size)
    return min(nnz, tile_size * -(-num_tiles // num_workers))
