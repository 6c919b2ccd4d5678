"""Products of tall matrices (I_n, R) on a GPU, faster than CuPy's: the engine's `tall`."""

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...base.value_dtypes import FLOAT_CHARS
from ..narrow_rows import NARROW_FORMATS, NarrowRows
from . import launch, narrow_rows, structs, tuning
from .graphs import HostNumber
from .launch import DirectKernel, get_direct_kernel, row_stride
from .macros import products_macros, update_rows_macros

#: A matrix (R, R), or one row or column that repeats; and its strides, in numbers, from row to row
#: and from column to column: 0 where it repeats.
Scale: TypeAlias = tuple[Array, int, int]

#: The most factors of a product.
MAX_GRAMS = structs.MAX_GRAMS
MAX_SCALES = structs.MAX_MATRICES

#: How far apart in bytes rows of `solve_rows` are, by the bytes of their numbers.
choose_row_nbytes = tuning.choose_row_nbytes

#: Allocates a factor whose rows MTTKRP reads by aligned loads.
allocate_rows = narrow_rows.allocate_rows

#: `structs.PRODUCT`, as the module `struct` names its members.
_PRODUCT = f"{2 * MAX_GRAMS}Q{3 * MAX_SCALES}Q2i"

#: A thread's `HostNumber`, which `compute_fit` reads, by the name `error`.
_host = threading.local()


def suits_tensor_cores(x: Array) -> bool:
    """Return whether the kernels other than `inner_blocks` suit this matrix and its GPU."""
    if x.shape[0] == 0 or x.strides[1] != x.itemsize:
        return False
    return suits_rank(x.shape[1], x.dtype, x.data.device_id)


def suits_rank(rank: int, dtype: np.dtype, device_id: int | None = None) -> bool:
    """Return whether the same kernels suit a rank, and a GPU, by default the current one."""
    if dtype.char not in FLOAT_CHARS or not 0 < rank <= tuning.MAX_TALL_RANK:
        return False
    if device_id is None:
        device_id = cupy.cuda.runtime.getDevice()
    shared_nbytes = tuning.cut_tall(rank, dtype.itemsize).shared_nbytes
    return has_fast_float64(device_id) and shared_nbytes <= find_room(device_id)


@functools.cache
def has_fast_float64(device_id: int) -> bool:
    """Return whether a GPU has tensor cores for float64 of more than a token speed."""
    device = cupy.cuda.Device(device_id)
    ratio = device.attributes["SingleToDoublePrecisionPerfRatio"]
    return int(device.compute_capability) >= 80 and ratio <= 2


@functools.cache
def find_room(device_id: int) -> int:
    """Return the most bytes of shared memory of a block."""
    return cupy.cuda.Device(device_id).attributes["MaxSharedMemoryPerBlockOptin"]


@dataclass(slots=True)
class BlockSums:
    """Sums over blocks of rows, in double precision."""

    memory: Any  # a MemoryPointer, which may hold other numbers too
    address: int  # of the first sum
    shape: tuple[int, ...]  # the first axis is to be summed over
    copies: "Sequence[BlockSums]" = ()  # on each device, if several need them

    def to_array(self) -> Array:
        """Return the sums as a CuPy array."""
        offset = self.address - self.memory.ptr
        return cupy.ndarray(self.shape, np.float64, memptr=self.memory + offset)


def as_blocks(array: Array) -> BlockSums:
    """Return a contiguous float64 array as sums over blocks."""
    return BlockSums(array.data, array.data.ptr, array.shape)


def gram_blocks(x: Array) -> BlockSums:
    """Compute ``x.T @ x`` of some blocks of rows of a matrix: (n, R, R)."""
    sums = _allocate_sums(x)
    _launch_update(_read_rows(x, *sums), x)
    grams, _ = sums
    return _add_grams(grams, x.dtype)


def solve_rows(x: Array, inverse: BlockSums) -> tuple[Array, BlockSums, BlockSums]:
    """Compute ``y = x @ inverse`` for `x` (I_n, R) and what `invert` or `invert_product` returned.

    Returns y with rows aligned for MTTKRP; ``y.T @ y`` of some blocks of rows (n, R, R); and the
    inner products of blocks of rows of `x` and `y` (n,).
    """
    y = narrow_rows.allocate_rows(x.shape, x.dtype)
    grams, inner = _allocate_sums(x)
    _launch_update(_solve_into(x, inverse, y, row_stride(y), grams, inner), x)
    return y, _add_grams(grams, x.dtype), inner


def _solve_into(
    x: Array, inverse: BlockSums, y: Array, num_written: int, grams: BlockSums, inner: BlockSums
) -> "_RowUpdate":
    """Return the arguments that solve for rows `y`, of which so many columns are written.

    Of factors side by side, these are the columns of each.
    """
    return _read_rows(x, grams, inner)._replace(
        inverse=inverse.address, y=y.data.ptr, y_stride=row_stride(y), y_columns=num_written
    )


def solve_and_round_rows(
    x: Array, inverse: BlockSums
) -> tuple[Array, BlockSums, BlockSums | None, NarrowRows]:
    """Compute what `solve_rows` does, with y rounded to numbers that fit narrow rows, and these.

    There are no inner products where a pass would have to read `x` again for them.
    """
    y = narrow_rows.allocate_rows(x.shape, x.dtype)
    rows = narrow_rows.allocate_rows(x.shape, NARROW_FORMATS[x.dtype].dtype)
    grams, inner = _allocate_sums(x)
    update = _solve_into(x, inverse, y, row_stride(y), grams, inner)
    scales = _round_into(x, update, rows)
    found_inner = inner if _rounds_at_once(x.dtype) else None
    return y, _add_grams(grams, x.dtype), found_inner, NarrowRows(rows, scales)


def _rounds_at_once(dtype: np.dtype) -> bool:
    """Return whether a guess of the scales is mostly right, so that the first pass rounds."""
    return len(NARROW_FORMATS[dtype].usual_exponents) > 0


def _round_into(x: Array, update: "_RowUpdate", rows: Array, num_models: int = 1) -> Array:
    """Launch an update that also rounds, to given narrow rows; return the scales of columns."""
    largest = cupy.zeros(x.shape[1], x.dtype)
    update = update._replace(
        narrow_rows=rows.data.ptr, narrow_stride=row_stride(rows), largest=largest.data.ptr
    )
    if _rounds_at_once(x.dtype):
        guess = cupy.ones(x.shape[1], x.dtype)
        _launch_update(update._replace(scales=guess.data.ptr), x, num_models)
        scales = narrow_rows.make_scales(largest)
        again = update._replace(scales=scales.data.ptr, guessed_scales=guess.data.ptr)
        _launch_update(again, x, num_models)
        return scales
    _launch_update(update._replace(grams=0), x, num_models)
    scales = narrow_rows.make_scales(largest)
    rounding = update._replace(
        x=update.y, row_stride=update.y_stride, inverse=0, scales=scales.data.ptr
    )
    _launch_update(rounding, x, num_models)
    return scales


def solve_side_by_side(
    x: Array, grams: Sequence[Array], y: Array, gram: Array, rounds: bool = False
) -> tuple[Array | None, NarrowRows | None]:
    """Solve for the factors `y` of models that lie side by side: (I_n, n * R), like `x`.

    The system of a model is the elementwise product of its matrices in `grams`, stacks (n, R, R).
    `gram`, another one, receives the Gram matrices of `y`. Returns the inner products of blocks of
    rows of `x` and `y` (n, num_blocks); and if factors are rounded, as `solve_and_round_rows` does,
    their narrow rows.
    """
    num_models, rank, _ = gram.shape
    inverses = _invert_stacks(grams, x.dtype)
    sums, inner = _allocate_stacks(x, gram)
    update = _solve_into(x, inverses, y, rank, sums, inner)
    if not rounds:
        _launch_update(update, x, num_models)
        _add_stacks(sums, gram, x.dtype)
        return inner.to_array(), None
    rows = narrow_rows.allocate_rows(x.shape, NARROW_FORMATS[x.dtype].dtype)
    scales = _round_into(x, update, rows, num_models)
    _add_stacks(sums, gram, x.dtype)
    found_inner = inner.to_array() if _rounds_at_once(x.dtype) else None
    return found_inner, NarrowRows(rows, scales)


def gram_side_by_side(x: Array, gram: Array) -> None:
    """Compute the Gram matrices (n, R, R) of factors that lie side by side (I_n, n * R)."""
    sums, inner = _allocate_stacks(x, gram)
    _launch_update(_read_rows(x, sums, inner), x, len(gram))
    _add_stacks(sums, gram, x.dtype)


def inner_side_by_side(a: Array, b: Array, num_models: int) -> Array:
    """Compute the inner products of blocks of rows of each model's columns: (n, num_blocks)."""
    rank = a.shape[1] // num_models
    columns = [slice(n * rank, (n + 1) * rank) for n in range(num_models)]
    return cupy.stack([inner_blocks(a[:, own], b[:, own]).to_array() for own in columns])


def fit_side_by_side(
    grams: Sequence[Array], inner: Array, norm_square: float, dtype: np.dtype
) -> Array:
    """Compute the norm of the difference of a tensor and each of n models, in float64.

    `grams` are stacks (n, R, R) of all modes, `inner` the inner products of blocks of rows of the
    last factors and their MTTKRP (n, num_blocks); the tensor has values of `dtype`.
    """
    num_models, rank, _ = grams[0].shape
    errors = cupy.empty(num_models)
    kernel, block_size = _get_product_kernel("fit", rank, dtype, errors.data.device_id)
    kernel(
        (num_models, 1),
        block_size,
        *_list_members(list(map(_as_stack, grams)), []),
        rank,
        inner.shape[1],
        inner.data.ptr,
        norm_square,
        errors.data.ptr,
    )
    return errors


class _RowUpdate(NamedTuple):
    """The arguments of `update_rows.cu`: numbers, and addresses, 0 for what there is not."""

    num_rows: int
    rows_per_block: int
    rank: int
    x: int
    row_stride: int
    inverse: int
    y: int
    y_stride: int
    y_columns: int
    grams: int
    inner_products: int
    narrow_rows: int
    narrow_stride: int
    scales: int
    guessed_scales: int
    largest: int


#: The same, as the module `struct` names them.
_ROW_UPDATE = "q2iQq2Qqi3Qq3Q"


def _count_blocks(num_rows: int) -> int:
    """Count the blocks of rows that `update_rows.cu` makes of a matrix."""
    return -(-num_rows // tuning.choose_rows_per_block(num_rows))


def _allocate_sums(x: Array) -> tuple[BlockSums, BlockSums]:
    """Allocate the Gram matrix and the inner product of each block of rows of a matrix."""
    num_rows, rank = x.shape
    num_blocks = _count_blocks(num_rows)
    # One piece of memory for both: Gram matrices first, then inner products.
    grams_nbytes = 8 * num_blocks * rank * rank
    memory = cupy.cuda.alloc(grams_nbytes + 8 * num_blocks)
    grams = BlockSums(memory, memory.ptr, (num_blocks, rank, rank))
    inner = BlockSums(memory, memory.ptr + grams_nbytes, (num_blocks,))
    return grams, inner


def _allocate_stacks(x: Array, gram: Array) -> tuple[BlockSums, BlockSums]:
    """Allocate the sums of blocks of rows of models side by side: (n, num_blocks, R, R) and fewer.

    The Gram matrices of single blocks are those of all rows, which `gram` is for.
    """
    num_models, rank, _ = gram.shape
    num_blocks = _count_blocks(x.shape[0])
    inner_memory = cupy.cuda.alloc(8 * num_models * num_blocks)
    inner = BlockSums(inner_memory, inner_memory.ptr, (num_models, num_blocks))
    shape = (num_models, num_blocks, rank, rank)
    if num_blocks == 1:
        return BlockSums(gram.data, gram.data.ptr, shape), inner
    memory = cupy.cuda.alloc(8 * num_models * num_blocks * rank * rank)
    return BlockSums(memory, memory.ptr, shape), inner


def _read_rows(x: Array, grams: BlockSums, inner: BlockSums) -> _RowUpdate:
    """Return the arguments by which Gram matrices of blocks of rows are computed."""
    num_rows, _ = x.shape
    rank = grams.shape[-1]
    nothing = _RowUpdate(*[0] * len(_RowUpdate._fields))
    return nothing._replace(
        num_rows=num_rows,
        rows_per_block=tuning.choose_rows_per_block(num_rows),
        rank=rank,
        x=x.data.ptr,
        row_stride=row_stride(x),
        grams=grams.address,
        inner_products=inner.address,
    )


def _launch_update(update: _RowUpdate, x: Array, num_models: int = 1) -> None:
    """Launch `update_rows.cu` for the rows of a matrix, or of as many side by side."""
    is_narrowing = update.narrow_rows != 0
    kernel, block_size = _get_updating_kernel(update.rank, x.dtype, x.data.device_id, is_narrowing)
    num_blocks = -(-update.num_rows // update.rows_per_block)
    kernel((num_blocks, num_models), block_size, *update)


def _add_grams(grams: BlockSums, dtype: np.dtype) -> BlockSums:
    """Add the Gram matrices of many blocks of rows, to leave few; one if they are large."""
    num_blocks, rank, _ = grams.shape
    most_blocks = tuning.GRAM_SEGMENT if rank <= tuning.MAX_SMALL_RANK else 1
    if num_blocks <= most_blocks:
        return grams
    num_segments = -(-num_blocks // tuning.GRAM_SEGMENT)
    memory = cupy.cuda.alloc(8 * num_segments * rank * rank)
    kernel, _ = _get_product_kernel("add_grams", rank, dtype, memory.device_id)
    grid = (num_segments, -(-rank * rank // 256))
    kernel(grid, 256, num_blocks, rank, grams.address, memory.ptr)
    return _add_grams(BlockSums(memory, memory.ptr, (num_segments, rank, rank)), dtype)


def _add_stacks(sums: BlockSums, gram: Array, dtype: np.dtype) -> None:
    """Add the Gram matrices (n, num_blocks, R, R) of blocks of rows to those of all rows."""
    num_models, num_blocks, rank, _ = sums.shape
    if num_blocks == 1:  # they are there already
        return
    num_segments = -(-num_blocks // tuning.GRAM_SEGMENT)
    added = BlockSums(gram.data, gram.data.ptr, (num_models, num_segments, rank, rank))
    if num_segments > 1:
        memory = cupy.cuda.alloc(8 * num_models * num_segments * rank * rank)
        added = BlockSums(memory, memory.ptr, added.shape)
    kernel, _ = _get_product_kernel("add_grams", rank, dtype, gram.data.device_id)
    grid = (num_models * num_segments, -(-rank * rank // 256))
    kernel(grid, 256, num_blocks, rank, sums.address, added.address)
    _add_stacks(added, gram, dtype)


def invert(matrix: Array) -> BlockSums:
    """Invert a matrix, in float64; pseudo-invert it if it is singular to rounding.

    Returns what `solve_rows` reads: the inverse (R, R), the matrix, and its condition number.
    """
    return invert_product([], [_as_scale(matrix)], matrix.shape[0], matrix.dtype)


def _as_scale(matrix: Array) -> Scale:
    row_nbytes, column_nbytes = matrix.strides
    return matrix, row_nbytes // matrix.itemsize, column_nbytes // matrix.itemsize


def invert_product(
    grams: Sequence[BlockSums], scales: Sequence[Scale], rank: int, dtype: np.dtype
) -> BlockSums:
    """Invert, like `invert`, an elementwise product of Gram matrices and small matrices."""
    size = 2 * rank * rank + 1  # the inverse, the product, and its condition number
    memory = cupy.cuda.alloc(8 * size)
    kernel, block_size = _get_product_kernel("invert", rank, dtype, memory.device_id)
    inverse_address = memory.ptr
    product_address = memory.ptr + 8 * rank * rank
    members = _list_members(grams, scales)
    kernel((1, 1), block_size, *members, rank, inverse_address, product_address, 0)
    return BlockSums(memory, memory.ptr, (size,))


def invert_penalized(gram: Array) -> tuple[Array, Array]:
    """Implement `Engine.invert_penalized` for a rank that suits; the host waits for nothing.

    A matrix of zeros has a pseudo-inverse of zeros.
    """
    rank = gram.shape[0]
    results = cupy.empty(rank * rank + 1)
    inverse = results[:-1].reshape(rank, rank)
    penalty = results[-1]
    kernel, block_size = _get_product_kernel("invert", rank, gram.dtype, results.data.device_id)
    members = _list_members([], [_as_scale(gram)])
    kernel((1, 1), block_size, *members, rank, inverse.data.ptr, 0, penalty.data.ptr)
    return inverse, penalty


def multiply_product(
    grams: Sequence[BlockSums], scales: Sequence[Scale], rank: int, dtype: np.dtype
) -> Array:
    """Compute, in float64, the product of which `invert_product` computes the inverse."""
    product = cupy.empty((rank, rank))
    kernel, block_size = _get_product_kernel("multiply", rank, dtype, product.data.device_id)
    kernel((1, 1), block_size, *_list_members(grams, scales), rank, product.data.ptr)
    return product


def compute_fit(
    grams: Sequence[BlockSums],
    scales: Sequence[Scale],
    rank: int,
    dtype: np.dtype,
    inner: BlockSums,
    norm_square: float,
    meanwhile: Callable[[], object],
) -> float:
    """Compute ``sqrt(abs(norm_square + the sum of the product - 2 * the sum of inner))``.

    The kernel writes to host memory. The host waits for it, not for what `meanwhile` launches.
    """
    if not hasattr(_host, "error"):
        _host.error = HostNumber()
    launch_fit(grams, scales, rank, dtype, inner, norm_square, _host.error.address)
    done = cupy.cuda.get_current_stream().record()
    meanwhile()
    done.synchronize()
    return _host.error.read()


def launch_fit(
    grams: Sequence[BlockSums],
    scales: Sequence[Scale],
    rank: int,
    dtype: np.dtype,
    inner: BlockSums,
    norm_square: float,
    address: int,
) -> None:
    """Launch the kernel of `compute_fit`, which writes to an address of pinned memory."""
    kernel, block_size = _get_product_kernel("fit", rank, dtype, inner.memory.device_id)
    kernel(
        (1, 1),
        block_size,
        *_list_members(grams, scales),
        rank,
        inner.shape[0],
        inner.address,
        norm_square,
        address,
    )


def copy_sums(source: BlockSums, target: BlockSums) -> BlockSums:
    """Copy sums to others of the same shape, which are returned."""
    target.to_array()[...] = source.to_array()
    return target


def _list_members(grams: Sequence[BlockSums], scales: Sequence[Scale]) -> list[int]:
    """List the members of `structs.PRODUCT`: arrays with a number for each matrix, and counts."""
    gram_members = [0] * (2 * MAX_GRAMS)
    scale_members = [0] * (3 * MAX_SCALES)
    for n, gram in enumerate(grams):
        gram_members[n::MAX_GRAMS] = gram.address, gram.shape[0]
    for n, (array, *strides) in enumerate(scales):
        scale_members[n::MAX_SCALES] = array.data.ptr, *strides
    return [*gram_members, *scale_members, len(grams), len(scales)]


def invert_products(grams: Sequence[Array], dtype: np.dtype) -> Array:
    """Invert the elementwise products of float64 stacks (n, R, R).

    A product counts as singular if it is so to the rounding of `dtype`.
    """
    inverses = cupy.empty(grams[0].shape)
    num_products, rank, _ = inverses.shape
    kernel, block_size = _get_product_kernel("invert", rank, dtype, inverses.data.device_id)
    members = _list_members(list(map(_as_stack, grams)), [])
    # Where the kernel would write the products is null: nobody reads them.
    kernel((num_products, 1), block_size, *members, rank, inverses.data.ptr, 0, 0)
    return inverses


def _invert_stacks(grams: Sequence[Array], dtype: np.dtype) -> BlockSums:
    """Invert the same products; return for each what `invert_product` does."""
    num_products, rank, _ = grams[0].shape
    size = 2 * rank * rank + 1
    memory = cupy.cuda.alloc(8 * num_products * size)
    kernel, block_size = _get_product_kernel("invert", rank, dtype, memory.device_id)
    members = _list_members(list(map(_as_stack, grams)), [])
    first_product = memory.ptr + 8 * rank * rank
    kernel((num_products, 1), block_size, *members, rank, memory.ptr, first_product, 0)
    return BlockSums(memory, memory.ptr, (num_products, size))


def _as_stack(gram: Array) -> BlockSums:
    """Return Gram matrices (n, R, R) as members of n products."""
    _, *shape = gram.shape
    return BlockSums(gram.data, gram.data.ptr, (1, *shape))


def inner_blocks(a: Array, b: Array) -> BlockSums:
    """Compute the inner product of each block of rows of two matrices: (num_blocks,)."""
    num_rows, rank = a.shape
    num_blocks = -(-num_rows // tuning.ROWS_PER_BLOCK)
    memory = cupy.cuda.alloc(8 * num_blocks)
    kernel = launch.get_kernel(
        "inner_product.cu",
        "inner_product",
        VALUE=a.dtype,
        ROWS_PER_BLOCK=tuning.ROWS_PER_BLOCK,
        BLOCK_SIZE=tuning.BLOCK_SIZE,
    )
    arguments = (
        np.int64(num_rows),
        np.int32(rank),
        a,
        np.int64(row_stride(a)),
        b,
        np.int64(row_stride(b)),
        np.uint64(memory.ptr),
    )
    launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, arguments)
    return BlockSums(memory, memory.ptr, (num_blocks,))


def multiply_blocks(a: Array, b: Array, num_blocks: int) -> Array:
    """Compute ``a.T @ b`` of each block of rows: (num_blocks, a's columns, b's columns).

    `cupy.matmul` would first write the transposed blocks to memory; cuBLAS reads them as they are.
    """
    from cupy_backends.cuda.libs import cublas  # loads a library that nothing else here needs

    num_rows = a.shape[0] // num_blocks  # of a block
    num_columns_a = a.shape[1]
    num_columns_b = b.shape[1]
    row_stride_a = row_stride(a)
    row_stride_b = row_stride(b)
    products = cupy.empty((num_blocks, num_columns_a, num_columns_b), a.dtype)
    one = np.ones((), a.dtype)
    zero = np.zeros((), a.dtype)
    multiply = cublas.sgemmStridedBatched if a.dtype.char == "f" else cublas.dgemmStridedBatched
    # cuBLAS reads rows as columns: it sees b.T, a.T and the transposed products.
    multiply(
        cupy.cuda.device.get_cublas_handle(),
        cublas.CUBLAS_OP_N,
        cublas.CUBLAS_OP_T,
        num_columns_b,
        num_columns_a,
        num_rows,
        one.ctypes.data,
        b.data.ptr,
        row_stride_b,
        num_rows * row_stride_b,
        a.data.ptr,
        row_stride_a,
        num_rows * row_stride_a,
        zero.ctypes.data,
        products.data.ptr,
        num_columns_b,
        num_columns_a * num_columns_b,
        num_blocks,
    )
    return products


def add_product(out: Array, a: Array, b: Array, factor: float = 1) -> None:
    """Add ``factor * a @ b`` to a C-contiguous `out`, in place.

    `cupy.matmul` would copy an `a` whose rows lie apart, and write the product to memory first.
    """
    from cupy_backends.cuda.libs import cublas  # loads a library that nothing else here needs

    b = cupy.ascontiguousarray(b)
    alpha = np.array(factor, a.dtype)
    beta = np.ones((), a.dtype)
    multiply = cublas.sgemm if a.dtype.char == "f" else cublas.dgemm
    # cuBLAS reads rows as columns: it sees b.T, a.T and out.T.
    multiply(
        cupy.cuda.device.get_cublas_handle(),
        cublas.CUBLAS_OP_N,
        cublas.CUBLAS_OP_N,
        out.shape[1],
        a.shape[0],
        a.shape[1],
        alpha.ctypes.data,
        b.data.ptr,
        b.shape[1],
        a.data.ptr,
        row_stride(a),
        beta.ctypes.data,
        out.data.ptr,
        out.shape[1],
    )


def find_extremes(x: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest and the smallest element of each column, on the host."""
    num_rows, num_columns = x.shape
    row_nbytes, column_nbytes = x.strides
    kernel = launch.get_kernel(
        "place_vectors.cu",
        "find_extremes",
        VECTOR=x.dtype,
        PLACED=x.dtype,
        BLOCK_SIZE=tuning.BLOCK_SIZE,
    )
    rows_per_block = max(tuning.MIN_EXTREME_ROWS, -(-num_rows // tuning.MAX_EXTREME_BLOCKS))
    num_blocks = -(-num_rows // rows_per_block)
    extremes = cupy.empty((2, num_blocks, num_columns), x.dtype)
    arguments = (
        np.int64(num_rows),
        np.int64(rows_per_block),
        np.int64(num_columns),
        x,
        np.int64(row_nbytes // x.itemsize),
        np.int64(column_nbytes // x.itemsize),
        extremes,
    )
    launch.launch(kernel, (num_blocks, -(-num_columns // 32)), tuning.BLOCK_SIZE, arguments)
    # The largest and the smallest elements of each block's columns.
    largest, smallest = extremes.get()
    return largest.max(axis=0), smallest.min(axis=0)


@functools.cache
def _get_updating_kernel(
    rank: int, dtype: np.dtype, device_id: int, is_narrowing: bool
) -> tuple[DirectKernel, int]:
    """Return the kernel for the current device, `device_id`, and the threads of a block."""
    cut = tuning.cut_tall(rank, dtype.itemsize)
    kernel = get_direct_kernel(
        "update_rows.cu",
        "update_rows",
        _ROW_UPDATE,
        device_id,
        cut.shared_nbytes,
        **update_rows_macros(rank, dtype, is_narrowing),
    )
    return kernel, cut.block_size


#: The types of the arguments of each kernel of `products.cu`, as `DirectKernel` names them.
_FORMATS = {
    "add_grams": "qi2Q",
    "multiply": f"{_PRODUCT}iQ",
    "invert": f"{_PRODUCT}i3Q",
    "fit": f"{_PRODUCT}iqQdQ",
}


@functools.cache
def _get_product_kernel(
    name: str, rank: int, dtype: np.dtype, device_id: int
) -> tuple[DirectKernel, int]:
    """Return the kernel for the current device, `device_id`, and the threads of a block."""
    macros = products_macros(rank, dtype)
    shared_nbytes = 0
    if name == "invert":  # it holds the matrix
        width = 32 * macros["TILES"]
        shared_nbytes = 8 * width * (width + 1)
    kernel = get_direct_kernel(
        "products.cu", name, _FORMATS[name], device_id, shared_nbytes, **macros
    )
    return kernel, 32 * macros["NUM_WARPS"]
