"""Cut a row-sorted order into tiles of equal nnz, and say what happens at their edges.

A tile is `tile_size` consecutive places of the order, whatever rows they belong to, so a hub row or
a mode of size 2 loads all workers alike. A tile stores the rows that begin in it. What it adds to
the row that it inherits from the tile before is a partial row, added afterwards in the order of the
tiles; so no sum depends on which worker came first.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .primitives import index_dtype

#: Stands in `carry_rows` for a tile that inherits no row.
NO_ROW = -1


@dataclass(frozen=True)
class RowTiling:
    """Describe the tiles of one mode's order.

    Attributes
    ----------
    carry_rows : int64 array (num_tiles,)
        For each tile the row that it inherits, or `NO_ROW`.
    empty_rows : unsigned integer array
        The rows without a nonzero, which must come out as zeros.
    """

    carry_rows: Any
    empty_rows: Any

    @property
    def nbytes(self):
        """Bytes of the arrays."""
        return self.carry_rows.nbytes + self.empty_rows.nbytes


def count_tiling_nbytes(nnz, record_format, tile_size):
    """Count the bytes of the tilings of all modes.

    Returns
    -------
    least, most : int
        With the fewest and the most empty rows; `most` also with what `tile_rows` takes for a
        while: the records at the edges of tiles, and five times their numbers or rows.
    """
    shape, num_tiles = record_format.shape, -(-nnz // tile_size)
    carries, edges = 8 * len(shape) * num_tiles, (record_format.record_nbytes + 40) * num_tiles
    least = [max(0, size - nnz) * index_dtype(size).itemsize for size in shape]
    most = [(size - min(1, nnz)) * index_dtype(size).itemsize for size in shape]
    return carries + sum(least), carries + edges + sum(most)


def tile_rows(records, places, record_format, mode, tile_size, primitives, empty_rows=None):
    """Describe the tiles of `records` in the order `places`, sorted by their row of `mode`.

    Where `places` is None, that is the order they lie in. `empty_rows` are searched for unless they
    are known, as from `Primitives.sort_by_row`.
    """
    xp = primitives.xp

    def read_rows(numbers):
        chosen = numbers if places is None else places[numbers]
        return record_format.rows(records[chosen], mode, xp).astype(np.int64)

    firsts = xp.arange(0, records.shape[0], tile_size)
    first_rows = read_rows(firsts)
    carry_rows = xp.where(first_rows == read_rows(firsts - 1), first_rows, NO_ROW)
    carry_rows[:1] = NO_ROW
    if empty_rows is None:
        empty_rows = primitives.find_empty_rows(records, record_format, mode)
    return RowTiling(carry_rows, empty_rows)
