"""Cut a row-sorted order into tiles of equal nnz, and find the rows that cross their edges.

A tile is `tile_size` consecutive places of the order, whichever rows they belong to, so a hub row
or a mode of size 2 loads all workers equally. A tile stores the rows that begin in it. Its sum for
the row that it inherits from the previous tile is a partial row (a carry-out), added afterwards in
the order of the tiles, so no sum depends on timing.
"""

import math
from dataclasses import dataclass

from ..base.array_modules import Array
from .packing import Cut, RecordFormat
from .primitives import Primitives, index_dtype


@dataclass(frozen=True)
class RowTiling:
    """The tiles of one mode's order."""

    carry_rows: Array  # int64 (num_tiles,): the row that each tile inherits, or -1 (`NO_ROW`)
    empty_rows: Array  # those without a nonzero, whose results are zeros

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.carry_rows.nbytes + self.empty_rows.nbytes


def tile_rows(
    records: Array,
    places: Array | None,
    cut: Cut,
    mode: int,
    primitives: Primitives,
    empty_rows: Array | None = None,
) -> RowTiling:
    """Find the tiles of `records` in the order `places`, sorted by their row of `mode`.

    If `places` is None, the records are in that order. `empty_rows`, which `Primitives.sort_by_row`
    may have returned, are found here if None.
    """
    record_format, tile_size = cut.record_format, cut.tile_size
    carry_rows = primitives.find_carry_rows(records, record_format, mode, places, tile_size)
    if empty_rows is None:
        empty_rows = primitives.find_empty_rows(records, record_format, mode)
    return RowTiling(carry_rows, empty_rows)


def count_tiling_nbytes(nnz: int, record_format: RecordFormat, tile_size: int) -> tuple[int, int]:
    """Count the bytes of the tilings of all groups, with the fewest and the most empty rows.

    Rows that stand for no indices are always empty. The most includes the temporary arrays of
    `tile_rows`: the records at the edges of tiles, and five arrays of their numbers or rows.
    """
    shape, num_tiles = record_format.merged.shape, -(-nnz // tile_size)
    used = [math.prod(record_format.shape[n] for n in group) for group in record_format.groups]
    carries, edges = 8 * len(shape) * num_tiles, (record_format.record_nbytes + 40) * num_tiles
    pairs = zip(shape, used, strict=True)
    least = [(size - min(n, nnz)) * index_dtype(size).itemsize for size, n in pairs]
    most = [(size - min(1, nnz)) * index_dtype(size).itemsize for size in shape]
    return carries + sum(least), carries + edges + sum(most)
