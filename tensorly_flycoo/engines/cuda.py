"""The CUDA engine: the functions of every engine, done with the kernels of `cuda/` through CuPy.

Launches go to CuPy's current stream, memory comes from CuPy's pool, and all of a tensor's arrays
lie on the device that was current when it was built.
"""

import functools
import operator

import cupy
import numpy as np

from ..cuda import launch, tuning
from ..cuda.macros import mttkrp_macros, partial_rows_macros, remap_macros, sum_groups_macros
from ..format import layouts
from ..format.packing import RecordFormat
from ..format.primitives import Primitives

NAME = "cuda"
ARRAY_TYPE = cupy.ndarray
xp = cupy

_FIELD = np.dtype([("word", np.uint32), ("shift", np.uint32), ("mask", np.uint32)])


def build_layout(layout, coords, values, shape):
    """Build the layout named `layout` from checked coords (ndim, nnz) and values (nnz,)."""
    record_format = RecordFormat.of(shape, values.dtype, np.uint32)
    shared_nbytes = launch.shared_nbytes_per_multiprocessor(coords.device.id)
    tile_size = tuning.choose_tile_size(_slot_nbytes(record_format), shared_nbytes)
    sizes = (tile_size, tuning.BUCKET_SIZE)
    return layouts.build_layout(layout, coords, values, record_format, *sizes, primitives)


def mttkrp(layout, factors, mode, out):
    """Write the MTTKRP of `mode` to `out`; all arguments are checked by the caller.

    A `RemapLayout` that is resident in another mode is first remapped to `mode` without computing;
    afterwards it is resident in the mode that follows.
    """
    if layout.name == "replicated":
        compute_mode(layout, layout.copies[mode], factors, mode, out)
    elif layout.name == "indexed":
        compute_mode(layout, layout.records, factors, mode, out, layout.pull_ids[mode])
    else:
        with layout.lock, _RemapOrder(layout):
            while layout.mode != mode:
                _remap(layout)
            plan, size = layout.plans[mode], layout.bucket_size
            compute_mode(layout, layout.records, factors, mode, out, plan.pull_ids, size, plan)
            layout.swap()


def gram(starts, ids, values, size):
    """Compute the lower triangle of a Gram matrix (size, size) from groups of entries.

    Group g is the entries ``starts[g]`` to ``starts[g + 1]`` of `ids` (rising) and `values`.
    """
    from cupyx.scipy.sparse import csr_matrix

    groups = csr_matrix((values, ids, starts), shape=(starts.size - 1, size))
    return cupy.tril((groups.T.tocsr() @ groups).toarray())


class _RemapOrder:
    """Let a launch that remaps wait for the last one, if that was on another stream."""

    def __init__(self, layout):
        self._layout = layout

    def __enter__(self):
        if self._layout.last_use is not None:
            cupy.cuda.get_current_stream().wait_event(self._layout.last_use)

    def __exit__(self, *exception):
        self._layout.last_use = cupy.cuda.get_current_stream().record(
            cupy.cuda.Event(disable_timing=True)
        )


def compute_mode(
    layout, records, factors, mode, out, pull_ids=None, bucket_size=layouts.ONE_BUCKET, plan=None
):
    """Compute one mode from records as they are: the step of which every layout's `mttkrp` is made.

    Records are in the order of `mode`, or pulled through ids that count from the start of their
    bucket. With a plan they are written to ``layout.spare`` too, but nothing is swapped.
    """
    record_format, tiling = layout.record_format, layout.tilings[mode]
    num_tiles, rank = tiling.carry_rows.shape[0], out.shape[1]
    if num_tiles == 0:
        out.fill(0)
        return
    inputs = [n for n in range(record_format.ndim) if n != mode]
    arrays = [cupy.ascontiguousarray(factors[n]) for n in inputs]
    cut = tuning.cut_rank(rank, out.dtype.itemsize, _common_alignment([out, *arrays]))
    kernel, shared_nbytes = _get_mttkrp_kernel(layout, tiling, cut, pull_ids, plan)
    partial_rows = cupy.empty((num_tiles, rank), out.dtype)
    null = np.uint64(0)
    ids = (null, null, null) if plan is None else (layout.spare, plan.remap_ids, plan.write_order)
    arguments = (
        make_operands(record_format, mode, inputs, arrays),
        np.int64(records.shape[0]), np.int64(num_tiles), np.int64(tiling.empty_rows.shape[0]),
        np.int64(bucket_size), tiling.carry_rows, tiling.empty_rows,
        records, null if pull_ids is None else pull_ids, *ids,
        np.int32(rank), out, partial_rows,
    )  # fmt: skip
    grid = (min(num_tiles, launch.MAX_GRID), cut.num_parts)
    launch.launch(kernel, grid, tuning.BLOCK_SIZE, arguments, shared_nbytes)
    _add_partial_rows(tiling.carry_rows, partial_rows, out)


def _get_mttkrp_kernel(layout, tiling, cut, pull_ids, plan):
    record_format = layout.record_format
    macros = mttkrp_macros(
        record_format,
        layout.tile_size,
        cut,
        launch.capability(tiling.carry_rows.device.id),
        tiling.empty_rows.dtype,
        None if pull_ids is None else pull_ids.dtype,
        None if plan is None else plan.remap_ids.dtype,
    )
    kernel = launch.get_kernel("mttkrp.cu", "mttkrp", **macros)
    # The tile, and what its groups of threads tell each other (`Carries`).
    carries_nbytes = tuning.BLOCK_SIZE * (cut.lane_columns * record_format.dtype.itemsize + 2)
    return kernel, layout.tile_size * _slot_nbytes(record_format) + carries_nbytes


def _slot_nbytes(record_format):
    return tuning.slot_nbytes(
        record_format.record_nbytes, record_format.ndim, record_format.dtype.itemsize
    )


def make_operands(record_format, mode, inputs, arrays):
    """Fill in the struct `Operands`; a mode without inputs has one that is not looked at."""
    num = max(1, len(inputs))
    dtype = np.dtype(
        [
            ("out_field", _FIELD),
            ("input_fields", _FIELD, num),
            ("value_slot", np.uint32),
            ("factors", np.uint64, num),
        ],
        align=True,
    )
    fields = list(zip(record_format.words, record_format.shifts, record_format.masks, strict=True))
    operands = np.zeros((), dtype)
    operands["out_field"] = fields[mode]
    operands["value_slot"] = record_format.value_slot
    for place, (n, array) in enumerate(zip(inputs, arrays, strict=True)):
        operands["input_fields"][place] = fields[n]
        operands["factors"][place] = array.data.ptr
    return operands


def _add_partial_rows(carry_rows, partial_rows, out):
    """Add the partial rows of all tiles; those of long rows in several launches."""
    macros = partial_rows_macros(out.dtype)
    kernel = launch.get_kernel("partial_rows.cu", "add_partial_rows", **macros)
    num_tiles, rank = partial_rows.shape
    while num_tiles > 1:  # the first tile inherits nothing
        num_segments = -(-num_tiles // tuning.SEGMENT)
        segment_rows = cupy.empty(num_segments, np.int64)
        segment_sums = cupy.empty((num_segments, rank), out.dtype)
        grid = _grid_of(num_segments * rank)
        arguments = (
            np.int64(num_tiles), carry_rows, np.int32(rank), partial_rows, out,
            segment_rows, segment_sums,
        )  # fmt: skip
        launch.launch(kernel, grid, tuning.BLOCK_SIZE, arguments)
        carry_rows, partial_rows, num_tiles = segment_rows, segment_sums, num_segments


def _grid_of(num_items):
    """Return a grid with a thread for each item, or with as many as a grid may have."""
    return (min(-(-num_items // tuning.BLOCK_SIZE), launch.MAX_GRID),)


def _remap(layout):
    record_format, plan = layout.record_format, layout.plans[layout.mode]
    num_tiles = layout.tilings[layout.mode].carry_rows.shape[0]
    if num_tiles > 0:
        ids = (plan.pull_ids.dtype, plan.remap_ids.dtype)
        macros = remap_macros(record_format, layout.tile_size, *ids)
        kernel = launch.get_kernel("remap.cu", "remap", **macros)
        arguments = (
            np.int64(layout.records.shape[0]), np.int64(num_tiles), np.int64(layout.bucket_size),
            layout.records, plan.pull_ids, layout.spare, plan.remap_ids, plan.write_order,
        )  # fmt: skip
        shared_nbytes = layout.tile_size * record_format.record_nbytes
        grid = (min(num_tiles, launch.MAX_GRID),)
        launch.launch(kernel, grid, tuning.BLOCK_SIZE, arguments, shared_nbytes)
    layout.swap()


def _common_alignment(arrays):
    """Return the largest power of two, up to 16, that divides all addresses."""
    bits = functools.reduce(operator.or_, (array.data.ptr for array in arrays), 16)
    return bits & -bits


class _CudaPrimitives(Primitives):
    """CuPy's radix sorts; records that lie together are written together."""

    def __init__(self):
        super().__init__(cupy, block_size=2**26)

    def sum_groups(self, values, starts):
        kernel = launch.get_kernel("sum_groups.cu", "sum_groups", **sum_groups_macros(values.dtype))
        sums = cupy.empty(starts.size, values.dtype)
        edges = cupy.append(starts, values.size).astype(np.int64)
        arguments = (np.int64(starts.size), edges, cupy.ascontiguousarray(values), sums)
        launch.launch(kernel, _grid_of(starts.size), tuning.BLOCK_SIZE, arguments)
        return sums

    def order_writes(self, remap_ids, tile_size):
        # By tile, and in a tile by position: 64-bit keys hold both.
        places = cupy.arange(remap_ids.size, dtype=np.uint64)
        keys = (places // np.uint64(tile_size)) * np.uint64(remap_ids.size) + remap_ids
        order = cupy.argsort(keys)
        remap_ids[...] = remap_ids[order]
        return (order % tile_size).astype(np.uint16)


primitives = _CudaPrimitives()
