"""Factors rounded to numbers that fit narrow rows, on a GPU."""

import functools

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ..narrow_rows import NARROW_FORMATS, NarrowRows
from . import launch, tuning
from .launch import DirectKernel, get_direct_kernel, row_stride
from .macros import narrow_rows_macros

#: The members of `structs.NARROW_COPY`, as the module `struct` names them.
_NARROW_COPY = "4Q3q2i"

#: Blocks of rows, enough to fill the largest GPU; and the fewest rows worth a block. Not measured.
_NUM_BLOCKS = 2**11
_MIN_ROWS = 2**6


def find_scales(factor: Array) -> Array:
    """Implement `Engine.find_scales`; the host does not wait."""
    largest = cupy.zeros(factor.shape[1], factor.dtype)
    _launch("find_largest", factor, None, None, largest)
    return make_scales(largest)


def make_scales(largest: Array) -> Array:
    """Return the scales of columns (R,) from the bits of their largest magnitudes."""
    scales = cupy.empty(largest.size, largest.dtype)
    _launch("find_scales", largest[None], None, scales, largest)
    return scales


def round_rows(factor: Array, scales: Array) -> NarrowRows:
    """Implement `Engine.round_rows`; MTTKRP can load the rows, and the host does not wait."""
    rows = allocate_rows(factor.shape, NARROW_FORMATS[factor.dtype].dtype)
    scales = cupy.ascontiguousarray(scales)
    _launch("round_rows", factor, rows, scales, None)
    return NarrowRows(rows, scales)


def allocate_rows(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Allocate the rows of a factor, or narrow ones, so that MTTKRP reads them by aligned loads."""
    num_rows, rank = shape
    padded_rank = tuning.choose_row_nbytes(rank * dtype.itemsize) // dtype.itemsize
    return cupy.empty((num_rows, padded_rank), dtype)[:, :rank]


def _launch(
    name: str, factor: Array, rows: Array | None, scales: Array | None, largest: Array | None
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
        launch.find_address(scales),
        launch.find_address(largest),
        num_rows,
        row_stride(factor),
        rows_per_block,
        rank,
        0 if rows is None else row_stride(rows),
    )


@functools.cache
def _get_kernel(name: str, rank: int, dtype: np.dtype, device_id: int) -> DirectKernel:
    """Return a kernel of `narrow_rows.cu` for the current device, `device_id`."""
    macros = narrow_rows_macros(rank, dtype)
    return get_direct_kernel("narrow_rows.cu", name, _NARROW_COPY, device_id, **macros)
