"""Leading left singular vectors with fixed signs, for initial guesses and tensor trains."""

from ..array_modules import Array, array_module
from ..checks import densify_error
from ..ops.unfolding_svd import LazyMatrix

#: Both find the leading singular vectors to rounding error.
_SVDS = ("truncated_svd", "randomized_svd")


def check_svd(svd: object, operation: str, shape: tuple[int, ...]) -> None:
    """Refuse a TensorLy method that needs more than the leading singular vectors.

    Raises
    ------
    DensifyError
        If `svd` is neither "truncated_svd" nor "randomized_svd".
    """
    if svd not in _SVDS:
        instead = f"expected one of {_SVDS}, which find only the leading singular vectors"
        raise densify_error(f"{operation} with svd={svd!r}", shape, instead)


def find_left_vectors(matrix: LazyMatrix, rank: int) -> tuple[Array, Array]:
    """Return leading left singular vectors (I, rank) and singular values (rank,).

    The largest element of each vector is positive, as in TensorLy.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> from tensorly_flycoo.ops.unfolding_svd import Unfolding
    >>> x = FlycooTensor([[0, 1], [2, 0]], [-2.0, 3.0], shape=(3, 3))
    >>> left, values = find_left_vectors(Unfolding(x, 0), 2)
    >>> abs(left).tolist(), values.tolist()
    ([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], [3.0, 2.0])
    """
    left, values = matrix.svd(rank)
    xp = array_module(left)
    largest = left[xp.argmax(xp.abs(left), axis=0), xp.arange(rank)]
    return left * xp.where(largest < 0, -1, 1).astype(left.dtype), values
