"""Leading eigenpairs of symmetric matrices, and singular pairs of matrices from their Gram matrix.

A matrix that is cheap to form is decomposed by LAPACK, or by ARPACK if few pairs of a large one are
wanted. For others, block Lanczos iteration multiplies blocks of vectors: one costs hardly more than
a single vector, and on a GPU the vectors stay there.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy, move
from ..engines.tall import add_product, call_lapack, eigh, transposed_product

#: Gram matrices of up to this size are decomposed to rounding error: dense TensorLy could check it.
MAX_GRAM_SIZE = 8192

#: A Gram matrix of at most this size is decomposed directly, and so is a larger one if at least a
#: quarter of its vectors are wanted.
MAX_DIRECT_SIZE = 256
_MOST = 4

#: Up to this size a Gram matrix on a GPU is decomposed on the host: a GPU would mostly wait.
_MAX_HOST_SIZE = 2048

#: Relative residuals at which ARPACK stops (a smaller one does not improve the singular vectors),
#: and its search for a missed eigenvalue.
_TOLERANCE = 1e-12
_SEARCH_TOLERANCE = 1e-2

#: Of a Gram matrix on the host with so few elements, one in this many, only these are multiplied.
_SPARSITY = 32

#: Vectors multiplied at a time: the intermediate product may be much taller than the result.
_VECTORS_AT_ONCE = 8

#: Seed of all initial vectors.
SEED = 20240507

#: Vectors in a block beyond those wanted, since the last ones converge slowly.
_NUM_GUARDS = 8

#: Blocks in the basis before a restart keeps the best two.
MAX_BLOCKS = 6

#: Norm of a converged residual, relative to the largest eigenvalue: this many rounding units for
#: the square root of the size.
_ROUNDINGS = 4

#: Passes of an orthonormalisation, and how little the last one has to correct.
_MAX_PASSES = 6
_SMALL = 1e-2

#: A column is noise if a projection leaves no more of it than this many rounding units.
_NOISE = 100

#: Rounds from one look at the residuals to the next: decomposing on the host takes longer than a
#: round on a GPU.
_ROUNDS_PER_CHECK = 3

#: Rounds after which the best pairs so far are returned: by then eigenvalues are so close together
#: that any combination of their vectors is as good an initial guess as another.
_MAX_ROUNDS = 300

#: Degrees of the Chebyshev polynomials by which `filter_leading_vectors` multiplies in turn: on a
#: spectrum without gaps, values then fall short by 1.5 %.
_DEGREES = (1, 1, 2, 5)

#: Rows of a block that are changed in place at a time.
_ROWS_AT_ONCE = 2**20


class Multipliable(Protocol):
    """A matrix A that can be multiplied with blocks of float64 vectors, (n, k)."""

    shape: tuple[int, int]

    def is_gram_cheap(self, rank: int) -> bool:
        """Say whether the smaller Gram matrix costs less than to iterate for `rank` pairs."""

    def gram(self, of_rows: bool) -> Array:
        """Return ``A @ A.T`` if `of_rows`, else ``A.T @ A``, to be passed to `decompose`."""

    def multiply(self, block: Array) -> Array: ...

    def multiply_transposed(self, block: Array) -> Array: ...


def find_singular_pairs(
    matrix: Multipliable, rank: int, xp: ModuleType
) -> tuple[Array, np.ndarray]:
    """Compute the leading left singular vectors (n, rank) of a matrix, and its values (rank,).

    Values are descending; those below the rounding error of the largest are zero, and their vectors
    need not be orthonormal. Rounding in the Gram matrix leaves each value with an error of about
    ``eps`` times the square of the largest, divided by the value itself.
    """
    if rank == 0:
        return xp.zeros((matrix.shape[0], 0)), np.zeros(0)
    size = min(matrix.shape)
    of_rows = matrix.shape[0] <= matrix.shape[1]
    if wants_most(rank, size) or matrix.is_gram_cheap(rank):
        squares, vectors = decompose(matrix.gram(of_rows), rank)
    else:
        multiply = functools.partial(multiply_by_gram, matrix, of_rows=of_rows)
        squares, vectors = find_leading_eigenpairs(multiply, size, rank, xp)
    values = root_squares(squares, size)
    if not of_rows:
        # From right singular vectors to left ones.
        divisors = np.where(values > 0, values, 1)
        vectors = matrix.multiply(vectors) / xp.asarray(divisors)
    return vectors, values


def root_squares(squares: np.ndarray, size: int) -> np.ndarray:
    """Return the square roots of eigenvalues; zero for those below rounding error."""
    is_certain = squares > size * np.finfo(np.float64).eps * squares[:1]
    return np.sqrt(np.where(is_certain, squares, 0))


def multiply_by_gram(matrix: Multipliable, block: Array, of_rows: bool) -> Array:
    """Return ``A @ (A.T @ block)`` if `of_rows`, else ``A.T @ (A @ block)``."""
    if of_rows:
        first = matrix.multiply_transposed
        second = matrix.multiply
    else:
        first = matrix.multiply
        second = matrix.multiply_transposed
    products = [second(first(part)) for part in split_columns(block)]
    return np.concatenate(products, axis=1)


def split_columns(block: Array) -> list[Array]:
    """Split a block of vectors into those that are multiplied together.

    >>> [part.shape for part in split_columns(np.ones((100, 20)))]
    [(100, 7), (100, 7), (100, 6)]
    """
    num_parts = -(-block.shape[1] // _VECTORS_AT_ONCE)
    return np.array_split(block, num_parts, axis=1)


def wants_most(rank: int, size: int) -> bool:
    """Say whether so many pairs are wanted that a matrix is best decomposed directly."""
    return _MOST * rank >= size


def decompose(matrix: Array, rank: int) -> tuple[np.ndarray, Array]:
    """Compute the largest eigenvalues, descending, and orthonormal vectors, where that is fastest.

    `matrix` is float64; on the host only its lower triangle counts, and it is overwritten.
    """
    xp = array_module(matrix)
    size = matrix.shape[0]
    if size <= _MAX_HOST_SIZE:
        matrix = move(matrix, np)
    if size > MAX_DIRECT_SIZE and not wants_most(rank, size):
        values, vectors = _run_arpack(matrix, rank)
    elif is_cupy(matrix):
        values, vectors = sort_pairs(matrix, rank)
    else:
        from scipy.linalg import eigh as scipy_eigh

        last_ones = [size - rank, size - 1]  # LAPACK's values ascend
        values, vectors = call_lapack(
            scipy_eigh, matrix, subset_by_index=last_ones, overwrite_a=True
        )
        values = values[::-1]
        vectors = vectors[:, ::-1]
    return move(values, np), xp.asarray(vectors)


def sort_pairs(matrix: Array, rank: int) -> tuple[Array, Array]:
    """Return the largest eigenvalues of a matrix, descending, and their vectors."""
    values, vectors = eigh(matrix)
    # LAPACK's values ascend.
    return values[::-1][:rank], vectors[:, ::-1][:, :rank]


def _run_arpack(matrix: Array, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenvalues, descending, and their vectors; multiply where the matrix is.

    Lanczos iteration finds only one vector of a repeated eigenvalue, and may converge before
    rounding reveals another. So the matrix is deflated by the pairs found and searched for an
    eigenvalue above the smallest of them, until none is left.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    size = matrix.shape[0]
    random = np.random.RandomState(SEED)
    multiply = _choose_product(matrix)

    def multiply_deflated(vector: np.ndarray) -> np.ndarray:
        return multiply(vector) - vectors @ (values * (vectors.T @ vector))

    def search(multiply: Callable, rank: int, tol: float = _TOLERANCE) -> tuple:
        operator = LinearOperator((size, size), matvec=multiply, dtype=np.float64)
        return eigsh(operator, k=rank, v0=random.standard_normal(size), tol=tol)

    values, vectors = search(multiply, rank)
    rounding = size * np.finfo(np.float64).eps
    while True:
        # The search returns a number near the largest eigenvalue left, and never above it.
        (largest,), _ = search(multiply_deflated, 1, tol=_SEARCH_TOLERANCE)
        if largest <= (1 + rounding) * values.min():
            break
        (missed_value,), missed_vector = search(multiply_deflated, 1)
        smallest = np.argmin(values)
        values[smallest] = missed_value
        vectors[:, smallest] = missed_vector[:, 0]
    descending = np.argsort(values)[::-1]
    return values[descending], vectors[:, descending]


def _choose_product(matrix: Array) -> Callable[[np.ndarray], np.ndarray]:
    """Return the fastest product of a symmetric matrix and a vector, both from and to the host."""
    from scipy.linalg.blas import dsymv
    from scipy.sparse import csr_array, tril

    if is_cupy(matrix):
        xp = array_module(matrix)
        return lambda vector: move(matrix @ xp.asarray(vector), np)
    # Some rows are counted first: to count all takes as long as some products.
    if _is_mostly_zeros(matrix[::_SPARSITY]) and _is_mostly_zeros(matrix):
        lower = tril(csr_array(matrix))
        sparse = (lower + tril(lower, -1).T).tocsr()
        return lambda vector: sparse @ vector
    # The lower triangle in C order is the upper one in Fortran order: nothing is copied.
    return lambda vector: dsymv(1.0, matrix.T, vector)


def _is_mostly_zeros(matrix: np.ndarray) -> bool:
    return bool(_SPARSITY * np.count_nonzero(matrix) < matrix.size)


def find_leading_eigenpairs(
    multiply: Callable[[Array], Array], size: int, rank: int, xp: ModuleType
) -> tuple[np.ndarray, Array]:
    """Compute the largest eigenvalues of a positive semidefinite operator, and their vectors.

    Block Lanczos iteration with thick restarts: each round adds the image of the last block to the
    basis. A block finds as many copies of an eigenvalue as it has vectors. `size` is at least four
    times `rank`. Values are descending, both are float64.
    """
    width = choose_width(rank, size)
    max_blocks = min(MAX_BLOCKS, size // width)
    max_columns = max_blocks * width
    draw = _make_draw(size, width, xp, np.float64)
    basis = xp.empty((size, max_columns), np.float64)
    basis[:, :width] = orthonormalize(draw(), basis[:, :0], draw)
    projected = np.zeros((0, 0))  # the operator in the basis
    tolerance = _ROUNDINGS * np.finfo(np.float64).eps * size**0.5
    for num_rounds in range(1, _MAX_ROUNDS + 1):
        # 1. Multiply the last block; what the basis does not have of the image is the next one.
        count = projected.shape[0] + width
        filled = basis[:, :count]
        image = multiply(filled[:, -width:])
        removed = _project_out(image, filled)
        projected = np.block([[projected, removed[:-width]], [removed.T]])
        gram = gram_of(image)
        # 2. Look at the residuals, which the last block of coefficients tells.
        is_last = num_rounds == _MAX_ROUNDS
        is_full = count == max_columns
        if is_last or is_full or num_rounds % _ROUNDS_PER_CHECK == 0:
            # NumPy's BLAS throughout: the idle threads of a second one would spin.
            values, vectors = sort_pairs(projected, 2 * width)
            coefficients = np.ascontiguousarray(vectors)
            tails = coefficients[-width:, :rank]
            squares = np.sum(tails * (gram @ tails), axis=0)  # of the residuals' norms
            limit = tolerance * values[0]
            if is_last or (squares <= limit**2).all():
                break
        # 3. A full basis restarts from its best two blocks.
        if is_full:
            filled[:, : 2 * width] = multiply_block(filled, coefficients)
            projected = np.diag(values)
            count = 2 * width
        filled = basis[:, :count]
        next_block = orthonormalize(image, filled, draw, projection=(removed, gram))
        basis[:, count : count + width] = next_block
    return values[:rank], multiply_block(filled, coefficients[:, :rank])


def _make_draw(size: int, width: int, xp: ModuleType, dtype: Any) -> Callable[[], Array]:
    """Return a function that draws one initial block after another."""
    # CuPy's RandomState and NumPy's Generator are those that draw in a given dtype.
    make_generator = np.random.default_rng if xp is np else xp.random.RandomState
    random = make_generator(SEED)
    return lambda: random.standard_normal((size, width), dtype)


def filter_leading_vectors(
    multiply: Callable[[Array], Array], size: int, rank: int, xp: ModuleType, dtype: Any
) -> Array:
    """Approximate the leading eigenspace of a positive semidefinite operator, in little memory.

    Subspace iteration by Chebyshev polynomials (Zhou, Saad, Tiago and Chelikowsky, J. Comput. Phys.
    219, 2006), which keeps two blocks and no basis. A cycle multiplies by the polynomial that is
    small on [0, a] and grows fastest beyond, root by root: `a`, the smallest Ritz value, is at most
    the eigenvalue of its number, so no wanted vector is damped. Vectors are orthonormalised after
    each root, lest the first ones drown the others. Cycles grow longer as `a` becomes better.
    """
    width = choose_width(rank, size)
    draw = _make_draw(size, width, xp, dtype)
    block = orthonormalize(draw(), None, draw)
    for degree in _DEGREES:
        angles = np.pi * (np.arange(degree) + 0.5) / degree
        roots = (1 - np.cos(angles)) / 2  # of the polynomial on [0, 1]
        for number in range(degree):
            image = multiply(block)
            projected = move(transposed_product(block, image), np).astype(np.float64)
            values, rotation = eigh((projected + projected.T) / 2)
            if number == 0:
                roots *= max(float(values[0]), 0.0)  # of the polynomial on [0, a]
            # The image under the operator less the root.
            shift = xp.asarray(-roots[number] * np.eye(width), dtype)
            add_product(image, block, shift)
            # Images of Ritz vectors are nearly orthogonal, however different their lengths.
            block = orthonormalize(_transform(image, rotation), None, draw)
    return block


def choose_width(rank: int, size: int) -> int:
    """Return the number of vectors in a block: whole groups of 8, which multiply fastest.

    >>> choose_width(10, 1000), choose_width(10, 30)
    (24, 10)
    """
    num_groups = -(-(rank + _NUM_GUARDS) // 8)
    return min(num_groups * 8, size // 3)


def gram_of(block: Array) -> np.ndarray:
    """Return ``block.T @ block`` in float64 on the host."""
    return move(transposed_product(block, block), np).astype(np.float64)


def _project_out(block: Array, basis: Array) -> np.ndarray:
    """Subtract from `block`, in place, its projection on a basis; return the coefficients."""
    coefficients = transposed_product(basis, block)
    add_product(block, basis, coefficients, -1)
    return move(coefficients, np).astype(np.float64)


def multiply_block(block: Array, coefficients: np.ndarray) -> Array:
    """Multiply a block by coefficients from the host."""
    xp = array_module(block)
    product = xp.zeros((block.shape[0], coefficients.shape[1]), block.dtype)
    add_product(product, block, xp.asarray(coefficients, block.dtype))
    return product


def _transform(block: Array, coefficients: np.ndarray) -> Array:
    """Multiply a block by square coefficients from the host; a tall block in place."""
    if block.shape[0] <= _ROWS_AT_ONCE:
        return multiply_block(block, coefficients)
    for first in range(0, block.shape[0], _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        block[rows] = multiply_block(block[rows], coefficients)
    return block


def correct_orthonormal(block: Array) -> Array:
    """Make nearly orthonormal columns orthonormal, each changed little; may overwrite the block."""
    values, vectors = eigh(gram_of(block))
    return _transform(block, vectors / np.sqrt(values) @ vectors.T)


def orthonormalize(
    block: Array,
    basis: Array | None = None,
    draw: Callable[[], Array] | None = None,
    projection: tuple[np.ndarray, np.ndarray] | None = None,
) -> Array:
    """Make an orthonormal basis of a block (size, k), orthogonal to the columns of `basis`.

    The columns are multiplied by the inverse square root of their scaled Gram matrix (Stathopoulos
    and Wu, SIAM J. Sci. Comput. 23, 2002), which unlike a QR decomposition does not fail if they
    are dependent. Passes go on until one has little to correct. The block may be overwritten.

    `draw` draws directions that the block lacks; without it these become zero. With `projection`,
    the block has already been projected: it holds the coefficients on `basis` that were subtracted
    (n, k), and the Gram matrix of what is left (k, k).
    """
    eps = np.finfo(block.dtype).eps
    width = block.shape[1]
    for _ in range(_MAX_PASSES):
        if projection is not None:
            removed, gram = projection
            projection = None  # the next passes project again
        elif basis is not None:
            removed = _project_out(block, basis)
            gram = gram_of(block)
        else:
            removed = np.zeros((0, width))
            gram = gram_of(block)
        # 1. Scale the columns to length 1. What is left of one after much has been subtracted is
        # rounding error: it becomes zero.
        squares = np.diagonal(gram)
        is_noise = squares <= (_NOISE * eps) ** 2 * np.sum(removed**2, axis=0)
        lengths = np.sqrt(np.where(is_noise, 1, squares))
        scales = np.where(is_noise, 0, 1 / lengths)
        # 2. Multiply by the inverse root of their Gram matrix, zero where that is singular.
        values, vectors = eigh(gram * np.outer(scales, scales))
        is_spanned = values > width * eps
        roots = np.sqrt(np.where(is_spanned, values, 1))
        roots[~is_spanned] = np.inf
        block = _transform(block, scales[:, None] * vectors / roots)
        # 3. Draw the directions that are missing, or see whether another pass is needed.
        if draw is not None and not is_spanned.all():
            block[:, ~is_spanned] = draw()[:, ~is_spanned]
            continue
        deviation = np.abs(values[is_spanned] - 1).max(initial=0)
        if np.sum(removed**2) < _SMALL and deviation < _SMALL:
            break
    return block
