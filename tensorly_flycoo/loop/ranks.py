"""Checks of the ranks of decompositions of sparse tensors.

TensorLy reads a float as a fraction of the number of cells. Nearly all cells of a sparse tensor are
zeros, so 2.5 could become a rank of millions: every decomposition refuses floats.
"""

from collections.abc import Iterable
from typing import Any

from tensorly.cp_tensor import validate_cp_rank

from ..base.checks import check_rank, num_cells


def find_cp_rank(x: Any, rank: Any) -> int:
    """Return the rank of a CP decomposition, an integer of Python or NumPy or "same", as an int."""
    if isinstance(rank, str):
        return int(validate_cp_rank(x.shape, find_tucker_rank(x, rank)))
    return check_rank(rank)


def find_tucker_rank(x: Any, rank: Any, num_modes: int | None = None) -> Any:
    """Return a Tucker rank: an int, `num_modes` ints, None (each mode's size) or "same"."""
    if rank is None or (isinstance(rank, str) and rank == "same"):
        _check_same_size(x, rank)
        return rank
    if isinstance(rank, str) or not isinstance(rank, Iterable):
        return check_rank(rank)
    ranks = [check_rank(r, f"rank[{n}]") for n, r in enumerate(rank)]
    if num_modes is not None and len(ranks) != num_modes:
        raise ValueError(f"rank has {len(ranks)} numbers, expected {num_modes}")
    return ranks


def _check_same_size(x: Any, rank: Any) -> None:
    """Refuse a `rank` that means as many parameters as cells, if the nonzeros are fewer numbers."""
    count = num_cells(x.shape)
    plain = getattr(x, "tensor", x)  # of a view
    nnz = getattr(plain, "nnz", count)  # a dense array has none
    numbers_per_nonzero = len(x.shape) + 1  # its coordinates and its value
    if numbers_per_nonzero * nnz < count:
        raise ValueError(
            f"rank is {rank!r}, which means as many parameters as the tensor has cells ({count}), "
            f"expected a positive integer: the tensor has only {nnz} nonzeros"
        )
