"""CP decompositions with other losses than least squares, such as Poisson's for counts."""

from collections.abc import Sequence
from typing import Any

import tensorly as tl

from ..base.checks import check_choice, check_least
from ..io.checkpoint import Resumed
from ..loop.cp_model import make_cp_tensor
from ..loop.guarding import describe_as
from ..loop.losses import Loss, check_data, find_loss
from ..loop.masks import ObservedData, find_missing
from ..loop.poisson import PoissonUpdates, balance, lift_zeros
from ..loop.ranks import find_cp_rank
from ..loop.run import Callback, Run, RunModel, Sweep, find_state
from ..loop.starting import start
from ..loop.stopping import AnyOf, GivesUp, Settled, Stop
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from .adam import Adam, scale_guess
from .parafac import parafac


@describe_as(parafac)
def generalized_parafac(
    tensor: LabelledData,
    rank: int | str,
    n_iter_max: int = 100,
    init: Any = "random",
    svd: str = "truncated_svd",
    mask: Mask = None,
    random_state: Any = None,
    return_errors: bool = False,
    loss: Any = "poisson_count",
    *,
    method: str = "auto",
    tol: float = 1e-6,
    fixed_modes: Sequence[int] | None = None,
    callback: Callback | None = None,
    samples: tuple[int, int] | None = None,
) -> Any:
    r"""Decompose a sparse tensor by CP with any loss: counts, binary data, positive data.

    .. math:: \min F = \sum_{\mathrm{cells}} f(x, m), \quad m = \sum_r \prod_n F_n[c_n, r]

    ``loss="poisson_count"`` is exact: the model's sum over all cells is a product of column sums,
    and its logarithm is needed only at the nonzeros, so no samples are drawn. Cells that `mask`
    marks as missing do not count.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
        Counts may be integers.
    n_iter_max : int
        The most sweeps over all modes; the most epochs of "adam".
    init : {"random", "svd", CPTensor, ResumedCP}
        The initial guess, in the dtype of `tensor`, without negative elements if
        the loss has the lower bound 0; or a checkpoint to resume (`Progress.resume`).
    loss : str or tuple
        "poisson_count", "poisson_log", "bernoulli_odds", "bernoulli_logit", "gaussian", "gamma",
        "rayleigh" or "zero_truncated_poisson", to which cells without a nonzero are unobserved; or
        ``(f, df, lower_bound)``: a function of arrays of data and of model values that returns the
        loss of each entry, its derivative by the model values, and the least value that elements of
        factors may have, or None.
    method : {"auto", "mu", "adam"}
        "mu", for "poisson_count" alone: multiplicative updates, one per mode and sweep,
        extrapolated by SQUAREM if that lowers F; F never increases. "adam": stochastic gradients
        from samples of the nonzeros and of all cells. "auto" is "mu" for "poisson_count", else
        "adam".
    tol : float
        Stop when F decreases by less, relative to F; 0 never stops.
    fixed_modes : sequence of int, optional
        Modes whose factors keep their initial values; any mode.
    samples : (int, int), optional
        For "adam": how many nonzeros and how many cells to draw for each step.

    Returns
    -------
    CPTensor
        Weights (R,) of ones and factors (I_n, R), in the dtype and on the device of `tensor`. Rows
        without nonzeros are zero if the loss is "poisson_count".
    errors : list of float
        F after each sweep; only with `return_errors`. Constants that depend on the data alone, such
        as ``log(x!)``, are left out.

    Raises
    ------
    DensifyError
        As of `parafac`.
    TypeError
        As of `parafac`; and if `tensor` is not sparse, or `loss` has the wrong type.
    ValueError
        As of `parafac`; and if `loss` or `method` is unknown, they do not suit each other, `tensor`
        has no nonzeros or values that the loss is not defined for, `init` has elements below the
        lower bound, or a user's loss returns nan.

    Notes
    -----
    A sweep of "mu" is one pass over the nonzeros per mode, F included, and every second sweep one
    pass more; ``2 * nnz * R * (ndim + 1)`` operations per pass. The workspace is that of `mttkrp`,
    and up to three more copies of the factors. Results have the same bits in every run on one
    machine, in every layout.

    An update cannot change a zero, whether it came with the initial guess or from underflow. If F
    of the guess is infinite, since its model is 0 at a nonzero, "mu" first raises all zeros to
    1/100 of their column's mean. Once F has settled, "mu" raises zeros, and elements up to 1e-10 of
    that mean, where F would fall if they grew, to at most 1/100 of the mean, and keeps this if F
    falls: up to two passes for each mode with zeros. Zeros of fixed modes and of rows without
    nonzeros stay. F usually has several local minima: try several `random_state`.

    References
    ----------
    Chi and Kolda, "On Tensors, Sparsity, and Nonnegative Factorizations", SIAM Journal on Matrix
    Analysis and Applications 33, 2012. Hong, Kolda and Duersch, "Generalized Canonical Polyadic
    Tensor Decomposition", SIAM Review 62, 2020. Kolda and Hong, "Stochastic Gradients for
    Large-Scale Tensor Decomposition", SIAM Journal on Mathematics of Data Science 2, 2020. López,
    Lehoucq and Dunlavy, "Zero-Truncated Poisson Regression for Sparse Multiway Count Data Corrupted
    by False Zeros", arXiv 2201.10014.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor
    >>> from tensorly_flycoo.decomposition import generalized_parafac
    >>> random = np.random.RandomState(0)
    >>> counts = random.poisson(0.1, (10, 20, 30))
    >>> x = FlycooTensor(np.nonzero(counts), counts[np.nonzero(counts)], counts.shape)
    >>> cp, losses = generalized_parafac(x, 2, random_state=0, n_iter_max=5, return_errors=True)
    >>> len(losses), losses[-1] < losses[0]
    (5, True)

    The model's sum is that of the counts:

    >>> model = np.einsum("r,ir,jr,kr->ijk", cp.weights, *cp.factors)
    >>> bool(abs(model.sum() - counts.sum()) < 1e-6)
    True
    """
    # Check the options.
    chosen = find_loss(loss)
    x = as_flycoo(tensor, check_coords=True)
    method = _choose_method(method, chosen, samples)
    modes = [mode for mode in range(x.ndim) if mode not in (fixed_modes or ())]
    num_components = find_cp_rank(x, rank)
    random = tl.check_random_state(random_state)

    # Take the data.
    missing = None
    if mask is not None:
        is_listed = method == "adam"  # which looks at single entries
        missing = find_missing(tensor, mask, lists=is_listed)
    data = ObservedData(x, missing)
    check_data(chosen, data.tensor)

    # Begin.
    digested = data.tensor
    if isinstance(init, Resumed):
        digested = x  # a checkpoint has the digest of the tensor as it was given
    model = start(
        digested,
        None,
        num_components,
        init,
        svd,
        random,
        solver="generalized_parafac",
        non_negative=chosen.lower_bound >= 0,
    )
    _check_bound(model, chosen)
    if not modes:  # the start alone
        cp_tensor = make_cp_tensor(model.weights, model.factors)
        if return_errors:
            return cp_tensor, []
        return cp_tensor
    model.weights = None  # those of a guess are in its factors, those of a checkpoint are ones

    # Iterate.
    sweep: Sweep
    stop: Stop
    if method == "mu":
        sweep = _begin_updates(data, model, modes, tol, init)
        stop = Settled(tol)
    else:
        if isinstance(init, str):
            model.factors[:] = scale_guess(chosen, data, model.factors, modes)
        seed = int(random.randint(2**31))
        adam = Adam(chosen, data, model, modes, samples, seed, find_state(init))
        sweep = adam
        # An epoch that is undone repeats the loss of the one before.
        stop = AnyOf(GivesUp(adam.has_failed), Settled(tol, skips_repeats=True))
    return Run(
        sweep=sweep,
        tensor=x,
        n_iter_max=n_iter_max,
        stop=stop,
        callback=callback,
        return_errors=return_errors,
    ).iterate()


def _check_bound(model: RunModel, loss: Loss) -> None:
    """Refuse a start with elements below the least that the loss allows."""
    for_loss = f" for loss={loss.name!r}"
    for n, factor in enumerate(model.factors):
        check_least(factor, f"factors[{n}] of init", loss.lower_bound, for_loss)


def _begin_updates(
    data: ObservedData, model: RunModel, modes: list[int], tol: float, init: Any
) -> PoissonUpdates:
    """Balance a guess, and lift its zeros if its loss is infinite; resume a checkpoint."""
    if isinstance(init, Resumed):
        return PoissonUpdates(data, model, modes, tol, init.state)
    model.factors[:] = balance(model.factors, modes)
    sweep = PoissonUpdates(data, model, modes, tol)
    if sweep.loss != float("inf"):
        return sweep
    for n in modes:
        model.factors[n] = lift_zeros(model.factors[n])
    model.factors[:] = balance(model.factors, modes)
    return PoissonUpdates(data, model, modes, tol)


def _choose_method(method: str, loss: Loss, samples: Any) -> str:
    """Return "mu" or "adam"; refuse a method and samples that do not suit the loss."""
    if check_choice(method, "method", ("auto", "mu", "adam")) == "auto":
        method = "mu" if loss.is_count else "adam"
    if method != "adam" and not loss.is_count:
        raise ValueError(
            f"method is {method!r}, expected 'adam' or 'auto' for loss={loss.name!r}: it is for "
            "loss='poisson_count'"
        )
    if samples is None:
        return method
    if method != "adam":
        raise ValueError(f"samples is {samples!r}, expected None: {method!r} draws none")
    if len(samples) != 2 or min(samples) < 1:
        raise ValueError(f"samples is {samples!r}, expected two positive integers")
    return method
