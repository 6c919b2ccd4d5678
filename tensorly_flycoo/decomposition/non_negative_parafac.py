"""Non-negative CP decomposition by multiplicative updates, with or without missing values."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..base.array_modules import Array
from ..base.checks import check_choice
from ..engines.row_rules import Method, RowRule
from ..loop.acceleration import start_momentum
from ..loop.alternating import AlternatingSweep, normalize_cp
from ..loop.cp_model import drop_ones
from ..loop.guarding import describe_as
from ..loop.masks import ImputedTensor, find_missing
from ..loop.momentum import NESTEROV
from ..loop.ranks import find_cp_rank
from ..loop.run import Callback, Run, only_reads
from ..loop.starting import list_free_modes, start
from ..loop.stopping import Converged
from ..loop.whole_tensor import WholeTensor
from ..spread.row_shards import update_rows
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from .parafac import parafac


@describe_as(parafac)
def non_negative_parafac(
    tensor: LabelledData,
    rank: int | str,
    n_iter_max: int = 100,
    init: Any = "svd",
    svd: str = "truncated_svd",
    tol: float = 10e-7,
    random_state: Any = None,
    verbose: int = 0,
    normalize_factors: bool = False,
    return_errors: bool = False,
    mask: Mask = None,
    cvg_criterion: str = "abs_rec_error",
    fixed_modes: Sequence[int] | None = None,
    callback: Callback | None = None,
    linesearch: bool | str = False,
) -> Any:
    """Decompose a sparse tensor into non-negative factors by multiplicative updates.

    Errors and factors are TensorLy's, under any backend. `tensor` and `init` must be non-negative.

    Parameters
    ----------
    tol : float
        Stop when the error changes by less; 0 never stops, and computes no errors without a
        callback.
    linesearch : False or "nesterov"
        "nesterov": Nesterov's momentum as in `parafac`. An element that it would move to zero or
        below stays, since a ratio would not lead it back. Only for sparse tensors.

    Returns
    -------
    CPTensor, errors
        As of `parafac`; the list is empty if no errors are computed.

    Raises
    ------
    DensifyError, TypeError, ValueError
        As of `parafac`, for the same parameters; but a run with a mask can be resumed. And if
        `linesearch` is unknown.

    Notes
    -----
    One MTTKRP per mode and iteration; see `parafac` for the cost of missing entries.

    References
    ----------
    Shashua and Hazan, "Non-negative tensor factorization with applications to statistics and
    computer vision", ICML 2005.

    Examples
    --------
    >>> import sparse
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> mask = sparse.COO([[0, 1], [2, 3], [4, 5]], [0.0, 0.0], x.shape, fill_value=1.0)
    >>> cp_tensor = non_negative_parafac(x, 3, mask=mask, n_iter_max=5)
    >>> all((factor >= 0).all() for factor in cp_tensor.factors)
    True
    """
    check_choice(linesearch, "linesearch", (False, NESTEROV))
    missing = None if mask is None else find_missing(tensor, mask)
    x = as_flycoo(tensor, check_coords=True)
    num_components = find_cp_rank(x, rank)
    data = WholeTensor(x) if missing is None else ImputedTensor(missing)
    model = start(
        x,
        missing,
        num_components,
        init,
        svd,
        random_state,
        solver="non_negative_parafac",
        non_negative=True,
        normalize_factors=normalize_factors,
        by_blocks=missing is None,
    )
    if not normalize_factors and missing is None:
        model.weights = drop_ones(model.weights)  # which would be multiplied by
    sweep = AlternatingSweep(
        solver="non_negative_parafac",
        model=model,
        tensor=x,
        data=data,
        modes=list_free_modes(x.ndim, fixed_modes),
        update_factor=multiply_factor,
        normalize_factors=normalize_factors,
        wants_errors=bool(tol or linesearch) or callback is not None,
        factors_may_change=not only_reads(callback),
    )
    momentum = None
    if linesearch == NESTEROV:
        momentum = start_momentum(sweep, sweep.modes, init, partial(_keep_positive, sweep))
    else:
        sweep.look_ahead(n_iter_max)
    sweep.record(n_iter_max, has_momentum=momentum is not None)
    return Run(
        sweep=sweep,
        accelerate=momentum,
        tensor=x,
        n_iter_max=n_iter_max,
        stop=Converged(tol, cvg_criterion),
        callback=callback,
        verbose=verbose,
        return_errors=return_errors,
        normalize=normalize_cp if normalize_factors else None,
    ).iterate()


def _keep_positive(sweep: AlternatingSweep, mode: int, further: Array) -> Array:
    """Replace elements of an extrapolated factor that are not positive by the factor's own.

    A ratio multiplies them, so zero would stay zero.
    """
    return np.where(further > 0, further, sweep.get_part(mode))


def multiply_factor(factor: Array, product: Array, gram: Array, mode: int) -> Array:
    """Multiply a factor by a ratio that is 1 at a local optimum.

    >>> factor, gram = np.array([[1.0, 2.0]]), np.eye(2)
    >>> multiply_factor(factor, 2 * factor @ gram, gram, mode=0)
    array([[2., 4.]])
    """
    eps = float(np.finfo(factor.dtype).eps)
    rule = RowRule(Method.MULTIPLY, strength=eps)
    updated, _, _ = update_rows(rule, product, gram, None, factor, None, num_steps=1)
    return updated
