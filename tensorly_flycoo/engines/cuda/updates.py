"""Updates of a factor of a model of counts: multiplicative ones, and their extrapolation."""

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
from numpy.typing import DTypeLike

from ...base.array_modules import GpuArray as Array
from . import tuning
from .launch import DirectKernel, get_direct_kernel, row_stride

#: Blocks of rows: enough to fill the largest GPU. Their number decides the order of additions.
_NUM_BLOCKS = 2**11

#: Fewer rows are not worth a block.
_MIN_ROWS = 2**6

#: The types of the arguments of each kernel, as `DirectKernel` names them.
_FORMATS = {
    "invert_sums": "3i2Q",
    "scale_rows": "2qi2QqQqQ",
    "measure_steps": "2qi4Q",
    "extrapolate": "2qi3Qd2Q",
    "add_blocks": "2i2Q",
}


def invert_sums(sums: Array, mode: int, dtype: DTypeLike) -> Array:
    """Implement `Engine.invert_sums`."""
    num_modes, rank = sums.shape
    sums = cupy.ascontiguousarray(sums)
    scales = cupy.empty((1, rank), dtype)
    kernel, _ = _get_kernel("invert_sums", scales.dtype, rank, sums.data.device_id)
    grid = (-(-rank // tuning.BLOCK_SIZE), 1)
    kernel(grid, tuning.BLOCK_SIZE, num_modes, mode, rank, sums.data.ptr, scales.data.ptr)
    return scales


def scale_rows(product: Array, factor: Array, scales: Array, sums: Array) -> None:
    """Implement `Engine.scale_rows` for a contiguous product and contiguous sums."""
    factor = _with_adjacent_columns(factor)
    scales = _with_adjacent_columns(scales)
    scale_stride = 0 if scales.shape[0] == 1 else row_stride(scales)  # a single row is for all
    arguments = (
        product.data.ptr,
        factor.data.ptr,
        row_stride(factor),
        scales.data.ptr,
        scale_stride,
    )
    _launch_and_sum("scale_rows", product, arguments, sums)


def measure_steps(factors: Sequence[Array], sums: Array) -> None:
    """Implement `Engine.measure_steps` for contiguous sums."""
    matrices = [cupy.ascontiguousarray(factor) for factor in factors]
    addresses = [matrix.data.ptr for matrix in matrices]
    _launch_and_sum("measure_steps", matrices[0], addresses, sums)


def extrapolate(factors: Sequence[Array], step: float, sums: Array) -> Array:
    """Implement `Engine.extrapolate` for contiguous sums."""
    matrices = [cupy.ascontiguousarray(factor) for factor in factors]
    moved = cupy.empty_like(matrices[0])
    addresses = [matrix.data.ptr for matrix in matrices]
    _launch_and_sum("extrapolate", moved, (*addresses, step, moved.data.ptr), sums)
    return moved


def _with_adjacent_columns(matrix: Array) -> Array:
    """Return a matrix whose columns are neighbours in memory: itself, or a copy."""
    return matrix if matrix.strides[1] == matrix.itemsize else cupy.ascontiguousarray(matrix)


def _launch_and_sum(name: str, like: Array, arguments: Sequence[Any], sums: Array) -> None:
    """Launch a kernel for matrices as `like`, and write the sums of all its blocks to `sums`."""
    num_rows, rank = like.shape
    device_id = like.data.device_id
    rows_per_block = max(_MIN_ROWS, -(-num_rows // _NUM_BLOCKS))
    num_blocks = max(1, -(-num_rows // rows_per_block))
    block_sums = sums if num_blocks == 1 else cupy.empty((num_blocks, sums.size))
    kernel, num_parts = _get_kernel(name, like.dtype, rank, device_id)
    kernel(
        (num_blocks, num_parts),
        tuning.BLOCK_SIZE,
        num_rows,
        rows_per_block,
        rank,
        *arguments,
        block_sums.data.ptr,
    )
    if num_blocks > 1:
        add_blocks, num_parts = _get_kernel("add_blocks", like.dtype, rank, device_id)
        grid = (1, num_parts * (sums.size // rank))
        add_blocks(
            grid, tuning.BLOCK_SIZE, num_blocks, sums.size, block_sums.data.ptr, sums.data.ptr
        )


def _get_kernel(name: str, dtype: np.dtype, rank: int, device_id: int) -> tuple[DirectKernel, int]:
    """Return the specialisation for the current device, `device_id`, and its blocks along y."""
    num_columns = min(tuning.BLOCK_SIZE, 1 << (rank - 1).bit_length())
    kernel = get_direct_kernel(
        "scale_rows.cu",
        name,
        _FORMATS[name],
        device_id,
        VALUE=dtype,
        NUM_COLUMNS=num_columns,
        BLOCK_SIZE=tuning.BLOCK_SIZE,
    )
    return kernel, -(-rank // num_columns)
