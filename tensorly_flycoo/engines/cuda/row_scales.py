"""Multiplicative updates of a factor, with the sums of its columns."""

import functools

import cupy
import numpy as np
from numpy.typing import DTypeLike

from ...array_modules import Array
from . import launch, tuning
from .direct import DirectKernel
from .macros import scale_rows_macros

#: Blocks of rows: enough to fill the largest GPU. Their number decides the order of additions.
_NUM_BLOCKS = 2**11

#: Fewer rows are not worth a block.
_MIN_ROWS = 2**6

#: The types of the arguments of each kernel, as `DirectKernel` names them.
_FORMATS = {"invert_sums": "3i2Q", "scale_rows": "2qi2QqQqQ", "add_blocks": "2i2Q"}


def invert_sums(sums: Array, mode: int, dtype: DTypeLike) -> Array:
    """Do what `Engine.invert_sums` does."""
    (num_modes, rank), sums = sums.shape, cupy.ascontiguousarray(sums)
    scales = cupy.empty((1, rank), dtype)
    kernel = _get_kernel("invert_sums", scales.dtype, rank, sums.data.device_id)
    grid = (-(-rank // tuning.BLOCK_SIZE), 1)
    arguments = (num_modes, mode, rank, sums.data.ptr, scales.data.ptr)
    kernel(grid, tuning.BLOCK_SIZE, *arguments)
    return scales


def scale_rows(product: Array, factor: Array, scales: Array, sums: Array) -> None:
    """Do what `Engine.scale_rows` does, for a contiguous product and contiguous sums."""
    num_rows, rank = product.shape
    factor, scales = (_align_columns(x) for x in (factor, scales))
    rows_per_block = max(_MIN_ROWS, -(-num_rows // _NUM_BLOCKS))
    num_blocks = max(1, -(-num_rows // rows_per_block))
    block_sums = sums if num_blocks == 1 else cupy.empty((num_blocks, rank))
    scale_stride = 0 if scales.shape[0] == 1 else _row_stride(scales)
    options = (product.dtype, rank, product.data.device_id)
    num_parts = -(-rank // scale_rows_macros(product.dtype, rank)["NUM_COLUMNS"])
    _get_kernel("scale_rows", *options)(
        (num_blocks, num_parts), tuning.BLOCK_SIZE, num_rows, rows_per_block, rank,
        product.data.ptr, factor.data.ptr, _row_stride(factor), scales.data.ptr, scale_stride,
        block_sums.data.ptr,
    )  # fmt: skip
    if num_blocks > 1:
        arguments = (num_blocks, rank, block_sums.data.ptr, sums.data.ptr)
        _get_kernel("add_blocks", *options)((1, num_parts), tuning.BLOCK_SIZE, *arguments)


def _align_columns(x: Array) -> Array:
    return x if x.strides[1] == x.itemsize else cupy.ascontiguousarray(x)


def _row_stride(x: Array) -> int:
    return x.strides[0] // x.itemsize


@functools.cache
def _get_kernel(name: str, dtype: np.dtype, rank: int, device_id: int) -> DirectKernel:
    """Return the specialisation for the current device, `device_id`."""
    macros = scale_rows_macros(dtype, rank)
    return DirectKernel(launch.get_kernel("scale_rows.cu", name, **macros), _FORMATS[name])
