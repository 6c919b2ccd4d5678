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

#: What a loop over nonzeros takes for one, about.
_NONZERO_NS = 5


class CpuPrimitives(Primitives):
    """Counting sorts and copies on all threads; unfoldings in one pass over the nonzeros."""

    def pack(
        self, coords: Array, values: Array, record_format: RecordFormat
    ) -> tuple[Array, bool, bool]:
        given = coords
        coords = coords.astype(np.int64, copy=False)  # the only type that is compiled
        # Both memory orders are read in place: a sorted `sparse.COO` has F-contiguous coords.
        coords = coords if coords.flags.forc else np.ascontiguousarray(coords)
        mode_stride, nonzero_stride = (np.uint64(n // coords.itemsize) for n in coords.strides)
        records = np.empty((values.shape[0], record_format.num_words), record_format.word_dtype)
        columns = (record_format.words, record_format.shifts, record_format.shape)
        fields = tuple(tuple(map(np.uint64, column)) for column in columns)
        flat = coords.reshape(-1, order="A")
        values = np.ascontiguousarray(values, record_format.dtype)
        nonzeros = (flat, mode_stride, nonzero_stride, values)
        slot = np.uint64(record_format.value_slot)
        packed = (records, records.view(record_format.dtype), slot)
        flags = tuple(np.zeros((4, 1), np.bool_))
        arguments = (nonzeros, fields, packed, flags)
        work_ns = _NONZERO_NS * values.shape[0]
        threads.launch(sorting.pack_records, values.shape[0], *arguments, work_ns=work_ns)
        descends, is_outside, is_infinite, has_zeros = (bool(flag[0]) for flag in flags)
        if is_outside:
            check_inside(given, record_format.shape)
        if is_infinite:
            check_finite(values)
        return records, not descends, has_zeros

    def sort_by_row(self, given: ModeRows, target: Array, positions: Array) -> Array | None:
        records, record_format, mode, places = given
        nnz = records.shape[0]
        num_rows = record_format.shape[mode]
        num_parts = _count_parts(nnz, num_rows)
        if num_parts is None:
            return super().sort_by_row(given, target, positions)
        # With `places`, rows are gathered: from `target`, which spans fewer pages than `records`.
        rows = positions if places is None else target
        field = Fields.of(record_format, [mode])
        threads.launch(sorting.read_rows, nnz, records, field, rows, work_ns=nnz)
        places = list_places(places, nnz)
        starts = _start_keys(rows, places, positions, num_parts, num_rows)
        is_empty = starts[0, 1 : num_rows + 1] == starts[0, :num_rows]  # ends where it starts
        empty_rows = np.flatnonzero(is_empty).astype(index_dtype(num_rows))
        _sort_parts(starts, places, target, positions)
        return empty_rows

    def find_empty_rows(self, records: Array, record_format: RecordFormat, mode: int) -> Array:
        is_empty = np.ones(record_format.shape[mode], np.bool_)
        arguments = (records, Fields.of(record_format, [mode]), is_empty)
        work_ns = _NONZERO_NS * records.shape[0]
        threads.launch(sorting.mark_rows, records.shape[0], *arguments, work_ns=work_ns)
        return np.flatnonzero(is_empty).astype(index_dtype(is_empty.size))

    def sort_nbytes(self, nnz: int, size: int) -> int:
        num_parts = _count_parts(nnz, size)
        dtype = index_dtype(nnz)
        if num_parts is None:
            return super().sort_nbytes(nnz, size)
        counters = math.prod(_shape_counts(num_parts, size, dtype)) * dtype.itemsize
        return counters + self.empty_rows_nbytes(nnz, size)

    def empty_rows_nbytes(self, nnz: int, size: int) -> int:
        return 9 * size  # a flag for each row and the int64 empty rows

    def split_by_bucket(
        self, positions: Array, bucket_size: int, stored: Array, offsets: Array
    ) -> None:
        nnz = positions.shape[0]
        size = positions.dtype.type(bucket_size)
        num_buckets = -(-nnz // bucket_size)
        buckets = positions // size
        places = np.empty_like(stored)
        num_parts = _choose_parts(nnz, num_buckets)
        in_order = list_places(None, nnz)
        starts = _start_keys(buckets, in_order, places, num_parts, num_buckets)
        _sort_parts(starts, in_order, buckets, places)
        np.remainder(places, size, out=buckets)
        offsets[positions] = buckets
        stored[...] = places

    def split_nbytes(self, nnz: int, bucket_size: int) -> int:
        num_buckets = -(-nnz // bucket_size)
        dtype = index_dtype(nnz)
        num_parts = _PARTS_PER_THREAD * numba.get_num_threads()
        counters = math.prod(_shape_counts(num_parts, num_buckets, dtype))
        return (3 * nnz + counters) * dtype.itemsize

    def remap(self, step: Step, cut: Cut) -> None:
        tiles = Tiles(cut.tile_size, step.bucket_size)
        record_format = cut.record_format
        nnz = step.records.shape[0]
        storage = Storage.of(step, record_format)
        num_tiles = -(-nnz // cut.tile_size)
        work_ns = _NONZERO_NS * nnz
        threads.launch(mttkrp.remap_tiles, num_tiles, tiles, storage, work_ns=work_ns)

    def gather(self, records: Array, places: Array) -> Array:
        target = np.empty_like(records)
        nnz = records.shape[0]
        arguments = (records, places, target, (0,) * records.shape[1])
        threads.launch(mttkrp.gather_records, nnz, *arguments, work_ns=_NONZERO_NS * nnz)
        return target

    def split_columns(self, given: ModeRows) -> Entries:
        records, record_format, mode, places = given
        nnz = records.shape[0]
        is_new = np.empty(nnz + 1, np.bool_)
        values = np.empty(nnz)
        is_new[nnz] = True
        rows = np.empty(nnz, index_dtype(record_format.shape[mode], smallest="int32"))
        others = (n for n in range(record_format.ndim) if n != mode)
        storage = Storage.of(Step(records), record_format)
        field = Fields.of(record_format, [mode])
        masks = tuple(map(np.uint64, record_format.mask_words(others)))
        arguments = (list_places(places, nnz), storage, field, masks, (is_new, rows, values))
        threads.launch(mttkrp.split_columns, nnz, *arguments, work_ns=2 * _NONZERO_NS * nnz)
        return Entries(is_new, rows, values)


def _start_keys(
    keys: Array, places: Array, gathered: Array, num_parts: int, num_keys: int
) -> Array:
    """Gather keys in the order of `places`; return where each part's items of each key start."""
    starts = np.zeros(_shape_counts(num_parts, num_keys, gathered.dtype), gathered.dtype)
    arguments = (keys, places, gathered, starts)
    work_ns = _NONZERO_NS * keys.shape[0]
    threads.launch(sorting.count_rows, num_parts, *arguments, work_ns=work_ns)
    sorting.start_keys(starts)
    return starts


def _sort_parts(starts: Array, places: Array, target: Array, positions: Array) -> None:
    """Run `sorting.sort_parts` for all parts."""
    arguments = (starts, places, target, positions)
    work_ns = _NONZERO_NS * positions.shape[0]
    threads.launch(sorting.sort_parts, starts.shape[0], *arguments, work_ns=work_ns)


def _count_parts(nnz: int, num_keys: int) -> int | None:
    """Choose the parts, each with all counters; None if a comparison sort costs less."""
    return None if num_keys > max(4 * nnz, 2**16) else _choose_parts(nnz, num_keys)


def _choose_parts(nnz: int, num_keys: int) -> int:
    return max(1, min(_PARTS_PER_THREAD * numba.get_num_threads(), nnz // max(1, num_keys)))


def _shape_counts(num_parts: int, num_keys: int, dtype: np.dtype) -> tuple[int, int]:
    """Return the shape of all counters; the parts share no cache line."""
    return num_parts, num_keys + _CACHE_LINE_NBYTES // dtype.itemsize
