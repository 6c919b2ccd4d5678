"""The primitives of building on a GPU: CuPy's radix sorts, and kernels of `kernels/`.

CuPy compiles each of its elementwise operations, for each combination of dtypes, in a tenth of a
second. Building a tensor took 33 of them, so here they are a few kernels of ours.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import cupy
import numpy as np

from ...array_modules import Array, is_cupy
from ...checks import check_finite, check_inside
from ...format import packing
from ...format.layout import Cut, Step
from ...format.packing import RecordFormat
from ...format.primitives import Primitives, index_dtype
from ...format.remap import count_runs
from . import launch, tuning
from .compact_ids import PackedIds, RunIds, count_plan_nbytes
from .macros import (
    carry_rows_macros,
    number_buckets_macros,
    offsets_macros,
    order_writes_macros,
    pack_macros,
    position_macros,
    read_keys_macros,
    remap_macros,
    scatter_records_macros,
    sum_groups_macros,
    sum_squares_macros,
)
from .rows import list_empty_rows, store_places
from .structs import make_key_fields, make_packing
from .unfoldings import CudaUnfoldings


class _StreamLock:
    """A lock whose holders take turns on the device too, each on its own stream.

    A launch returns before its kernel has run. So each holder makes its stream wait for the
    previous holder's launches. These remap or copy the same records; without the wait, the second
    remapping after a copy could overwrite records not yet copied.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_use: Any = None

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            if self._last_use is not None:
                cupy.cuda.get_current_stream().wait_event(self._last_use)
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            event = cupy.cuda.Event(disable_timing=True)
            self._last_use = cupy.cuda.get_current_stream().record(event)
        finally:
            self._lock.release()


class CudaPrimitives(CudaUnfoldings, Primitives):
    """CuPy's radix sorts, and kernels whose blocks write neighbouring records together."""

    write_order_dtype = np.dtype(np.uint16)

    staging_size = 2**22

    def __init__(self) -> None:
        super().__init__(cupy, block_size=2**26)

    def pack(
        self, coords: Array, values: Array, record_format: RecordFormat
    ) -> tuple[Array, bool, bool]:
        """Make records, as `Primitives.pack` does, from arrays on the GPU or the host.

        Host arrays are copied `staging_size` nonzeros at a time, so that the GPU needs little
        memory beyond the records.
        """
        size = values.size if is_cupy(values) else self.staging_size
        records = cupy.empty((values.size, record_format.num_words), record_format.word_dtype)
        found = cupy.zeros(4, bool)
        for first in range(0, values.size, max(size, 1)):
            # Includes the previous nonzero, to compare the first one with.
            block = slice(max(first - 1, 0), first + size)
            arrays = (_copy_to_gpu(coords[:, block]), _copy_to_gpu(values[None, block])[0])
            _pack_block(*arrays, record_format, records[block], found)
        descends, is_outside, is_infinite, has_zeros = found.get()
        if is_outside:
            check_inside(coords, record_format.shape)
        if is_infinite:
            check_finite(values)
        return records, not descends, bool(has_zeros)

    def sort_places(
        self,
        records: Array,
        record_format: RecordFormat,
        modes: Iterable[int],
        places: Array | None = None,
    ) -> Array | None:
        nnz = records.shape[0]
        # Sort by as many modes at a time as fit one key.
        for group, dtype in _group_modes(record_format, modes):
            keys = cupy.empty(nnz, dtype)
            _read_keys(records, record_format, group[::-1], places, keys)
            order = cupy.argsort(keys, kind="stable")
            target = cupy.empty(nnz, index_dtype(nnz) if places is None else places.dtype)
            store_places(order, places, target=target)
            places = target
        return places

    def sort_places_nbytes(self, nnz: int, shape: tuple[int, ...]) -> int:
        itemsize = 4 if sum(map(packing.field_width, shape)) <= 32 else 8
        return itemsize * nnz + _argsort_nbytes(nnz, itemsize)  # keys

    def sort_by_row(
        self,
        records: Array,
        record_format: RecordFormat,
        mode: int,
        places: Array | None,
        target: Array,
        positions: Array,
    ) -> Array | None:
        size = record_format.shape[mode]
        # With 16 bits a radix sort takes half the passes.
        key_dtype = np.dtype(np.uint16 if size <= 2**16 else np.uint32)
        keys = cupy.empty(records.shape[0], key_dtype)
        is_used = cupy.zeros(size, bool)
        _read_keys(records, record_format, [mode], places, keys, is_used)
        empty_rows = list_empty_rows(is_used)
        del is_used
        order = cupy.argsort(keys, kind="stable")
        store_places(order, places, target=target, positions=positions)
        return empty_rows

    def find_empty_rows(self, records: Array, record_format: RecordFormat, mode: int) -> Array:
        is_used = cupy.zeros(record_format.shape[mode], bool)
        _read_keys(records, record_format, [mode], is_used=is_used)
        return list_empty_rows(is_used)

    def find_carry_rows(
        self,
        records: Array,
        record_format: RecordFormat,
        mode: int,
        places: Array | None,
        tile_size: int,
    ) -> Array:
        carry_rows = cupy.empty(-(-records.shape[0] // tile_size), np.int64)
        macros = carry_rows_macros(record_format, _place_dtype(places))
        kernel = launch.get_kernel("carry_rows.cu", "find_carry_rows", **macros)
        arguments = (
            make_key_fields(record_format, [mode]), np.int64(carry_rows.size),
            np.int64(tile_size), records, *launch.pass_none([places]), carry_rows,
        )  # fmt: skip
        launch.launch_items(kernel, carry_rows.size, tuning.BLOCK_SIZE, arguments)
        return carry_rows

    def sum_squares(self, values: Array) -> float:
        macros = sum_squares_macros(values.dtype)
        sums = cupy.empty(-(-values.size // macros["VALUES_PER_BLOCK"]), np.float64)
        if sums.size > 0:
            kernel = launch.get_kernel("sum_squares.cu", "sum_squares", **macros)
            stride = np.int64(values.strides[0] // values.itemsize)
            arguments = (np.int64(values.size), stride, values, sums)
            launch.launch(kernel, (sums.size,), tuning.BLOCK_SIZE, arguments)
        return float(sums.get().sum())

    def sum_groups(self, values: Array, starts: Array) -> Array:
        kernel = launch.get_kernel("sum_groups.cu", "sum_groups", **sum_groups_macros(values.dtype))
        sums = cupy.empty(starts.size, values.dtype)
        edges = cupy.append(starts, values.size).astype(np.int64, copy=False)
        arguments = (np.int64(starts.size), edges, cupy.ascontiguousarray(values), sums)
        launch.launch_items(kernel, starts.size, tuning.BLOCK_SIZE, arguments)
        return sums

    def sum_nbytes(self, nnz: int, itemsize: int) -> int:
        return nnz * (8 + 8 + 2 * itemsize)  # starts, edges; values and sums

    def split_by_bucket(
        self, positions: Array, bucket_size: int, stored: Array, offsets: Array
    ) -> None:
        nnz, size = positions.size, np.int64(bucket_size)
        buckets = cupy.empty(nnz, index_dtype(-(-nnz // bucket_size), smallest="uint16"))
        macros = number_buckets_macros(positions.dtype, buckets.dtype)
        kernel = launch.get_kernel("number_buckets.cu", "number_buckets", **macros)
        numbering = (np.int64(nnz), size, positions, buckets)
        launch.launch_items(kernel, nnz, tuning.BLOCK_SIZE, numbering)
        order = cupy.argsort(buckets, kind="stable")
        stored_now = cupy.empty_like(stored)
        store_places(order, None, positions=stored_now)
        macros = offsets_macros(positions.dtype, offsets.dtype)
        kernel = launch.get_kernel("store_offsets.cu", "store_offsets", **macros)
        arguments = (np.int64(nnz), size, stored_now, positions, stored, offsets)
        launch.launch_items(kernel, nnz, tuning.BLOCK_SIZE, arguments)

    def scatter_in_buckets(
        self, records: Array, offsets: Array, bucket_size: int, target: Array
    ) -> None:
        macros = scatter_records_macros(records.shape[1], offsets.dtype)
        kernel = launch.get_kernel("scatter_records.cu", "scatter_records", **macros)
        arguments = (np.int64(offsets.size), np.int64(bucket_size), offsets, records, target)
        launch.launch_items(kernel, records.size // 2, tuning.BLOCK_SIZE, arguments)

    def position_in_buckets(self, offsets: PackedIds, bucket_size: int) -> Array:
        nnz = offsets.nnz
        positions = cupy.empty(nnz, index_dtype(nnz))
        macros = position_macros(positions.dtype, offsets.bits, offsets.tile_size)
        kernel = launch.get_kernel("position_in_buckets.cu", "position_in_buckets", **macros)
        arguments = (np.int64(nnz), np.int64(bucket_size), offsets.lows, offsets.highs, positions)
        launch.launch_items(kernel, nnz, tuning.BLOCK_SIZE, arguments)
        return positions

    def order_writes(self, remap_ids: Array, tile_size: int) -> Array:
        macros = order_writes_macros(tile_size, remap_ids.dtype)
        kernel = launch.get_kernel("order_writes.cu", "order_writes", **macros)
        write_order = cupy.empty(remap_ids.size, np.uint16)
        num_tiles = -(-remap_ids.size // tile_size)
        arguments = (np.int64(remap_ids.size), remap_ids, write_order)
        launch.launch_tiles(kernel, num_tiles, 1, tuning.BLOCK_SIZE, arguments)
        return write_order

    def compact_ids(self, ids: Array, limit: int, cut: Cut) -> PackedIds:
        return PackedIds.split(ids, limit, cut.tile_size)

    def compact_runs(self, remap_ids: Array, cut: Cut) -> RunIds:
        max_runs = count_runs(remap_ids.size, cut.tile_size, cut.bucket_size)
        return RunIds.find(remap_ids, cut.tile_size, max_runs)

    def count_plan_nbytes(self, nnz: int, cut: Cut) -> int:
        itemsize = index_dtype(nnz).itemsize
        return count_plan_nbytes(nnz, cut.tile_size, cut.bucket_size, itemsize)

    def count_plain_nbytes(self, nnz: int) -> int:
        # Remap ids of this mode and of the last one, pull ids, and a write order.
        return (3 * index_dtype(nnz).itemsize + 2) * nnz

    def remap(self, step: Step, cut: Cut) -> None:
        num_tiles = -(-step.records.shape[0] // cut.tile_size)
        if num_tiles == 0:
            return
        pull, runs, order = step.pull_ids, step.remap_ids, step.write_order
        types = (pull.bits, runs.shifts.dtype)
        macros = remap_macros(cut.record_format, cut.tile_size, *types)
        kernel = launch.get_kernel("remap.cu", "remap", **macros)
        arguments = (
            np.int64(step.records.shape[0]), np.int64(step.bucket_size),
            step.records, pull.lows, pull.highs, step.spare,
            runs.starts, runs.counts, runs.shifts, np.int32(runs.max_runs),
            order.lows, order.highs,
        )  # fmt: skip
        block_size = tuning.choose_block_size(cut.tile_size)
        shared_nbytes = cut.tile_size * cut.record_format.record_nbytes
        launch.launch_tiles(kernel, num_tiles, 1, block_size, arguments, shared_nbytes)

    def make_lock(self) -> AbstractContextManager:
        return _StreamLock()

    def sort_nbytes(self, nnz: int, size: int) -> int:
        # Rows; and then the sort.
        return 4 * nnz + max(self.empty_rows_nbytes(nnz, size), _argsort_nbytes(nnz, 4))

    def empty_rows_nbytes(self, nnz: int, size: int) -> int:
        return size + size // 2**10 + 2**10  # a flag for each row, and counts of the empty ones

    def split_nbytes(self, nnz: int, bucket_size: int) -> int:
        # Buckets while they are sorted, and the new places of items.
        itemsize = index_dtype(nnz).itemsize
        return 2 * itemsize * nnz + _argsort_nbytes(nnz, itemsize)


def _copy_to_gpu(rows: Array) -> Array:
    """Return rows (n, size) on the GPU, copied one at a time if they are on the host.

    They are copied from pageable memory: pinned memory is no faster, as a thread would first have
    to copy the rows there (H200).
    """
    if is_cupy(rows):
        return rows
    copied = cupy.empty(rows.shape, rows.dtype.newbyteorder("="))
    for row, target in zip(rows, copied, strict=True):
        target.set(np.ascontiguousarray(row, copied.dtype))
    return copied


def _pack_block(
    coords: Array, values: Array, record_format: RecordFormat, records: Array, found: Array
) -> None:
    """Launch the packing of nonzeros on the GPU; it sets the flags in `found`."""
    macros = pack_macros(record_format, coords.dtype)
    kernel = launch.get_kernel("pack.cu", "pack", **macros)
    arguments = (
        make_packing(record_format, coords), np.int64(values.size), coords,
        cupy.ascontiguousarray(values), records, found,
    )  # fmt: skip
    launch.launch_items(kernel, values.size, tuning.BLOCK_SIZE, arguments)


def _read_keys(
    records: Array,
    record_format: RecordFormat,
    modes: Sequence[int],
    places: Array | None = None,
    keys: Array | None = None,
    is_used: Array | None = None,
) -> None:
    """Read the rows of `modes`, the first the most significant, at `places` of the records.

    They are written to `keys` as one number, and set flags in `is_used`.
    """
    key_dtype = np.dtype(np.uint32) if keys is None else keys.dtype
    macros = read_keys_macros(record_format, len(modes), key_dtype, _place_dtype(places))
    kernel = launch.get_kernel("read_keys.cu", "read_keys", **macros)
    arguments = (
        make_key_fields(record_format, modes), np.int64(records.shape[0]), records,
        *launch.pass_none([places, keys, is_used]),
    )  # fmt: skip
    launch.launch_items(kernel, records.shape[0], tuning.BLOCK_SIZE, arguments)


def _place_dtype(places: Array | None) -> np.dtype:
    return np.dtype(np.uint32) if places is None else places.dtype


def _group_modes(
    record_format: RecordFormat, modes: Iterable[int]
) -> list[tuple[list[int], np.dtype]]:
    """Group modes whose rows fit one key together, and choose the type of each group's key."""
    groups: list[tuple[list[int], int]] = []
    for mode in modes:
        width = record_format.masks[mode].bit_length()
        if not groups or groups[-1][1] + width > 64:
            groups.append(([], 0))
        group, num_bits = groups[-1]
        groups[-1] = ([*group, mode], num_bits + width)
    return [(group, np.dtype(np.uint32 if n <= 32 else np.uint64)) for group, n in groups]


def _argsort_nbytes(nnz: int, itemsize: int) -> int:
    """Bound the bytes of `cupy.argsort`, the int64 order that it returns included.

    A radix sort has two buffers each for the keys and for the order; its counters are small.
    """
    return 2 * (itemsize + 8) * nnz + nnz // 2 + 2**20
