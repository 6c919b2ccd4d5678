"""The operations on arrays of nonzeros from which layouts are built, and singular vectors found."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..base.array_modules import Array, array_module
from ..base.locks import make_lock
from .packing import Cut, Groups, RecordFormat

#: How many items each type can number from 0, narrow types first.
INDEX_LIMITS: dict[np.dtype, int] = {
    np.dtype(name): np.iinfo(name).max + 1
    for name in ("uint16", "uint32", "uint64", "int32", "int64")
}

#: Marks in the result of `Primitives.find_carry_rows` a tile that inherits no row.
NO_ROW = -1

#: The bucket size if there are no buckets: larger than any number of nonzeros.
ONE_BUCKET = 2**62


class Step(NamedTuple):
    """The places of the records in one mode, and those they move to for the next mode."""

    records: Any
    # For each place of the mode's order the position of its record, counted from the start of the
    # place's bucket, as the engine keeps them. None if the position is the place itself.
    pull_ids: Any = None
    bucket_size: int = ONE_BUCKET
    spare: Any = None  # receives the records for the next mode; None if nothing is remapped
    remap_ids: Any = None  # for each place the position of its record in `spare`
    write_order: Any = None  # the order of each tile's `remap_ids`: see `Primitives.compact_push`

    @property
    def nbytes(self) -> int:
        """Bytes of the ids."""
        ids = (self.pull_ids, self.remap_ids, self.write_order)
        return sum(array.nbytes for array in ids if array is not None)


class Operation(NamedTuple):
    """An operation on the nonzeros: a method of the engine, which `engines.protocol` describes."""

    name: str
    merges: bool = False  # whether the result for a group of modes gives that for each of its modes
    fills_blocks: bool = False  # whether it writes to `RowBlocks`, of as many as the engine can


MTTKRP = Operation("mttkrp", merges=True, fills_blocks=True)
MTTKRP_OF_RATIOS = Operation("mttkrp_of_ratios", merges=True, fills_blocks=True)
TTMC = Operation("ttmc")


class ModeRows(NamedTuple):
    """Records, the order in which they are read, and the mode of which their rows are."""

    records: Array
    record_format: RecordFormat
    mode: int
    places: Array | None  # the records in that order; None for the order that they are in


class Entries(NamedTuple):
    """The nonzeros of an unfolding, column by column."""

    is_first: Array  # bool (nnz + 1,): whether a nonzero is the first of its column; ends with True
    rows: Array  # (nnz,)
    values: Array  # float64 (nnz,)


class LeadingPairs(NamedTuple):
    """Leading singular values, and the parts of their left vectors that are not zero."""

    vectors: Array  # (n, K), orthonormal columns
    values: np.ndarray  # float64 (R,), descending
    rows: Array | None  # integers (n,): which rows of the matrix `vectors` has; None for all
    sources: np.ndarray  # (R,): columns of `vectors`, or ``~row`` for a row's unit vector

    def are_placed(self, shape: tuple[int, int], dtype: np.dtype) -> bool:
        """Return whether `Primitives.place_vectors` would return `vectors` but for the signs."""
        has_all_rows = self.rows is None
        is_alike = self.vectors.shape == shape and self.vectors.dtype == dtype
        is_in_order = np.array_equal(self.sources, np.arange(shape[1]))
        return has_all_rows and is_alike and is_in_order and self.vectors.flags.c_contiguous


class Primitives(ABC):
    """Packing, sorting, moving and searching with the functions of an array module.

    Engines override some with faster versions. Results are equal to the bit, since a stable sort
    has only one answer. Many methods write to arrays that the caller passes, to save memory.

    Each ``*_nbytes`` method bounds the bytes that the methods above it allocate while they run,
    beyond their arguments and results. Operations that can work in blocks take `block_size`
    nonzeros at a time: as many as a cache holds, or as are worth a launch.
    """

    word_dtype: np.dtype = np.dtype(np.uint64)  # of records
    staging_size: int | None = None  # what `pack` copies to a device at a time
    #: The fewest nonzeros for each numbered combination of indices. On a core 7 win, 5.5 lose.
    least_repeats = 8

    def __init__(self, xp: ModuleType = np, block_size: int = 2**15) -> None:
        self.xp = xp
        self.block_size = block_size

    def choose_cut(
        self,
        shape: Sequence[int],
        dtype: np.dtype,
        groups: Groups | None = None,
        num_prefixes: int = 0,
    ) -> Cut:
        """Choose the record format, and the sizes of a tile and of a bucket."""
        record_format = RecordFormat.of(shape, dtype, self.word_dtype, groups, num_prefixes)
        return Cut(record_format, *self.choose_sizes(record_format))

    @abstractmethod
    def choose_sizes(self, record_format: RecordFormat) -> tuple[int, int]:
        """Choose the numbers of nonzeros in a tile and in a bucket."""

    @abstractmethod
    def pack(
        self, coords: Array, values: Array, record_format: RecordFormat
    ) -> tuple[Array, bool, bool]:
        """Make records (nnz, num_words) from coords (ndim, nnz) and values (nnz,), in order.

        Returns also whether the nonzeros are sorted by coordinates, without duplicates; and whether
        any value is zero. Refuses coordinates outside the shape, and values that are not finite.
        """

    # Sorting

    def read_rows(self, records: Array, record_format: RecordFormat, mode: int) -> Array:
        """Read the coordinates (nnz,) of one mode, in some unsigned type."""
        return record_format.rows(records, mode, self.xp)

    def sort_by_row(self, mode_rows: ModeRows, target: Array, positions: Array) -> Array | None:
        """Sort the places of records (nnz,) by their row, stably.

        `target` receives the sorted places; `positions` the new position of each:
        ``target[positions] == places``. Returns the result of `find_empty_rows` if it is a
        by-product, else None.
        """
        records, record_format, mode, places = mode_rows
        # 16 bits halve the passes of a radix sort.
        dtype = index_dtype(record_format.shape[mode], smallest="uint16")
        rows = record_format.rows(records, mode, self.xp).astype(dtype, copy=False)
        if places is None:
            order = self.xp.argsort(rows, kind="stable")
            target[...] = order
        else:
            order = self.xp.argsort(rows[places], kind="stable")
            target[...] = places[order]
        positions[order] = self.xp.arange(order.size, dtype=positions.dtype)
        return None

    @abstractmethod
    def find_empty_rows(self, records: Array, record_format: RecordFormat, mode: int) -> Array:
        """List the rows of `mode` without nonzeros, ascending."""

    def find_carry_rows(self, mode_rows: ModeRows, tile_size: int) -> Array:
        """Find the row that each tile inherits from the previous one: int64 (num_tiles,).

        It is `NO_ROW` for a tile that begins with a new row. The order is that of rows.
        """
        records, record_format, mode, places = mode_rows

        def read_rows(numbers: Array) -> Array:
            """Read the rows of the places with some numbers in the order."""
            read = records[numbers if places is None else places[numbers]]
            return record_format.rows(read, mode, self.xp).astype(np.int64)

        firsts = self.xp.arange(0, records.shape[0], tile_size)
        rows = read_rows(firsts)
        carry_rows = self.xp.where(rows == read_rows(firsts - 1), rows, NO_ROW)
        carry_rows[:1] = NO_ROW  # before the first tile there is none: -1 has read the last place
        return carry_rows

    def sort_nbytes(self, nnz: int, size: int) -> int:
        """Bound the bytes of `sort_by_row` and `find_empty_rows` of a mode of `size` rows."""
        sorting = 16 * nnz  # rows in two orders, and NumPy's sort
        return max(sorting, self.empty_rows_nbytes(nnz, size))

    @abstractmethod
    def empty_rows_nbytes(self, nnz: int, size: int) -> int:
        """Bound the bytes of `find_empty_rows` of a mode of `size` rows."""

    def sort_places(
        self,
        records: Array,
        record_format: RecordFormat,
        modes: Iterable[int],
        places: Array | None = None,
    ) -> Array | None:
        """Sort places of records by their rows of `modes`; the last mode is the primary key.

        Ties stay in the order of `places` (None: as they are); without modes it is returned.
        """
        nnz = records.shape[0]
        positions = self.xp.empty(nnz, index_dtype(nnz))
        for mode in modes:
            target = self.xp.empty_like(positions)
            self.sort_by_row(ModeRows(records, record_format, mode, places), target, positions)
            places = target
        return places

    def sort_places_nbytes(self, nnz: int, record_format: RecordFormat) -> int:
        """Bound the bytes of `sort_places` by all modes, beyond two orders."""
        return max(self.sort_nbytes(nnz, size) for size in record_format.shape)

    def sum_squares(self, values: Array) -> float:
        """Sum the squares of values in float64."""
        doubles = values.astype(np.float64)
        return float(self.xp.dot(doubles, doubles))

    # Merging duplicates

    def find_duplicates(self, records: Array, record_format: RecordFormat) -> Array:
        """Return whether each record but the first has the same coordinates as the previous one."""
        is_equal = self.xp.ones(max(records.shape[0] - 1, 0), bool)
        masks = record_format.mask_words(range(record_format.ndim))
        for word, mask in enumerate(masks):
            if mask == 0:  # the word has no bit of a coordinate
                continue
            column = records[:, word]
            difference = column[1:] ^ column[:-1]
            difference &= record_format.word_dtype.type(mask)
            is_equal &= difference == 0
        return is_equal

    def sum_groups(self, values: Array, starts: Array) -> Array:
        """Sum the values from each of the `starts` to the next."""
        return self.xp.add.reduceat(values, starts)

    def sum_nbytes(self, nnz: int, itemsize: int) -> int:
        """Bound the bytes of the starts of groups and of `sum_groups`."""
        return nnz * (8 + 2 * itemsize)

    # Remapping

    @abstractmethod
    def split_by_bucket(
        self, positions: Array, bucket_size: int, stored: Array, offsets: Array
    ) -> None:
        """Sort items by the bucket of their position, stably; `positions` are a permutation (nnz,).

        `stored`, which may be `positions`, receives the place of each item among the sorted ones;
        `offsets` for each position the place of its item, counted from the start of the bucket.
        """

    def compact_pull(self, pull_ids: Array, cut: Cut) -> Any:
        """Return pull ids (nnz,) as the engine keeps them: here as they are."""
        return pull_ids

    def compact_push(self, remap_ids: Array, cut: Cut) -> tuple[Any, Any]:
        """Return remap ids (nnz,), given up, and their write order, as the engine keeps them.

        An engine that writes neighbours in memory together sorts the ids of each tile; the order
        has the place in the tile of each. Here records are written one after the other: no order.
        """
        return remap_ids, None

    def count_plan_nbytes(self, nnz: int, cut: Cut) -> int:
        """Count the bytes of one mode's ids, as the engine keeps them."""
        pull_dtype = index_dtype(cut.bucket_size, smallest="uint16")
        return nnz * (pull_dtype.itemsize + index_dtype(nnz).itemsize)

    def count_plain_nbytes(self, nnz: int) -> int:
        """Bound the bytes of ids that are not kept as they are, while they are computed."""
        return 0

    def scatter_in_buckets(
        self, records: Array, offsets: Array, bucket_size: int, target: Array
    ) -> None:
        """Copy each record to its offset within its own bucket."""
        target[self.position_in_buckets(offsets, bucket_size)] = records

    @abstractmethod
    def split_nbytes(self, nnz: int, bucket_size: int) -> int:
        """Bound the bytes of `split_by_bucket`, `compact_push` and `scatter_in_buckets`."""

    @abstractmethod
    def remap(self, step: Step, cut: Cut) -> None:
        """Copy the records of a mode to ``step.spare``, into the storage of the next mode."""

    def position_in_buckets(self, offsets: Any, bucket_size: int) -> Array:
        """Convert offsets (nnz,), as of `compact_pull`, from the starts of buckets to positions."""
        positions = self.xp.arange(offsets.shape[0], dtype=index_dtype(offsets.shape[0]))
        positions -= positions % positions.dtype.type(bucket_size)
        positions += offsets
        return positions

    def make_lock(self) -> AbstractContextManager:
        """Make a lock for records that move: Python's own, which no KeyboardInterrupt breaks."""
        return make_lock()

    # Copying

    def gather(self, records: Array, places: Array) -> Array:
        """Copy the records in the order of `places`."""
        return records[places]

    # Unfoldings, their singular vectors, and sums by row

    @abstractmethod
    def split_columns(self, mode_rows: ModeRows) -> Entries:
        """Return the unfolding along the mode; records that differ only in it must be adjacent."""

    def sum_single_squares(self, entries: Entries, num_rows: int, scale: float) -> Array:
        """Sum the squares of values alone in their column, by sign and row: float64 (2, num_rows).

        Values are divided by `scale`, a power of two that makes the sum of all squares at most 1.
        Each sum runs in the order of the columns.
        """
        is_first, rows, values = entries
        is_single = is_first[:-1] & is_first[1:]
        sums = self.xp.empty((2, num_rows))
        for sign, has_sign in enumerate((values > 0, values < 0)):
            is_counted = has_sign & is_single
            squares = (values[is_counted] / scale) ** 2
            sums[sign] = self.xp.bincount(rows[is_counted], squares, minlength=num_rows)
        return sums

    def list_shared(
        self, entries: Entries, num_rows: int, scale: float
    ) -> tuple[Array, Array, Array]:
        """List the nonzeros that share their column, and the rows with any of them, ascending.

        Takes what `sum_single_squares` does. Returns these rows (size,); coords (2, n), the column
        and the row of each nonzero as numbers among shared columns and among these rows; and the
        values (n,) divided by `scale`.
        """
        is_first, rows, values = entries
        is_shared = ~(is_first[:-1] & is_first[1:])
        shared_rows = rows[is_shared]
        is_coupled = self.xp.zeros(num_rows, bool)
        is_coupled[shared_rows] = True
        coords = self.xp.empty((2, shared_rows.size), np.int64)
        # Shared columns are numbered by counting their first nonzeros, rows by counting marks.
        coords[0] = is_first[:-1][is_shared]
        coords[0] = coords[0].cumsum() - 1
        row_numbers = self.xp.cumsum(is_coupled) - 1
        coords[1] = row_numbers[shared_rows]
        return self.xp.flatnonzero(is_coupled), coords, values[is_shared] / scale

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
        least = np.partition(sums, -count)[-count]  # of the largest `count`
        candidates = np.flatnonzero((sums >= least) & (sums > 0))  # more if some equal `least`
        order = np.argsort(-sums[candidates], kind="stable")
        rows = candidates[order[:count]]
        return rows, sums[rows]

    def place_vectors(
        self, pairs: LeadingPairs, signs: np.ndarray, shape: tuple[int, int], dtype: np.dtype
    ) -> Array:
        """Place the left vectors of some pairs in a new matrix; further columns are zero.

        Vectors are negated where `signs` (R,) are -1. Their memory may be overwritten and returned.
        """
        vectors = pairs.vectors
        sources = pairs.sources
        if pairs.are_placed(shape, dtype):
            vectors *= self.xp.asarray(signs, dtype)
            return vectors
        placed = self.xp.zeros(shape, dtype)
        columns = np.flatnonzero(sources >= 0)
        chosen = vectors[:, sources[columns]] * signs[columns]
        if pairs.rows is None:
            placed[:, columns] = chosen
        else:
            placed[pairs.rows[:, None], columns] = chosen
        units = np.flatnonzero(sources < 0)
        placed[~sources[units], units] = 1
        return placed


def index_dtype(count: int, smallest: DTypeLike = "uint32") -> np.dtype:
    """Choose the narrowest type that numbers `count` items, but none narrower than `smallest`.

    It is signed if `smallest` is.

    >>> index_dtype(65536), index_dtype(65536, smallest="uint16"), index_dtype(2**32 + 1)
    (dtype('uint32'), dtype('uint16'), dtype('uint64'))
    >>> index_dtype(2**31, smallest="int32"), index_dtype(2**31 + 1, smallest="int32")
    (dtype('int32'), dtype('int64'))
    """
    smallest = np.dtype(smallest)

    def suits(dtype: np.dtype) -> bool:
        is_wide = dtype.itemsize >= smallest.itemsize and count <= INDEX_LIMITS[dtype]
        return dtype.kind == smallest.kind and is_wide

    return next(dtype for dtype in INDEX_LIMITS if suits(dtype))


def list_nonempty_rows(empty_rows: Array, num_rows: int) -> Array:
    """List the rows that are not empty, ascending.

    >>> list_nonempty_rows(np.array([0, 2]), 5)
    array([1, 3, 4], dtype=uint32)
    """
    xp = array_module(empty_rows)
    is_used = xp.ones(num_rows, bool)
    is_used[empty_rows] = False
    return xp.flatnonzero(is_used).astype(index_dtype(num_rows))
