"""The CPU engine: the functions of every engine, done with numba on all threads that it is given.

The number of threads is numba's (`numba.set_num_threads`, NUMBA_NUM_THREADS). Results do not
depend on it.
"""

import contextlib
import logging
import time

import numpy as np

from ..format.layouts import RemapLayout, ReplicatedLayout
from ..format.packing import RecordFormat
from ..format.primitives import Primitives, index_dtype
from . import cpu_kernels
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

_logger = logging.getLogger("tensorly_flycoo")


def build_layout(layout, coords, values, shape):
    """Build the layout named `layout` from checked coords (ndim, nnz) and values (nnz,)."""
    record_format = RecordFormat.of(shape, values.dtype, np.uint64)
    arguments = (coords, values, record_format, TILE_SIZE)
    if layout == "remap":
        return RemapLayout.build(*arguments, BUCKET_SIZE, primitives)
    return ReplicatedLayout.build(*arguments, primitives)


def mttkrp(layout, factors, mode, out):
    """Write the MTTKRP of `mode` to `out`; all arguments are checked by the caller.

    A `RemapLayout` that is resident in another mode is first remapped to `mode` without computing;
    afterwards it is resident in the mode that follows.
    """
    if layout.name == "replicated":
        records, ids = layout.copies[mode], (None, None, None)
        _compute(layout, records, ids, factors, mode, out, bucket_size=layout.tile_size)
        return
    with layout.lock:
        while layout.mode != mode:
            _remap(layout)
        plan = layout.plans[mode]
        ids = (plan.pull_ids, layout.spare, plan.remap_ids)
        _compute(layout, layout.records, ids, factors, mode, out, layout.bucket_size)
        layout.swap()


def _compute(layout, records, ids, factors, mode, out, bucket_size):
    record_format, tiling = layout.record_format, layout.tilings[mode]
    if records.shape[0] == 0:
        out[...] = 0
        return
    inputs = [n for n in range(record_format.ndim) if n != mode]
    out_field, *fields = _fields(record_format, mode, inputs)
    pull_ids, spare, remap_ids = ids
    rank = out.shape[1]
    num_lanes = min(_ROW_NBYTES // out.dtype.itemsize, 1 << (rank.bit_length() - 1))
    partial_rows = np.empty((tiling.carry_rows.shape[0], rank), out.dtype)
    _launch(
        cpu_kernels.mttkrp_tiles, tiling.carry_rows.shape[0],
        layout.tile_size, bucket_size, tiling.carry_rows, tiling.empty_rows,
        records, records.view(record_format.dtype), np.uint64(record_format.value_slot),
        pull_ids, spare, remap_ids, (0,) * record_format.num_words, out_field, *fields,
        tuple(np.require(factors[n], requirements="CAW") for n in inputs),
        (0,) * num_lanes, out, partial_rows,
    )  # fmt: skip
    with _show_compiling(cpu_kernels.add_partial_rows):
        cpu_kernels.add_partial_rows(tiling.carry_rows, partial_rows, out)


def _remap(layout):
    plan = layout.plans[layout.mode]
    _launch(
        cpu_kernels.remap_tiles, layout.tilings[layout.mode].carry_rows.shape[0],
        layout.tile_size, layout.bucket_size, layout.records,
        plan.pull_ids, layout.spare, plan.remap_ids, (0,) * layout.record_format.num_words,
    )  # fmt: skip
    layout.swap()


def gram(starts, ids, values, size):
    """Compute the lower triangle of a Gram matrix (size, size) from groups of entries.

    Group g is the entries ``starts[g]`` to ``starts[g + 1]`` of `ids` (rising) and `values`.
    """
    gram = np.zeros((size, size))
    with _show_compiling(cpu_kernels.add_gram):
        cpu_kernels.add_gram(starts, ids, values, gram)
    return gram


def _fields(record_format, mode, inputs):
    """Say where the coordinates are: of `mode` (word, shift, mask), and of the `inputs`."""
    columns = (record_format.words, record_format.shifts, record_format.masks)
    yield tuple(np.uint64(column[mode]) for column in columns)
    for column in columns:
        yield tuple(np.uint64(column[n]) for n in inputs)


def _launch(kernel, count, *arguments):
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
    """Counting sort and parallel scatter."""

    def sort_positions(self, keys, num_keys, out=None):
        nnz = keys.shape[0]
        # A counting sort needs a counter for each key; where keys are many and nonzeros few,
        # comparing costs less memory.
        if num_keys > max(4 * nnz, 2**16):
            return super().sort_positions(keys, num_keys, out)
        out = np.empty(nnz, index_dtype(nnz)) if out is None else out
        with _show_compiling(cpu_kernels.sort_positions):
            cpu_kernels.sort_positions(keys, np.zeros(num_keys + 1, np.int64), out)
        return out

    def mark_absent(self, keys, num_keys):
        is_absent = np.ones(num_keys, np.bool_)
        with _show_compiling(cpu_kernels.mark_present):
            cpu_kernels.mark_present(keys, is_absent)
        return is_absent

    def scatter(self, source, positions, out=None):
        out = np.empty_like(source) if out is None else out
        nnz = source.shape[0]
        if source.ndim == 1:
            _launch(cpu_kernels.scatter_items, nnz, source, positions, out)
        else:
            record_words = (0,) * source.shape[1]
            _launch(cpu_kernels.scatter_records, nnz, source, positions, out, record_words)
        return out


primitives = _CpuPrimitives()
