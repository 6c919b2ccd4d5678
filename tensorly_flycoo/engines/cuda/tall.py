"""Products of tall matrices (I_n, R) on a GPU: the CUDA engine's `TallKernels`."""

import functools
import threading
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from ...array_modules import Array
from ..protocol import Scale
from . import launch, structs, tuning
from .direct import DirectKernel
from .macros import (
    add_grams_macros,
    gram_macros,
    inner_product_macros,
    product_macros,
    solve_rows_macros,
)
from .tuning import choose_row_nbytes

__all__ = [
    "MAX_GRAMS",
    "MAX_SCALES",
    "choose_row_nbytes",
    "compute_fit",
    "gram_blocks",
    "inner_blocks",
    "invert",
    "invert_product",
    "multiply_blocks",
    "solve_rows",
    "suits_rank",
    "suits_tensor_cores",
]

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


def gram_blocks(x: Array) -> Array:
    """Compute ``x.T @ x`` of some blocks of rows of a float32 matrix: float64 (n, R, R)."""
    num_rows, rank = x.shape
    rows_per_block = tuning.choose_rows_per_block(num_rows)
    num_blocks = -(-num_rows // rows_per_block)
    products = cupy.empty((num_blocks, rank, rank), np.float64)
    kernel = _get_kernel("gram", gram_macros, (rank,), "qiQqQ", x.data.device_id)
    arguments = (num_rows, rows_per_block, x.data.ptr, _row_stride(x), products.data.ptr)
    kernel((num_blocks, 1), tuning.BLOCK_SIZE, *arguments)
    return _add_grams(products)


def _add_grams(products: Array) -> Array:
    """Add the Gram matrices of many blocks of rows, to leave few."""
    num_blocks, rank, _ = products.shape
    if num_blocks <= tuning.GRAM_SEGMENT:
        return products
    num_segments = -(-num_blocks // tuning.GRAM_SEGMENT)
    sums = cupy.empty((num_segments, rank, rank), np.float64)
    kernel = _get_kernel("add_grams", add_grams_macros, (rank,), "qQQ", products.data.device_id)
    grid = (num_segments, -(-rank * rank // 256))
    kernel(grid, 256, num_blocks, products.data.ptr, sums.data.ptr)
    return sums


def solve_rows(x: Array, matrix: Array) -> tuple[Array, Array, Array]:
    """Compute ``y = x @ matrix`` for float32 `x` (I_n, R) and contiguous float64 `matrix` (R, R).

    Returns
    -------
    y : array (I_n, R)
        With rows aligned for MTTKRP.
    grams : float64 array (n, R, R)
        ``y.T @ y`` of some blocks of rows.
    inner : float64 array (n,)
        The inner products of blocks of rows of `x` and `y`.
    """
    num_rows, rank = x.shape
    rows_per_block = tuning.choose_rows_per_block(num_rows)
    num_blocks, size = -(-num_rows // rows_per_block), rank * rank
    alignment = _common_power(x.data.ptr | x.strides[0] if num_rows > 1 else x.data.ptr)
    y = cupy.empty((num_rows, choose_row_nbytes(4 * rank) // 4), np.float32)
    sums = cupy.empty(num_blocks * (size + 1), np.float64)
    key = (rank, alignment)
    kernel = _get_kernel("solve_rows", solve_rows_macros, key, "qiQqQQQQ", x.data.device_id)
    addresses = (matrix.data.ptr, y.data.ptr, sums.data.ptr, sums.data.ptr + 8 * num_blocks * size)
    arguments = (num_rows, rows_per_block, x.data.ptr, _row_stride(x), *addresses)
    kernel((num_blocks, 1), tuning.BLOCK_SIZE, *arguments)
    grams, inner = sums[: num_blocks * size], sums[num_blocks * size :]
    return y[:, :rank], _add_grams(grams.reshape(num_blocks, rank, rank)), inner


def invert(matrix: Array) -> Array:
    """Return the float64 inverse of a float32 matrix (R, R).

    If the matrix is singular to rounding, return its pseudo-inverse.
    """
    row, column = (stride // matrix.itemsize for stride in matrix.strides)
    return invert_product([], [Scale(matrix, row, column)], matrix.shape[0])


def invert_product(grams: Sequence[Array], scales: Sequence[Scale], rank: int) -> Array:
    """Invert, like `invert`, an elementwise product of Gram matrices and small matrices.

    Parameters
    ----------
    grams : sequence of float64 array (n, R, R)
        The first axis is summed over.
    scales : sequence of Scale
    rank : int
    """
    inverse = cupy.empty((rank, rank), np.float64)
    device_id = inverse.data.device_id
    kernel = _get_kernel("invert", product_macros, (rank,), f"{_PRODUCT}Q", device_id)
    kernel((1, 1), _SMALL_BLOCK_SIZE, *_list_members(grams, scales), inverse.data.ptr)
    return inverse


def compute_fit(
    grams: Sequence[Array], scales: Sequence[Scale], rank: int, inner: Array, norm_square: float
) -> float:
    """Compute ``sqrt(abs(norm_square + the sum of the product - 2 * inner.sum()))``.

    Waits for the GPU, once: the kernel writes to the host's memory.
    """
    try:
        found = _host.found
    except AttributeError:
        memory = cupy.cuda.alloc_pinned_memory(8)
        found = _host.found = np.frombuffer(memory, np.float64, 1)
        _host.address = memory.ptr
    kernel = _get_kernel("fit", product_macros, (rank,), f"{_PRODUCT}qQdQ", inner.data.device_id)
    arguments = (*_list_members(grams, scales), inner.size, inner.data.ptr)
    kernel((1, 1), _SMALL_BLOCK_SIZE, *arguments, norm_square, _host.address)
    cupy.cuda.get_current_stream().synchronize()
    return float(found[0])


def _list_members(grams: Sequence[Array], scales: Sequence[Scale]) -> list[int]:
    """List the members of `structs.PRODUCT`."""
    no_grams, no_scales = [0] * (MAX_GRAMS - len(grams)), [0] * (MAX_SCALES - len(scales))
    return [
        *[gram.data.ptr for gram in grams], *no_grams,
        *[gram.shape[0] for gram in grams], *no_grams,
        *[scale.array.data.ptr for scale in scales], *no_scales,
        *[scale.row_stride for scale in scales], *no_scales,
        *[scale.column_stride for scale in scales], *no_scales,
        len(grams), len(scales),
    ]  # fmt: skip


def inner_blocks(a: Array, b: Array) -> Array:
    """Compute the inner product of each block of rows of two matrices: float64 (num_blocks,)."""
    num_rows, rank = a.shape
    macros = inner_product_macros(a.dtype, rank)
    num_blocks = -(-num_rows // macros["ROWS_PER_BLOCK"])
    sums = cupy.empty(num_blocks, np.float64)
    kernel = launch.get_kernel("inner_product.cu", "inner_product", **macros)
    strides = np.int64(_row_stride(a)), np.int64(_row_stride(b))
    arguments = (np.int64(num_rows), a, strides[0], b, strides[1], sums)
    launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, arguments)
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


def _row_stride(x: Array) -> int:
    return x.strides[0] // x.itemsize


def _common_power(address: int) -> int:
    """Return the numbers of 4 bytes, 1, 2 or 4, that an address is a multiple of."""
    return min(4, (address & -address) // 4)


@functools.cache
def _get_kernel(
    name: str, make_macros: Any, key: tuple, formats: str, device_id: int
) -> DirectKernel:
    """Return the specialisation of a kernel for the current device, `device_id`."""
    return DirectKernel(launch.get_kernel(f"{name}.cu", name, **make_macros(*key)), formats)
