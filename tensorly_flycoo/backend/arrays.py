"""TensorLy's array functions under "flycoo": NumPy's for dense arrays, ours for sparse tensors."""

import numpy as np
from tensorly.backend.numpy_backend import NumpyBackend

from ..checks import check_dtype, densify_error
from ..conversion import as_flycoo, is_sparse
from ..svd import LazyArray, LazySVD, Unfolding
from ..tensor import FlycooTensor

#: A system with more right-hand sides than this many times its size is solved by its inverse.
_MANY_RIGHT_HAND_SIDES = 4

_USE_NONZEROS = "use tl.tensor(x).nonzeros() or .to_coo() for the nonzeros"


class FlycooBackend(NumpyBackend, backend_name="flycoo"):  # type: ignore[call-arg]
    """TensorLy backend for sparse tensors, with NumPy for all that is dense.

    Sparse tensors are `FlycooTensor` and raw `sparse.COO`. What would make one dense raises
    `DensifyError`.
    """

    @staticmethod
    def context(tensor):
        """Return the dtype of factors for `tensor`: integers and bools are counts, so float64."""
        if is_sparse(tensor):
            return {"dtype": check_dtype(tensor.dtype, "the dtype of tensor")}
        return NumpyBackend.context(tensor)

    @staticmethod
    def tensor(data, dtype=None, **kwargs):
        """Make an array, or a FlycooTensor of a sparse array (pydata/sparse or SciPy)."""
        if isinstance(data, FlycooTensor):
            return data if dtype is None else data.astype(dtype)
        if is_sparse(data):
            return FlycooTensor.from_coo(data, dtype=dtype, **kwargs)
        if hasattr(data, "tocoo"):
            return FlycooTensor.from_scipy(data, dtype=dtype, **kwargs)
        return NumpyBackend.tensor(data, dtype=dtype)

    @staticmethod
    def is_tensor(tensor):
        return is_sparse(tensor) or NumpyBackend.is_tensor(tensor)

    @staticmethod
    def to_numpy(tensor):
        if is_sparse(tensor):
            raise densify_error("tl.to_numpy", tensor.shape, _USE_NONZEROS)
        return NumpyBackend.to_numpy(tensor)

    @staticmethod
    def copy(tensor):
        if isinstance(tensor, FlycooTensor):
            return tensor  # it is immutable
        return tensor.copy() if is_sparse(tensor) else np.copy(tensor)

    @staticmethod
    def zeros_like(tensor, *args, **kwargs):
        if is_sparse(tensor):
            operation = "tl.zeros_like (which sparsity= of parafac calls)"
            raise densify_error(operation, tensor.shape, "it has no sparse version here")
        return np.zeros_like(tensor, *args, **kwargs)

    def norm(self, tensor, order=2, axis=None):
        """Compute a norm; of a sparse tensor the Frobenius norm of all of it."""
        if not is_sparse(tensor):
            return super().norm(tensor, order, axis)
        if order != 2 or axis is not None:
            raise ValueError(
                f"tl.norm of a sparse tensor has order={order!r} and axis={axis!r}, expected 2 and "
                "None"
            )
        return as_flycoo(tensor, check_coords=True).norm()

    @staticmethod
    def moveaxis(tensor, source, destination):
        if not is_sparse(tensor):
            return np.moveaxis(tensor, source, destination)
        if destination != 0:
            raise densify_error(
                f"tl.moveaxis to {destination}", tensor.shape, "only tl.unfold moves modes"
            )
        return _ModeFirst(tensor, source)

    @staticmethod
    def reshape(tensor, newshape):
        if isinstance(tensor, _ModeFirst):
            return tensor.unfold(tuple(newshape))
        if is_sparse(tensor):
            raise densify_error("tl.reshape", tensor.shape, "tl.unfold(x, mode) is a lazy view")
        return np.reshape(tensor, newshape)

    @staticmethod
    def transpose(tensor, *args, **kwargs):
        if is_sparse(tensor) or isinstance(tensor, LazyArray):
            raise densify_error("tl.transpose", tensor.shape, _USE_NONZEROS)
        return np.transpose(tensor, *args, **kwargs)

    @staticmethod
    def svd(matrix, full_matrices=True, **kwargs):
        """Decompose a matrix; of an unfolding only when the leading vectors are sliced."""
        if is_sparse(matrix) and matrix.ndim == 2:
            matrix = Unfolding(matrix, 0)
        if not isinstance(matrix, Unfolding):
            return np.linalg.svd(matrix, full_matrices=full_matrices, **kwargs)
        if full_matrices:
            raise densify_error(
                "tl.svd(full_matrices=True)", matrix.shape, "use full_matrices=False"
            )
        return LazySVD(matrix)

    @staticmethod
    def conj(x, *args, **kwargs):
        # TensorLy conjugates every factor before every product; of a real array that is a copy.
        is_real = isinstance(x, np.ndarray) and x.dtype.kind != "c" and not (args or kwargs)
        return x if is_real else np.conj(x, *args, **kwargs)

    @staticmethod
    def solve(a, b):
        """Solve ``a @ x = b``, with the pseudo-inverse where `a` is singular; never nan.

        With many right-hand sides, as the rows of a factor are, one product with the inverse of the
        small `a` is an order of magnitude faster than substitution.
        """
        a, b = np.asarray(a), np.asarray(b)
        if a.ndim != 2 or a.shape[0] != a.shape[1] or b.ndim > 2:
            return np.linalg.solve(a, b)
        is_wide = b.ndim == 2 and b.shape[1] > _MANY_RIGHT_HAND_SIDES * a.shape[0]
        if is_wide and a.dtype.kind in "fc" and a.dtype == b.dtype:
            inverse, condition = _invert(a)
            if np.isfinite(inverse).all():
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
    x = (b.T @ inverse.T).T
    if condition**2 * np.finfo(a.dtype).eps > 1:
        # The inverse leaves a residual of condition * eps: one step of refinement mends that.
        x = x + (((b - a @ x).T) @ inverse.T).T
    return x


def _invert(a):
    """Invert a small matrix in float64, or pseudo-invert it where its own precision is too low.

    Return the inverse and the condition number of the scaled matrix, 1 for a pseudo-inverse.

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
    with np.errstate(over="ignore"):  # the caller looks whether it did
        return (inverse / scales).astype(a.dtype), condition


class _ModeFirst(LazyArray):
    """Stand for a sparse tensor with one mode moved to the front, on its way to an unfolding."""

    _instead = "tl.unfold(x, mode) is a lazy view"

    def __init__(self, tensor, mode):
        self._unfolding = Unfolding(tensor, mode)
        sizes = list(self._unfolding.tensor.shape)
        self.shape = (sizes.pop(self._unfolding.mode), *sizes)
        self.ndim = len(self.shape)
        self.dtype = self._unfolding.dtype

    def __repr__(self):
        return f"<{self._unfolding!r} before reshaping>"

    def unfold(self, newshape):
        if newshape not in [(self.shape[0], -1), self._unfolding.shape]:
            raise densify_error(f"tl.reshape to {newshape}", self.shape, self._instead)
        return self._unfolding
