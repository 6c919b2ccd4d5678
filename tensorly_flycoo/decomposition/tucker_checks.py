"""Checks for TensorLy's Tucker decompositions, which otherwise run unchanged on sparse tensors."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ..checks import densify_error
from ..ops.ttmc import check_free_modes
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor

if TYPE_CHECKING:
    from sparse import SparseArray


def check_tucker(
    tensor: "FlycooTensor | SparseArray", modes: Collection[int], mask: Any = None
) -> None:
    """Refuse a mask, or so few modes with factors that the core would be too large.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
    modes : collection of int
        Modes whose factors are computed; the other modes keep their size in the core.
    mask : None

    Raises
    ------
    DensifyError
        If a mask is given, or two or more modes without factors have more cells together than
        `tensor` has nonzeros.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 3, 2))
    >>> check_tucker(x, [0])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    tensorly_flycoo.DensifyError: multiplying by factors of all modes but 1 and 2 would make ...
    """
    if mask is not None:
        raise densify_error("mask= of tucker", tuple(tensor.shape), "leave it out")
    x = as_flycoo(tensor, check_coords=True)
    check_free_modes(x, [mode for mode in range(x.ndim) if mode not in modes])
