"""Multiplicative updates of a factor, with the sums of its columns."""

import cupy
import numpy as np

from ...array_modules import Array
from . import launch, tuning
from .macros import scale_rows_macros

#: Blocks of rows: enough to fill the largest GPU. Their number decides the order of additions.
_NUM_BLOCKS = 2**11

#: Fewer rows are not worth a block.
_MIN_ROWS = 2**6


def scale_rows(product: Array, factor: Array, scales: Array) -> Array:
    """Do what `Engine.scale_rows` does, for a contiguous product."""
    num_rows, rank = product.shape
    factor, scales = (_align_columns(x) for x in (factor, scales))
    rows_per_block = max(_MIN_ROWS, -(-num_rows // _NUM_BLOCKS))
    num_blocks = -(-num_rows // rows_per_block)
    sums = cupy.empty((num_blocks, rank))
    macros = scale_rows_macros(product.dtype, rank)
    kernel = launch.get_kernel("scale_rows.cu", "scale_rows", **macros)
    grid = (num_blocks, -(-rank // macros["NUM_COLUMNS"]))
    scale_stride = 0 if scales.shape[0] == 1 else _row_stride(scales)
    arguments = (
        np.int64(num_rows), np.int64(rows_per_block), np.int32(rank), product,
        factor, np.int64(_row_stride(factor)), scales, np.int64(scale_stride), sums,
    )  # fmt: skip
    launch.launch(kernel, grid, tuning.BLOCK_SIZE, arguments)
    return sums.sum(axis=0)


def _align_columns(x: Array) -> Array:
    return x if x.strides[1] == x.itemsize else cupy.ascontiguousarray(x)


def _row_stride(x: Array) -> int:
    return x.strides[0] // x.itemsize
