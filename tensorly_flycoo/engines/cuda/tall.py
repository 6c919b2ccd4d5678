"""Products of tall matrices (I_n, R) on a GPU, faster than CuPy's: the engine's `tall`."""

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from . import launch, structs, tuning
from .launch import DirectKernel, get_direct_kernel
from .macros import products_macros, solve_rows_macros
from .tuning import choose_row_nbytes

#: A float32 matrix (R, R), or one row or column that repeats; and its strides, in numbers, from row
#: to row and from column to column: 0 where it repeats.
Scale: TypeAlias = tuple[Array, int, int]

#: The most factors of a product.
MAX_GRAMS, MAX_SCALES = structs.MAX_GRAMS, structs.MAX_MATRICES

#: The threads of a block that has a small matrix.
_SMALL_BLOCK_SIZE = 1024

#: `structs.PRODUCT`, as the module `struct` names its members.
_PRODUCT = f"{2 * MAX_GRAMS}Q{3 * MAX_SCALES}Q2i"

_host = threading.local()


def suits_tensor_cores(x: Array) -> bool:
    """Return whether the kernels other than `inner_blocks` suit this matrix and its GPU."""
    is_for = x.shape[0] > 0 and x.strides[1] == x.itemsize
    return is_for and suits_rank(x.shape[1], x.dtype, x.data.device_id)


def suits_rank(rank: int, dtype: np.dtype, device_id: int | None = None) -> bool:
    """Return whether the same kernels suit a rank, and a GPU, by default the current one."""
    if dtype != np.float32 or not 0 < rank <= tuning.MAX_TALL_RANK:
        return False
    return _has_fast_doubles(cupy.cuda.runtime.getDevice() if device_id is None else device_id)


@functools.cache
def _has_fast_doubles(device_id: int) -> bool:
    """Return whether a GPU has float64 tensor cores, and float64 at half speed or faster."""
    device = cupy.cuda.Device(device_id)
    ratio = device.attributes["SingleToDoublePrecisionPerfRatio"]
    return int(device.compute_capability) >= 80 and ratio <= 2


@dataclass(slots=True)
class Blocks:
    """Sums over blocks of rows, in double precision."""

    memory: Any  # a MemoryPointer
    address: int
    shape: tuple[int, ...]  # the first axis is to be summed over

    def to_array(self) -> Array:
        """Return them as a CuPy array."""
        offset = self.address - self.memory.ptr
        return cupy.ndarray(self.shape, np.float64, memptr=self.memory + offset)


def as_blocks(array: Array) -> Blocks:
    """Return a contiguous float64 array as blocks."""
    return Blocks(array.data.mem, array.data.ptr, array.shape)


def gram_blocks(x: Array) -> Blocks:
    """Compute ``x.T @ x`` of some blocks of rows of a float32 matrix: (n, R, R)."""
    num_rows, rank = x.shape
    rows_per_block = tuning.choose_rows_per_block(num_rows)
    num_blocks = -(-num_rows // rows_per_block)
    memory = cupy.cuda.alloc(8 * num_blocks * rank * rank)
    macros = {"RANK": rank, "BLOCK_SIZE": tuning.BLOCK_SIZE}
    kernel = get_direct_kernel("gram.cu", "gram", "qiQqQ", x.data.device_id, **macros)
    arguments = (num_rows, rows_per_block, x.data.ptr, row_stride(x), memory.ptr)
    kernel((num_blocks, 1), tuning.BLOCK_SIZE, *arguments)
    return _add_grams(Blocks(memory, memory.ptr, (num_blocks, rank, rank)))


def _add_grams(grams: Blocks) -> Blocks:
    """Add the Gram matrices of many blocks of rows, to leave few."""
    num_blocks, rank, _ = grams.shape
    if num_blocks <= tuning.GRAM_SEGMENT:
        return grams
    num_segments = -(-num_blocks // tuning.GRAM_SEGMENT)
    memory = cupy.cuda.alloc(8 * num_segments * rank * rank)
    kernel = _get_product_kernel("add_grams", "qQQ", rank, memory.device_id)
    grid = (num_segments, -(-rank * rank // 256))
    kernel(grid, 256, num_blocks, grams.address, memory.ptr)
    return Blocks(memory, memory.ptr, (num_segments, rank, rank))


def solve_rows(x: Array, inverse: Blocks) -> tuple[Array, Blocks, Blocks]:
    """Compute ``y = x @ inverse`` for float32 `x` (I_n, R) and a small matrix (1, R, R).

    Returns y with rows aligned for MTTKRP; ``y.T @ y`` of some blocks of rows (n, R, R); and the
    inner products of blocks of rows of `x` and `y` (n,).
    """
    num_rows, rank = x.shape
    rows_per_block = tuning.choose_rows_per_block(num_rows)
    num_blocks, size = -(-num_rows // rows_per_block), rank * rank
    starts = x.data.ptr | x.strides[0] if num_rows > 1 else x.data.ptr
    alignment = min(4, (starts & -starts) // 4)  # of all rows, in numbers
    row_numbers = choose_row_nbytes(4 * rank) // 4
    y = cupy.empty((num_rows, row_numbers), np.float32)
    memory = cupy.cuda.alloc(8 * num_blocks * (size + 1))
    inner = Blocks(memory, memory.ptr + 8 * num_blocks * size, (num_blocks,))
    kernel = _get_solving_kernel(rank, alignment, memory.device_id)
    addresses = (inverse.address, y.data.ptr, memory.ptr, inner.address)
    arguments = (num_rows, rows_per_block, x.data.ptr, row_stride(x), *addresses)
    kernel((num_blocks, 1), tuning.BLOCK_SIZE, *arguments)
    grams = _add_grams(Blocks(memory, memory.ptr, (num_blocks, rank, rank)))
    return y if rank == row_numbers else y[:, :rank], grams, inner


def invert(matrix: Array) -> Blocks:
    """Invert a float32 matrix, in float64; pseudo-invert it if it is singular to rounding."""
    row, column = (stride // matrix.itemsize for stride in matrix.strides)
    return invert_product([], [(matrix, row, column)], matrix.shape[0])


def invert_product(grams: Sequence[Blocks], scales: Sequence[Scale], rank: int) -> Blocks:
    """Invert, like `invert`, an elementwise product of Gram matrices and small matrices."""
    memory = cupy.cuda.alloc(8 * rank * rank)
    kernel = _get_product_kernel("invert", f"{_PRODUCT}Q", rank, memory.device_id)
    kernel((1, 1), _SMALL_BLOCK_SIZE, *_list_members(grams, scales), memory.ptr)
    return Blocks(memory, memory.ptr, (1, rank, rank))


def compute_fit(
    grams: Sequence[Blocks], scales: Sequence[Scale], rank: int, inner: Blocks, norm_square: float
) -> float:
    """Compute ``sqrt(abs(norm_square + the sum of the product - 2 * the sum of inner))``.

    Waits for the GPU, once: the kernel writes to the host's memory.
    """
    try:
        found = _host.found
    except AttributeError:
        memory = cupy.cuda.alloc_pinned_memory(8)
        found = _host.found = np.frombuffer(memory, np.float64, 1)
        _host.address = memory.ptr
    kernel = _get_product_kernel("fit", f"{_PRODUCT}qQdQ", rank, inner.memory.device_id)
    arguments = (*_list_members(grams, scales), inner.shape[0], inner.address)
    kernel((1, 1), _SMALL_BLOCK_SIZE, *arguments, norm_square, _host.address)
    cupy.cuda.get_current_stream().synchronize()
    return float(found[0])


def _list_members(grams: Sequence[Blocks], scales: Sequence[Scale]) -> list[int]:
    """List the members of `structs.PRODUCT`."""
    of_grams, of_scales = [0] * (2 * MAX_GRAMS), [0] * (3 * MAX_SCALES)
    for n, gram in enumerate(grams):
        of_grams[n::MAX_GRAMS] = gram.address, gram.shape[0]
    for n, (array, row_stride, column_stride) in enumerate(scales):
        of_scales[n::MAX_SCALES] = array.data.ptr, row_stride, column_stride
    return [*of_grams, *of_scales, len(grams), len(scales)]


def invert_products(grams: Sequence[Array]) -> Array:
    """Invert, like `invert`, the elementwise products of float64 stacks (n, R, R): (n, R, R)."""
    inverses = cupy.empty(grams[0].shape)
    num_products, rank, _ = inverses.shape
    blocks = [Blocks(gram.data.mem, gram.data.ptr, (1, rank, rank)) for gram in grams]
    kernel = _get_product_kernel("invert", f"{_PRODUCT}Q", rank, inverses.data.device_id)
    kernel((num_products, 1), _SMALL_BLOCK_SIZE, *_list_members(blocks, []), inverses.data.ptr)
    return inverses


def inner_blocks(a: Array, b: Array) -> Blocks:
    """Compute the inner product of each block of rows of two matrices: (num_blocks,)."""
    num_rows, rank = a.shape
    num_blocks = -(-num_rows // tuning.ROWS_PER_BLOCK)
    memory = cupy.cuda.alloc(8 * num_blocks)
    kernel = launch.get_kernel(
        "inner_product.cu", "inner_product", VALUE=a.dtype, RANK=rank,
        ROWS_PER_BLOCK=tuning.ROWS_PER_BLOCK, BLOCK_SIZE=tuning.BLOCK_SIZE,
    )  # fmt: skip
    strides = np.int64(row_stride(a)), np.int64(row_stride(b))
    arguments = (np.int64(num_rows), a, strides[0], b, strides[1], np.uint64(memory.ptr))
    launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, arguments)
    return Blocks(memory, memory.ptr, (num_blocks,))


def multiply_blocks(a: Array, b: Array, num_blocks: int) -> Array:
    """Compute ``a.T @ b`` of each block of rows: (num_blocks, a's columns, b's columns).

    `cupy.matmul` would first write the transposed blocks to memory; cuBLAS reads them as they are.
    """
    from cupy_backends.cuda.libs import cublas  # loads a library that nothing else here needs

    num_rows, m, n = a.shape[0] // num_blocks, a.shape[1], b.shape[1]
    row_a, row_b = a.strides[0] // a.itemsize, b.strides[0] // b.itemsize
    products = cupy.empty((num_blocks, m, n), a.dtype)
    one, zero = np.ones((), a.dtype), np.zeros((), a.dtype)
    multiply = cublas.sgemmStridedBatched if a.dtype.char == "f" else cublas.dgemmStridedBatched
    # cuBLAS reads rows as columns: it sees b.T, a.T and the transposed products.
    multiply(
        cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T,
        n, m, num_rows, one.ctypes.data, b.data.ptr, row_b, num_rows * row_b,
        a.data.ptr, row_a, num_rows * row_a, zero.ctypes.data, products.data.ptr, n, m * n,
        num_blocks,
    )  # fmt: skip
    return products


def add_product(out: Array, a: Array, b: Array, factor: float = 1) -> None:
    """Add ``factor * a @ b`` to a C-contiguous `out`, in place.

    `cupy.matmul` would copy an `a` whose rows lie apart, and write the product to memory first.
    """
    from cupy_backends.cuda.libs import cublas  # loads a library that nothing else here needs

    b = cupy.ascontiguousarray(b)
    alpha, beta = np.array(factor, a.dtype), np.ones((), a.dtype)
    multiply = cublas.sgemm if a.dtype.char == "f" else cublas.dgemm
    # cuBLAS reads rows as columns: it sees b.T, a.T and out.T.
    multiply(
        cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N,
        out.shape[1], a.shape[0], a.shape[1], alpha.ctypes.data, b.data.ptr, b.shape[1],
        a.data.ptr, a.strides[0] // a.itemsize, beta.ctypes.data, out.data.ptr, out.shape[1],
    )  # fmt: skip


def find_extremes(x: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest and the smallest element of each column, on the host."""
    (num_rows, num_columns), strides = x.shape, [np.int64(s // x.itemsize) for s in x.strides]
    kernel = launch.get_kernel(
        "place_vectors.cu", "find_extremes",
        VECTOR=x.dtype, PLACED=x.dtype, BLOCK_SIZE=tuning.BLOCK_SIZE,
    )  # fmt: skip
    rows_per_block = max(tuning.MIN_EXTREME_ROWS, -(-num_rows // tuning.MAX_EXTREME_BLOCKS))
    num_blocks = -(-num_rows // rows_per_block)
    extremes = cupy.empty((2, num_blocks, num_columns), x.dtype)
    sizes = map(np.int64, (num_rows, rows_per_block, num_columns))
    arguments = (*sizes, x, *strides, extremes)
    launch.launch(kernel, (num_blocks, -(-num_columns // 32)), tuning.BLOCK_SIZE, arguments)
    largest, smallest = extremes.get()
    return largest.max(axis=0), smallest.min(axis=0)


def row_stride(x: Array) -> int:
    """Return the numbers from the start of a row to the next."""
    return x.strides[0] // x.itemsize


@functools.cache
def _get_solving_kernel(rank: int, alignment: int, device_id: int) -> DirectKernel:
    macros = solve_rows_macros(rank, alignment)
    return get_direct_kernel("solve_rows.cu", "solve_rows", "qiQqQQQQ", device_id, **macros)


@functools.cache
def _get_product_kernel(name: str, formats: str, rank: int, device_id: int) -> DirectKernel:
    return get_direct_kernel("products.cu", name, formats, device_id, **products_macros(rank))
