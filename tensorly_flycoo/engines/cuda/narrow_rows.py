"""Factors rounded to numbers that fit narrow rows, on a GPU."""

import functools

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ..narrow_rows import NARROW_FORMATS, NarrowRows
from . import launch, tuning
from .launch import DirectKernel, get_direct_kernel
from .macros import narrow_rows_macros
from .tall import row_stride

#: The members of `structs.NARROW_COPY`, as the module `struct` names them.
_NARROW_COPY = "4Q3q2i"

#: Blocks of rows, enough to fill the largest GPU; and the fewest rows worth a block. Not measured.
_NUM_BLOCKS = 2**11
_MIN_ROWS = 2**6


def find_scales(factor: Array) -> Array:
    """Implement `Engine.find_scales`; the host does not wait."""
    rank = factor.shape[1]
    scales, largest = cupy.zeros((2, rank), factor.dtype)
    _launch("find_largest", factor, None, scales, largest)
    _launch("find_scales", factor[:1], None, scales, largest)
    return scales


def round_rows(factor: Array, scales: Array) -> NarrowRows:
    """Implement `Engine.round_rows`; MTTKRP can load the rows, and the host does not wait."""
    num_rows, rank = factor.shape
    dtype = NARROW_FORMATS[factor.dtype].dtype
    padded_rank = tuning.choose_row_nbytes(rank * dtype.itemsize) // dtype.itemsize
    rows = cupy.empty((num_rows, padded_rank), dtype)
    scales = cupy.ascontiguousarray(scales)
    _launch("round_rows", factor, rows, scales, None)
    return NarrowRows(rows[:, :rank], scales)


def _launch(
    name: str, factor: Array, rows: Array | None, scales: Array, largest: Array | None
) -> None:
    """Launch a kernel of `narrow_rows.cu`; `largest` holds bits of largest magnitudes."""
    num_rows, rank = factor.shape
    if num_rows == 0:  # no grid is empty
        return
    rows_per_block = max(_MIN_ROWS, -(-num_rows // _NUM_BLOCKS))
    kernel = _get_kernel(name, rank, factor.dtype, factor.data.device_id)
    kernel(
        (-(-num_rows // rows_per_block), 1),
        tuning.BLOCK_SIZE,
        factor.data.ptr,
        launch.find_address(rows),
        scales.data.ptr,
        launch.find_address(largest),
        num_rows,
        row_stride(factor),
        rows_per_block,
        rank,
        0 if rows is None else rows.shape[1],
    )


@functools.cache
def _get_kernel(name: str, rank: int, dtype: np.dtype, device_id: int) -> DirectKernel:
    """Return a kernel of `narrow_rows.cu` for the current device, `device_id`."""
    macros = narrow_rows_macros(rank, dtype)
    return get_direct_kernel("narrow_rows.cu", name, _NARROW_COPY, device_id, **macros)
