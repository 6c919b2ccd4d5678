"""Dense results of a CP model that exceed the free memory, refused before they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array, is_cupy
from ..base.checks import SURELY_FREE_NBYTES, num_cells
from ..engines import engine_of
from ..engines.out_of_memory import format_nbytes, out_of_memory

_WAYS_OUT = (
    "tensorly_flycoo.cp_to_entries(cp_tensor, coords) gives the elements that you need, a "
    "sparse mask= those at its nonzeros"
)


def check_khatri_rao_fits(
    matrices: Sequence[Array],
    weights: Array | None = None,
    skip_matrix: int | None = None,
    mask: Any = None,
) -> None:
    """Refuse a Khatri-Rao product that is too large, given the arguments of TensorLy's function."""
    are_matrices = all(np.ndim(matrix) == 2 for matrix in matrices)
    multiplied = [matrix for n, matrix in enumerate(matrices) if n != skip_matrix]
    if not are_matrices or len(multiplied) < 2:
        return  # TensorLy returns a single matrix as it is, and checks what is none
    num_rows = num_cells(matrix.shape[0] for matrix in multiplied)
    rank = matrices[0].shape[1]
    _check_fits("tl.tenalg.khatri_rao", (num_rows, rank), matrices[0])


def check_product_fits(a: Any, b: Any) -> None:
    """Refuse a matrix product, as in `tl.cp_to_tensor`, that does not fit the free memory.

    Only one that is larger than both matrices is looked at: others fit where these do.
    """
    is_dense = isinstance(a, np.ndarray) or is_cupy(a)
    if not is_dense or a.ndim != 2 or np.ndim(b) != 2:
        return
    num_rows, num_products = a.shape
    num_columns = b.shape[1]
    if num_products < min(num_rows, num_columns):
        _check_fits("tl.dot", (num_rows, num_columns), a)


def _check_fits(operation: str, shape: tuple[int, int], array: Array) -> None:
    """Refuse a result in the dtype and on the device of `array`."""
    nbytes = num_cells(shape) * array.dtype.itemsize
    if nbytes <= SURELY_FREE_NBYTES:
        return
    free_nbytes = engine_of(array).count_free_nbytes()
    if free_nbytes is not None and nbytes > free_nbytes:
        place = "the GPU" if is_cupy(array) else "the host"
        facts = f"{format_nbytes(nbytes)}; {format_nbytes(free_nbytes)} is free"
        raise out_of_memory(f"{operation} of shape {shape}", place, facts, _WAYS_OUT)
