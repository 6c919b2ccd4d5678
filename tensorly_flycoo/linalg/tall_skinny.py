"""Linear algebra of the shapes that ALS has: tall factors (I_n, R) and small matrices (R, R).

On CuPy arrays its own functions are correct but slow here: a sum over the long axis runs in one
thread block, a solver substitutes row by row. So tall CuPy matrices are cut into blocks of rows,
computed side by side and added up in float64 in a fixed order. Up to rank 32 in float32, kernels of
ours do what else would take cuBLAS twice the time, and invert small matrices; others go to the
host, R * R numbers, where LAPACK is faster than a launch. NumPy arrays take NumPy's functions.
"""

import numpy as np

from ..array_modules import array_module, is_cupy, move
from ..engines.cuda.tuning import choose_row_nbytes

#: From this many rows a CuPy matrix counts as tall; below, launches cost more than the work.
MIN_TALL_ROWS = 2**15

#: Enough blocks to fill the largest GPU, few enough to be added up in one more thread block.
NUM_BLOCKS = 1024

#: A system with more right-hand sides than this many times its size is solved by its inverse.
_MANY_RIGHT_HAND_SIDES = 4

#: How far the columns of the first half of Cholesky QR may be from orthonormal.
_MAX_DEVIATION = 0.1


def is_tall(x):
    """Say whether `x` is a real CuPy matrix for which the functions in blocks are worth while.

    Its rows may lie apart, as those of `solve` do.
    """
    return (
        is_cupy(x)
        and x.ndim == 2
        and x.shape[0] >= MIN_TALL_ROWS
        and x.shape[1] > 0
        and x.dtype.char in "fd"
        and x.strides[1] == x.itemsize
        and x.strides[0] >= x.shape[1] * x.itemsize
        and x.strides[0] % x.itemsize == 0
    )


def sum_rows(x):
    """Compute ``x.sum(axis=0)``; of a tall matrix added up in float64."""
    return _sum_blocks(x).astype(x.dtype) if is_tall(x) else np.sum(x, axis=0)


def column_norms(x):
    """Compute the Euclidean norms of columns; of a tall matrix added up in float64."""
    return np.sqrt(_sum_blocks(x * x)).astype(x.dtype) if is_tall(x) else np.linalg.norm(x, axis=0)


def _sum_blocks(x):
    num_rows = x.shape[0] // NUM_BLOCKS
    split = num_rows * NUM_BLOCKS
    sums = x[:split].reshape(NUM_BLOCKS, num_rows, x.shape[1]).sum(axis=1, dtype=np.float64)
    return sums.sum(axis=0) + x[split:].sum(axis=0, dtype=np.float64)


def transposed_product(a, b):
    """Compute ``a.T @ b``; of two tall matrices of one dtype in blocks of rows.

    Blocks are multiplied in their own precision, and the products added up in float64. On one
    device and stream the result is the same to the bit in every run, as cuBLAS's own products are.
    """
    if not (is_tall(a) and is_tall(b) and a.dtype == b.dtype and a.shape[0] == b.shape[0]):
        return np.dot(a.T, b)
    if _is_same(a, b) and _suits_tensor_cores(a):
        from ..engines.cuda import tall

        return tall.gram_blocks(a).sum(axis=0).astype(a.dtype)
    split = a.shape[0] - a.shape[0] % NUM_BLOCKS
    products = _multiply_blocks(a[:split], b[:split])
    product = products.sum(axis=0, dtype=np.float64) + np.dot(a[split:].T, b[split:])
    return product.astype(a.dtype)


def _suits_tensor_cores(x):
    if not is_cupy(x):
        return False
    from ..engines.cuda import tall

    return tall.suits_tensor_cores(x)


def _is_same(a, b):
    return a.data.ptr == b.data.ptr and a.shape == b.shape and a.strides == b.strides


def inner_product(a, b):
    """Compute the sum of ``a * b`` over all numbers; of two tall matrices in float64."""
    is_alike = is_tall(a) and is_tall(b) and a.dtype == b.dtype and a.shape == b.shape
    if not is_alike or a.shape[1] >= 2**16:  # a block's numbers are counted in 32 bits
        return np.sum(np.sum(a * np.conj(b), axis=0))
    from ..engines.cuda import tall

    return tall.inner_blocks(a, b).sum().astype(a.dtype)


def _multiply_blocks(a, b):
    """Compute ``a.T @ b`` of each block of rows: (NUM_BLOCKS, a's columns, b's columns).

    `cupy.matmul` would first write the transposed blocks to memory; cuBLAS reads them as they are.
    """
    import cupy
    from cupy_backends.cuda.libs import cublas

    num_rows, m, n = a.shape[0] // NUM_BLOCKS, a.shape[1], b.shape[1]
    row_a, row_b = a.strides[0] // a.itemsize, b.strides[0] // b.itemsize
    products = cupy.empty((NUM_BLOCKS, m, n), a.dtype)
    one, zero = np.ones((), a.dtype), np.zeros((), a.dtype)
    multiply = cublas.sgemmStridedBatched if a.dtype.char == "f" else cublas.dgemmStridedBatched
    # cuBLAS takes rows for columns: it sees b.T, a.T and the transposed products.
    multiply(
        cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T,
        n, m, num_rows, one.ctypes.data, b.data.ptr, row_b, num_rows * row_b,
        a.data.ptr, row_a, num_rows * row_a, zero.ctypes.data, products.data.ptr, n, m * n,
        NUM_BLOCKS,
    )  # fmt: skip
    return products


def qr(a):
    """Compute the reduced QR decomposition of a matrix.

    A tall one by Cholesky QR, twice, in float64 (Fukaya et al., ScalA 2014): five passes over `a`
    where Householder's way needs one for each column. Where `a` is too ill-conditioned for that,
    which the second half shows, by Householder's after all.
    """
    factors = _cholesky_qr2(a) if is_tall(a) and a.shape[0] >= a.shape[1] else None
    return np.linalg.qr(a) if factors is None else factors


def _cholesky_qr2(a):
    xp, identity = array_module(a), np.eye(a.shape[1])
    q, r = a.astype(np.float64), identity
    for is_first in (True, False):
        gram = move(transposed_product(q, q), np)
        if not is_first and not np.abs(gram - identity).max() * a.shape[1] < _MAX_DEVIATION:
            return None
        try:
            step = np.linalg.cholesky(gram).T
            q = np.dot(q, xp.asarray(np.linalg.inv(step)))
        except np.linalg.LinAlgError:
            return None
        r = step @ r
    return q.astype(a.dtype), xp.asarray(r.astype(a.dtype))


def solve(a, b):
    """Solve ``a @ x = b``, with the pseudo-inverse where `a` is singular.

    With many right-hand sides, as the rows of a factor are, one product with the inverse of the
    small `a` is an order of magnitude faster than substitution. The inverse is computed on the
    GPU, where its tensor cores suit, and on the host otherwise: for CuPy arrays that is one
    synchronisation with the device.
    """
    if a.ndim != 2 or a.shape[0] != a.shape[1] or b.ndim > 2 or a.shape[0] != b.shape[0]:
        return np.linalg.solve(a, b)
    if is_cupy(b) and b.ndim == 1:
        return solve(a, b[:, None])[:, 0]
    if a.dtype == b.dtype and _suits_tensor_cores(b.T):
        from ..engines.cuda import tall

        return tall.multiply_rows(b.T, tall.invert(a.T)).T
    # CuPy's own solver does not say where a matrix is singular, so it is never asked.
    is_wide = b.ndim == 2 and b.shape[1] > _MANY_RIGHT_HAND_SIDES * a.shape[0]
    if (is_wide or is_cupy(b)) and a.dtype.kind in "fc" and a.dtype == b.dtype:
        inverse, condition = _invert(move(a, np))
        if inverse is not None:
            return _solve_many(a, b, inverse, condition)
    return _solve_few(a, b)


def _solve_few(a, b):
    try:
        x = np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        return np.linalg.pinv(a) @ b
    return x if np.isfinite(x).all() else np.linalg.pinv(a) @ b


def _solve_many(a, b, inverse, condition):
    # Of the transposes, so that the factor comes out in C order.
    rows, inverse = b.T, array_module(a).asarray(inverse)
    x = _multiply_rows(rows, inverse.T)
    if condition**2 * np.finfo(a.dtype).eps > 1:
        # The inverse leaves a residual of condition * eps: one step of refinement mends that.
        x += (rows - x @ a.T) @ inverse.T
    return x.T


def _multiply_rows(rows, matrix):
    """Compute ``rows @ matrix``; of a tall matrix with rows that are aligned as MTTKRP wants them.

    Columns of zeros at the end of the small matrix make room between the rows of the product.
    """
    if not is_tall(rows):
        return rows @ matrix
    rank, row_nbytes = matrix.shape[1], choose_row_nbytes(matrix.shape[1] * matrix.itemsize)
    wide = array_module(rows).zeros((matrix.shape[0], row_nbytes // matrix.itemsize), matrix.dtype)
    wide[:, :rank] = matrix
    return (rows @ wide)[:, :rank]


def _invert(a):
    """Invert a small matrix in float64, or pseudo-invert it where its own precision is too low.

    Return the inverse, or None if its own precision has no room for that, and the condition number
    of the scaled matrix, 1 for a pseudo-inverse.

    Rows and columns are first scaled to a diagonal of ones: a component that is only much smaller
    than another is no reason to call the matrix singular.
    """
    exact = a.astype(np.result_type(a.dtype, np.float64))
    scale = np.sqrt(np.abs(np.diagonal(exact)))
    scale[(scale == 0) | ~np.isfinite(scale)] = 1
    scales = np.outer(scale, scale)
    scaled = exact / scales
    try:
        inverse = np.linalg.inv(scaled)
        condition = np.abs(scaled).sum(axis=0).max() * np.abs(inverse).sum(axis=0).max()
        is_regular = condition * np.finfo(a.dtype).eps < 1
    except np.linalg.LinAlgError:
        is_regular = False
    if not is_regular:
        condition = 1.0
        inverse = np.linalg.pinv(scaled, rcond=a.shape[0] * np.finfo(a.dtype).eps)
    with np.errstate(over="ignore"):
        inverse = (inverse / scales).astype(a.dtype)
    return inverse if np.isfinite(inverse).all() else None, condition
