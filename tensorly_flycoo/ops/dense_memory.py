"""Refuse dense results of a CP model that exceed the free memory, before they are computed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array, is_cupy
from ..base.checks import SURELY_FREE_NBYTES, num_cells
from ..engines import engine_of
from ..tensor.memory import format_nbytes, out_of_memory


def check_khatri_rao_fits(
    matrices: Sequence[Array],
    weights: Array | None = None,
    skip_matrix: int | None = None,
    mask: Any = None,
) -> None:
    """Refuse a Khatri-Rao product that is too large, given the arguments of TensorLy's function.

    >>> check_khatri_rao_fits([np.ones((2**14, 2))] * 5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    MemoryError: tl.tenalg.khatri_rao of shape (..., 2) needs more memory than the host has: ...
    """
    multiplied = [matrix for n, matrix in enumerate(matrices) if n != skip_matrix]
    if len(multiplied) > 1 and all(np.ndim(matrix) == 2 for matrix in matrices):
        shape = (num_cells(matrix.shape[0] for matrix in multiplied), matrices[0].shape[1])
        _check_fits("tl.tenalg.khatri_rao", shape, matrices[0])


def check_product_fits(a: Any, b: Any) -> None:
    """Refuse a product of matrices that is larger than both and too large.

    `tl.cp_to_tensor` multiplies a factor by a Khatri-Rao product.
    """
    is_dense = (isinstance(a, np.ndarray) or is_cupy(a)) and a.ndim == np.ndim(b) == 2
    if is_dense and a.shape[1] < min(a.shape[0], b.shape[1]):
        _check_fits("tl.dot", (a.shape[0], b.shape[1]), a)


def _check_fits(operation: str, shape: tuple[int, int], array: Array) -> None:
    """Refuse a result in the dtype and on the device of `array`."""
    nbytes = num_cells(shape) * array.dtype.itemsize
    free = engine_of(array).count_free_nbytes() if nbytes > SURELY_FREE_NBYTES else None
    if free is not None and nbytes > free:
        place = "the GPU" if is_cupy(array) else "the host"
        facts = f"{format_nbytes(nbytes)}; {format_nbytes(free)} is free"
        ways_out = (
            "tensorly_flycoo.cp_to_entries(cp_tensor, coords) gives the elements that you need, a "
            "sparse mask= those at its nonzeros"
        )
        raise out_of_memory(f"{operation} of shape {shape}", place, facts, ways_out)
