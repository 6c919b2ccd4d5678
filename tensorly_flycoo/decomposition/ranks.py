"""The rank of a decomposition of a sparse tensor: integers, or "same" if that is sane.

TensorLy reads a float as a fraction of the number of cells. Nearly all cells of a sparse tensor are
zeros, so 2.5 would become a rank of millions: every decomposition refuses floats, for Tucker too.
"""

from collections.abc import Sequence
from typing import Any

from tensorly.cp_tensor import validate_cp_rank

from ..checks import check_ranks, check_same_size, num_cells


def find_cp_rank(x: Any, rank: Any) -> int:
    """Return the number of components as an int.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
    rank : int or "same"
        NumPy's integers are integers.

    Raises
    ------
    TypeError
        If `rank` is no integer: a float, a bool, a string other than "same".
    ValueError
        If `rank` is below 1, or "same" although nearly all cells of `x` are zeros.

    Examples
    --------
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> find_cp_rank(x, -1)
    Traceback (most recent call last):
        ...
    ValueError: rank is -1, expected at least 1
    """
    return int(validate_cp_rank(x.shape, check_ranks(rank, *_size(x), num_ranks=0)))


def find_tucker_rank(x: Any, rank: Any, num_modes: int | None = None) -> Any:
    """Return an int, a list of ints, None (each mode's size) or "same", as TensorLy takes it.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
    rank : int, sequence of int, "same" or None
    num_modes : int, optional
        The length that a sequence must have.
    """
    if rank is None:
        check_same_size(rank, *_size(x))
        return None
    return check_ranks(rank, *_size(x), num_ranks=num_modes)


def find_train_rank(x: Any, rank: Any) -> int | str | list[int]:
    """Return an int, a list of ints or "same", of a tensor train or ring, as TensorLy takes it.

    Parameters
    ----------
    x : FlycooTensor, sparse.COO or a view
    rank : int, sequence of int or "same"
    """
    return check_ranks(rank, *_size(x))


def _size(x: Any) -> tuple[Sequence[int], int]:
    """Return the shape and the number of nonzeros, also of a view; all cells of a dense array."""
    return tuple(x.shape), getattr(getattr(x, "tensor", x), "nnz", num_cells(x.shape))
