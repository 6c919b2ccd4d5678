"""The primitives of building on a CPU: counting sorts and copies on all threads."""

import math

import numba
import numpy as np
from numpy import ndarray as Array

from ...base.checks import check_finite, check_inside
from ...format.packing import Cut, RecordFormat
from ...format.primitives import Entries, ModeRows, Primitives, Step, index_dtype
from . import mttkrp, sorting, threads
from .records import Fields, Storage, Tiles, list_places

#: Parts of a counting sort for each thread, so that a delayed thread gets less to do.
_PARTS_PER_THREAD = 4

_CACHE_LINE_NBYTES = 64

#: About how long a loop over nonzeros takes for one, in nanoseconds.
_NONZERO_NS = 5


class CpuPrimitives(Primitives):
    """Counting sorts and copies on all threads; unfoldings in one pass over the nonzeros."""

    def pack(
        self, coords: Array, values: Array, record_format: RecordFormat
    ) -> tuple[Array, bool, bool]:
        """Implement `Primitives.pack` in one pass, which also checks coords and values."""
        nnz = values.shape[0]
        int_coords = coords.astype(np.int64, copy=False)  # the only type that is compiled
        # Both memory orders are read in place: a sorted `sparse.COO` has F-contiguous coords.
        if not int_coords.flags.forc:
            int_coords = np.ascontiguousarray(int_coords)
        # Strides count elements of the flat array, and are unsigned as all indices in kernels are.
        mode_stride_nbytes, nonzero_stride_nbytes = int_coords.strides
        mode_stride = np.uint64(mode_stride_nbytes // int_coords.itemsize)
        nonzero_stride = np.uint64(nonzero_stride_nbytes // int_coords.itemsize)
        flat_coords = int_coords.reshape(-1, order="A")
        values = np.ascontiguousarray(values, record_format.dtype)
        nonzeros = (flat_coords, mode_stride, nonzero_stride, values)
        # Where a record keeps each mode's index, and the mode's size.
        words = tuple(map(np.uint64, record_format.words))
        shifts = tuple(map(np.uint64, record_format.shifts))
        sizes = tuple(map(np.uint64, record_format.shape))
        fields = (words, shifts, sizes)
        records = np.empty((nnz, record_format.num_words), record_format.word_dtype)
        # The same memory, as words and as values.
        records_as_values = records.view(record_format.dtype)
        value_slot = np.uint64(record_format.value_slot)
        packed = (records, records_as_values, value_slot)
        flags = tuple(np.zeros((4, 1), np.bool_))  # four arrays of one, which a kernel can set
        work_ns = _NONZERO_NS * nnz
        threads.launch(sorting.pack_records, nnz, nonzeros, fields, packed, flags, work_ns=work_ns)
        descends, is_outside, is_infinite, has_zeros = (bool(flag[0]) for flag in flags)
        # A kernel cannot say where: look again.
        if is_outside:
            check_inside(coords, record_format.shape)
        if is_infinite:
            check_finite(values)
        return records, not descends, has_zeros

    def sort_by_row(self, mode_rows: ModeRows, target: Array, positions: Array) -> Array | None:
        """Implement `Primitives.sort_by_row` by a counting sort, if its counters are few."""
        records, record_format, mode, places = mode_rows
        nnz = records.shape[0]
        num_rows = record_format.shape[mode]
        num_parts = _count_parts(nnz, num_rows)
        if num_parts is None:
            return super().sort_by_row(mode_rows, target, positions)
        # With `places`, rows are gathered: from `target`, which spans fewer pages than `records`.
        rows = positions if places is None else target
        field = Fields.of(record_format, [mode])
        threads.launch(sorting.read_rows, nnz, records, field, rows, work_ns=nnz)
        order = list_places(places, nnz)
        starts = _start_keys(rows, order, positions, num_parts, num_rows)
        # The first part's counters say where each row starts, which is where the one before ends.
        row_starts = starts[0, :num_rows]
        row_ends = starts[0, 1 : num_rows + 1]
        is_empty = row_starts == row_ends
        empty_rows = np.flatnonzero(is_empty).astype(index_dtype(num_rows))
        _sort_parts(starts, order, target, positions)
        return empty_rows

    def find_empty_rows(self, records: Array, record_format: RecordFormat, mode: int) -> Array:
        nnz = records.shape[0]
        is_empty = np.ones(record_format.shape[mode], np.bool_)
        field = Fields.of(record_format, [mode])
        work_ns = _NONZERO_NS * nnz
        threads.launch(sorting.mark_rows, nnz, records, field, is_empty, work_ns=work_ns)
        return np.flatnonzero(is_empty).astype(index_dtype(is_empty.size))

    def sort_nbytes(self, nnz: int, size: int) -> int:
        num_parts = _count_parts(nnz, size)
        if num_parts is None:
            return super().sort_nbytes(nnz, size)
        counter_dtype = index_dtype(nnz)
        num_counters = math.prod(_shape_counts(num_parts, size, counter_dtype))
        counters_nbytes = num_counters * counter_dtype.itemsize
        return counters_nbytes + self.empty_rows_nbytes(nnz, size)

    def empty_rows_nbytes(self, nnz: int, size: int) -> int:
        return 9 * size  # a flag for each row and the int64 empty rows

    def split_by_bucket(
        self, positions: Array, bucket_size: int, stored: Array, offsets: Array
    ) -> None:
        """Implement `Primitives.split_by_bucket` by a counting sort, in the results' memory."""
        nnz = positions.shape[0]
        size = positions.dtype.type(bucket_size)  # a scalar of this type keeps the results' dtype
        num_buckets = -(-nnz // bucket_size)
        buckets = positions // size
        places = np.empty_like(stored)
        num_parts = _choose_parts(nnz, num_buckets)
        in_order = list_places(None, nnz)
        starts = _start_keys(buckets, in_order, places, num_parts, num_buckets)
        _sort_parts(starts, in_order, buckets, places)
        # The buckets have been read: their memory holds the offsets in buckets.
        places_in_buckets = np.remainder(places, size, out=buckets)
        offsets[positions] = places_in_buckets
        stored[...] = places

    def split_nbytes(self, nnz: int, bucket_size: int) -> int:
        num_buckets = -(-nnz // bucket_size)
        dtype = index_dtype(nnz)
        num_parts = _PARTS_PER_THREAD * numba.get_num_threads()  # the most
        num_counters = math.prod(_shape_counts(num_parts, num_buckets, dtype))
        # The methods hold two arrays (nnz,) at a time, such as buckets and places; one is a margin.
        return (3 * nnz + num_counters) * dtype.itemsize

    def remap(self, step: Step, cut: Cut) -> None:
        tiles = Tiles(cut.tile_size, step.bucket_size)
        storage = Storage.of(step, cut.record_format)
        nnz = step.records.shape[0]
        num_tiles = -(-nnz // cut.tile_size)
        work_ns = _NONZERO_NS * nnz
        threads.launch(mttkrp.remap_tiles, num_tiles, tiles, storage, work_ns=work_ns)

    def gather(self, records: Array, places: Array) -> Array:
        target = np.empty_like(records)
        nnz = records.shape[0]
        record_words = (0,) * records.shape[1]  # its length is known when a kernel is compiled
        work_ns = _NONZERO_NS * nnz
        threads.launch(
            mttkrp.gather_records, nnz, records, places, target, record_words, work_ns=work_ns
        )
        return target

    def split_columns(self, mode_rows: ModeRows) -> Entries:
        records, record_format, mode, places = mode_rows
        nnz = records.shape[0]
        is_first = np.empty(nnz + 1, np.bool_)  # whether an entry begins a column
        is_first[nnz] = True  # ends the last column
        rows = np.empty(nnz, index_dtype(record_format.shape[mode], smallest="int32"))
        values = np.empty(nnz)
        # A column is one index in each of the other modes: compare the bits of those.
        column_modes = (n for n in range(record_format.ndim) if n != mode)
        column_words = record_format.mask_words(column_modes)
        column_bits = tuple(map(np.uint64, column_words))
        order = list_places(places, nnz)
        storage = Storage.of(Step(records), record_format)
        row_field = Fields.of(record_format, [mode])
        threads.launch(
            mttkrp.split_columns,
            nnz,
            order,
            storage,
            row_field,
            column_bits,
            (is_first, rows, values),
            work_ns=2 * _NONZERO_NS * nnz,  # of each record and the one before it
        )
        return Entries(is_first, rows, values)


def _start_keys(
    keys: Array, places: Array, gathered: Array, num_parts: int, num_keys: int
) -> Array:
    """Gather keys in the order of `places`; return where each part's items of each key start."""
    counts_shape = _shape_counts(num_parts, num_keys, gathered.dtype)
    counts = np.zeros(counts_shape, gathered.dtype)
    work_ns = _NONZERO_NS * keys.shape[0]
    threads.launch(sorting.count_rows, num_parts, keys, places, gathered, counts, work_ns=work_ns)
    sorting.start_keys(counts)  # in place: counts become starts
    return counts


def _sort_parts(starts: Array, places: Array, target: Array, positions: Array) -> None:
    """Run `sorting.sort_parts` for all parts."""
    num_parts = starts.shape[0]
    work_ns = _NONZERO_NS * positions.shape[0]
    threads.launch(
        sorting.sort_parts, num_parts, starts, places, target, positions, work_ns=work_ns
    )


def _count_parts(nnz: int, num_keys: int) -> int | None:
    """Choose the parts, each with all counters; None if a comparison sort costs less."""
    most_keys = max(4 * nnz, 2**16)
    if num_keys > most_keys:
        return None
    return _choose_parts(nnz, num_keys)


def _choose_parts(nnz: int, num_keys: int) -> int:
    """Choose the parts of a counting sort, each with more items than counters."""
    num_wanted = _PARTS_PER_THREAD * numba.get_num_threads()
    most_parts = nnz // max(1, num_keys)
    return max(1, min(num_wanted, most_parts))


def _shape_counts(num_parts: int, num_keys: int, dtype: np.dtype) -> tuple[int, int]:
    """Return the shape of all counters; the parts share no cache line."""
    num_padding = _CACHE_LINE_NBYTES // dtype.itemsize
    return num_parts, num_keys + num_padding
