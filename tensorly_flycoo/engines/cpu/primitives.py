"""The primitives of building on a CPU: counting sorts and copies on all threads."""

import math
from collections.abc import Iterable

import numba
import numpy as np

from ...checks import check_finite, check_inside
from ...format.layout import Cut, Step
from ...format.packing import RecordFormat
from ...format.primitives import Primitives, index_dtype
from . import building, kernels, launch

#: Parts of a counting sort for each thread, so that a delayed thread gets less to do.
_PARTS_PER_THREAD = 4

_CACHE_LINE_NBYTES = 64


class CpuPrimitives(Primitives):
    """The same on all threads, with counting sorts."""

    def pack(self, coords, values, record_format):
        if coords.dtype != np.int64:  # one type is compiled, that of `sparse.COO`
            return super().pack(coords, values, record_format)
        # A `sparse.COO` that was sorted has them in Fortran's order: either is taken as it is.
        coords = coords if coords.flags.forc else np.ascontiguousarray(coords)
        mode_stride, nonzero_stride = (np.uint64(n // coords.itemsize) for n in coords.strides)
        records = np.empty((values.shape[0], record_format.num_words), record_format.word_dtype)
        words, shifts, _ = select_fields(record_format, range(record_format.ndim))
        falls, is_outside, is_infinite, has_zeros = np.zeros((4, 1), np.bool_)
        launch.launch(
            building.pack_records, values.shape[0],
            coords.reshape(-1, order="A"), mode_stride, nonzero_stride,
            np.ascontiguousarray(values), words, shifts, tuple(map(np.uint64, record_format.shape)),
            np.uint64(record_format.value_slot),
            records, records.view(record_format.dtype), falls, is_outside, is_infinite, has_zeros,
        )  # fmt: skip
        if is_outside[0]:
            check_inside(coords, record_format.shape)
        if is_infinite[0]:
            check_finite(values)
        return records, not falls[0], bool(has_zeros[0])

    def sort_by_row(self, records, record_format, mode, places, target, positions):
        arguments = (records, record_format, mode, places, target, positions)
        starts = _start_rows(*arguments)
        if starts is None:
            return super().sort_by_row(*arguments)
        empty_rows = _find_empty_rows(starts, record_format.shape[mode])
        num_parts = starts.shape[0]
        arguments = (num_parts, starts, places, target, positions)
        launch.launch(building.sort_parts, num_parts, *arguments)
        return empty_rows

    def plan_remap(
        self, records, record_format, mode, places, bucket_size, target, remap_ids, pull_ids
    ):
        arguments = (records, record_format, mode, places)
        starts = _start_rows(*arguments, target, remap_ids)
        if starts is None:
            return super().plan_remap(*arguments, bucket_size, target, remap_ids, pull_ids)
        empty_rows = _find_empty_rows(starts, record_format.shape[mode])
        nnz, num_parts = records.shape[0], starts.shape[0]
        num_buckets, size = -(-nnz // bucket_size), np.uint64(bucket_size)
        bucket_starts = np.zeros(_shape_counts(num_parts, num_buckets, starts.dtype), starts.dtype)
        with launch.show_compiling(building.count_buckets_of_rows):
            building.count_buckets_of_rows(starts, nnz, size, bucket_starts)
        _start_keys(bucket_starts)
        arguments = (starts, places, size, bucket_starts, target, remap_ids, pull_ids)
        launch.launch(building.split_sorted_parts, num_parts, num_parts, *arguments)
        launch.launch(building.order_buckets, num_buckets, bucket_size, target, pull_ids)
        return empty_rows

    def split_by_bucket(self, positions, bucket_size, stored, offsets):
        nnz = positions.shape[0]
        num_buckets, size = -(-nnz // bucket_size), np.uint64(bucket_size)
        num_parts = _count_parts(nnz, num_buckets)
        starts = np.zeros(_shape_counts(num_parts, num_buckets, stored.dtype), stored.dtype)
        launch.launch(building.count_buckets, num_parts, num_parts, positions, size, starts)
        _start_keys(starts)
        arguments = (num_parts, positions, size, starts, stored, offsets)
        launch.launch(building.split_parts, num_parts, *arguments)
        launch.launch(building.order_buckets, num_buckets, bucket_size, None, offsets)

    def gather(self, records, places):
        target = np.empty_like(records)
        arguments = (records, places, target, (0,) * records.shape[1])
        launch.launch(kernels.gather_records, records.shape[0], *arguments)
        return target

    def remap(self, step: Step, cut: Cut) -> None:
        num_tiles = -(-step.records.shape[0] // cut.tile_size)
        launch.launch(
            kernels.remap_tiles, num_tiles, cut.tile_size, step.bucket_size, step.records,
            step.pull_ids, step.spare, step.remap_ids, (0,) * cut.record_format.num_words,
        )  # fmt: skip

    def scatter_in_buckets(self, records, offsets, bucket_size, target):
        arguments = (offsets, np.uint64(bucket_size), target, (0,) * records.shape[1])
        launch.launch(building.scatter_in_buckets, records.shape[0], records, *arguments)

    def find_empty_rows(self, records, record_format, mode):
        is_empty = np.ones(record_format.shape[mode], np.bool_)
        field = select_field(record_format, mode)
        launch.launch(building.mark_rows, records.shape[0], records, field, is_empty)
        return np.flatnonzero(is_empty).astype(index_dtype(is_empty.size))

    def sort_nbytes(self, nnz, size):
        num_parts, dtype = _count_parts(nnz, size), index_dtype(nnz)
        if num_parts is None:
            return super().sort_nbytes(nnz, size)
        # Counters; a flag a row and the int64 numbers of the empty ones.
        counters = math.prod(_shape_counts(num_parts, size, dtype)) * dtype.itemsize
        return counters + 9 * size

    def split_nbytes(self, nnz, bucket_size):
        num_buckets, dtype = -(-nnz // bucket_size), index_dtype(nnz)
        num_threads = numba.get_num_threads()
        shape = _shape_counts(_PARTS_PER_THREAD * num_threads, num_buckets, dtype)
        # And what each thread copies a bucket to, while it puts it in order.
        itemsize = 8 + index_dtype(bucket_size, smallest="uint16").itemsize
        copied = min(num_threads, num_buckets) * min(nnz, bucket_size) * itemsize
        return math.prod(shape) * dtype.itemsize + copied

    def plan_nbytes(self, nnz, size, bucket_size):
        # Where parts put their rows is still known while buckets are put in order.
        return self.sort_nbytes(nnz, size) + self.split_nbytes(nnz, bucket_size)

    def position_in_buckets(self, offsets, bucket_size):
        positions = np.empty(offsets.shape[0], index_dtype(offsets.shape[0]))
        arguments = (offsets, np.uint64(bucket_size), positions)
        launch.launch(building.position_in_buckets, positions.size, *arguments)
        return positions

    def split_columns(self, records, record_format, mode, places):
        nnz = records.shape[0]
        is_new, values = np.empty(nnz + 1, np.bool_), np.empty(nnz)
        is_new[nnz] = True
        rows = np.empty(nnz, index_dtype(record_format.shape[mode], smallest="int32"))
        column_bits = [0] * record_format.num_words
        for n in range(record_format.ndim):
            bits = record_format.masks[n] << record_format.shifts[n] if n != mode else 0
            column_bits[record_format.words[n]] |= bits
        launch.launch(
            kernels.split_columns, nnz, places, records, records.view(record_format.dtype),
            np.uint64(record_format.value_slot), select_field(record_format, mode),
            tuple(map(np.uint64, column_bits)), is_new, rows, values,
        )  # fmt: skip
        return is_new, rows, values


def _start_rows(records, record_format, mode, places, target, positions):
    """Say where each part of the nonzeros puts its first of each row, or None if rows are many.

    The rows are left in `positions`, and `target` is overwritten.
    """
    nnz, num_rows = records.shape[0], record_format.shape[mode]
    num_parts = _count_parts(nnz, num_rows)
    if num_parts is None:
        return None
    # Out of order they are read from a small array: fewer pages of memory are in use at a time.
    rows = positions if places is None else target
    launch.launch(building.read_rows, nnz, records, select_field(record_format, mode), rows)
    starts = np.zeros(_shape_counts(num_parts, num_rows, positions.dtype), positions.dtype)
    launch.launch(building.count_rows, num_parts, num_parts, rows, places, positions, starts)
    _start_keys(starts)
    return starts


def _find_empty_rows(starts, num_rows):
    """List the rows that end where they start."""
    is_empty = starts[0, 1 : num_rows + 1] == starts[0, :num_rows]
    return np.flatnonzero(is_empty).astype(index_dtype(num_rows))


def _count_parts(nnz, num_keys):
    """Choose the parts of a counting sort, or None if keys are many.

    Each part needs a counter for each key; where nonzeros are few, comparing them costs less.
    """
    if num_keys > max(4 * nnz, 2**16):
        return None
    return max(1, min(_PARTS_PER_THREAD * numba.get_num_threads(), nnz // max(1, num_keys)))


def _shape_counts(num_parts, num_keys, dtype):
    """Shape the counters of all parts; no two threads write to one cache line of them."""
    return num_parts, num_keys + _CACHE_LINE_NBYTES // dtype.itemsize


def _start_keys(counts):
    with launch.show_compiling(building.start_keys):
        building.start_keys(counts)


def select_field(record_format: RecordFormat, mode: int) -> tuple[np.uint64, ...]:
    """Return where the coordinate of `mode` is: word, shift and mask."""
    columns = (record_format.words, record_format.shifts, record_format.masks)
    return tuple(np.uint64(column[mode]) for column in columns)


def select_fields(record_format: RecordFormat, modes: Iterable[int]) -> list[tuple[np.uint64, ...]]:
    """Return where the coordinates of `modes` are: words, shifts and masks."""
    modes = list(modes)
    columns = (record_format.words, record_format.shifts, record_format.masks)
    return [tuple(np.uint64(column[mode]) for mode in modes) for column in columns]
