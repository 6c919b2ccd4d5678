"""Leading singular vectors of a matrix that may be too large to form.

They come from the eigenvectors of its smaller Gram matrix, ``A @ A.T`` or ``A.T @ A``. This is
formed and decomposed if that costs little. Otherwise block Lanczos iteration multiplies by it, or
by `A` and ``A.T`` in turn.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Protocol

import numpy as np

from ..array_modules import Array, array_module, is_cupy, move
from .eigen import find_leading_eigenpairs

#: Gram matrices of up to this size are decomposed to rounding error: dense TensorLy could check it.
MAX_GRAM_SIZE = 8192

#: A Gram matrix of at most this size is decomposed directly, and so is a larger one if at least a
#: quarter of its vectors are wanted.
MAX_DIRECT_SIZE = 256
_MOST = 4

#: Up to this size a Gram matrix on a GPU is decomposed on the host: a GPU would mostly wait.
_MAX_HOST_SIZE = 2048

#: Relative residual at which ARPACK stops: a smaller one does not improve the singular vectors.
_TOLERANCE = 1e-12

#: The same, in the search for a missed eigenvalue.
_SEARCH_TOLERANCE = 1e-2

#: Vectors multiplied at a time: the intermediate product may be much taller than the result.
_VECTORS_AT_ONCE = 8

#: Seed of ARPACK's initial vectors.
_SEED = 20240507


class Gram(Protocol):
    """A symmetric positive semidefinite matrix (size, size) that need not be formed."""

    @property
    def size(self) -> int: ...

    def is_cheap_to_form(self) -> bool: ...

    def form(self) -> Array:
        """Return the matrix, float64; on the host, elements above the diagonal are arbitrary."""

    def iterate(self, rank: int) -> tuple[np.ndarray, Array]:
        """Compute what `find_leading_squares` returns, without forming the matrix."""


class Multipliable(Protocol):
    """A matrix A that can be multiplied with blocks of float64 vectors, (n, k)."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def max_gram_size(self) -> int:
        """The size of the largest Gram matrix worth forming."""

    def gram(self, of_rows: bool) -> Array:
        """Return ``A @ A.T`` if `of_rows`, else ``A.T @ A``, as `Gram.form` does."""

    def multiply(self, block: Array) -> Array:
        """Return ``A @ block``."""

    def multiply_transposed(self, block: Array) -> Array:
        """Return ``A.T @ block``."""


def find_singular_pairs(
    matrix: Multipliable, rank: int, xp: ModuleType
) -> tuple[Array, np.ndarray]:
    """Compute the leading left singular vectors (n, rank) of a matrix, and its values (rank,).

    Values are descending; those below the rounding error of the largest are zero, and their vectors
    need not be orthonormal. Rounding in the Gram matrix leaves each value with an error of about
    ``eps`` times the square of the largest, divided by the value itself.

    >>> class Diagonal:
    ...     shape, max_gram_size = (2, 2), MAX_GRAM_SIZE
    ...     def gram(self, of_rows):
    ...         return np.diag([4.0, 9.0])
    >>> find_singular_pairs(Diagonal(), 1, np)[1]
    array([3.])
    """
    if rank == 0:
        return xp.zeros((matrix.shape[0], 0)), np.zeros(0)
    gram = _SmallerGram(matrix, xp)
    squares, vectors = find_leading_squares(gram, rank)
    values = root_squares(squares, gram.size)
    if not gram.of_rows:
        vectors = matrix.multiply(vectors) / xp.asarray(np.where(values > 0, values, 1))
    return vectors, values


def find_leading_squares(gram: Gram, rank: int) -> tuple[np.ndarray, Array]:
    """Compute the largest eigenvalues of a Gram matrix, descending, and orthonormal vectors."""
    wants_most = _MOST * rank >= gram.size
    if not (wants_most or gram.is_cheap_to_form()):
        return gram.iterate(rank)
    formed = gram.form()
    xp = array_module(formed)
    if gram.size <= _MAX_HOST_SIZE:
        formed = move(formed, np)
    is_direct = gram.size <= MAX_DIRECT_SIZE or wants_most
    squares, vectors = (_decompose if is_direct else _iterate_with_gram)(formed, rank)
    return move(squares, np), xp.asarray(vectors)


def root_squares(squares: np.ndarray, size: int) -> np.ndarray:
    """Return the square roots of eigenvalues; zero for those below rounding error."""
    is_known = squares > size * np.finfo(np.float64).eps * squares[:1]
    return np.sqrt(np.where(is_known, squares, 0))


class _SmallerGram:
    """The smaller Gram matrix of a `Multipliable`."""

    def __init__(self, matrix: Multipliable, xp: ModuleType) -> None:
        self._matrix, self._xp = matrix, xp
        self.size = min(matrix.shape)
        self.of_rows = matrix.shape[0] <= matrix.shape[1]

    def is_cheap_to_form(self) -> bool:
        return self.size <= self._matrix.max_gram_size

    def form(self) -> Array:
        return self._matrix.gram(self.of_rows)

    def iterate(self, rank: int) -> tuple[np.ndarray, Array]:
        def multiply(block: Array) -> Array:
            return multiply_by_gram(self._matrix, block, self.of_rows)

        return find_leading_eigenpairs(multiply, self.size, rank, self._xp)


def multiply_by_gram(matrix: Multipliable, block: Array, of_rows: bool) -> Array:
    """Return ``A @ (A.T @ block)`` if `of_rows`, else ``A.T @ (A @ block)``."""
    first, second = matrix.multiply, matrix.multiply_transposed
    if of_rows:
        first, second = second, first
    return np.concatenate([second(first(part)) for part in split_columns(block)], axis=1)


def split_columns(block: Array) -> list[Array]:
    """Split a block of vectors into those that are multiplied together."""
    return np.array_split(block, -(-block.shape[1] // _VECTORS_AT_ONCE), axis=1)


def _decompose(gram: Array, rank: int) -> tuple[Array, Array]:
    size = gram.shape[0]
    if is_cupy(gram):
        squares, vectors = np.linalg.eigh(gram)
        return squares[::-1][:rank], vectors[:, ::-1][:, :rank]
    from scipy.linalg import eigh

    squares, vectors = eigh(gram, subset_by_index=[size - rank, size - 1], overwrite_a=True)
    return squares[::-1], vectors[:, ::-1]


def _iterate_with_gram(gram: Array, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Decompose by ARPACK, which multiplies where the Gram matrix is."""
    size = gram.shape[0]
    if is_cupy(gram):
        xp = array_module(gram)
        return _run_arpack(lambda vector: move(gram @ xp.asarray(vector), np), size, rank)
    from scipy.linalg.blas import dsymv

    # The lower triangle in C order is the upper one in Fortran order: nothing is copied.
    return _run_arpack(lambda vector: dsymv(1.0, gram.T, vector), size, rank)


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
