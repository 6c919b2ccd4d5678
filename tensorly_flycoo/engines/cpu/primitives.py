"""The primitives of building on a CPU: counting sorts and copies on all threads."""

import math

import numba
import numpy as np

from ...base.array_modules import Array
from ...base.checks import check_finite, check_inside
from ...format.packing import Cut, RecordFormat
from ...format.primitives import Entries, ModeRows, Primitives, Step, index_dtype
from . import building, kernels, threads
from .records import Fields, Storage, Tiles

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
        if coords.dtype != np.int64:  # only this type, that of `sparse.COO`, is compiled
            return super().pack(coords, values, record_format)
        # Both memory orders are read in place: a sorted `sparse.COO` has F-contiguous coords.
        coords = coords if coords.flags.forc else np.ascontiguousarray(coords)
        mode_stride, nonzero_stride = (np.uint64(n // coords.itemsize) for n in coords.strides)
        records = np.empty((values.shape[0], record_format.num_words), record_format.word_dtype)
        words, shifts = (
            tuple(map(np.uint64, column)) for column in (record_format.words, record_format.shifts)
        )
        found = building.Found(*np.zeros((4, 1), np.bool_))
        flat, values = coords.reshape(-1, order="A"), np.ascontiguousarray(values)
        sizes = tuple(map(np.uint64, record_format.shape))
        slot = np.uint64(record_format.value_slot)
        record_values = records.view(record_format.dtype)
        nonzeros = (flat, mode_stride, nonzero_stride, values)
        packing = building.Packing(*nonzeros, words, shifts, sizes, slot, records, record_values)
        arguments, work_ns = (packing, found), _NONZERO_NS * values.shape[0]
        threads.launch(building.pack_records, values.shape[0], *arguments, work_ns=work_ns)
        if found.is_outside[0]:
            check_inside(coords, record_format.shape)
        if found.is_infinite[0]:
            check_finite(values)
        return records, not found.descends[0], bool(found.has_zeros[0])

    def sort_by_row(self, given: ModeRows, target: Array, positions: Array) -> Array | None:
        starts = _start_rows(given, target, positions)
        if starts is None:
            return super().sort_by_row(given, target, positions)
        empty_rows = _find_empty_rows(starts, given.record_format.shape[given.mode])
        num_parts = starts.shape[0]
        arguments = (starts, given.places, target, positions)
        work_ns = _NONZERO_NS * given.records.shape[0]
        threads.launch(building.sort_parts, num_parts, *arguments, work_ns=work_ns)
        return empty_rows

    def find_empty_rows(self, records: Array, record_format: RecordFormat, mode: int) -> Array:
        is_empty = np.ones(record_format.shape[mode], np.bool_)
        arguments = (records, Fields.of(record_format, [mode]), is_empty)
        work_ns = _NONZERO_NS * records.shape[0]
        threads.launch(building.mark_rows, records.shape[0], *arguments, work_ns=work_ns)
        return np.flatnonzero(is_empty).astype(index_dtype(is_empty.size))

    def sort_nbytes(self, nnz: int, size: int) -> int:
        num_parts, dtype = _count_parts(nnz, size), index_dtype(nnz)
        if num_parts is None:
            return super().sort_nbytes(nnz, size)
        counters = math.prod(_shape_counts(num_parts, size, dtype)) * dtype.itemsize
        return counters + self.empty_rows_nbytes(nnz, size)

    def empty_rows_nbytes(self, nnz: int, size: int) -> int:
        return 9 * size  # a flag for each row and the int64 empty rows

    def split_by_bucket(
        self, positions: Array, bucket_size: int, stored: Array, offsets: Array
    ) -> None:
        nnz, size = positions.shape[0], positions.dtype.type(bucket_size)
        num_buckets, work_ns = -(-nnz // bucket_size), _NONZERO_NS * nnz
        num_parts, buckets = _choose_parts(nnz, num_buckets), positions // size
        starts = np.zeros(_shape_counts(num_parts, num_buckets, stored.dtype), stored.dtype)
        places = np.empty_like(stored)
        arguments = (buckets, None, places, starts)
        threads.launch(building.count_rows, num_parts, *arguments, work_ns=work_ns)
        building.start_keys(starts)
        arguments = (starts, None, buckets, places)
        threads.launch(building.sort_parts, num_parts, *arguments, work_ns=work_ns)
        np.remainder(places, size, out=buckets)
        offsets[positions] = buckets
        stored[...] = places

    def scatter_in_buckets(
        self, records: Array, offsets: Array, bucket_size: int, target: Array
    ) -> None:
        target[self.position_in_buckets(offsets, bucket_size)] = records

    def split_nbytes(self, nnz: int, bucket_size: int) -> int:
        num_buckets, dtype = -(-nnz // bucket_size), index_dtype(nnz)
        num_parts = _PARTS_PER_THREAD * numba.get_num_threads()
        counters = math.prod(_shape_counts(num_parts, num_buckets, dtype))
        return (3 * nnz + counters) * dtype.itemsize

    def remap(self, step: Step, cut: Cut) -> None:
        tiles, record_format = Tiles(cut.tile_size, step.bucket_size), cut.record_format
        nnz, storage = step.records.shape[0], Storage.of(step, record_format)
        num_tiles, work_ns = -(-nnz // cut.tile_size), _NONZERO_NS * nnz
        threads.launch(kernels.remap_tiles, num_tiles, tiles, storage, work_ns=work_ns)

    def position_in_buckets(self, offsets: Array, bucket_size: int) -> Array:
        positions = np.arange(offsets.shape[0], dtype=index_dtype(offsets.shape[0]))
        positions -= positions % positions.dtype.type(bucket_size)
        positions += offsets
        return positions

    def gather(self, records: Array, places: Array) -> Array:
        target, nnz = np.empty_like(records), records.shape[0]
        arguments = (records, places, target, (0,) * records.shape[1])
        threads.launch(kernels.gather_records, nnz, *arguments, work_ns=_NONZERO_NS * nnz)
        return target

    def split_columns(self, given: ModeRows) -> Entries:
        records, record_format, mode, places = given
        nnz = records.shape[0]
        is_new, values = np.empty(nnz + 1, np.bool_), np.empty(nnz)
        is_new[nnz] = True
        rows = np.empty(nnz, index_dtype(record_format.shape[mode], smallest="int32"))
        others = (n for n in range(record_format.ndim) if n != mode)
        storage, field = Storage.of(Step(records), record_format), Fields.of(record_format, [mode])
        masks = tuple(map(np.uint64, record_format.mask_words(others)))
        arguments = (places, storage, field, masks, (is_new, rows, values))
        threads.launch(kernels.split_columns, nnz, *arguments, work_ns=2 * _NONZERO_NS * nnz)
        return Entries(is_new, rows, values)


def _start_rows(given: ModeRows, target: Array, positions: Array) -> Array | None:
    """Return where each part's nonzeros of each row start, or None if there are too many rows.

    The rows are left in `positions`, and `target` is overwritten.
    """
    records, record_format, mode, places = given
    nnz, num_rows = records.shape[0], record_format.shape[mode]
    num_parts = _count_parts(nnz, num_rows)
    if num_parts is None:
        return None
    # With `places`, rows are gathered: from `target`, which spans fewer pages than `records`.
    rows = positions if places is None else target
    field = Fields.of(record_format, [mode])
    threads.launch(building.read_rows, nnz, records, field, rows, work_ns=nnz)
    starts = np.zeros(_shape_counts(num_parts, num_rows, positions.dtype), positions.dtype)
    arguments, work_ns = (rows, places, positions, starts), _NONZERO_NS * nnz
    threads.launch(building.count_rows, num_parts, *arguments, work_ns=work_ns)
    building.start_keys(starts)
    return starts


def _find_empty_rows(starts: Array, num_rows: int) -> Array:
    """List the empty rows: each ends where it starts."""
    is_empty = starts[0, 1 : num_rows + 1] == starts[0, :num_rows]
    return np.flatnonzero(is_empty).astype(index_dtype(num_rows))


def _count_parts(nnz: int, num_keys: int) -> int | None:
    """Choose the parts, each with all counters; None if a comparison sort costs less."""
    return None if num_keys > max(4 * nnz, 2**16) else _choose_parts(nnz, num_keys)


def _choose_parts(nnz: int, num_keys: int) -> int:
    return max(1, min(_PARTS_PER_THREAD * numba.get_num_threads(), nnz // max(1, num_keys)))


def _shape_counts(num_parts: int, num_keys: int, dtype: np.dtype) -> tuple[int, int]:
    """Return the shape of all counters; the parts share no cache line."""
    return num_parts, num_keys + _CACHE_LINE_NBYTES // dtype.itemsize
