"""Launch the kernels for tall matrices and the small ones that they are multiplied with."""

import functools

import cupy
import numpy as np

from . import launch, tuning
from .macros import gram_macros, inner_product_macros, invert_macros, multiply_rows_macros


def suits_tensor_cores(x):
    """Say whether `gram_blocks`, `multiply_rows` and `invert` are for this matrix and its GPU."""
    is_for = x.dtype == np.float32 and 0 < x.shape[1] <= tuning.MAX_TALL_RANK
    return is_for and x.strides[1] == x.itemsize and _has_fast_doubles(x.device.id)


@functools.cache
def _has_fast_doubles(device_id):
    """Say whether a GPU's tensor cores compute in double precision as fast as others in single."""
    device = cupy.cuda.Device(device_id)
    ratio = device.attributes["SingleToDoublePrecisionPerfRatio"]
    return int(device.compute_capability) >= 80 and ratio <= 2


def gram_blocks(x):
    """Compute ``x.T @ x`` of each block of rows of a float32 matrix: float64 (num_blocks, R, R)."""
    num_rows, rank = x.shape
    macros = gram_macros(rank)
    products = cupy.empty((_count_blocks(num_rows, macros), rank, rank), np.float64)
    _launch("gram", macros, num_rows, x, _row_stride(x), products)
    return products


def multiply_rows(x, matrix):
    """Compute ``x @ matrix`` of float32 (I_n, R) and float64 (R, R).

    The rows of the product are aligned as MTTKRP wants them.
    """
    num_rows, rank = x.shape
    macros = multiply_rows_macros(rank, (x.data.ptr | x.strides[0]) // x.itemsize)
    out = cupy.empty((num_rows, macros["ROW_NUMBERS"]), np.float32)
    matrix = cupy.ascontiguousarray(matrix)
    _launch("multiply_rows", macros, num_rows, x, _row_stride(x), matrix, out)
    return out[:, :rank]


def invert(matrix):
    """Invert a float32 (R, R) to float64, or pseudo-invert it where it is singular to rounding."""
    rank = matrix.shape[0]
    inverse = cupy.empty((rank, rank), np.float64)
    strides = [np.int64(stride // matrix.itemsize) for stride in matrix.strides]
    kernel = launch.get_kernel("invert.cu", "invert", **invert_macros(rank))
    launch.launch(kernel, (1,), 1024, (matrix, *strides, inverse))
    return inverse


def inner_blocks(a, b):
    """Compute the inner product of each block of rows of two matrices: float64 (num_blocks,)."""
    num_rows, rank = a.shape
    macros = inner_product_macros(a.dtype, rank)
    sums = cupy.empty(_count_blocks(num_rows, macros), np.float64)
    _launch("inner_product", macros, num_rows, a, _row_stride(a), b, _row_stride(b), sums)
    return sums


def _count_blocks(num_rows, macros):
    return -(-num_rows // macros["ROWS_PER_BLOCK"])


def _row_stride(x):
    return np.int64(x.strides[0] // x.itemsize)


def _launch(name, macros, num_rows, *arguments):
    kernel = launch.get_kernel(f"{name}.cu", name, **macros)
    num_blocks = _count_blocks(num_rows, macros)
    if num_blocks > 0:
        launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, (np.int64(num_rows), *arguments))
