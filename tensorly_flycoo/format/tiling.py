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


def count_tiling_nbytes(nnz, shape, tile_size):
    """Count the bytes of the tilings of all modes: with the fewest and the most empty rows."""
    carries = 8 * len(shape) * -(-nnz // tile_size)
    least = [max(0, size - nnz) * index_dtype(size).itemsize for size in shape]
    most = [(size - min(1, nnz)) * index_dtype(size).itemsize for size in shape]
    return carries + sum(least), carries + sum(most)


def tile_rows(records, record_format, mode, tile_size, primitives):
    """Describe the tiles of `records`, which are sorted by their row of `mode`."""
    xp = primitives.xp
    firsts = xp.arange(0, records.shape[0], tile_size)
    first_rows = record_format.rows(records[firsts], mode, xp).astype(np.int64)
    rows_before = record_format.rows(records[firsts - 1], mode, xp).astype(np.int64)
    carry_rows = xp.where(first_rows == rows_before, first_rows, NO_ROW)
    carry_rows[:1] = NO_ROW
    return RowTiling(carry_rows, primitives.find_empty_rows(records, record_format, mode))
