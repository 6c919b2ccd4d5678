"""The primitives of building on a GPU: CuPy's radix sorts, and kernels of `kernels/`."""

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import cupy
import numpy as np

from ...array_modules import Array, is_cupy
from ...checks import check_finite, check_inside
from ...format.layout import Cut, Step
from ...format.packing import RecordFormat
from ...format.primitives import Primitives, index_dtype
from . import launch, tuning
from .macros import (
    order_writes_macros,
    pack_macros,
    remap_macros,
    split_columns_macros,
    sum_groups_macros,
)
from .structs import make_columns, make_packing


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


class CudaPrimitives(Primitives):
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
        # Sort by as many modes at a time as fit one key.
        for group, dtype in _group_modes(record_format, modes):
            keys = cupy.zeros(records.shape[0], dtype)
            for mode in reversed(group):
                keys <<= dtype.type(record_format.masks[mode].bit_length())
                keys |= record_format.rows(records, mode, cupy)
            keys = keys if places is None else keys[places]
            order = cupy.argsort(keys, kind="stable")
            places = order.astype(index_dtype(order.size)) if places is None else places[order]
        return places

    def sort_places_nbytes(self, nnz: int, shape: tuple[int, ...]) -> int:
        return 12 * nnz + _argsort_nbytes(nnz, 8)  # keys, and the rows of a mode

    def sum_groups(self, values: Array, starts: Array) -> Array:
        kernel = launch.get_kernel("sum_groups.cu", "sum_groups", **sum_groups_macros(values.dtype))
        sums = cupy.empty(starts.size, values.dtype)
        edges = cupy.append(starts, values.size).astype(np.int64, copy=False)
        arguments = (np.int64(starts.size), edges, cupy.ascontiguousarray(values), sums)
        launch.launch_items(kernel, starts.size, tuning.BLOCK_SIZE, arguments)
        return sums

    def sum_nbytes(self, nnz: int, itemsize: int) -> int:
        return nnz * (8 + 8 + 2 * itemsize)  # starts, edges; values and sums

    def order_writes(self, remap_ids: Array, tile_size: int) -> Array:
        macros = order_writes_macros(tile_size, remap_ids.dtype)
        kernel = launch.get_kernel("order_writes.cu", "order_writes", **macros)
        write_order = cupy.empty(remap_ids.size, np.uint16)
        num_tiles = -(-remap_ids.size // tile_size)
        arguments = (np.int64(remap_ids.size), remap_ids, write_order)
        launch.launch_tiles(kernel, num_tiles, 1, tuning.BLOCK_SIZE, arguments)
        return write_order

    def remap(self, step: Step, cut: Cut) -> None:
        num_tiles = -(-step.records.shape[0] // cut.tile_size)
        if num_tiles == 0:
            return
        ids = (step.pull_ids.dtype, step.remap_ids.dtype)
        macros = remap_macros(cut.record_format, cut.tile_size, *ids)
        kernel = launch.get_kernel("remap.cu", "remap", **macros)
        arguments = (
            np.int64(step.records.shape[0]), np.int64(step.bucket_size),
            step.records, step.pull_ids, step.spare, step.remap_ids, step.write_order,
        )  # fmt: skip
        shared_nbytes = cut.tile_size * cut.record_format.record_nbytes
        launch.launch_tiles(kernel, num_tiles, 1, tuning.BLOCK_SIZE, arguments, shared_nbytes)

    def split_columns(
        self, records: Array, record_format: RecordFormat, mode: int, places: Array | None
    ) -> tuple[Array, Array, Array]:
        nnz = records.shape[0]
        is_first, values = cupy.ones(nnz + 1, bool), cupy.empty(nnz)
        rows = cupy.empty(nnz, np.uint32)
        macros = split_columns_macros(record_format, None if places is None else places.dtype)
        kernel = launch.get_kernel("split_columns.cu", "split_columns", **macros)
        arguments = (
            make_columns(record_format, mode), np.int64(nnz), records,
            np.uint64(0) if places is None else places, is_first, rows, values,
        )  # fmt: skip
        launch.launch_items(kernel, nnz, tuning.BLOCK_SIZE, arguments)
        return is_first, rows, values

    def sum_single_squares(
        self, is_first: Array, rows: Array, values: Array, num_rows: int
    ) -> Array:
        # Integers: their sums do not depend on the order of additions. With few rows, threads
        # would wait for each other to add; so each adds to one of several copies.
        num_copies = max(1, tuning.NUM_SQUARE_SUMS // num_rows)
        parts = cupy.zeros((num_copies, 2, 2, num_rows), np.uint64)
        kernel = launch.get_kernel("add_squares.cu", "add_squares")
        sizes = (np.int64(num_rows), np.int64(num_copies))
        arguments = (np.int64(values.size), is_first, rows, values, *sizes, parts)
        launch.launch_items(kernel, values.size, tuning.BLOCK_SIZE, arguments)
        high, low = parts.sum(axis=0).transpose(1, 0, 2)
        return high * 2.0**-30 + low * 2.0**-61

    def make_lock(self) -> AbstractContextManager:
        return _StreamLock()

    def sort_nbytes(self, nnz: int, size: int) -> int:
        # Rows in two orders and the sort; or a flag for each row and the int64 empty rows.
        return max(8 * nnz + _argsort_nbytes(nnz, 4), 4 * nnz + 9 * size)

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
