"""The CUDA engine: the functions of every engine, done with the kernels of `cuda/` through CuPy.

Launches go to CuPy's current stream, memory comes from CuPy's pool, and all of a tensor's arrays
lie on the device that was current when it was built.
"""

import functools
import itertools
import operator

import cupy
import numpy as np

from ...array_modules import is_cupy
from ...checks import check_current_gpu
from ...format import layouts
from ...format.packing import RecordFormat
from . import launch, tuning
from .building import primitives
from .macros import mttkrp_macros, pad_rows_macros, partial_rows_macros, remap_macros, ttmc_macros
from .structs import carries_dtype, make_operands, make_ranks, row_pitch, slot_nbytes

NAME = "cuda"
ARRAY_TYPE = cupy.ndarray
xp = cupy


def build_layout(layout, coords, values, shape):
    """Build the layout named `layout` from checked coords (ndim, nnz) and values (nnz,)."""
    if is_cupy(coords):
        check_arrays({"coords": coords, "values": values})
    cut = choose_format(shape, values.dtype)
    return layouts.build_layout(layout, coords, values, *cut, primitives)


def check_arrays(arrays):
    """Refuse CuPy arrays, by name, that are on another GPU than where kernels are launched now."""
    check_current_gpu(arrays, cupy.cuda.runtime.getDevice())


def estimate_layout(layout, nnz, shape, dtype):
    """Return the bytes of a layout, and of all that is there at once while it is built."""
    return layouts.estimate_layout(layout, nnz, *choose_format(shape, dtype), primitives)


def count_free_nbytes():
    """Count the bytes that CuPy could still give on the current device."""
    free, _ = cupy.cuda.runtime.memGetInfo()
    pool = getattr(cupy.cuda.get_allocator(), "__self__", None)
    if not hasattr(pool, "get_limit"):  # not a pool: nothing is held back for later
        return free
    free, limit = free + pool.free_bytes(), pool.get_limit()
    return min(free, limit - pool.used_bytes()) if limit else free


def choose_format(shape, dtype):
    """Choose how nonzeros are packed, and how many make a tile and a bucket."""
    record_format = RecordFormat.of(shape, dtype, np.uint32)
    slot, gpu = slot_nbytes(record_format), launch.current_gpu()
    tile_size = tuning.choose_tile_size(slot, record_format.ndim - 1, gpu)
    return record_format, tile_size, tuning.BUCKET_SIZE


def mttkrp(layout, factors, mode, out):
    """Write the MTTKRP of `mode` to `out`; all arguments are checked by the caller.

    A `RemapLayout` that is resident in another mode is first remapped to `mode` without computing;
    afterwards it is resident in the mode that follows. Where memory runs out, it stays as it was.
    """
    workspace = allocate_workspace(layout, factors, mode, out)
    if layout.name == "replicated":
        compute_mode(layout, layout.copies[mode], workspace, mode, out)
    elif layout.name == "indexed":
        compute_mode(layout, layout.records, workspace, mode, out, layout.pull_ids[mode])
    else:
        with layout.lock:
            while layout.mode != mode:
                _remap(layout)
            plan, size = layout.plans[mode], layout.bucket_size
            compute_mode(layout, layout.records, workspace, mode, out, plan.pull_ids, size, plan)
            layout.swap()


def count_workspace_nbytes(layout, factors, mode):
    """Count the bytes that `mttkrp` takes for a while."""
    copies = [f for n, f in enumerate(factors) if n != mode and not _is_readable(f)]
    counts = _count_partial_rows(layout.tilings[mode].carry_rows.size)
    row_nbytes = factors[mode].shape[1] * factors[mode].itemsize
    return sum(counts) * row_nbytes + 8 * sum(counts[1:]) + sum(copy.nbytes for copy in copies)


def ttmc(layout, mode, inputs, out, slots=None):
    """Write the TTMc of `mode` to `out`; its arguments are those of the CPU engine's."""
    record_format, tiling = layout.record_format, layout.tilings[mode]
    num_tiles, num_columns = tiling.carry_rows.shape[0], out.shape[1]
    if num_tiles == 0:
        return
    cut = tuning.cut_columns(num_columns, len(inputs))
    num_runs = num_tiles * (tuning.BLOCK_SIZE // cut.group_size)
    sums = [
        (cupy.empty(n, np.int64), cupy.empty((n, num_columns), out.dtype))
        for n in _count_partial_rows(num_runs)
    ]
    arrays = [f if _is_readable(f) else cupy.ascontiguousarray(f) for f in inputs.values()]
    occupancy = tuning.choose_occupancy(launch.current_gpu(), len(inputs))
    null, slot_dtype = np.uint64(0), np.dtype(np.uint32) if slots is None else slots.dtype
    with layouts.hold_mode(layout, mode, _remap) as (records, pull_ids, bucket_size):
        pull_dtype = None if pull_ids is None else pull_ids.dtype
        dtypes = (slot_dtype, pull_dtype)
        macros = ttmc_macros(record_format, layout.tile_size, cut, occupancy, *dtypes)
        kernel = launch.get_kernel("ttmc.cu", "ttmc", **macros)
        arguments = (
            make_operands(record_format, mode, inputs, arrays), make_ranks(arrays),
            np.int64(records.shape[0]), np.int64(bucket_size),
            tiling.carry_rows, null if slots is None else slots,
            records, null if pull_ids is None else pull_ids,
            np.int64(num_columns), out, *sums[0],
        )  # fmt: skip
        shared_nbytes = layout.tile_size * slot_nbytes(record_format)
        sizes = (num_tiles, cut.num_parts, tuning.BLOCK_SIZE)
        launch.launch_tiles(kernel, *sizes, arguments, shared_nbytes)
    _add_partial_rows(sums, out)


def gram(starts, ids, values, size):
    """Compute the lower triangle of a Gram matrix (size, size) from groups of entries.

    Group g is the entries ``starts[g]`` to ``starts[g + 1]`` of `ids` (rising) and `values`.
    """
    from cupyx.scipy.sparse import csr_matrix

    groups = csr_matrix((values, ids, starts), shape=(starts.size - 1, size))
    return cupy.tril((groups.T.tocsr() @ groups).toarray())


def _count_partial_rows(num_tiles):
    """Count partial rows: of tiles, of segments of tiles, of segments of those, down to one."""
    counts = [num_tiles]
    while counts[-1] > 1:
        counts.append(-(-counts[-1] // tuning.SEGMENT))
    return counts


def allocate_workspace(layout, factors, mode, out):
    """Take all memory that computing needs, before anything is moved or written.

    Returns
    -------
    arrays : list of array (I_n, R)
        The factors of the other modes, columns side by side.
    sums : list of (int64 array (n,), array (n, R))
        The rows that partial rows are of, and memory for these: for the tiles, then for segments
        of them, and so on.
    """
    arrays = [f for n, f in enumerate(factors) if n != mode]
    arrays = [f if _is_readable(f) else cupy.ascontiguousarray(f) for f in arrays]
    carry_rows, rank, dtype = layout.tilings[mode].carry_rows, out.shape[1], out.dtype
    num_tiles, *num_segments = _count_partial_rows(carry_rows.size)
    sums = [(carry_rows, cupy.empty((num_tiles, rank), dtype))]
    sums += [(cupy.empty(n, np.int64), cupy.empty((n, rank), dtype)) for n in num_segments]
    return _align_rows(arrays, layout.records.shape[0]), sums


def _is_readable(factor):
    """Say whether kernels can read the rows of a factor where they are."""
    row_nbytes, column_nbytes = factor.strides
    return column_nbytes == factor.itemsize and 0 < row_nbytes < 2**32


def _align_rows(arrays, nnz):
    """Copy factors to rows that loads are aligned to, if that pays and there is memory for it.

    The result is the same to the bit: additions do not depend on how rows are loaded.
    """
    row_nbytes = [tuning.choose_row_nbytes(a.shape[1] * a.itemsize) for a in arrays]
    is_aligned = [row_pitch(a) % min(n, 16) == 0 for a, n in zip(arrays, row_nbytes, strict=True)]
    copied = [a for a, is_so in zip(arrays, is_aligned, strict=True) if not is_so]
    if not copied:
        return arrays
    num_rows, alignment = sum(a.shape[0] for a in copied), _common_alignment(_starts(copied))
    if not tuning.pays_to_align(num_rows, alignment, nnz, len(arrays)):
        return arrays
    try:
        return [
            a if is_so else pad_rows(a, n)
            for a, n, is_so in zip(arrays, row_nbytes, is_aligned, strict=True)
        ]
    except cupy.cuda.memory.OutOfMemoryError:
        return arrays


def pad_rows(array, row_nbytes):
    """Copy a matrix to one whose rows begin `row_nbytes` apart, with zeros in between.

    Zeros, because loads bring them too, if nobody looks at them.
    """
    (num_rows, rank), stride = array.shape, row_nbytes // array.itemsize
    padded = cupy.empty((num_rows, stride), array.dtype)
    macros = pad_rows_macros(array.dtype, stride)
    kernel = launch.get_kernel("pad_rows.cu", "pad_rows", **macros)
    arguments = (
        np.int64(num_rows), np.int32(rank), np.int64(row_pitch(array) // array.itemsize), array,
        np.int32(stride), padded,
    )  # fmt: skip
    num_threads = -(-num_rows // macros["BATCH"]) * macros["GROUP_SIZE"]
    launch.launch_items(kernel, num_threads, tuning.BLOCK_SIZE, arguments)
    return padded[:, :rank]


def compute_mode(
    layout, records, workspace, mode, out, pull_ids=None, bucket_size=layouts.ONE_BUCKET, plan=None
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
    arrays, sums = workspace
    load_alignment = _common_alignment(_starts(arrays))
    store_alignment = _common_alignment([out.data.ptr, rank * out.itemsize])
    cut = tuning.cut_rank(rank, out.itemsize, load_alignment, store_alignment)
    occupancy = tuning.choose_occupancy(launch.current_gpu(), len(inputs), rank)
    kernel, shared_nbytes = _get_mttkrp_kernel(layout, tiling, cut, occupancy, pull_ids, plan)
    num_empty, null = tiling.empty_rows.shape[0], np.uint64(0)
    ids = (null, null, null) if plan is None else (layout.spare, plan.remap_ids, plan.write_order)
    arguments = (
        make_operands(record_format, mode, inputs, arrays),
        np.int64(records.shape[0]), np.int64(num_empty), np.int64(-(-num_empty // num_tiles)),
        np.int64(bucket_size), tiling.carry_rows, tiling.empty_rows,
        records, null if pull_ids is None else pull_ids, *ids,
        np.int32(rank), out, sums[0][1],
    )  # fmt: skip
    sizes = (num_tiles, cut.num_parts, tuning.BLOCK_SIZE)
    launch.launch_tiles(kernel, *sizes, arguments, shared_nbytes)
    _add_partial_rows(sums, out)


def _get_mttkrp_kernel(layout, tiling, cut, occupancy, pull_ids, plan):
    record_format = layout.record_format
    macros = mttkrp_macros(
        record_format,
        layout.tile_size,
        cut,
        occupancy,
        tiling.empty_rows.dtype,
        None if pull_ids is None else pull_ids.dtype,
        None if plan is None else plan.remap_ids.dtype,
    )
    kernel = launch.get_kernel("mttkrp.cu", "mttkrp", **macros)
    # The tile, and the carry-outs between its groups of threads.
    carries_nbytes = carries_dtype(record_format.dtype, cut).itemsize
    return kernel, layout.tile_size * slot_nbytes(record_format) + carries_nbytes


def _add_partial_rows(sums, out):
    """Add the partial rows of all tiles; those of long rows in several launches."""
    macros = partial_rows_macros(out.dtype)
    kernel = launch.get_kernel("partial_rows.cu", "add_partial_rows", **macros)
    for (rows, partial_rows), segments in itertools.pairwise(sums):
        arguments = (
            np.int64(rows.size), rows, np.int32(out.shape[1]), partial_rows, out, *segments
        )  # fmt: skip
        launch.launch_items(kernel, segments[1].size, tuning.BLOCK_SIZE, arguments)


def _remap(layout):
    record_format, plan = layout.record_format, layout.plans[layout.mode]
    num_tiles = layout.tilings[layout.mode].carry_rows.shape[0]
    if num_tiles > 0:
        ids = (plan.pull_ids.dtype, plan.remap_ids.dtype)
        macros = remap_macros(record_format, layout.tile_size, *ids)
        kernel = launch.get_kernel("remap.cu", "remap", **macros)
        arguments = (
            np.int64(layout.records.shape[0]), np.int64(layout.bucket_size),
            layout.records, plan.pull_ids, layout.spare, plan.remap_ids, plan.write_order,
        )  # fmt: skip
        shared_nbytes = layout.tile_size * record_format.record_nbytes
        launch.launch_tiles(kernel, num_tiles, 1, tuning.BLOCK_SIZE, arguments, shared_nbytes)
    layout.swap()


def _starts(arrays):
    """Return for each array a number that what its rows' addresses divide by divides too."""
    return [a.data.ptr | row_pitch(a) for a in arrays]


def _common_alignment(numbers):
    """Return the largest power of two, up to 16, that divides addresses and distances."""
    bits = functools.reduce(operator.or_, numbers, 16)
    return bits & -bits
