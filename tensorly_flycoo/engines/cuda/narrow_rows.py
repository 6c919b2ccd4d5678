"""Narrow copies of factors on a GPU."""

import functools

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ..narrow_rows import NARROW_DTYPES, NarrowRows
from . import launch, tuning
from .launch import DirectKernel, get_direct_kernel
from .macros import narrow_rows_macros
from .tall import row_stride

#: The members of `structs.NARROW_COPY`, as the module `struct` names them.
_NARROW_COPY = "4Q3q2i"

#: Blocks of rows, enough to fill the largest GPU; and the fewest rows worth a block. Not measured.
_NUM_BLOCKS = 2**11
_MIN_ROWS = 2**6


def narrow_rows(factor: Array, scales: Array | None = None) -> NarrowRows:
    """Implement `Engine.narrow_rows`, with rows aligned for MTTKRP; the host does not wait.

    The factor is read once if the scales are given, else twice.
    """
    num_rows, rank = factor.shape
    dtype = NARROW_DTYPES[factor.dtype]
    padded_rank = tuning.choose_row_nbytes(rank * dtype.itemsize) // dtype.itemsize
    rows = cupy.empty((num_rows, padded_rank), dtype)
    if scales is None:
        scales, largest = cupy.zeros((2, rank), factor.dtype)
        _launch("find_largest", factor, rows, scales, largest)
        _launch("store_narrow", factor, rows, scales, largest)
    else:
        scales = cupy.ascontiguousarray(scales, factor.dtype)
        _launch("store_narrow", factor, rows, scales, None)
    return NarrowRows(rows[:, :rank], scales)


def _launch(name: str, factor: Array, rows: Array, scales: Array, largest: Array | None) -> None:
    """Launch a kernel of `narrow_rows.cu`; `largest` holds bits of largest magnitudes."""
    num_rows, rank = factor.shape
    if num_rows == 0:  # no grid is empty
        return
    padded_rank = rows.shape[1]
    rows_per_block = max(_MIN_ROWS, -(-num_rows // _NUM_BLOCKS))
    kernel = _get_kernel(name, padded_rank, factor.dtype, factor.data.device_id)
    kernel(
        (-(-num_rows // rows_per_block), 1),
        tuning.BLOCK_SIZE,
        factor.data.ptr,
        rows.data.ptr,
        scales.data.ptr,
        launch.find_address(largest),
        num_rows,
        row_stride(factor),
        rows_per_block,
        rank,
        padded_rank,
    )


@functools.cache
def _get_kernel(name: str, padded_rank: int, dtype: np.dtype, device_id: int) -> DirectKernel:
    """Return a kernel of `narrow_rows.cu` for the current device, `device_id`."""
    macros = narrow_rows_macros(padded_rank, dtype)
    return get_direct_kernel("narrow_rows.cu", name, _NARROW_COPY, device_id, **macros)
