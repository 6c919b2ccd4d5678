"""The CPU engine: the functions of every engine, done with numba on all threads that it is given.

The number of threads is numba's (`numba.set_num_threads`, NUMBA_NUM_THREADS). Results do not
depend on it.
"""

import contextlib
import logging
import math
import time
from pathlib import Path

import numba
import numpy as np

from ...array_modules import move
from ...checks import check_finite, check_inside
from ...format import layouts
from ...format.packing import RecordFormat
from ...format.primitives import Primitives, index_dtype
from . import building as cpu_building
from . import kernels as cpu_kernels
from . import ttmc as cpu_ttmc
from .threads import run_parallel

NAME = "cpu"
ARRAY_TYPE = np.ndarray
xp = np

#: Nonzeros of a tile, and of a bucket (128 KB of 16-byte records: it stays in a core's L2 cache
#: while records are pulled out of it). Measured on a Xeon with 1 MB of L2.
TILE_SIZE = 2048
BUCKET_SIZE = 8192

#: Bytes of an output row that are kept in registers.
_ROW_NBYTES = 128

#: Parts of a counting sort for each thread, so that a thread that is held up gets less.
_PARTS_PER_THREAD = 4

_CACHE_LINE_NBYTES = 64

_logger = logging.getLogger("tensorly_flycoo")


def choose_format(shape, dtype):
    """Choose how nonzeros are packed, and how many make a tile and a bucket."""
    return RecordFormat.of(shape, dtype, np.uint64), TILE_SIZE, BUCKET_SIZE


def build_layout(layout, coords, values, shape):
    """Build the layout named `layout` from checked coords (ndim, nnz) and values (nnz,)."""
    coords, values = move(coords, np), move(values, np)
    cut = choose_format(shape, values.dtype)
    return layouts.build_layout(layout, coords, values, *cut, primitives)


def check_arrays(arrays):
    """Refuse nothing: all of NumPy's arrays are where the CPU computes."""


def estimate_layout(layout, nnz, shape, dtype):
    """Return the bytes of a layout, and of all that is there at once while it is built."""
    return layouts.estimate_layout(layout, nnz, *choose_format(shape, dtype), primitives)


def count_free_nbytes():
    """Count the bytes that the operating system could still give, or None if it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = (line.split() for line in lines)
    return next((1024 * int(size[1]) for size in sizes if size[0] == "MemAvailable:"), None)


def mttkrp(layout, factors, mode, out):
    """Write the MTTKRP of `mode` to `out`; all arguments are checked by the caller.

    A `RemapLayout` that is resident in another mode is first remapped to `mode` without computing;
    afterwards it is resident in the mode that follows. Where memory runs out, it stays as it was.
    """
    workspace = _allocate_workspace(layout, factors, mode, out)
    if layout.name == "replicated":
        records, ids = layout.copies[mode], (None, None, None)
        _compute(layout, records, ids, workspace, mode, out, bucket_size=layout.tile_size)
        return
    if layout.name == "indexed":
        records, ids = layout.records, (layout.pull_ids[mode], None, None)
        _compute(layout, records, ids, workspace, mode, out, bucket_size=layouts.ONE_BUCKET)
        return
    with layout.lock:
        while layout.mode != mode:
            _remap(layout)
        plan = layout.plans[mode]
        ids = (plan.pull_ids, layout.spare, plan.remap_ids)
        _compute(layout, layout.records, ids, workspace, mode, out, layout.bucket_size)
        layout.swap()


def count_workspace_nbytes(layout, factors, mode):
    """Count the bytes that `mttkrp` takes for a while."""
    copies = [f for n, f in enumerate(factors) if n != mode and not f.flags.carray]
    num_rows, rank = layout.tilings[mode].carry_rows.size, factors[mode].shape[1]
    return num_rows * rank * factors[mode].itemsize + sum(copy.nbytes for copy in copies)


def _allocate_workspace(layout, factors, mode, out):
    """Take all memory that computing needs, before anything is moved or written."""
    inputs = [factor for n, factor in enumerate(factors) if n != mode]
    arrays = tuple(np.require(factor, requirements="CAW") for factor in inputs)
    partial_rows = np.empty((layout.tilings[mode].carry_rows.size, out.shape[1]), out.dtype)
    return arrays, partial_rows


def _compute(layout, records, ids, workspace, mode, out, bucket_size):
    record_format, tiling = layout.record_format, layout.tilings[mode]
    if records.shape[0] == 0:
        out[...] = 0
        return
    inputs = [n for n in range(record_format.ndim) if n != mode]
    (pull_ids, spare, remap_ids), (arrays, partial_rows) = ids, workspace
    rank = out.shape[1]
    num_lanes = min(_ROW_NBYTES // out.dtype.itemsize, 1 << (rank.bit_length() - 1))
    launch(
        cpu_kernels.mttkrp_tiles, tiling.carry_rows.shape[0],
        layout.tile_size, bucket_size, tiling.carry_rows, tiling.empty_rows,
        records, records.view(record_format.dtype), np.uint64(record_format.value_slot),
        pull_ids, spare, remap_ids, (0,) * record_format.num_words,
        _field(record_format, mode), *_fields(record_format, inputs),
        arrays, (0,) * num_lanes, out, partial_rows,
    )  # fmt: skip
    with _show_compiling(cpu_kernels.add_partial_rows):
        cpu_kernels.add_partial_rows(tiling.carry_rows, partial_rows, out)


def _remap(layout):
    plan = layout.plans[layout.mode]
    launch(
        cpu_kernels.remap_tiles, layout.tilings[layout.mode].carry_rows.shape[0],
        layout.tile_size, layout.bucket_size, layout.records,
        plan.pull_ids, layout.spare, plan.remap_ids, (0,) * layout.record_format.num_words,
    )  # fmt: skip
    layout.swap()


def ttmc(layout, mode, inputs, out, slots=None):
    """Write the TTMc of `mode` to `out`; all arguments are checked by the caller.

    Parameters
    ----------
    layout : layout
        A `RemapLayout` is first remapped to `mode` where it is resident in another, and stays.
    mode : int
    inputs : dict of int to array (I_n, K_n)
        The factor of each other mode; columns of `out` count their columns, the last ones' fastest.
    out : array (num_slots, prod K_n)
        C-contiguous. Rows of indices without a nonzero are not written.
    slots : unsigned integer array (I_mode,), optional
        The row of `out` for each index that has nonzeros; by default its own number.
    """
    record_format, tiling = layout.record_format, layout.tilings[mode]
    partial_rows = np.empty((tiling.carry_rows.size, out.shape[1]), out.dtype)
    # Of one mode each nonzero takes row 0 of a factor of ones, which has no coordinate.
    fields = _fields(record_format, inputs) if inputs else [(np.uint64(0),)] * 3
    operands = cpu_ttmc.lay_out_factors(list(inputs.values()) or [np.ones((1, 1), out.dtype)])
    with layouts.hold_mode(layout, mode, _remap) as (records, pull_ids, bucket_size):
        if records.shape[0] == 0:
            return
        launch(
            cpu_ttmc.ttmc_tiles, tiling.carry_rows.shape[0],
            layout.tile_size, bucket_size, tiling.carry_rows, slots,
            records, records.view(record_format.dtype), np.uint64(record_format.value_slot),
            pull_ids, _field(record_format, mode), *fields, *operands, out, partial_rows,
        )  # fmt: skip
    carry_rows = tiling.carry_rows
    if slots is not None:
        carry_rows = np.where(carry_rows >= 0, slots[carry_rows].astype(np.int64), carry_rows)
    with _show_compiling(cpu_kernels.add_partial_rows):
        cpu_kernels.add_partial_rows(carry_rows, partial_rows, out)


def gram(starts, ids, values, size):
    """Compute the lower triangle of a Gram matrix (size, size) from groups of entries.

    Group g is the entries ``starts[g]`` to ``starts[g + 1]`` of `ids` (rising) and `values`.
    """
    gram, diagonal = np.zeros((size, size)), np.zeros(size)
    # Every band looks at all entries, so there are no more of them than threads; bands of a
    # triangle have equal areas where their edges go like a square root.
    num_bands = numba.get_num_threads()
    edges = np.sqrt(np.linspace(0, 1, num_bands + 1)) * size
    arguments = (edges.astype(np.uint64), starts, ids, values, gram, diagonal)
    launch(cpu_kernels.add_gram, num_bands, *arguments)
    np.fill_diagonal(gram, diagonal)
    return gram


def _field(record_format, mode):
    """Say where the coordinate of `mode` is: word, shift and mask."""
    columns = (record_format.words, record_format.shifts, record_format.masks)
    return tuple(np.uint64(column[mode]) for column in columns)


def _fields(record_format, modes):
    """Say where the coordinates of some modes are, in tuples: words, shifts and masks."""
    columns = (record_format.words, record_format.shifts, record_format.masks)
    return [tuple(np.uint64(column[mode]) for mode in modes) for column in columns]


def launch(kernel, count, *arguments):
    """Run a kernel over range(count) on all threads."""
    with _show_compiling(kernel):
        run_parallel(kernel, count, *arguments)


@contextlib.contextmanager
def _show_compiling(kernel):
    """Say so if a kernel had to be compiled: it explains a wait of a second or two."""
    num_compiled = sum(kernel.stats.cache_misses.values())
    start_s = time.perf_counter()
    yield
    if sum(kernel.stats.cache_misses.values()) > num_compiled:
        # A warning, so that it is seen where no logging is set up.
        _logger.warning(
            "compiled %s for the CPU in %.1f s; kept on disk for the next time",
            kernel.__name__,
            time.perf_counter() - start_s,
        )


class _CpuPrimitives(Primitives):
    """The same on all threads, with counting sorts."""

    def pack(self, coords, values, record_format):
        if coords.dtype != np.int64:  # one type is compiled, that of `sparse.COO`
            return super().pack(coords, values, record_format)
        # A `sparse.COO` that was sorted has them in Fortran's order: either is taken as it is.
        coords = coords if coords.flags.forc else np.ascontiguousarray(coords)
        mode_stride, nonzero_stride = (np.uint64(n // coords.itemsize) for n in coords.strides)
        records = np.empty((values.shape[0], record_format.num_words), record_format.word_dtype)
        words, shifts, _ = _fields(record_format, range(record_format.ndim))
        falls, is_outside, is_infinite, has_zeros = np.zeros((4, 1), np.bool_)
        launch(
            cpu_building.pack_records, values.shape[0],
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
        launch(cpu_building.sort_parts, num_parts, *arguments)
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
        with _show_compiling(cpu_building.count_buckets_of_rows):
            cpu_building.count_buckets_of_rows(starts, nnz, size, bucket_starts)
        _start_keys(bucket_starts)
        arguments = (starts, places, size, bucket_starts, target, remap_ids, pull_ids)
        launch(cpu_building.split_sorted_parts, num_parts, num_parts, *arguments)
        launch(cpu_building.order_buckets, num_buckets, bucket_size, target, pull_ids)
        return empty_rows

    def split_by_bucket(self, positions, bucket_size, stored, offsets):
        nnz = positions.shape[0]
        num_buckets, size = -(-nnz // bucket_size), np.uint64(bucket_size)
        num_parts = _count_parts(nnz, num_buckets)
        starts = np.zeros(_shape_counts(num_parts, num_buckets, stored.dtype), stored.dtype)
        launch(cpu_building.count_buckets, num_parts, num_parts, positions, size, starts)
        _start_keys(starts)
        arguments = (num_parts, positions, size, starts, stored, offsets)
        launch(cpu_building.split_parts, num_parts, *arguments)
        launch(cpu_building.order_buckets, num_buckets, bucket_size, None, offsets)

    def gather(self, records, places):
        target = np.empty_like(records)
        arguments = (records, places, target, (0,) * records.shape[1])
        launch(cpu_kernels.gather_records, records.shape[0], *arguments)
        return target

    def scatter_in_buckets(self, records, offsets, bucket_size, target):
        arguments = (offsets, np.uint64(bucket_size), target, (0,) * records.shape[1])
        launch(cpu_building.scatter_in_buckets, records.shape[0], records, *arguments)

    def find_empty_rows(self, records, record_format, mode):
        is_empty = np.ones(record_format.shape[mode], np.bool_)
        field = _field(record_format, mode)
        launch(cpu_building.mark_rows, records.shape[0], records, field, is_empty)
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
        launch(cpu_building.position_in_buckets, positions.size, *arguments)
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
        launch(
            cpu_kernels.split_columns, nnz, places, records, records.view(record_format.dtype),
            np.uint64(record_format.value_slot), _field(record_format, mode),
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
    launch(cpu_building.read_rows, nnz, records, _field(record_format, mode), rows)
    starts = np.zeros(_shape_counts(num_parts, num_rows, positions.dtype), positions.dtype)
    launch(cpu_building.count_rows, num_parts, num_parts, rows, places, positions, starts)
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
    with _show_compiling(cpu_building.start_keys):
        cpu_building.start_keys(counts)


primitives = _CpuPrimitives()
