"""What building a tensor on a GPU consists of: CuPy's radix sorts, and the kernels of `cuda/`."""

import threading

import cupy
import numpy as np

from ...array_modules import is_cupy
from ...checks import check_finite, check_inside
from ...format.primitives import Primitives, index_dtype
from . import launch, tuning
from .macros import order_writes_macros, pack_macros, sum_groups_macros
from .structs import make_packing


class _StreamLock:
    """A lock whose holders take turns on the device too, each on its own stream.

    A launch returns before it has run. So who holds the lock next makes its stream wait for what
    the last one launched: a remapping for one that moves the same records, and also for a copy of
    them, which the second remapping after it would otherwise overwrite while it is being made.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._last_use = None

    def __enter__(self):
        self._lock.acquire()
        try:
            if self._last_use is not None:
                cupy.cuda.get_current_stream().wait_event(self._last_use)
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *exception):
        try:
            event = cupy.cuda.Event(disable_timing=True)
            self._last_use = cupy.cuda.get_current_stream().record(event)
        finally:
            self._lock.release()


class _CudaPrimitives(Primitives):
    """CuPy's radix sorts; records that lie together are written together."""

    write_order_itemsize = 2

    staging_size = 2**22

    def __init__(self):
        super().__init__(cupy, block_size=2**26)

    def pack(self, coords, values, record_format):
        """Make records, as `Primitives.pack` does, of arrays here or in the host's memory.

        Those of the host come over `staging_size` nonzeros at a time, so that the GPU needs room
        for little else than the records.
        """
        size = values.size if is_cupy(values) else self.staging_size
        records = cupy.empty((values.size, record_format.num_words), record_format.word_dtype)
        found = cupy.zeros(4, bool)
        for first in range(0, values.size, max(size, 1)):
            # And the one before, which the first is compared with.
            block = slice(max(first - 1, 0), first + size)
            arrays = (_bring(coords[:, block]), _bring(values[None, block])[0])
            _pack_block(*arrays, record_format, records[block], found)
        falls, is_outside, is_infinite, has_zeros = found.get()
        if is_outside:
            check_inside(coords, record_format.shape)
        if is_infinite:
            check_finite(values)
        return records, not falls, bool(has_zeros)

    def sort_places(self, records, record_format, modes, places=None):
        # Rows of several modes at a time: as many as a key has room for.
        for group, dtype in _group_modes(record_format, modes):
            keys = cupy.zeros(records.shape[0], dtype)
            for mode in reversed(group):
                keys <<= dtype.type(record_format.masks[mode].bit_length())
                keys |= record_format.rows(records, mode, cupy)
            keys = keys if places is None else keys[places]
            order = cupy.argsort(keys, kind="stable")
            places = order.astype(index_dtype(order.size)) if places is None else places[order]
        return places

    def sum_groups(self, values, starts):
        kernel = launch.get_kernel("sum_groups.cu", "sum_groups", **sum_groups_macros(values.dtype))
        sums = cupy.empty(starts.size, values.dtype)
        edges = cupy.append(starts, values.size).astype(np.int64, copy=False)
        arguments = (np.int64(starts.size), edges, cupy.ascontiguousarray(values), sums)
        launch.launch_items(kernel, starts.size, tuning.BLOCK_SIZE, arguments)
        return sums

    def order_writes(self, remap_ids, tile_size):
        macros = order_writes_macros(tile_size, remap_ids.dtype)
        kernel = launch.get_kernel("order_writes.cu", "order_writes", **macros)
        write_order = cupy.empty(remap_ids.size, np.uint16)
        num_tiles = -(-remap_ids.size // tile_size)
        arguments = (np.int64(remap_ids.size), remap_ids, write_order)
        launch.launch_tiles(kernel, num_tiles, 1, tuning.BLOCK_SIZE, arguments)
        return write_order

    def make_lock(self):
        return _StreamLock()

    def sum_nbytes(self, nnz, itemsize):
        return nnz * (8 + 8 + 2 * itemsize)  # starts, edges; values and sums

    def sort_nbytes(self, nnz, size):
        # Rows, in two orders, while they are sorted; a flag a row and the int64 numbers of some.
        return max(8 * nnz + _argsort_nbytes(nnz, 4), 4 * nnz + 9 * size)

    def sort_places_nbytes(self, nnz, shape):
        return 12 * nnz + _argsort_nbytes(nnz, 8)  # keys, and the rows of a mode

    def split_nbytes(self, nnz, bucket_size):
        # Buckets while they are sorted, and where items will go.
        itemsize = index_dtype(nnz).itemsize
        return 2 * itemsize * nnz + _argsort_nbytes(nnz, itemsize)


def _bring(rows):
    """Return rows (n, size) as they are if they are here, else copied, one at a time.

    Straight from where they lie: pinned memory, into which a thread would have to copy them, is no
    faster (H200).
    """
    if is_cupy(rows):
        return rows
    copied = cupy.empty(rows.shape, rows.dtype.newbyteorder("="))
    for row, target in zip(rows, copied, strict=True):
        target.set(np.ascontiguousarray(row, copied.dtype))
    return copied


def _pack_block(coords, values, record_format, records, found):
    """Launch the packing of nonzeros on the GPU, which notes in `found` what they are like."""
    macros = pack_macros(record_format, coords.dtype)
    kernel = launch.get_kernel("pack.cu", "pack", **macros)
    arguments = (
        make_packing(record_format, coords), np.int64(values.size), coords,
        cupy.ascontiguousarray(values), records, found,
    )  # fmt: skip
    launch.launch_items(kernel, values.size, tuning.BLOCK_SIZE, arguments)


def _group_modes(record_format, modes):
    """Group modes whose rows fit one key together, and choose the type of each group's key."""
    groups = []
    for mode in modes:
        width = record_format.masks[mode].bit_length()
        if not groups or groups[-1][1] + width > 64:
            groups.append(([], 0))
        group, num_bits = groups[-1]
        groups[-1] = ([*group, mode], num_bits + width)
    return [(group, np.dtype(np.uint32 if n <= 32 else np.uint64)) for group, n in groups]


def _argsort_nbytes(nnz, itemsize):
    """Count the bytes that `cupy.argsort` takes at most, the int64 order that it returns included.

    A radix sort moves a copy of the keys and the order between two places each; what it counts
    keys with is small.
    """
    return 2 * (itemsize + 8) * nnz + nnz // 2 + 2**20


primitives = _CudaPrimitives()
