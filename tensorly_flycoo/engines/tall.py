"""Linear algebra for the matrices of ALS: tall factors (I_n, R) and small matrices (R, R).

CuPy's own functions are slow on these: a sum over the long axis runs in one thread block, a solver
substitutes row by row. So tall CuPy matrices are split into blocks of rows, computed in parallel
and summed in float64 in a fixed order. Up to rank 128 the CUDA engine's own kernels invert a small
matrix, and find all that ALS needs of a factor in one pass over its rows. Larger small matrices are
copied to the host for LAPACK. NumPy arrays use NumPy's functions, but for products that its BLAS
would split among threads, which would then spin and hold up the CPU engine's.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from scipy.linalg import lapack

from ..base.array_modules import Array, array_module, has_true, is_cupy, move, remote_aware
from ..base.value_dtypes import FLOAT_CHARS
from . import select_engine

#: From this many rows a CuPy matrix counts as tall; below, launches cost more than the work.
MIN_TALL_ROWS = 2**15

#: Enough blocks to fill the largest GPU, few enough for one thread block to sum.
NUM_BLOCKS = 1024

#: A BLAS works on smaller products of NumPy arrays (in multiplications) without waking its threads.
_MIN_CPU_ENGINE_WORK = 2**18

#: Longer rows leave the registers and caches for which the CPU engine's products are written.
_MAX_CPU_ENGINE_NBYTES = 512

#: Elements of a part of which the maximum is found, and the parts that are worth it for each of the
#: largest elements: of fewer, one often has several of these.
_PART_SIZE = 64
_PARTS_PER_PLACE = 4

#: Elements of which a BLAS computes an inner product without waking its threads.
_INNER_SIZE = 8192

#: Rows of a factor that are refined at once: a residual of all would take as much memory as it.
_REFINED_ROWS = 2**16

#: A system with more right-hand sides than this many times its size is solved with its inverse.
_MANY_RIGHT_HAND_SIDES = 4

#: LAPACK takes matrices of up to this size on one thread, and smaller ones are inverted fast enough
#: on several: beginning and ending the limit takes 10 us.
_MAX_ALONE_SIZE = 512
_MIN_INVERTED_SIZE = 64

_limiting = threading.Lock()  # two threads that limit in turn would not undo it in turn

#: `solve_semidefinite` takes eigenvalues below so many roundings, times the size, as 0.
_ROUNDING = 10

#: How far from orthonormal the columns may be after the first pass of Cholesky QR.
_MAX_DEVIATION = 0.1


def is_tall(x: Array) -> bool:
    """Return whether `x` is a real CuPy matrix tall enough to be split into blocks.

    Rows may be padded, as those of `solve` are.
    """
    return (
        is_cupy(x)
        and x.ndim == 2
        and x.shape[0] >= MIN_TALL_ROWS
        and x.shape[1] > 0
        and x.dtype.char in FLOAT_CHARS
        and x.strides[1] == x.itemsize
        and x.strides[0] >= x.shape[1] * x.itemsize
        and x.strides[0] % x.itemsize == 0
    )


def find_kernels(x: Array) -> ModuleType | None:
    """Return the kernels for tall matrices of the engine of `x`; None for a NumPy array."""
    return gpu_kernels() if is_cupy(x) else None


@functools.cache
def gpu_kernels() -> ModuleType | None:
    """Return the kernels for tall CuPy matrices: `engines.cuda.tall`."""
    return select_engine("cuda").tall


def suits_cpu_engine(a: Array, b: Array) -> bool:
    """Return whether the CPU engine should compute ``a @ b``: one or both are tall NumPy factors.

    Their product is (I, K) or, if ``a.T`` is tall, (J, K).
    """
    if not (type(a) is type(b) is np.ndarray and a.ndim == b.ndim == 2):
        return False
    sizes = (*a.shape, b.shape[1])
    if math.prod(sizes) <= _MIN_CPU_ENGINE_WORK:
        return False
    if a.dtype != b.dtype or a.dtype.char not in FLOAT_CHARS or a.shape[1] != b.shape[0]:
        return False
    # At most one of the three sizes is long, and it is not the columns of `b`.
    _, middle, longest = sorted(sizes)
    return middle * a.itemsize <= _MAX_CPU_ENGINE_NBYTES and b.shape[1] < longest


def multiply(a: Array, b: Array) -> Array:
    """Compute ``a @ b``, by the CPU engine if `suits_cpu_engine` says so."""
    if not suits_cpu_engine(a, b):
        return a @ b
    from .cpu.products import multiply_rows, multiply_transposed

    if a.shape[0] > a.shape[1]:
        return multiply_rows(a, b)
    return multiply_transposed(a.T, b)


def sum_rows(x: Array) -> Array:
    """Compute ``x.sum(axis=0)``, in float64 if `x` is tall."""
    if is_tall(x):
        return _sum_blocks(x).astype(x.dtype)
    return np.sum(x, axis=0)


def column_norms(x: Array) -> Array:
    """Compute the Euclidean norms of columns, summed in float64 if `x` is tall."""
    if is_tall(x):
        return np.sqrt(_sum_blocks(x * x)).astype(x.dtype)
    return np.linalg.norm(x, axis=0)


@remote_aware
def sum_columns(x: Array) -> Array:
    """Compute ``x.sum(axis=0)`` in float64."""
    return _sum_blocks(x) if is_tall(x) else x.sum(axis=0, dtype=np.float64)


def _sum_blocks(x: Array) -> Array:
    """Sum the rows of a tall matrix in float64: by blocks, then the rows of an incomplete block."""
    num_rows = x.shape[0] // NUM_BLOCKS
    split = num_rows * NUM_BLOCKS
    blocks = x[:split].reshape(NUM_BLOCKS, num_rows, x.shape[1])
    block_sums = blocks.sum(axis=1, dtype=np.float64)
    return block_sums.sum(axis=0) + x[split:].sum(axis=0, dtype=np.float64)


@remote_aware
def transposed_product(a: Any, b: Any) -> Array:
    """Compute ``a.T @ b``, in blocks of rows if both are tall and of one dtype.

    Blocks are multiplied in their own precision, and the products summed in float64. As with
    cuBLAS, the result on one device and stream is the same to the bit in every run.
    """
    kernels = find_kernels(a)
    is_alike = is_tall(a) and is_tall(b) and a.dtype == b.dtype and a.shape[0] == b.shape[0]
    if kernels is None or not is_alike:
        return multiply(a.T, b)
    is_gram = a.data.ptr == b.data.ptr and a.shape == b.shape and a.strides == b.strides
    if is_gram and kernels.suits_tensor_cores(a):
        grams = kernels.gram_blocks(a).to_array()
        return grams.sum(axis=0).astype(a.dtype)
    # All blocks have equally many rows; the few that remain are multiplied by themselves.
    split = a.shape[0] - a.shape[0] % NUM_BLOCKS
    products = kernels.multiply_blocks(a[:split], b[:split], NUM_BLOCKS)
    product = products.sum(axis=0, dtype=np.float64) + np.dot(a[split:].T, b[split:])
    return product.astype(a.dtype)


def add_product(out: Array, a: Array, b: Array, factor: float = 1) -> None:
    """Add ``factor * a @ b`` to a C-contiguous `out` in place; the rows of `a` may lie apart."""
    kernels = find_kernels(a)
    if kernels is None or a.shape[1] == 0:
        out += multiply(a, factor * b)
    else:
        kernels.add_product(out, a, b, factor)


def subtract_product(out: Array, a: Array, b: Array) -> None:
    """Subtract ``a @ b`` from a C-contiguous `out` in place, without an array of the product."""
    if type(out) is np.ndarray and suits_cpu_engine(a, b):
        from .cpu import differences

        differences.subtract_product(out, a, b)
    else:
        add_product(out, a, b, -1)


def find_extremes(x: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest and the smallest element of each column, on the host."""
    kernels = find_kernels(x)
    if kernels is None:
        return x.max(axis=0), x.min(axis=0)
    return kernels.find_extremes(x)


def find_signs(x: Array) -> np.ndarray:
    """Return the sign, 1 or -1, of the element of largest magnitude of each column; on the host."""
    largest, smallest = find_extremes(x)
    return np.where(-smallest > largest, -1, 1)


def find_largest(x: Array, n: int) -> Array:
    """Return the places (m, n) of the n largest elements of each row, descending.

    Of equal elements the first come first.

    >>> find_largest(np.array([[1.0, 3.0, 2.0, 3.0]]), 3)
    array([[1, 3, 2]])
    """
    xp = array_module(x)
    # Few elements need be sorted: those that are not below the n-th largest of their row, or nan.
    # The places of a flat array take NumPy a seventh of the time.
    places = xp.flatnonzero(~(x < _find_threshold(x, n)[:, None]))
    rows, columns = xp.divmod(places, x.shape[1])
    order = xp.lexsort(xp.stack([columns, -x[rows, columns], rows]))  # by row, element, column
    starts = xp.searchsorted(rows, xp.arange(len(x)))
    return columns[order[starts[:, None] + xp.arange(n)]]


def _find_threshold(x: Array, n: int) -> Array:
    """Return for each row a number that at least n elements are not below, and few others.

    Of n largest maxima of parts of a row, each is an element. Maxima take one pass over a long row,
    where finding its n-th largest element takes many.
    """
    xp = array_module(x)
    num_parts = x.shape[1] // _PART_SIZE
    if num_parts < _PARTS_PER_PLACE * n:
        return xp.partition(x, x.shape[1] - n, axis=1)[:, -n]
    # Parts of elements that lie apart: the largest of a row may be neighbours.
    parts = x[:, : num_parts * _PART_SIZE].reshape(len(x), _PART_SIZE, num_parts)
    return xp.partition(parts.max(axis=1), num_parts - n, axis=1)[:, -n]


def inner_product(a: Array, b: Array) -> Any:
    """Compute the sum of ``a * b`` over all elements, in float64 if both are tall or NumPy's."""
    if type(a) is type(b) is np.ndarray:
        return _inner_product_on_host(a.reshape(-1), b.reshape(-1))
    kernels = find_kernels(a)
    is_alike = is_tall(a) and is_tall(b) and a.dtype == b.dtype and a.shape == b.shape
    # The kernel counts the elements of a block in 32 bits.
    if kernels is None or not is_alike or a.shape[1] >= 2**16:
        return np.sum(np.sum(a * np.conj(b), axis=0))
    return kernels.inner_blocks(a, b).to_array().sum().astype(a.dtype)


def _inner_product_on_host(a: np.ndarray, b: np.ndarray) -> float:
    """Compute the inner product of two vectors; inner products of blocks are added in float64."""
    blocks = [slice(start, start + _INNER_SIZE) for start in range(0, a.size, _INNER_SIZE)]
    return sum([float(a[block] @ b[block]) for block in blocks])


@remote_aware
def qr(a: Array) -> tuple[Array, Array]:
    """Compute the reduced QR decomposition of a matrix.

    Tall matrices use CholeskyQR2 in float64 (Fukaya et al., ScalA 2014): five passes over `a`,
    where Householder's method needs one for each column. If `a` turns out to be too
    ill-conditioned, Householder's method is used after all.
    """
    factors = None
    if is_tall(a) and a.shape[0] >= a.shape[1]:
        factors = _cholesky_qr2(a)
    if factors is None:
        factors = np.linalg.qr(a)
    q, r = factors
    return q, r


def _cholesky_qr2(a: Array) -> tuple[Array, Array] | None:
    """Compute the QR decomposition of a tall matrix, or None if that is too ill-conditioned.

    The Cholesky factor of the Gram matrix is R, by whose inverse the columns become orthonormal,
    but for rounding errors, which a second pass removes.
    """
    xp = array_module(a)
    identity = np.eye(a.shape[1])
    q = a.astype(np.float64)
    r = identity
    for is_first in (True, False):
        gram = move(transposed_product(q, q), np)
        # Compared so that nan fails.
        if not is_first and not np.abs(gram - identity).max() * a.shape[1] < _MAX_DEVIATION:
            return None
        try:
            step = np.linalg.cholesky(gram).T
            q = np.dot(q, xp.asarray(np.linalg.inv(step)))
        except np.linalg.LinAlgError:
            return None
        r = step @ r
    return q.astype(a.dtype), xp.asarray(r.astype(a.dtype))


def solve(a: Array, b: Array) -> Array:
    """Solve ``a @ x = b``, with the pseudo-inverse if `a` is singular.

    With many right-hand sides (the rows of a factor), one product with the inverse of the small `a`
    is an order of magnitude faster than substitution. The inverse is computed on the GPU if its
    tensor cores suit, else on the host, which for CuPy arrays costs one synchronisation.
    """
    if a.ndim != 2 or a.shape[0] != a.shape[1] or b.ndim > 2 or a.shape[0] != b.shape[0]:
        return np.linalg.solve(a, b)
    if is_cupy(b) and b.ndim == 1:
        return solve(a, b[:, None])[:, 0]
    kernels = find_kernels(b)
    if kernels is not None and a.dtype == b.dtype and kernels.suits_tensor_cores(b.T):
        x_rows, _, _ = kernels.solve_rows(b.T, kernels.invert(a.T))
        return x_rows.T
    if b.ndim == 1:
        return _solve_directly(a, b)
    x_rows, _ = solve_rows(a, b.T)
    return x_rows.T


def solve_rows(
    a: Array, rows: Array, wants_sums: bool = False, rounds: bool = False
) -> tuple[Array, Any]:
    """Solve ``a @ y.T = rows.T`` for a factor y (I, R), by the inverse where that pays.

    For few rows substitution is faster, but is used only if the matrix is well-conditioned: unless
    the matrix is exactly singular, a component that has vanished would get noise of any size. The
    inverse gives it zeros.

    Returns y; and with `wants_sums`, as ALS does, where one pass over the rows finds them, its Gram
    matrix, the same to the bit as ``multiply(y.T, y)``, and the inner product of `rows` and y; and
    if that pass `rounds` y, its narrow rows, else None.
    """
    is_invertible = a.dtype.kind == "f" and a.dtype == rows.dtype
    # On a GPU substitution is slow whatever the number of rows; ALS needs the sums.
    are_few = not (is_cupy(rows) or wants_sums or _are_many(rows, a))
    if not is_invertible or (are_few and _is_well_conditioned(move(a, np))):
        return _solve_directly(a, rows.T).T, None
    exact_inverse, condition = _invert(move(a, np))
    if exact_inverse is None:
        return _solve_directly(a, rows.T).T, None
    if wants_sums and suits_cpu_engine(rows, a):
        eps = np.finfo(exact_inverse.dtype).eps
        # The inverse is in float64, whatever the dtype of `rows`: so is the limit. Beyond it y has
        # to be refined, which changes its sums.
        if condition**2 * eps <= 1:
            from .cpu import products

            if rounds:
                y, gram, inner, narrow = products.solve_and_round(rows, exact_inverse.T)
                return y, (gram, inner, narrow)
            y, gram, inner = products.solve_rows(rows, exact_inverse.T)
            return y, (gram, inner, None)
    inverse = array_module(a).asarray(exact_inverse.T, a.dtype)
    y = _multiply_rows(rows, inverse) if is_tall(rows) else multiply(rows, inverse)
    if condition**2 * np.finfo(a.dtype).eps > 1:
        y = _refine(y, a, rows, inverse)
    return y, None


def _refine(y: Array, a: Array, rows: Array, inverse: Array) -> Array:
    """Improve a solution of ``a @ y.T = rows.T``, in place; `inverse` is that of ``a.T``.

    The residual is condition * eps: one step of refinement removes it.
    """
    if type(rows) is not np.ndarray:
        y += (rows - y @ a.T) @ inverse
        return y
    for start in range(0, rows.shape[0], _REFINED_ROWS):
        block = slice(start, start + _REFINED_ROWS)
        residual = rows[block] - multiply(y[block], a.T)
        y[block] += multiply(residual, inverse)
    return y


def solve_semidefinite(gram: Array, rows: Array) -> Array:
    """Solve ``gram @ y.T = rows.T`` for y (I, R) in float64; `gram` (R, R) may be singular.

    Directions that only rounding leaves, whatever the lengths of the components, have no part in y:
    divided by, they would dominate it. `solve` is faster, and keeps what its dtype can tell apart.

    >>> gram = np.array([[4.0, 0.0], [0.0, 0.0]])
    >>> solve_semidefinite(gram, np.array([[8.0, 1e-20]])).tolist()
    [[2.0, 0.0]]
    """
    exact = move(gram, np)
    lengths = np.sqrt(exact.diagonal())
    lengths[lengths == 0] = 1
    values, vectors = eigh(exact / lengths[:, None] / lengths)
    is_large = values > _ROUNDING * values.size * np.finfo(np.float64).eps * values[-1]
    vectors = vectors[:, is_large] / lengths[:, None]
    inverse = array_module(gram).asarray(vectors / values[is_large] @ vectors.T)
    y = multiply(rows, inverse)
    y += multiply(rows - multiply(y, gram), inverse)  # which the condition number left
    return y


def _are_many(rows: Array, a: Array) -> bool:
    """Return whether one product with an inverse takes less than substituting rows one by one."""
    return bool(rows.shape[0] > _MANY_RIGHT_HAND_SIDES * a.shape[0])


def _is_well_conditioned(a: np.ndarray) -> bool:
    """Return whether all components of a system are large enough to solve it as it is."""
    _, condition = _find_inverse(a.astype(np.float64, copy=False))
    return condition * condition * float(np.finfo(a.dtype).eps) <= 1


def _solve_directly(a: Array, b: Array) -> Array:
    """Solve ``a @ x = b`` by substitution, with the pseudo-inverse if `a` is singular."""
    try:
        x = np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        return _pseudo_invert(a) @ b
    if not hasattr(x, "all"):  # row shards, each of which was solved by this function
        return x
    if has_true(~np.isfinite(x)):
        return _pseudo_invert(a) @ b
    return x


def _pseudo_invert(a: Array, **options: Any) -> Array:
    """Pseudo-invert a small matrix; refuse one for which LAPACK may never end."""
    if has_true(~np.isfinite(a)):
        raise np.linalg.LinAlgError(
            "a matrix to solve with holds inf or nan, expected finite numbers: factors may have "
            "outgrown their dtype; pass normalize_factors=True, or a lower rank"
        )
    return call_lapack(np.linalg.pinv, a, **options)


def _multiply_rows(rows: Array, matrix: Array) -> Array:
    """Compute ``rows @ matrix`` of tall CuPy `rows`, with its rows aligned for MTTKRP.

    Zero columns appended to the small matrix become the padding between the rows of the product.
    """
    kernels: Any = gpu_kernels()
    height, rank = matrix.shape
    padded_rank = kernels.choose_row_nbytes(rank * matrix.itemsize) // matrix.itemsize
    padded = array_module(rows).zeros((height, padded_rank), matrix.dtype)
    padded[:, :rank] = matrix
    return (rows @ padded)[:, :rank]


def call_lapack(function: Callable[..., Any], a: Array, *arrays: Array, **options: Any) -> Any:
    """Call a function of matrices (..., n, n); small ones on the host without the BLAS's threads.

    Where other programs use the cores, these wait for each other: `eigh` of 32 rows takes 59 ms on
    two threads of a busy machine, 0.09 ms on one.
    """
    if is_cupy(a) or a.shape[-1] > _MAX_ALONE_SIZE:
        return function(a, *arrays, **options)
    with one_blas_thread():
        return function(a, *arrays, **options)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy's and SciPy's BLAS use one thread; blocks of this may not be nested."""
    with _limiting, _find_blas().limit(limits=1):
        yield


@functools.cache
def _find_blas() -> Any:
    """Find the limiter of the threads of NumPy's and SciPy's BLAS."""
    import scipy.linalg  # noqa: F401  # which loads its BLAS
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def eigh(a: Array) -> tuple[Array, Array]:
    """Compute eigenvalues, ascending, and eigenvectors of symmetric matrices (..., n, n)."""
    return call_lapack(np.linalg.eigh, a)


def _invert(a: np.ndarray) -> tuple[np.ndarray | None, float]:
    """Invert a small matrix in float64; pseudo-invert it if it is singular in its own precision.

    Return the inverse, or None if it overflows the matrix's own precision, and a condition number,
    1 for a pseudo-inverse. If the condition is bad, the matrix is first scaled to a unit diagonal,
    so that a component much smaller than another does not make it singular. A component so small
    that its digits underflow is not scaled: it has vanished, and gets zeros.
    """
    limits = np.finfo(a.dtype)
    eps = float(limits.eps)
    exact = a.astype(np.float64, copy=False)
    inverse, condition = _find_inverse(exact)
    is_well_conditioned = condition * condition * eps <= 1  # False for nan
    if is_well_conditioned and exact is a:
        return inverse, condition
    if not is_well_conditioned:
        scale = np.sqrt(np.abs(exact.diagonal()))
        least = (float(limits.smallest_normal) / eps) ** 0.5
        scale = np.where((scale > least) & (scale < np.inf), scale, 1.0)
        scaled = exact / scale / scale[:, None]
        inverse, condition = _find_inverse(scaled)
        if not condition * eps < 1:
            inverse = _pseudo_invert(scaled, rcond=a.shape[0] * eps)
            condition = 1.0
        inverse = inverse / scale / scale[:, None]
    largest = lapack.dlange("M", inverse)
    if not largest <= limits.max:
        return None, condition
    return inverse, condition


@functools.cache
def _make_identity(size: int) -> np.ndarray:
    """Return a small identity matrix (size, size), which nobody may write to."""
    identity = np.eye(size, order="F")  # as LAPACK reads it
    identity.flags.writeable = False
    return identity


def _find_inverse(a: np.ndarray) -> tuple[np.ndarray, float]:
    """Invert a float64 matrix, in half the time of `numpy.linalg.inv`.

    Also returns its condition number in the 1-norm, infinite if it is singular.
    """
    size = a.shape[0]
    if size < _MIN_INVERTED_SIZE:
        _, _, inverse, info = lapack.dgesv(a, _make_identity(size))
    else:
        _, _, inverse, info = call_lapack(lapack.dgesv, a, np.eye(size))
    condition = lapack.dlange("1", a) * lapack.dlange("1", inverse)
    if info > 0:
        condition = math.inf
    return inverse, condition
