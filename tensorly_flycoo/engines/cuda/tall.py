"""Products of tall matrices (I_n, R) on a GPU: the CUDA engine's `TallKernels`."""

import functools
from typing import Any

import cupy
import numpy as np

from ...array_modules import Array
from . import launch, tuning
from .macros import (
    gram_macros,
    inner_product_macros,
    invert_macros,
    multiply_rows_macros,
    place_vectors_macros,
)
from .tuning import choose_row_nbytes

__all__ = [
    "add_product",
    "choose_row_nbytes",
    "find_extremes",
    "gram_blocks",
    "inner_blocks",
    "invert",
    "multiply_blocks",
    "multiply_rows",
    "suits_tensor_cores",
]


def suits_tensor_cores(x: Array) -> bool:
    """Return whether `gram_blocks`, `multiply_rows` and `invert` suit this matrix and its GPU."""
    is_for = x.dtype == np.float32 and 0 < x.shape[1] <= tuning.MAX_TALL_RANK
    return is_for and x.strides[1] == x.itemsize and _has_fast_doubles(x.device.id)


@functools.cache
def _has_fast_doubles(device_id: int) -> bool:
    """Return whether a GPU has float64 tensor cores, and float64 at half speed or faster."""
    device = cupy.cuda.Device(device_id)
    ratio = device.attributes["SingleToDoublePrecisionPerfRatio"]
    return int(device.compute_capability) >= 80 and ratio <= 2


def gram_blocks(x: Array) -> Array:
    """Compute ``x.T @ x`` of each block of rows of a float32 matrix: float64 (num_blocks, R, R)."""
    num_rows, rank = x.shape
    macros = gram_macros(rank)
    products = cupy.empty((_count_blocks(num_rows, macros), rank, rank), np.float64)
    _launch("gram", macros, num_rows, x, _row_stride(x), products)
    return products


def multiply_rows(x: Array, matrix: Array) -> Array:
    """Compute ``x @ matrix`` for float32 `x` (I_n, R) and float64 `matrix` (R, R).

    The rows of the product are aligned for MTTKRP.
    """
    num_rows, rank = x.shape
    macros = multiply_rows_macros(rank, (x.data.ptr | x.strides[0]) // x.itemsize)
    out = cupy.empty((num_rows, macros["ROW_NUMBERS"]), np.float32)
    matrix = cupy.ascontiguousarray(matrix)
    _launch("multiply_rows", macros, num_rows, x, _row_stride(x), matrix, out)
    return out[:, :rank]


def invert(matrix: Array) -> Array:
    """Return the float64 inverse of a float32 matrix (R, R).

    If the matrix is singular to rounding, return its pseudo-inverse.
    """
    rank = matrix.shape[0]
    inverse = cupy.empty((rank, rank), np.float64)
    strides = [np.int64(stride // matrix.itemsize) for stride in matrix.strides]
    kernel = launch.get_kernel("invert.cu", "invert", **invert_macros(rank))
    launch.launch(kernel, (1,), 1024, (matrix, *strides, inverse))
    return inverse


def inner_blocks(a: Array, b: Array) -> Array:
    """Compute the inner product of each block of rows of two matrices: float64 (num_blocks,)."""
    num_rows, rank = a.shape
    macros = inner_product_macros(a.dtype, rank)
    sums = cupy.empty(_count_blocks(num_rows, macros), np.float64)
    _launch("inner_product", macros, num_rows, a, _row_stride(a), b, _row_stride(b), sums)
    return sums


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
    macros = place_vectors_macros(x.dtype, x.dtype)
    kernel = launch.get_kernel("place_vectors.cu", "find_extremes", **macros)
    rows_per_block = max(tuning.MIN_EXTREME_ROWS, -(-num_rows // tuning.MAX_EXTREME_BLOCKS))
    num_blocks = -(-num_rows // rows_per_block)
    extremes = cupy.empty((2, num_blocks, num_columns), x.dtype)
    sizes = map(np.int64, (num_rows, rows_per_block, num_columns))
    arguments = (*sizes, x, *strides, extremes)
    launch.launch(kernel, (num_blocks, -(-num_columns // 32)), tuning.BLOCK_SIZE, arguments)
    largest, smallest = extremes.get()
    return largest.max(axis=0), smallest.min(axis=0)


def _count_blocks(num_rows: int, macros: dict[str, Any]) -> int:
    return -(-num_rows // macros["ROWS_PER_BLOCK"])


def _row_stride(x: Array) -> np.int64:
    return np.int64(x.strides[0] // x.itemsize)


def _launch(name: str, macros: dict[str, Any], num_rows: int, *arguments: Any) -> None:
    kernel = launch.get_kernel(f"{name}.cu", name, **macros)
    num_blocks = _count_blocks(num_rows, macros)
    if num_blocks > 0:
        launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, (np.int64(num_rows), *arguments))
