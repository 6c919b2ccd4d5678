"""The methods for singular vectors that work for a sparse tensor."""

from typing import Any

import tensorly as tl

from ..array_modules import Array
from ..checks import densify_error
from ..ops.lazy_svd import RandomizedSVD
from ..start.nndsvd import make_left_vectors_non_negative
from ..start.unfolding import LazyMatrix, Unfolding

#: Both find only the leading singular vectors.
SVDS = ("truncated_svd", "randomized_svd")


def check_svd(svd: object, operation: str, shape: tuple[int, ...]) -> None:
    """Refuse a TensorLy method that needs more than the leading singular vectors."""
    if svd not in SVDS:
        instead = f"expected one of {SVDS}, which find only the leading singular vectors"
        raise densify_error(f"{operation} with svd={svd!r}", shape, instead)


def randomized_svd(
    matrix: Any,
    n_eigenvecs: int | None = None,
    n_oversamples: int = 5,
    n_iter: int = 2,
    random_state: Any = None,
    **ignored: Any,
) -> tuple:
    """Sketch leading singular vectors as TensorLy does, without drawing a row for each column."""
    if matrix.ndim != 2:
        raise ValueError(f"matrix has shape {matrix.shape}, expected two axes: unfold the tensor")
    unfolding = matrix if isinstance(matrix, LazyMatrix) else Unfolding(matrix, 0)
    rank = min(unfolding.shape) if n_eigenvecs is None else min(n_eigenvecs, *unfolding.shape)
    random = tl.check_random_state(random_state)
    left, values, right = RandomizedSVD(unfolding, random, n_oversamples, n_iter)
    return left[:, :rank], values[:rank], right[:rank, :]


def make_svd_non_negative(
    tensor: Any,
    U: Array,
    S: Array,
    V: Any,
    nntype: Any = True,
) -> tuple:
    """Make left vectors non-negative. The right vectors were never formed, and stay so."""
    unfolding = tensor if isinstance(tensor, Unfolding) else Unfolding(tensor, 0)
    kind = "nndsvda" if nntype is True else nntype
    return make_left_vectors_non_negative(unfolding, U, S, kind), V
