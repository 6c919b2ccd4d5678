"""The primitives of building on a GPU: CuPy's radix sorts, and kernels of `kernels/`.

CuPy compiles each of its elementwise operations, for each combination of dtypes, in a tenth of a
second. Building a tensor took 33 of them, so here they are a few kernels of ours.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import cupy
import cupyx
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...base.array_modules import is_cupy, share_parts
from ...base.checks import check_finite, check_inside
from ...base.host_threads import MAX_THREADS
from ...format.packing import Cut, RecordFormat
from ...format.primitives import Entries, LeadingPairs, ModeRows, Primitives, Step, index_dtype
from ...format.remap import count_runs
from . import launch, tuning
from .compact_ids import PackedIds, RunIds, count_plan_nbytes
from .macros import pack_macros, read_keys_macros, remap_macros, split_columns_macros
from .structs import make_columns, make_key_fields, make_packing


class _StreamLock:
    """A lock whose holders take turns on the device too, each on its own stream.

    A launch returns before its kernel has run. So each holder makes its stream wait for the
    previous holder's launches. These remap or copy the same records; without the wait, the second
    remapping after a copy could overwrite records not yet copied.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_use: cupy.cuda.Event | None = None  # the end of the previous holder's

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
            if self._last_use is None:
                self._last_use = cupy.cuda.Event(disable_timing=True)
            cupy.cuda.get_current_stream().record(self._last_use)
        finally:
            self._lock.release()


class CudaPrimitives(Primitives):
    """CuPy's radix sorts, and kernels whose blocks write neighbouring records together."""

    word_dtype = np.dtype(np.uint32)
    staging_size = 2**23
    least_repeats = 5  # a sweep of Nell-1's shape [H100]: with 5 takes .83 of the time, with 4 .9

    def __init__(self) -> None:
        super().__init__(cupy, block_size=2**26)

    def pack(
        self, coords: Array, values: Array, record_format: RecordFormat
    ) -> tuple[Array, bool, bool]:
        """Make records, as `Primitives.pack` does, from arrays on the GPU or the host.

        Threads copy large host arrays, `staging_size` nonzeros at a time in all.
        """
        nnz = coords.shape[1]
        coord_dtype = coords.dtype.newbyteorder("=")
        records = cupy.empty((nnz, record_format.num_words), record_format.word_dtype)
        flags = cupy.zeros(4, bool)
        kernel = launch.get_kernel("pack.cu", "pack", **pack_macros(record_format, coord_dtype))

        def pack_block(block: slice, block_coords: Array, block_values: Array) -> None:
            """Pack a block of the nonzeros, whose coords and values are on the GPU."""
            count = block.stop - block.start
            arguments = (
                make_packing(record_format, block_coords),
                np.int64(count),
                block_coords,
                block_values,
                records[block],
                flags,
            )
            launch.launch_items(kernel, count, arguments)

        most_per_thread = self.staging_size // MAX_THREADS
        if is_cupy(values) or nnz <= most_per_thread:
            gpu_coords = cupy.asarray(coords, coord_dtype)
            gpu_values = cupy.ascontiguousarray(cupy.asarray(values, record_format.dtype))
            pack_block(slice(0, nnz), gpu_coords, gpu_values)
        else:
            block_size = min(most_per_thread, nnz // MAX_THREADS)
            coord_blocks = cupy.empty((MAX_THREADS, coords.shape[0], block_size), coord_dtype)
            value_blocks = cupy.empty((MAX_THREADS, block_size), record_format.dtype)
            _stage(coords, values, coord_blocks, value_blocks, pack_block)
        descends, is_outside, is_infinite, has_zeros = flags.get()
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
        """Implement `Primitives.sort_places` by a radix sort of keys, which several modes share."""
        nnz = records.shape[0]
        place_dtype = index_dtype(nnz) if places is None else places.dtype
        # Sort by as many modes at a time as fit one key.
        for group, key_dtype in _group_modes(record_format, modes):
            keys = cupy.empty(nnz, key_dtype)
            _read_keys(records, record_format, group[::-1], places, key_dtype, keys)
            order = cupy.argsort(keys, kind="stable")
            sorted_places = cupy.empty(nnz, place_dtype)
            _store_places(order, places, target=sorted_places)
            places = sorted_places
        return places

    def sort_places_nbytes(self, nnz: int, record_format: RecordFormat) -> int:
        num_bits = sum(mask.bit_length() for mask in record_format.masks)
        itemsize = _choose_key_dtype(num_bits).itemsize
        return itemsize * nnz + _argsort_nbytes(nnz, itemsize)  # keys

    def read_rows(self, records: Array, record_format: RecordFormat, mode: int) -> Array:
        rows = cupy.empty(records.shape[0], index_dtype(record_format.shape[mode], "uint16"))
        _read_keys(records, record_format, [mode], None, rows.dtype, rows)
        return rows

    def sort_by_row(self, mode_rows: ModeRows, target: Array, positions: Array) -> Array | None:
        """Implement `Primitives.sort_by_row`; the rows without nonzeros are a by-product."""
        records, record_format, mode, places = mode_rows
        size = record_format.shape[mode]
        keys = cupy.empty(records.shape[0], index_dtype(size, "uint16"))  # half the passes of 32
        is_used = cupy.zeros(size, bool)
        _read_keys(records, record_format, [mode], places, keys.dtype, keys, is_used)
        empty_rows = _list_empty_rows(is_used)
        del is_used
        order = cupy.argsort(keys, kind="stable")
        _store_places(order, places, target=target, positions=positions)
        return empty_rows

    def find_empty_rows(self, records: Array, record_format: RecordFormat, mode: int) -> Array:
        size = record_format.shape[mode]
        is_used = cupy.zeros(size, bool)
        key_dtype = index_dtype(size, "uint16")
        _read_keys(records, record_format, [mode], None, key_dtype, is_used=is_used)
        return _list_empty_rows(is_used)

    def find_carry_rows(self, mode_rows: ModeRows, tile_size: int) -> Array:
        """Implement `Primitives.find_carry_rows`: a thread compares rows where a tile begins."""
        records, record_format, mode, places = mode_rows
        num_tiles = -(-records.shape[0] // tile_size)
        carry_rows = cupy.empty(num_tiles, np.int64)
        row_dtype = index_dtype(record_format.shape[mode], "uint16")
        macros = read_keys_macros(record_format, 1, row_dtype, getattr(places, "dtype", None))
        kernel = launch.get_kernel("read_keys.cu", "find_carry_rows", **macros)
        arguments = (
            make_key_fields(record_format, [mode]),
            np.int64(num_tiles),
            np.int64(tile_size),
            records,
            places,
            carry_rows,
        )
        launch.launch_items(kernel, num_tiles, arguments)
        return carry_rows

    def sum_squares(self, values: Array) -> float:
        """Implement `Primitives.sum_squares`: the host adds the sums of blocks of values."""
        num_blocks = -(-values.size // tuning.ROWS_PER_BLOCK)
        sums = cupy.empty(num_blocks, np.float64)
        if num_blocks > 0:
            kernel = _get_sum_kernel("sum_squares", values.dtype)
            stride = values.strides[0] // values.itemsize
            arguments = (np.int64(values.size), np.int64(stride), values, sums)
            launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, arguments)
        return float(sums.get().sum())

    def sum_groups(self, values: Array, starts: Array) -> Array:
        kernel = _get_sum_kernel("sum_groups", values.dtype)
        sums = cupy.empty(starts.size, values.dtype)
        edges = cupy.append(starts, values.size).astype(np.int64, copy=False)
        arguments = (np.int64(starts.size), edges, cupy.ascontiguousarray(values), sums)
        launch.launch_items(kernel, starts.size, arguments)
        return sums

    def sum_nbytes(self, nnz: int, itemsize: int) -> int:
        return nnz * (8 + 8 + 2 * itemsize)  # starts, edges; values and sums

    def split_by_bucket(
        self, positions: Array, bucket_size: int, stored: Array, offsets: Array
    ) -> None:
        """Implement `Primitives.split_by_bucket` by a radix sort of the numbers of buckets."""
        nnz = positions.size
        num_buckets = -(-nnz // bucket_size)
        buckets = cupy.empty(nnz, index_dtype(num_buckets, smallest="uint16"))
        macros = {"PLACE": positions.dtype, "BUCKET": buckets.dtype, "OFFSET": offsets.dtype}
        number_buckets = launch.get_kernel("buckets.cu", "number_buckets", **macros)
        arguments = (np.int64(nnz), np.int64(bucket_size), positions, buckets)
        launch.launch_items(number_buckets, nnz, arguments)
        order = cupy.argsort(buckets, kind="stable")
        sorted_places = cupy.empty_like(stored)
        _store_places(order, None, positions=sorted_places)
        store_offsets = launch.get_kernel("buckets.cu", "store_offsets", **macros)
        launch.launch_items(
            store_offsets,
            nnz,
            (np.int64(nnz), np.int64(bucket_size), sorted_places, positions, stored, offsets),
        )

    def scatter_in_buckets(
        self, records: Array, offsets: Array, bucket_size: int, target: Array
    ) -> None:
        macros = {"NUM_WORDS": records.shape[1], "OFFSET": offsets.dtype}
        kernel = launch.get_kernel("scatter_records.cu", "scatter_records", **macros)
        arguments = (np.int64(offsets.size), np.int64(bucket_size), offsets, records, target)
        launch.launch_items(kernel, records.size // 2, arguments)  # a thread moves two words

    def position_in_buckets(self, offsets: PackedIds, bucket_size: int) -> Array:
        return offsets.find_positions(index_dtype(offsets.nnz), bucket_size)

    def compact_pull(self, pull_ids: Array, cut: Cut) -> PackedIds:
        return PackedIds.split(pull_ids, cut.bucket_size, cut.tile_size)

    def compact_push(self, remap_ids: Array, cut: Cut) -> tuple[RunIds, PackedIds]:
        """Order the writes of each tile by their targets, which then are runs of neighbours."""
        tile_size = cut.tile_size
        nnz = remap_ids.size
        block_size = tuning.BLOCK_SIZE
        kernel = launch.get_kernel(
            "order_writes.cu",
            "order_writes",
            REMAP_ID=remap_ids.dtype,
            TILE_SIZE=tile_size,
            BLOCK_SIZE=block_size,
        )
        write_order = cupy.empty(nnz, np.uint16)
        launch.launch_tiles(
            kernel,
            num_tiles=-(-nnz // tile_size),
            num_parts=1,
            block_size=block_size,
            arguments=(np.int64(nnz), remap_ids, write_order),
        )
        runs = RunIds.find(remap_ids, tile_size, count_runs(nnz, tile_size, cut.bucket_size))
        return runs, PackedIds.split(write_order, tile_size, tile_size)

    def count_plan_nbytes(self, nnz: int, cut: Cut) -> int:
        itemsize = index_dtype(nnz).itemsize
        return count_plan_nbytes(nnz, cut.tile_size, cut.bucket_size, itemsize)

    def count_plain_nbytes(self, nnz: int) -> int:
        # Remap ids of this mode and of the last one, pull ids, and a write order.
        return (3 * index_dtype(nnz).itemsize + 2) * nnz

    def remap(self, step: Step, cut: Cut) -> None:
        """Implement `Primitives.remap`: a tile is pulled to shared memory and pushed from there."""
        num_tiles = -(-step.records.shape[0] // cut.tile_size)
        if num_tiles == 0:
            return
        pull_ids = step.pull_ids
        runs = step.remap_ids
        write_order = step.write_order
        macros = remap_macros(
            cut.record_format,
            cut.tile_size,
            pull_bits=pull_ids.bits,
            remap_dtype=runs.shifts.dtype,
        )
        kernel = launch.get_kernel("remap_only.cu", "remap", **macros)
        arguments = (
            np.int64(step.records.shape[0]),
            np.int64(step.bucket_size),
            step.records,
            pull_ids.lows,
            pull_ids.highs,
            step.spare,
            runs.starts,
            runs.counts,
            runs.shifts,
            np.int32(runs.max_runs),
            write_order.lows,
            write_order.highs,
        )
        launch.launch_tiles(
            kernel,
            num_tiles,
            num_parts=1,
            block_size=tuning.choose_block_size(cut.tile_size),
            arguments=arguments,
            shared_nbytes=cut.tile_size * cut.record_format.record_nbytes,
        )

    def split_columns(self, mode_rows: ModeRows) -> Entries:
        """Implement `Primitives.split_columns`: a thread compares a nonzero with the one before."""
        records, record_format, mode, places = mode_rows
        nnz = records.shape[0]
        is_first = cupy.empty(nnz + 1, bool)
        values = cupy.empty(nnz)
        rows = cupy.empty(nnz, np.uint32)
        macros = split_columns_macros(record_format, getattr(places, "dtype", None))
        kernel = launch.get_kernel("split_columns.cu", "split_columns", **macros)
        arguments = (
            make_columns(record_format, mode),
            np.int64(nnz),
            records,
            places,
            is_first,
            rows,
            values,
        )
        launch.launch_items(kernel, nnz + 1, arguments)
        return Entries(is_first, rows, values)

    def sum_single_squares(self, entries: Entries, num_rows: int, scale: float) -> Array:
        """Implement `Primitives.sum_single_squares` by atomic additions of fixed-point numbers."""
        # Integers: their sums do not depend on the order of additions. With few rows, threads
        # would wait for each other to add; so each adds to one of several copies.
        num_copies = min(max(1, tuning.NUM_SQUARE_SUMS // num_rows), tuning.MAX_SQUARE_COPIES)
        parts = cupy.zeros((num_copies, 2, 2, num_rows), np.uint64)  # by sign, high and low word
        launch_on_unfolding(
            "sum_single_squares",
            entries.values.size,
            *entries,
            np.float64(scale),
            np.int64(num_rows),
            np.int64(num_copies),
            parts,
        )
        squares = cupy.empty((2, num_rows))
        launch_on_unfolding(
            "add_parts", squares.size, np.int64(num_rows), np.int64(num_copies), parts, squares
        )
        return squares

    def list_shared(
        self, entries: Entries, num_rows: int, scale: float
    ) -> tuple[Array, Array, Array]:
        """Implement `Primitives.list_shared` by two launches: one counts, the other lists."""
        kernel = _get_unfolding_kernel("list_shared")
        nnz = entries.values.size
        num_blocks = -(-nnz // tuning.ROWS_PER_BLOCK)
        starts = cupy.empty((num_blocks, 2), np.int64)

        def visit(
            num_shared: int,
            is_free: Array | None,
            slots: Array | None,
            coords: Array | None,
            shared_values: Array | None,
        ) -> None:
            """Launch the kernel: without `coords` it counts, and marks `is_free`; else it lists."""
            arguments = (
                np.int64(nnz),
                *entries,
                np.float64(scale),
                starts,
                np.int64(num_shared),
                is_free,
                slots,
                coords,
                shared_values,
            )
            if num_blocks > 0:
                launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, arguments)

        # The first visit writes each block's counts to `starts`, and clears `is_free`.
        is_free = cupy.empty(num_rows, bool)
        is_free.data.memset_async(1, is_free.nbytes)
        visit(0, is_free, None, None, None)
        counts = starts.get()
        starts.set(counts.cumsum(axis=0) - counts)
        coupled_rows = _list_empty_rows(is_free, np.dtype(np.int64))
        slots = cupy.empty(num_rows, np.uint32)  # each coupled row's place among them
        _store_places(coupled_rows, None, positions=slots)

        num_shared = int(counts[:, 0].sum())
        coords = cupy.empty((2, num_shared), np.int64)
        shared_values = cupy.empty(num_shared)
        if num_shared > 0:
            visit(num_shared, None, slots, coords, shared_values)
        return coupled_rows, coords, shared_values

    def add_signs(self, squares: Array, rows: Array) -> Array:
        sums = cupy.empty(rows.size)
        num_rows = np.int64(squares.shape[1])
        launch_on_unfolding("add_signs", rows.size, rows, num_rows, squares, sums)
        return sums

    def find_largest_sums(
        self, squares: Array, excluded: Array, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        # Sorting the bits of sums, inverted, is a radix sort, and sorts in descending order.
        keys = cupy.empty(squares.shape[1], np.uint64)
        launch_on_unfolding("make_keys", keys.size, squares, keys)
        launch_on_unfolding("exclude_keys", excluded.size, excluded, keys)
        rows = cupy.argsort(keys, kind="stable")[:count].get()
        keys.sort()  # once more, since CuPy would compile a gather
        sums = np.invert(keys[:count].get()).view(np.float64)
        is_positive = sums > 0
        return rows[is_positive], sums[is_positive]

    def place_vectors(
        self, pairs: LeadingPairs, signs: np.ndarray, shape: tuple[int, int], dtype: np.dtype
    ) -> Array:
        """Implement `Primitives.place_vectors`, in one launch."""
        vectors, _, rows, sources = pairs
        # Vectors that are in place already change their signs there.
        placed = vectors if pairs.are_placed(shape, dtype) else cupy.zeros(shape, dtype)
        kernel = launch.get_kernel(
            "place_vectors.cu",
            "place_vectors",
            VECTOR=vectors.dtype,
            PLACED=placed.dtype,
            BLOCK_SIZE=tuning.BLOCK_SIZE,
        )
        if rows is not None:
            rows = rows.astype(np.int64, copy=False)  # as the kernel reads them
        row_nbytes, column_nbytes = vectors.strides
        arguments = (
            np.int64(vectors.shape[0]),
            np.int64(sources.size),
            vectors,
            np.int64(row_nbytes // vectors.itemsize),
            np.int64(column_nbytes // vectors.itemsize),
            rows,
            cupy.asarray(np.stack([sources, signs])),
            np.int64(shape[1]),
            placed,
        )
        launch.launch_items(kernel, (vectors.shape[0] + 1) * sources.size, arguments)
        return placed

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


def _stage(
    coords: np.ndarray,
    values: np.ndarray,
    coord_blocks: Array,
    value_blocks: Array,
    use: Callable[[slice, Array, Array], None],
) -> None:
    """Copy coords (ndim, nnz) and values (nnz,) to the GPU block by block, and use each there.

    Threads share the work: each has one of the blocks (num_threads, ndim, size) and (num_threads,
    size) on the GPU, and pinned memory of that size.
    """
    nnz = values.shape[0]
    block_size = value_blocks.shape[1]

    def stage_blocks(thread: int, starts: Iterator[int]) -> None:
        """Stage the blocks that begin at `starts`, with the memory of one thread."""
        stream = cupy.cuda.get_current_stream()
        targets = (coord_blocks[thread], value_blocks[thread])
        pinned = [cupyx.empty_pinned(target.shape, target.dtype) for target in targets]
        for start in starts:
            # Begins with the previous block's last nonzero, to compare the first one with.
            block = slice(max(start - 1, 0), min(start + block_size - 1, nnz))
            count = block.stop - block.start
            for source, waiting, target in zip((coords, values), pinned, targets, strict=True):
                waiting[..., :count] = source[..., block]
                target.data.copy_from_host_async(waiting.ctypes.data, waiting.nbytes, stream)
            use(block, *targets)
            stream.synchronize()  # the next block takes the same memory

    share_parts(range(0, nnz, block_size - 1), stage_blocks)


def _read_keys(
    records: Array,
    record_format: RecordFormat,
    modes: Sequence[int],
    places: Array | None,
    key_dtype: np.dtype,
    keys: Array | None = None,
    is_used: Array | None = None,
) -> None:
    """Read the rows of `modes`, the first the most significant, at `places` of the records.

    They are written to `keys` as one number, and set flags in `is_used`.
    """
    macros = read_keys_macros(record_format, len(modes), key_dtype, getattr(places, "dtype", None))
    kernel = launch.get_kernel("read_keys.cu", "read_keys", **macros)
    fields = make_key_fields(record_format, modes)
    nnz = records.shape[0]
    launch.launch_items(kernel, nnz, (fields, np.int64(nnz), records, places, keys, is_used))


def _get_sum_kernel(name: str, dtype: np.dtype) -> cupy.RawKernel:
    """Return an entry of `sum_values.cu`."""
    return launch.get_kernel(
        "sum_values.cu",
        name,
        VALUE=dtype,
        VALUES_PER_BLOCK=tuning.ROWS_PER_BLOCK,
        BLOCK_SIZE=tuning.BLOCK_SIZE,
    )


def _store_places(
    order: Array,
    places: Array | None,
    target: Array | None = None,
    positions: Array | None = None,
) -> None:
    """Write ``places[order]`` (`order` if None) to `target`, and where each went to `positions`."""
    dtype = next(array.dtype for array in (target, positions) if array is not None)
    kernel = launch.get_kernel("store_places.cu", "store_places", PLACE=dtype)
    arguments = (np.int64(order.size), order, places, target, positions)
    launch.launch_items(kernel, order.size, arguments)


def _list_empty_rows(is_used: Array, dtype: np.dtype | None = None) -> Array:
    """List the rows that are not in use, ascending."""
    row_dtype = dtype or index_dtype(is_used.size)
    kernel = launch.get_kernel(
        "list_empty_rows.cu",
        "list_empty_rows",
        ROW=row_dtype,
        ROWS_PER_BLOCK=tuning.ROWS_PER_BLOCK,
        BLOCK_SIZE=tuning.BLOCK_SIZE,
    )
    num_blocks = -(-is_used.size // tuning.ROWS_PER_BLOCK)
    starts = cupy.empty(num_blocks, np.int64)

    def visit(target: Array | None) -> None:
        """Launch the kernel: without a target it writes each block's count to `starts`."""
        arguments = (np.int64(is_used.size), is_used, starts, target)
        launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, arguments)

    visit(None)
    counts = starts.get()
    empty_rows = cupy.empty(counts.sum(), row_dtype)
    if empty_rows.size > 0:
        starts.set(counts.cumsum() - counts)
        visit(empty_rows)
    return empty_rows


def _group_modes(
    record_format: RecordFormat, modes: Iterable[int]
) -> list[tuple[list[int], np.dtype]]:
    """Group modes whose rows fit one key together, and choose the type of each group's key."""
    groups: list[list[int]] = []
    key_bits: list[int] = []  # of each group
    for mode in modes:
        num_bits = record_format.masks[mode].bit_length()
        if not groups or key_bits[-1] + num_bits > 64:
            groups.append([])
            key_bits.append(0)
        groups[-1].append(mode)
        key_bits[-1] += num_bits
    return list(zip(groups, map(_choose_key_dtype, key_bits), strict=True))


def _choose_key_dtype(num_bits: int) -> np.dtype:
    """Choose the type of a key; more than 64 bits are split among several of the larger type."""
    return np.dtype(np.uint32) if num_bits <= 32 else np.dtype(np.uint64)


def _argsort_nbytes(nnz: int, itemsize: int) -> int:
    """Bound the bytes of `cupy.argsort`, the int64 order that it returns included.

    A radix sort has two buffers each for the keys and for the order; its counters are small.
    """
    return 2 * (itemsize + 8) * nnz + nnz // 2 + 2**20


def _get_unfolding_kernel(name: str) -> cupy.RawKernel:
    """Return an entry of `unfoldings.cu`."""
    macros = {"ENTRIES_PER_BLOCK": tuning.ROWS_PER_BLOCK, "BLOCK_SIZE": tuning.BLOCK_SIZE}
    return launch.get_kernel("unfoldings.cu", name, **macros)


def launch_on_unfolding(name: str, num_items: int, *arguments: Any) -> None:
    """Launch an entry of `unfoldings.cu` for a number of items."""
    kernel = _get_unfolding_kernel(name)
    launch.launch_items(kernel, num_items, (np.int64(num_items), *arguments))
