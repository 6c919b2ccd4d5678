"""Tucker decomposition by TensorLy's own loop, which `Run` takes step by step for a callback."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

import tensorly as tl
from tensorly.tucker_tensor import TuckerTensor, validate_tucker_rank

from ..base.array_modules import Array
from ..io.checkpoint import Resumed
from ..loop.guarding import describe_as, require_flycoo_backend, tensorly_loop
from ..loop.masks import MissingEntries, find_missing
from ..loop.ranks import find_tucker_rank
from ..loop.run import Callback, Run, RunModel, Sweep
from ..loop.starting import restore
from ..loop.stopping import Converged
from ..tensor.coo_cache import LabelledData, Mask, as_flycoo
from ..tensor.tensor import FlycooTensor
from .parafac import parafac
from .penalized_tucker import PenalizedTucker
from .row_penalties import RowPenalty, RowStrengths, read_row_penalties, warn_if_zero
from .tucker_sweep import fill_missing, list_grams, make_tucker_tensor, start_masked


@describe_as(parafac)
def tucker(
    tensor: LabelledData,
    rank: int | str | Sequence[int] | None,
    fixed_factors: Sequence[int] | None = None,
    n_iter_max: int = 100,
    init: Any = "svd",
    return_errors: bool = False,
    svd: str = "truncated_svd",
    tol: float = 10e-5,
    random_state: Any = None,
    mask: Mask = None,
    verbose: bool = False,
    callback: Callback | None = None,
    l1_reg: RowStrengths = None,
    group_lasso: RowStrengths = None,
) -> Any:
    r"""Decompose a sparse tensor by higher-order orthogonal iteration (Tucker).

    This runs TensorLy's own iterations, and needs its backend "flycoo". With penalties it minimises

    .. math:: \tfrac12 \|x - m\|^2 + \|G\|^2 + \sum_n s_n \, p_n(A_n)

    for the core G, and for factors :math:`A_n` that have a penalty, or else orthonormal columns.

    Parameters
    ----------
    rank : int, sequence of int, "same" or None
        The size of the core, in all modes or each. None (the size of the tensor) and "same" (as
        many parameters as cells) are refused if the nonzeros are fewer numbers.
    fixed_factors : sequence of int, optional
        Modes whose factors of `init` are kept; not together with `callback`.
    init : {"svd", "random", TuckerTensor, (core, factors), ResumedTucker}
        The initial guess, in the dtype of `tensor`; or a checkpoint to resume
        (`Progress.resume`).
    random_state : int or numpy.random.RandomState, optional
    l1_reg, group_lasso : float, sequence of float, or dict of int to float, optional
        Strengths of penalties, one for a mode: the sum of the absolute values of the factor's
        elements, or of the norms of its rows, so that whole rows become zero. The core's penalty
        keeps it from growing while factors shrink; another weight would only change the unit of the
        strengths. Only for sparse tensors.

    Returns
    -------
    TuckerTensor
        A core of size `rank` and factors (I_n, R_n), on the device of `tensor`.
    errors : list of float
        The relative error after each iteration; only with `return_errors`. With a mask it is that
        of the tensor with the values at missing entries of the model before.

    Raises
    ------
    DensifyError
        If the mask marks what is observed (fill_value 0), or `svd` is any other method.
    RuntimeError
        If TensorLy's backend is not "flycoo".
    TypeError
        If a rank is no integer, such as a fraction.
    ValueError
        If a rank is below 1, their number is not that of the modes, `init` is unknown or does not
        match, `fixed_factors` comes with `callback`, a mask or penalties, or a checkpoint is of
        another tensor; if a strength is negative, a mode has two penalties, or a mode without any
        has fewer indices than its rank.

    Warns
    -----
    UserWarning
        If the core is zero: a penalty was too strong.

    Notes
    -----
    One chain of products with the factors per mode and iteration, and one for the core (`ttmc`).
    With a mask, whose missing entries are listed, each iteration imputes them first, as TensorLy's
    does, and in slabs plans the tensor anew; ``init="random"`` may find a better model.

    With penalties all rows of a factor take ten steps of ADMM in one pass, as those of
    `constrained_parafac` do; an orthonormal factor becomes the polar factor of its targets, and the
    core the best one after each of them. The objective never rises by more than rounding; the
    error, which decides when to stop, may.

    References
    ----------
    De Lathauwer, De Moor and Vandewalle, "On the Best Rank-1 and Rank-(R1, ..., RN) Approximation
    of Higher-Order Tensors", SIAM Journal on Matrix Analysis and Applications 21, 2000.

    Examples
    --------
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     core, factors = tucker(x, [2, 3, 4], n_iter_max=5)
    >>> core.shape
    (2, 3, 4)

    Few elements of the last factor differ from zero:

    >>> with tl.backend_context("flycoo"):
    ...     core, factors = tucker(x, [2, 3, 4], l1_reg={2: 0.5})
    >>> bool((factors[2] == 0).mean() > 0.5)
    True
    """
    require_flycoo_backend()
    x = as_flycoo(tensor, check_coords=True)
    # With fixed factors, ranks may be those of the other modes alone.
    num_ranks = None if fixed_factors else x.ndim
    ranks = find_tucker_rank(x, rank, num_ranks)
    strengths = {"l1_reg": l1_reg, "group_lasso": group_lasso}
    penalties = read_row_penalties(strengths, x.ndim)
    is_penalized = any(penalties)
    missing = None if mask is None else find_missing(tensor, mask, lists=True)
    if isinstance(init, tuple | list | TuckerTensor) and not isinstance(init, Resumed):
        init = _copy_guess(init)

    # TensorLy's own loop, if it can do all that is asked for.
    is_plain = callback is None and not isinstance(init, Resumed) and missing is None
    if is_plain and not is_penalized:
        return tensorly_loop("tucker")(
            x,
            ranks,
            fixed_factors=fixed_factors,
            n_iter_max=n_iter_max,
            init=init,
            return_errors=return_errors,
            svd=svd,
            tol=tol,
            random_state=random_state,
            verbose=verbose,
        )
    if fixed_factors:
        raise ValueError(
            f"fixed_factors is {fixed_factors!r}, expected None together with callback=, mask=, "
            "penalties or a checkpoint: leave one of them out"
        )

    # TensorLy's iterations, one at a time, or those with penalties.
    sizes = _list_ranks(x, ranks)
    _check_orthonormal(x, sizes, penalties)
    iterate = functools.partial(
        tensorly_loop("partial_tucker"), rank=sizes, svd=svd, random_state=random_state
    )
    is_resumed = isinstance(init, Resumed)
    if is_resumed:
        model = restore(init, x, tuple(sizes), "tucker", x.dtype)
    else:
        if missing is not None and isinstance(init, str) and init == "svd":
            init = start_masked(missing, sizes)
        (core, factors), _ = iterate(x, n_iter_max=0, init=init)
        model = RunModel(core, list(factors))  # not the caller's list
    sweep: Sweep
    if is_penalized:
        sweep = PenalizedTucker(model, x, missing, penalties, is_resumed)
    else:
        sweep = TensorlyTucker(iterate, model, x, missing)
    result = Run(
        sweep=sweep,
        tensor=x,
        n_iter_max=n_iter_max,
        stop=Converged(tol, num_skipped=1),  # as in TensorLy
        callback=callback,
        verbose=verbose,
        return_errors=return_errors,
    ).iterate()
    if is_penalized:
        warn_if_zero("tucker", model.weights, strengths)
    return result


def _check_orthonormal(
    x: FlycooTensor, ranks: Sequence[int], penalties: Sequence[RowPenalty | None]
) -> None:
    """Refuse more columns than rows where a factor without a penalty is to be orthonormal."""
    if not any(penalties):
        return
    for mode, (size, rank, penalty) in enumerate(zip(x.shape, ranks, penalties, strict=True)):
        if penalty is None and rank > size:
            raise ValueError(
                f"rank is {rank} in mode {mode}, expected at most {size}, its size: its factor has "
                "no penalty and so orthonormal columns; pass a lower rank, or a penalty for it"
            )


def _list_ranks(x: FlycooTensor, ranks: int | Sequence[int] | str | None) -> list[int]:
    """List the rank of each mode; None gives the modes' sizes, and one integer serves all modes."""
    if ranks is None:
        ranks = x.shape
    elif isinstance(ranks, int):
        ranks = [ranks] * x.ndim
    return [int(r) for r in validate_tucker_rank(x.shape, ranks)]


def _copy_guess(init: Any) -> Any:
    """Return a guess with a list of its own: TensorLy writes the new factors to that which it gets.

    >>> _copy_guess((1, [2, 3]))
    (1, [2, 3])
    """
    has_core = len(init) == 2 and isinstance(init[1], tuple | list)
    if not has_core:
        return init
    core, factors = init
    return core, list(factors)


@final
class TensorlyTucker(Sweep):
    """TensorLy's own loop, one iteration at a time."""

    solver = "tucker"

    def __init__(
        self,
        iterate: Callable[..., Any],  # its `partial_tucker`, of a tensor, `n_iter_max` and `init`
        model: RunModel,
        x: FlycooTensor,
        missing: MissingEntries | None,
    ) -> None:
        self.model = model
        self._iterate = iterate
        self._x = x
        self._missing = missing

    def update(self, iteration: int) -> float:
        # An iteration starts from the factors alone, and writes them to the list that it gets.
        model = self.model
        x = fill_missing(self._x, self._missing, model)
        guess = model.weights, model.factors
        updated, (error,) = self._iterate(x, n_iter_max=1, init=guess)
        model.weights, model.factors[:] = updated
        return error

    def measure_start(self) -> float:
        """Compute the relative error of any core and factors."""
        x = fill_missing(self._x, self._missing, self.model)
        core = self.model.weights
        factors = self.model.factors
        inner = (core * tl.tenalg.multi_mode_dot(x, factors, transpose=True)).sum()
        grams = list_grams(factors)
        model_square = (core * tl.tenalg.multi_mode_dot(core, grams)).sum()
        norm = x.norm()
        # |x - m|^2 = |x|^2 + |m|^2 - 2 <x, m>; rounding may leave less than 0.
        residual_square = float(abs(norm**2 + model_square - 2 * inner))
        return residual_square**0.5 / float(norm)

    def make(self) -> TuckerTensor:
        return make_tucker_tensor(self.model)

    def save_state(self) -> dict[str, Array]:
        """Return nothing: an iteration depends on the model alone."""
        return {}
