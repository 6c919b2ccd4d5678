"""Refuse dense results of a CP model that exceed the free memory, before they are computed."""

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np

from ..array_modules import Array, is_cupy
from ..checks import SURELY_FREE_NBYTES, densify_error, num_cells
from ..engines import select_engine
from ..tensor.memory import RefusedMemory, format_nbytes

#: Functions of TensorLy that multiply a Khatri-Rao product by one more factor.
_TENSOR_MAKERS = {"cp_to_tensor", "cp_to_unfolded"}


def check_khatri_rao_fits(
    matrices: Sequence[Array],
    weights: Array | None = None,
    skip_matrix: int | None = None,
    mask: Any = None,
) -> None:
    """Refuse a Khatri-Rao product that is too large, or the dense tensor to be made from it.

    Takes the arguments of `tl.tenalg.khatri_rao`, with a dense mask or none. Raises a MemoryError
    if `tl.cp_to_tensor` or `cp_to_unfolded` asks for the product, and a DensifyError otherwise.

    >>> check_khatri_rao_fits([np.ones((2**14, 2))] * 5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    tensorly_flycoo.DensifyError: tl.tenalg.khatri_rao would make a dense array of shape ...
    """
    if any(np.ndim(matrix) != 2 for matrix in matrices):
        return
    multiplied = [matrix for n, matrix in enumerate(matrices) if n != skip_matrix]
    shape = (num_cells([matrix.shape[0] for matrix in multiplied]), matrices[0].shape[1])
    nbytes = num_cells(shape) * matrices[0].dtype.itemsize if len(multiplied) > 1 else 0
    sizes = tuple(matrix.shape[0] for matrix in matrices)
    maker = _find_tensor_maker()
    if maker:
        nbytes += num_cells(sizes) * matrices[0].dtype.itemsize
    if nbytes <= SURELY_FREE_NBYTES:
        return
    free_nbytes = select_engine("cuda" if is_cupy(matrices[0]) else "cpu").count_free_nbytes()
    if free_nbytes is None or nbytes <= free_nbytes:
        return
    takes = f"takes {format_nbytes(nbytes)}, and {format_nbytes(free_nbytes)} are free"
    if maker:
        raise RefusedMemory(
            f"{maker} of shape {sizes} {takes}: tensorly_flycoo.cp_to_entries(cp_tensor, "
            "coords) gives the elements that you need, a sparse mask= those at its nonzeros"
        )
    instead = f"that {takes}: a sparse mask= gives the elements at its nonzeros"
    raise densify_error("tl.tenalg.khatri_rao", shape, instead)


def _find_tensor_maker() -> str:
    """Return the function of TensorLy that will make a tensor of the product, or ""."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(6):  # wrappers that dispatch
        if frame is None:
            break
        name = frame.f_code.co_name
        if name in _TENSOR_MAKERS and frame.f_globals.get("__name__") == "tensorly.cp_tensor":
            return f"tl.{name}"
        frame = frame.f_back
    return ""
