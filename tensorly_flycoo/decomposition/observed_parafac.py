"""Sparse tensor completion: a CP model fitted only to the stored entries of a tensor."""

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorly as tl

from ..base.array_modules import Array
from ..base.checks import check_rank
from ..io.checkpoint import Resumed
from ..ops.cp_entries import evaluate_model
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .cp_loop import iterate
from .cp_model import make_cp_tensor
from .guarding import guard
from .initial_guess import draw_factors, take_guess
from .observed_rows import L2_REG, RowPlan, check_ridge, fit_rows, measure_scale, scale_ridge
from .resuming import Callback, restore
from .stopping import has_converged

if TYPE_CHECKING:
    from sparse import SparseArray


@guard
def observed_parafac(
    tensor: "FlycooTensor | SparseArray",
    rank: int,
    n_iter_max: int = 100,
    init: Any = "random",
    tol: float = 1e-8,
    random_state: Any = None,
    l2_reg: float = L2_REG,
    return_errors: bool = False,
    callback: Callback | None = None,
) -> Any:
    r"""Fit a CP decomposition to the stored nonzeros only; all other entries are unknown.

    .. math:: \min \sum_k \Big(v_k - \sum_r \prod_n F_n[c_{n,k}, r]\Big)^2
        + \lambda s^{2 - 2/N} \sum_n |F_n|^2

    over the nonzeros :math:`v_k` of `tensor`, whose root mean square is s; TensorLy's `parafac`
    sums over all cells. Alternating least squares solves a system of R equations for each row of a
    factor.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
        With two modes or more. Zeros are not stored, so a zero cannot be observed: if your data
        have any, subtract the mean of the values first.
    rank : int
        R, the number of components.
    n_iter_max : int
    init : {"random", CPTensor, (weights, factors), ResumedCP}
        "random" gives the guess of TensorLy's `parafac` for the same `random_state`, times
        :math:`s^{1/N}`. Arrays must have the dtype and device of `tensor`; weights may be None. Or
        a checkpoint to resume (`Progress.resume`).
    tol : float
        Stop when the error changes by less; 0 never stops.
    random_state : int or numpy.random.RandomState, optional
    l2_reg : float
        The ridge :math:`\lambda`, above 0. It makes rows with fewer than R nonzeros unique. It
        suits values of any scale: values times :math:`c` give factors times :math:`c^{1/N}`.
    return_errors : bool
    callback : callable, optional
        Called with the CPTensor, in float64, and its error before the first and after each
        iteration; returns True to stop. For example a `Progress`.

    Returns
    -------
    CPTensor
        Weights of ones and factors (I_n, R) in the dtype and on the device of `tensor`. Rows
        without a nonzero are zero. Its attribute `observed_l2_reg`, which a `LabelledCP` has too,
        tells `fold_in` and `LabelledCP.transform` to take the missing cells of new rows as unknown.
    errors : list of float
        After each iteration, the norm of the residual at the nonzeros relative to the norm of
        `tensor`; only with `return_errors`.

    Raises
    ------
    TypeError
        If `tensor` is not sparse, or `rank`, `l2_reg` or an array of `init` has the wrong type.
    ValueError
        If `tensor` has one mode or no nonzeros, `rank` is below 1, `l2_reg` is not above 0, `init`
        is unknown or its shapes do not match, or a checkpoint is of another tensor or
        decomposition.

    Notes
    -----
    An iteration takes ``nnz * ndim * R**2`` operations and solves, for each row, a system of R
    equations, or of as many as the row has nonzeros if that is fewer. It computes in float64,
    whatever the dtype. The workspace holds the nonzeros with coordinates of 8 bytes, a permutation
    of them for each mode, and blocks of rows of a fixed size.

    The result is a local minimum. The random guess is non-negative: for values of both signs, try
    several `random_state` and a larger `l2_reg`, and compare the predictions of held-out nonzeros.

    The order of additions is fixed: results are the same in every run on one machine, but the last
    bits can change with the number of threads of the BLAS.

    References
    ----------
    Tomasi and Bro, "PARAFAC and missing values", Chemometrics and Intelligent Laboratory Systems
    75, 2005. Zhou, Wilkinson, Schreiber and Pan, "Large-scale Parallel Collaborative Filtering for
    the Netflix Prize", AAIM 2008.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, observed_parafac
    >>> random = np.random.RandomState(0)
    >>> factors = [random.random_sample((20, 2)) for _ in range(3)]
    >>> coords = random.randint(0, 20, (3, 1000))
    >>> coords = np.unique(coords, axis=1)  # an eighth of the 8000 entries
    >>> values = np.prod([f[c] for f, c in zip(factors, coords)], axis=0).sum(axis=1)
    >>> x = FlycooTensor(coords, values, (20, 20, 20))
    >>> cp_tensor = observed_parafac(x, rank=2, random_state=0)
    >>> whole = np.einsum("ir,jr,kr->ijk", *factors)
    >>> found = np.einsum("ir,jr,kr->ijk", *cp_tensor.factors)
    >>> bool(np.linalg.norm(found - whole) < 0.01 * np.linalg.norm(whole))
    True
    """
    x, rank = as_flycoo(tensor, check_coords=True), check_rank(rank)
    if x.ndim < 2:
        raise ValueError(f"tensor has shape {x.shape}, expected two modes or more")
    if x.nnz == 0:
        raise ValueError("tensor has no nonzeros, expected some: nothing is observed")
    check_ridge(l2_reg)
    coords, values = x._sorted_nonzeros()
    values = values.astype(np.float64)
    scale = measure_scale(values)
    ridge = scale_ridge(l2_reg, scale, x.ndim)
    factors = _start(x, rank, init, random_state, scale)
    plans = [RowPlan.of(rows, size) for rows, size in zip(coords, x.shape, strict=True)]
    norm = np.linalg.norm(values)
    wants_errors = tol or return_errors or callback is not None

    def update(
        iteration: int, weights: None, factors: list[Array], errors: list[float]
    ) -> tuple[None, list[Array], None]:
        for mode, plan in enumerate(plans):
            factors[mode] = fit_rows(coords, values, factors, mode, plan, ridge)
        return None, factors, None

    def measure(factors: list[Array]) -> float:
        residual = evaluate_model(coords, None, factors) - values
        return float(np.linalg.norm(residual) / norm)

    cp_tensor, errors = iterate(
        (None, factors), update, lambda _, factors, __: measure(factors) if wants_errors else None,
        solver="observed_parafac", tensor=x, n_iter_max=n_iter_max, init=init,
        is_over=lambda errors: has_converged(errors, tol, "abs_rec_error"), callback=callback,
        start_error=lambda: measure(factors),
    )  # fmt: skip
    cp_tensor = make_cp_tensor(None, [factor.astype(x.dtype) for factor in cp_tensor.factors])
    cp_tensor.observed_l2_reg = float(l2_reg)
    return (cp_tensor, errors) if return_errors else cp_tensor


def _start(x: FlycooTensor, rank: int, init: Any, random_state: Any, scale: float) -> list[Array]:
    """Return the factors of the initial guess, or of the checkpoint in `init`, in float64."""
    if isinstance(init, Resumed):
        return restore(init, x, rank, "observed_parafac", np.dtype(np.float64))[1]
    random = tl.check_random_state(random_state)
    is_random = isinstance(init, str) and init == "random"
    if is_random:
        guess, root = draw_factors(x, rank, random), scale ** (1 / x.ndim)
        return [factor.astype(np.float64) * root for factor in guess]
    return [factor.astype(np.float64) for factor in take_guess(x, rank, init)]
