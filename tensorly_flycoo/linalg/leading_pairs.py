"""Leading singular vectors of a matrix that may be too large to form.

They come from the eigenvectors of its smaller Gram matrix, ``A @ A.T`` or ``A.T @ A``. This is
decomposed directly if it is small or many of its vectors are wanted. Otherwise Lanczos iteration
multiplies by it, or by `A` and ``A.T`` in turn if it is too large to form.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Protocol

import numpy as np

from ..array_modules import Array, array_module, is_cupy
from .eigen import find_leading_eigenpairs

#: Gram matrices of up to this size are formed if their elements cost little to compute.
MAX_GRAM_SIZE = 8192

#: A Gram matrix of at most this size is decomposed directly, and so is a larger one if at least a
#: quarter of its vectors are wanted.
MAX_DIRECT_SIZE = 256
_MOST = 4

#: Relative residual at which ARPACK stops: a smaller one does not improve the singular vectors.
_TOLERANCE = 1e-12

#: The same, in the search for a missed eigenvalue.
_SEARCH_TOLERANCE = 1e-2

#: Vectors multiplied at a time: the intermediate product may be much taller than the result.
_VECTORS_AT_ONCE = 8

#: Seed of ARPACK's initial vectors.
_SEED = 20240507


class Multipliable(Protocol):
    """A matrix A that can be multiplied with blocks of float64 vectors, (n, k)."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def max_gram_size(self) -> int:
        """The size of the largest Gram matrix worth forming."""

    def gram(self, of_rows: bool) -> Array:
        """Return the lower triangle of ``A @ A.T`` if `of_rows`, else of ``A.T @ A``."""

    def multiply(self, block: Array) -> Array:
        """Return ``A @ block``."""

    def multiply_transposed(self, block: Array) -> Array:
        """Return ``A.T @ block``."""


def find_singular_pairs(matrix: Multipliable, rank: int, xp: ModuleType) -> tuple[Array, Array]:
    """Compute the leading left singular vectors of a matrix, and its singular values.

    Parameters
    ----------
    matrix : Multipliable
    rank : int
        Number of vectors, from 0 to ``min(matrix.shape)``.
    xp : module
        numpy or cupy.

    Returns
    -------
    vectors : float64 array (matrix.shape[0], rank)
    values : float64 array (rank,)
        Descending; those below the rounding error of the largest are zero. The vectors of
        zero values need not be orthonormal.

    Notes
    -----
    Rounding in the Gram matrix leaves each value with an error of about ``eps`` times the square of
    the largest, divided by the value itself.

    Examples
    --------
    >>> class Diagonal:
    ...     shape, max_gram_size = (2, 2), MAX_GRAM_SIZE
    ...     def gram(self, of_rows):
    ...         return np.diag([4.0, 9.0])
    >>> find_singular_pairs(Diagonal(), 1, np)[1]
    array([3.])
    """
    num_rows, num_columns = matrix.shape
    if rank == 0:
        return xp.zeros((num_rows, 0)), xp.zeros(0)
    size, is_wide = min(matrix.shape), num_rows <= num_columns
    wants_most = _MOST * rank >= size
    if size <= matrix.max_gram_size or wants_most:
        is_direct = size <= MAX_DIRECT_SIZE or wants_most
        find = _decompose_gram if is_direct else _iterate_with_gram
        squares, vectors = find(matrix.gram(is_wide), rank)
    else:
        squares, vectors = _iterate_with_products(matrix, is_wide, rank, xp)
    is_known = squares > size * np.finfo(np.float64).eps * squares[0]
    values = np.sqrt(np.where(is_known, squares, 0))
    if not is_wide:
        vectors = matrix.multiply(vectors) / np.where(values > 0, values, 1)
    return vectors, values


def multiply_by_gram(matrix: Multipliable, block: Array, of_rows: bool) -> Array:
    """Return ``A @ (A.T @ block)`` if `of_rows`, else ``A.T @ (A @ block)``."""
    parts = np.array_split(block, -(-block.shape[1] // _VECTORS_AT_ONCE), axis=1)
    first, second = _choose_factors(matrix, of_rows)
    return np.concatenate([second(first(part)) for part in parts], axis=1)


def _choose_factors(matrix: Multipliable, of_rows: bool) -> tuple[Callable, Callable]:
    """Return the two functions that together multiply by the Gram matrix, in the order of use."""
    if of_rows:
        return matrix.multiply_transposed, matrix.multiply
    return matrix.multiply, matrix.multiply_transposed


def _decompose_gram(gram: Array, rank: int) -> tuple[Array, Array]:
    size = gram.shape[0]
    if is_cupy(gram):
        squares, vectors = np.linalg.eigh(gram)
        return squares[::-1][:rank], vectors[:, ::-1][:, :rank]
    from scipy.linalg import eigh

    squares, vectors = eigh(gram, subset_by_index=[size - rank, size - 1], overwrite_a=True)
    return squares[::-1], vectors[:, ::-1]


def _iterate_with_gram(gram: Array, rank: int) -> tuple[Array, Array]:
    size = gram.shape[0]
    if is_cupy(gram):
        full = gram + np.tril(gram, -1).T
        return find_leading_eigenpairs(full.__matmul__, size, rank, array_module(gram))
    from scipy.linalg.blas import dsymv

    # The lower triangle in C order is the upper one in Fortran order: nothing is copied.
    return _run_arpack(lambda vector: dsymv(1.0, gram.T, vector), size, rank)


def _iterate_with_products(
    matrix: Multipliable, of_rows: bool, rank: int, xp: ModuleType
) -> tuple[Array, Array]:
    size = min(matrix.shape)
    if xp is np:
        first, second = _choose_factors(matrix, of_rows)
        return _run_arpack(lambda vector: second(first(vector[:, None]))[:, 0], size, rank)
    return find_leading_eigenpairs(
        lambda block: multiply_by_gram(matrix, block, of_rows), size, rank, xp
    )


def _run_arpack(
    multiply: Callable[[np.ndarray], np.ndarray], size: int, rank: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenvalues, descending, of a symmetric operator, and their vectors.

    Lanczos iteration finds only one vector of a repeated eigenvalue, and may converge before
    rounding reveals another. So the operator is deflated by the pairs found and searched for an
    eigenvalue above the smallest of them, until none is left.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    random = np.random.RandomState(_SEED)

    def find(multiply: Callable, rank: int, tol: float = _TOLERANCE) -> tuple:
        operator = LinearOperator((size, size), matvec=multiply, dtype=np.float64)
        # SciPy's own method checks each vector first, which takes a tenth of the time.
        operator.matvec = multiply
        return eigsh(operator, k=rank, v0=random.standard_normal(size), tol=tol)

    def multiply_rest(vector: np.ndarray) -> np.ndarray:
        return multiply(vector) - vectors @ (squares * (vectors.T @ vector))

    squares, vectors = find(multiply, rank)
    while True:
        # The search returns a number near the largest eigenvalue left, and never above it.
        (largest,), _ = find(multiply_rest, 1, tol=_SEARCH_TOLERANCE)
        if largest <= (1 + size * np.finfo(np.float64).eps) * squares.min():
            break
        (square,), vector = find(multiply_rest, 1)
        smallest = np.argmin(squares)
        squares[smallest], vectors[:, smallest] = square, vector[:, 0]
    order = np.argsort(squares)[::-1]
    return squares[order], vectors[:, order]
