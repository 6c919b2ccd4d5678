"""The operations on arrays from which singular vectors of unfoldings are computed."""

from abc import ABC, abstractmethod
from types import ModuleType

import numpy as np

from ..base.array_modules import Array
from .packing import RecordFormat


class UnfoldingPrimitives(ABC):
    """Splitting an unfolding, and sums and vectors by row, with an array module's functions."""

    xp: ModuleType

    @abstractmethod
    def gather(self, records: Array, places: Array) -> Array:
        """Copy the records in the order of `places`."""

    def split_columns(
        self, records: Array, record_format: RecordFormat, mode: int, places: Array | None
    ) -> tuple[Array, Array, Array]:
        """Split records, in the order of `places` (None: as they are), into three arrays.

        Records that differ only in `mode` must be adjacent. Returns `is_new` (nnz + 1,): whether a
        record differs from the one before it in a mode other than `mode`, where the first and the
        last item are true; the coordinates of `mode` (nnz,); and the values (nnz,) in float64.
        """
        records = records if places is None else self.gather(records, places)
        is_new = self.xp.zeros(records.shape[0] + 1, bool)
        is_new[0] = is_new[-1] = True
        for n in range(record_format.ndim):
            if n != mode:
                rows = record_format.rows(records, n, self.xp)
                is_new[1:-1] |= rows[1:] != rows[:-1]
        rows = record_format.rows(records, mode, self.xp)
        return is_new, rows, record_format.values(records).astype(np.float64)

    def sum_single_squares(
        self, is_first: Array, rows: Array, values: Array, num_rows: int, scale: float
    ) -> Array:
        """Sum the squares of values alone in their column, by sign and row: float64 (2, num_rows).

        `is_first`, `rows` and `values` are as from `split_columns`. Values are divided by `scale`,
        a power of two that makes the sum of all squares at most 1.
        """
        is_single, xp = is_first[:-1] & is_first[1:], self.xp
        sums = xp.empty((2, num_rows))
        for target, has_sign in zip(sums, (values > 0, values < 0), strict=True):
            has_sign &= is_single
            squares = (values[has_sign] / scale) ** 2
            target[...] = xp.bincount(rows[has_sign], weights=squares, minlength=num_rows)
        return sums

    def list_shared(
        self, is_first: Array, rows: Array, values: Array, num_rows: int, scale: float
    ) -> tuple[Array, Array, Array]:
        """List the nonzeros that share their column, and the rows with any of them, ascending.

        Takes what `sum_single_squares` does. Returns these rows (size,); coords (2, n), the column
        and the row of each nonzero as numbers among shared columns and among these rows; and the
        values (n,) divided by `scale`.
        """
        xp = self.xp
        shared = xp.flatnonzero(~(is_first[:-1] & is_first[1:]))
        is_coupled = xp.zeros(num_rows, bool)
        is_coupled[rows[shared]] = True
        slots = xp.cumsum(is_coupled) - 1
        coords = xp.stack([xp.cumsum(is_first[shared]) - 1, slots[rows[shared]]])
        return xp.flatnonzero(is_coupled), coords, values[shared] / scale

    def add_signs(self, squares: Array, rows: Array) -> Array:
        """Add the sums (2, num_rows) of `sum_single_squares` of some rows."""
        return squares[:, rows].sum(axis=0)

    def find_largest_sums(
        self, squares: Array, excluded: Array, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find up to `count` largest positive sums over both signs, except those of some rows.

        Returns their rows, of equal sums the first, and the sums, descending.
        """
        sums = squares.sum(axis=0)
        sums[excluded] = 0
        smallest = np.partition(sums, -count)[-count]
        (rows,) = np.nonzero((sums >= smallest) & (sums > 0))
        rows = rows[np.argsort(-sums[rows], kind="stable")[:count]]
        return rows, sums[rows]

    def place_vectors(
        self,
        vectors: Array,
        rows: Array | None,
        sources: np.ndarray,
        signs: np.ndarray,
        shape: tuple[int, int],
        dtype: np.dtype,
    ) -> Array:
        """Place the rows and columns of `vectors` (n, K) in a new matrix of zeros.

        `vectors` may be overwritten and returned; `rows` (n,) says where each of its rows goes
        (None: in order). Column j of the matrix is the column ``sources[j]`` of `vectors`, or if
        that is negative the unit vector of row ``~sources[j]``; it is negated if ``signs[j]`` is
        -1. Columns beyond `sources` are zero.
        """
        if is_whole(vectors, rows, sources, shape, dtype):
            vectors *= self.xp.asarray(signs, dtype)
            return vectors
        placed = self.xp.zeros(shape, dtype)
        (columns,), (units,) = np.nonzero(sources >= 0), np.nonzero(sources < 0)
        chosen = vectors[:, sources[columns]] * signs[columns]
        placed[(slice(None) if rows is None else rows[:, None]), columns] = chosen
        placed[~sources[units], units] = 1
        return placed


def is_whole(
    vectors: Array,
    rows: Array | None,
    sources: np.ndarray,
    shape: tuple[int, int],
    dtype: np.dtype,
) -> bool:
    """Return whether `Primitives.place_vectors` would return `vectors` but for the signs."""
    is_in_place = rows is None and vectors.shape == shape and vectors.dtype == dtype
    return (
        is_in_place and np.array_equal(sources, np.arange(shape[1])) and vectors.flags.c_contiguous
    )
