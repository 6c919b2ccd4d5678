"""Rows of a factor for new indices, such as new users, without running a decomposition again."""

from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_factors, check_least, check_mode, check_positive
from ..base.fit_record import FitRecord, find_record
from ..engines.tall import column_norms, eigh
from ..loop.cp_model import multiply_all, multiply_grams
from ..loop.hals import solve_nonnegative
from ..loop.losses import check_data, find_exact, find_loss
from ..loop.masks import ObservedData
from ..loop.observed_rows import L2_REG, RowPlan, fit_rows, measure_scale, scale_ridge
from ..loop.poisson import MultiplicativeUpdates
from ..ops.cp_entries import evaluate_model, take_model
from ..ops.mttkrp import mttkrp
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.labelled import check_same_labels, number_modes
from ..tensor.mirroring import mirror
from ..tensor.tensor import FlycooTensor

#: Sweeps over the columns of non-negative rows, which stop at the accuracy of the dtype.
_MAX_SWEEPS = 1000

#: Eigenvalues of a Gram matrix that are below so many roundings, times its size, are taken as 0.
_ROUNDING = 10

#: Updates for counts end when F changes by less, relative to itself, or rises by rounding.
_TOLERANCE = 1e-12


@mirror
def fold_in(
    cp_tensor: Any,
    x_new: LabelledData,
    mode: int | str,
    *,
    loss: str = "gaussian",
    non_negative: bool = False,
    observed: bool | None = None,
    l2_reg: float | None = None,
) -> Array:
    r"""Compute the factor rows of new indices of one mode; all other factors stay as they are.

    .. math:: \min_F |X_{\mathrm{new}} - [w; F_0, \ldots, F, \ldots, F_{N-1}]|

    or, with ``loss="poisson_count"``, the likeliest rows if the model gives the means of counts.
    Cells that `x_new` lacks are zeros, or unknown with `observed`, as what a new user did not rate.

    Parameters
    ----------
    cp_tensor : CPTensor or (weights, factors)
        Weights (R,), or None for ones; factors (I_n, R), whose old rows of `mode` are not used.
    x_new : FlycooTensor, LabelledTensor or sparse.COO
        The data of the new indices, in the dtype of the factors: any size in `mode`, and the
        model's in all others.
    mode : int or str
        Its name, if `cp_tensor` or `x_new` has labels, or its number.
    loss : {"gaussian", "poisson_count"}
    non_negative : bool
        Whether the rows are non-negative; with "poisson_count" they always are.
    observed : bool, optional
        Whether all cells but the nonzeros are unknown; by default, whether the model has the
        attribute `observed_l2_reg`, as one that `observed_parafac` returned.
    l2_reg : float, optional
        The ridge of `observed` rows; by default that of the model, or 1e-6.

    Returns
    -------
    array (I_new, R)
        Rows that go with the model's weights. An index without nonzeros has a row of zeros, or, in
        a model with `biases` of `observed_parafac`, the one that predicts by the other biases.

    Raises
    ------
    TypeError
        If `x_new` is not sparse, `l2_reg` is not a number, or the model has another dtype.
    ValueError
        If `mode` is out of range, a shape does not match, `loss` is unknown, labels differ from
        those of a `LabelledCP` in another mode, the other factors, the weights or a value are
        negative with "poisson_count", `l2_reg` is not above 0, or `observed` comes with another
        loss or `non_negative`.

    Notes
    -----
    One MTTKRP and one system of R equations for all rows: those of `parafac` with all other modes
    in ``fixed_modes``. Proportional components share what they explain. With `non_negative`, up to
    1000 sweeps of HALS follow, of ``4 * I_new * R**2`` operations each. Results have the same bits
    in every run on one machine.

    With "poisson_count", up to 1000 multiplicative updates, extrapolated by SQUAREM, end when F
    changes by rounding only; each is one pass over the nonzeros, or two. Counts where all
    components of the other factors are zero, which no row can explain, are left out.

    References
    ----------
    Chi and Kolda, "On Tensors, Sparsity, and Nonnegative Factorizations", SIAM Journal on Matrix
    Analysis and Applications 33, 2012. Gillis and Glineur, "Accelerated Multiplicative Updates and
    Hierarchical ALS Algorithms for Nonnegative Matrix Factorization", Neural Computation 24, 2012.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, fold_in
    >>> model = (None, [np.ones((5, 1)), np.array([[1.0], [2.0]]), np.array([[3.0], [0.0]])])
    >>> new_users = FlycooTensor([[0, 0], [0, 1], [0, 0]], [6.0, 12.0], shape=(2, 2, 2))
    >>> fold_in(model, new_users, mode=0)
    array([[2.],
           [0.]])
    """
    is_count = find_exact(loss).is_count
    weights, factors = take_model(cp_tensor)
    mode = check_mode(number_modes(x_new, number_modes(cp_tensor, mode)), len(factors))
    check_same_labels(x_new, cp_tensor, skip=mode)
    x = as_flycoo(x_new, check_coords=True)
    if x.ndim != len(factors):
        raise ValueError(f"x_new has {x.ndim} modes, expected {len(factors)}, as the model has")
    xp, old, factors = array_module(factors[mode]), factors[mode], list(factors)
    factors[mode] = xp.zeros((x.shape[mode], old.shape[1]), old.dtype)
    record = find_record(cp_tensor) or FitRecord()
    if observed is None:
        observed = record.absent == "unknown"
    if l2_reg is None:
        l2_reg = record.l2_reg if record.absent == "unknown" else L2_REG
    check_positive(l2_reg, "l2_reg")
    if observed or is_count:
        check_factors(factors, x.shape, x.dtype, x._engine.array_type)
    if observed:
        if is_count or non_negative:
            raise ValueError(
                "observed rows, as of a model of observed_parafac, are of least squares without "
                'constraints: expected loss="gaussian" and non_negative=False, or observed=False'
            )
        return _fit_observed(x, cp_tensor, factors, mode, l2_reg)
    if is_count:
        return _fit_counts(x, weights, factors, mode)
    product = mttkrp(x, factors, mode, weights=weights)
    gram = multiply_grams(weights, factors, skip=mode)
    if not non_negative:
        return product @ xp.asarray(_invert(move(gram, np)), gram.dtype)
    rows, tolerance = factors[mode], float(np.finfo(x.dtype).eps) ** 1.5
    product, gram = xp.ascontiguousarray(product), xp.ascontiguousarray(gram)
    solve_nonnegative(product, gram, rows, _MAX_SWEEPS, tolerance)
    return rows


def _invert(gram: np.ndarray) -> np.ndarray:
    """Return the pseudo-inverse of a Gram matrix (R, R), whatever the lengths of its vectors.

    Directions that only rounding leaves are dropped: divided by, they would dominate the rows.
    """
    lengths = np.sqrt(gram.diagonal().astype(np.float64))
    lengths[lengths == 0] = 1
    values, vectors = eigh(gram / lengths[:, None] / lengths)
    is_large = values > _ROUNDING * values.size * np.finfo(gram.dtype).eps * values[-1]
    vectors = vectors[:, is_large] / lengths[:, None]
    return vectors / values[is_large] @ vectors.T


def _fit_observed(
    x: FlycooTensor, cp_tensor: Any, factors: list[Array], mode: int, l2_reg: float
) -> Array:
    """Fit the rows of `mode` to the nonzeros; columns of other modes' biases, one number, stay."""
    (weights, before), record = take_model(cp_tensor), find_record(cp_tensor) or FitRecord()
    old = before[mode]
    xp, rows, scales = array_module(old), factors[mode], 1 if weights is None else weights
    bias_modes = xp.asarray(record.bias_modes or (-1,) * old.shape[1])
    is_own = bias_modes == mode
    is_kept = (bias_modes >= 0) & ~is_own
    rows += old[:1] * is_kept
    if x.nnz == 0:
        return rows
    # The ridge of observed_parafac makes the columns of a component equally long in all modes. It
    # is for rows of that length, whatever the lengths in this model; that of biases, for biases.
    others = multiply_all([column_norms(factor) for factor in factors], skip=mode)
    others = others.astype(np.float64) * abs(scales)
    sizes = others * column_norms(old)
    is_used = sizes > 0
    lengths = sizes ** (1 - 1 / x.ndim) / xp.where(is_used, others, 1)
    lengths = xp.where(is_used & ~is_kept, lengths, 1)
    factors = [factor.astype(np.float64) for factor in factors]
    firsts = multiply_all([factor[0] for factor in factors], skip=mode) * scales
    lengths = xp.where(is_own, 1 / xp.where(is_own, firsts, 1), lengths)
    factors[mode - 1] *= lengths * scales
    coords, values = x._sorted_nonzeros()
    values = values.astype(np.float64)
    scale = record.scale or measure_scale(values) or 1.0
    ridge = scale_ridge(l2_reg, scale, x.ndim)
    common = xp.diag(xp.where(is_own, l2_reg, ridge))
    plan = RowPlan.of(coords[mode], x.shape[mode])
    is_free = ~is_kept if is_kept.any() else None
    fitted = fit_rows(coords, values, factors, mode, plan, common, is_free=is_free) * lengths
    return fitted.astype(rows.dtype)


def _fit_counts(x: FlycooTensor, weights: Array | None, factors: list[Array], mode: int) -> Array:
    """Compute the likeliest rows of `mode` for counts; those in `factors` are zeros."""
    if x.nnz:
        check_data(find_loss("poisson_count"), x)
    named = [("the weights", weights), *((f"factors[{n}]", f) for n, f in enumerate(factors))]
    for name, array in named:
        if array is not None:
            check_least(array, f"{name} of the model")
    xp, rows = array_module(factors[mode]), factors[mode]
    # Meanwhile the weights are part of the rows.
    scale = xp.ones(rows.shape[1], rows.dtype) if weights is None else weights
    factors[mode] = xp.ones_like(rows) * scale
    coords, values = x._sorted_nonzeros()
    is_possible = evaluate_model(coords, None, factors) > 0  # elsewhere the model is zero
    if not is_possible.all():
        x = x._rebuild(coords[:, is_possible], values[is_possible])
    if x.nnz == 0:
        return rows
    run = MultiplicativeUpdates(
        ObservedData(x), [mode], tensor=x, model=(None, factors), n_iter_max=_MAX_SWEEPS
    )
    for sweep in range(_MAX_SWEEPS):
        last, loss = run.loss, run.update(sweep)
        if not last - loss > _TOLERANCE * abs(loss):
            break
    return run.factors[mode] * xp.where(scale > 0, 1 / xp.where(scale > 0, scale, 1), 0)
