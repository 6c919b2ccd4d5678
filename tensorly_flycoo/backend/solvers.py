"""TensorLy's solvers for one factor, and operators on factors, in the place of its own."""

import functools
import inspect

import numpy as np

from ..array_modules import array_module, is_cupy, move, running_on
from ..linalg.hals import solve_nonnegative
from ..linalg.proximal import fit_monotone, smooth


def admm(original):
    """Run ADMM on a GPU too: TensorLy makes its dual variables and identities without a device."""

    @functools.wraps(original)
    def admm(UtM, UtU, x, dual_var, *args, **kwargs):
        xp = array_module(x)
        with running_on(xp):
            return original(UtM, UtU, x, move(dual_var, xp), *args, **kwargs)

    return admm


#: What TensorLy makes of ``exact=True``.
_EXACT = {"n_iter_max": 50_000, "tol": 1e-16}


def hals_nnls(original):
    """Solve for many rows of a factor at once, where TensorLy takes each row's turn."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def hals_nnls(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        arrays = [given["UtM"], given["UtU"], given["V"]]
        is_served = all(map(_is_float_matrix, arrays))
        is_served = is_served and len({(type(a), a.dtype) for a in arrays}) == 1
        if not is_served or given["nonzero_rows"] or given["callback"] is not None:
            return original(*args, **kwargs)
        given = given | (_EXACT if given["exact"] else {})
        xp = array_module(given["V"])
        rows = xp.array(given["V"].T, order="C")  # V stays as it is
        solve_nonnegative(
            xp.ascontiguousarray(given["UtM"].T), xp.ascontiguousarray(given["UtU"]), rows,
            given["n_iter_max"], given["tol"], sparsity=given["sparsity_coefficient"],
            ridge=given["ridge_coefficient"], smallest=given["epsilon"],
        )  # fmt: skip
        return rows.T

    return hals_nnls


def _is_float_matrix(x):
    is_dense = isinstance(x, np.ndarray) or is_cupy(x)
    return is_dense and x.ndim == 2 and x.dtype.char in "fd"


def monotonicity_prox(original):
    """Spare TensorLy's operator its square matrix for each column."""

    @functools.wraps(original)
    def monotonicity_prox(tensor, decreasing=False):
        if _is_float_matrix(tensor):
            return fit_monotone(tensor, decreasing)
        return original(tensor, decreasing)

    return monotonicity_prox


def smoothness_prox(original):
    """Spare TensorLy's operator its square matrix."""

    @functools.wraps(original)
    def smoothness_prox(tensor, regularizer):
        if _is_float_matrix(tensor):
            return smooth(tensor, regularizer)
        return original(tensor, regularizer)

    return smoothness_prox
