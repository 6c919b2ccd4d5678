"""Compare models of several ranks."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from ..base.checks import check_count, check_rank, check_real, warn
from ..base.reporting import report
from ..decomposition.methods import METHODS, Method, find_method
from ..loop.losses import find_exact
from ..loop.masks import find_missing
from ..loop.model_uses import suits
from ..loop.ranks import find_tucker_rank
from ..loop.unknown_cells import forget_unknown, obey_unknown
from ..ops.ragged import RaggedTensor
from ..results.labelled_models import label_result
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import mirror
from ..tensor.labelled import LabelledTensor, number_modes
from .best_of import best_of, refuse_progress, run_once, take_components
from .core_consistency import core_consistency
from .heldout_loss import HeldOutLoss
from .rank_selection import RankScore, RankSelection
from .suggest_rank import list_doubts, suggest

#: Core consistency is left out if it would take more operations than this.
_MAX_CORE_OPERATIONS = 10**10


@mirror
def select_rank(
    x: Any,
    ranks: Iterable[Any],
    n_runs: int = 20,
    method: str | Callable[..., Any] = "parafac",
    holdout: float = 0.2,
    random_state: int | np.random.RandomState | None = None,
    keep_all: bool = False,
    **options: Any,
) -> RankSelection:
    """Fit models of several ranks to a sparse tensor, score them, and suggest a rank.

    Some entries are held out: a share of the nonzeros, and as many cells, nearly all zeros, whose
    indices are drawn from those of the nonzeros. (`observed_parafac` does not know the other cells:
    only nonzeros are held out.) For each rank, several runs start at random and are fitted without
    these entries; neither a start nor an update sees their values. The run with the least error
    has to predict them. The model of the rank is then fitted to all entries, from that run.

    The suggested rank is the lowest one that is as good as the one with the least held-out loss:
    the loss differs by at most one standard error of the difference, or by so little that fits
    which ended here cannot tell. Of these, ranks whose runs agree go first: on average they differ
    in less than half a component, ``rank * (1 - match) < 0.5``. If the runs of none agree, another
    rank whose runs agree may take their place, if its loss is within one standard error of the
    least loss itself, or it explains at most a hundredth less.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor or sparse.COO, for "parafac2" also slices
    ranks : iterable of int
        Of Tucker models also of tuples; the lowest has the fewest numbers in core and factors.
    n_runs : int
        Random starts for each rank, since many starts end in poor local minima.
    method : str or callable
        A CP decomposition with the parameters `random_state` and `init`: the name of a function of
        `tensorly_flycoo.decomposition`, or a function. To hold entries out it needs `mask`, as
        "parafac", "non_negative_parafac" and "generalized_parafac" (its losses "gaussian" and
        "poisson_count") have it, or it is "observed_parafac", whose biases no rank counts. Or
        "tucker", "non_negative_tucker" or "parafac2", of whose runs only errors are compared.
    holdout : float
        The share of the nonzeros to hold out; 0 holds out nothing and suggests nothing.
    random_state : int or numpy.random.RandomState, optional
        Draws the held-out entries and the seeds of the runs, which are the same for each rank.
    keep_all : bool
        Whether `best_of` drops no run of `parafac` before its end.
    **options
        For each run, such as `n_iter_max`; but no `confidence` if entries are held out. The entries
        that a `mask` marks as missing, or that a LabelledTensor knows as unknown, are unknown to
        all runs, and never held out.

    Returns
    -------
    RankSelection

    Warns
    -----
    UserWarning
        If the suggested rank is the highest one tried, its match is below 0.5, no rank predicts
        the held-out entries, these are too few to tell, or Ctrl-C stopped the search, which then
        returns the finished ranks.

    Raises
    ------
    KeyboardInterrupt
        By Ctrl-C before the first rank is finished.
    RuntimeError
        If TensorLy's backend is not "flycoo", and the method needs that.
    TypeError
        If `x` is not sparse, `ranks` is a single number, a rank or `n_runs` is not an integer,
        `holdout` is not a number, an option is unknown, or `method` returns no CP model.
    ValueError
        If `ranks` is empty, a rank or `n_runs` is below 1, `holdout` is not in [0, 1), or `method`
        is unknown; or if entries are held out although `x` has less than two nonzeros or `method`
        has no mask.

    Notes
    -----
    Runs take most of the time; those of `parafac` run together. Each rank is logged at level INFO.
    Core consistency takes up to ``nnz * R**(ndim - 1)`` operations; it is left out (nan) above ten
    billion, and for `observed_parafac`. The same `random_state` gives the same result on one
    machine.

    References
    ----------
    Breiman, Friedman, Olshen and Stone, "Classification and Regression Trees", 1984, section 3.4.3
    (the rule of one standard error). Papalexakis, "Automatic unsupervised tensor mining with
    quality assessment", SDM 2016. Bro and Kiers, "A new efficient method for determining the number
    of components in PARAFAC models", Journal of Chemometrics 17, 2003.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly_flycoo import select_rank
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, _ = planted_tensor((20, 30, 40), 2, nnz_per_component=300, noise=0.1, random_state=0)
    >>> with tl.backend_context("flycoo"):
    ...     selection = select_rank(x, range(1, 4), n_runs=3, random_state=0)
    >>> selection.rank, selection.best.rank
    (2, 2)
    """
    refuse_progress("select_rank", options)
    labelled = x if isinstance(x, LabelledTensor) else None
    options = number_modes(x, options)
    names = [name for name in METHODS if name != "coupled_parafac"]
    solver = find_method(method, known=names)
    options = obey_unknown(x, solver.name, solver.defaults, options)
    if solver.model != "PARAFAC2":
        x = as_flycoo(x, check_coords=True)
    elif not isinstance(x, RaggedTensor):
        x = RaggedTensor(forget_unknown(x))
    ranks = _sort_ranks(ranks, x, solver)
    _check_holdout(x, holdout, solver, options)
    check_count(n_runs, "n_runs")
    options.pop("return_errors", None)  # best_of takes them in any case
    random = tl.check_random_state(random_state)
    seed = random.randint(2**31 - 1)
    heldout = None
    if holdout:
        x, options = _leave_out_unknown(x, solver, options)
        heldout = HeldOutLoss.draw(x, holdout, solver, options, random)
    search = _RankSearch(x, solver, options, heldout, n_runs, seed, keep_all)
    fits = search.fit_all(ranks)
    scores = [fit.score for fit in fits]
    if heldout is not None:
        scores = heldout.judge(scores, [fit.terms for fit in fits])
    models = [fit.model for fit in fits]
    if labelled is not None and not isinstance(x, RaggedTensor):  # which has its own
        models = [label_result(model, labelled) for model in models]
    suggested, rule = suggest(scores, [fit.tolerance for fit in fits])
    warnings = list_doubts(scores, suggested)
    if len(fits) < len(ranks):
        warnings.insert(0, f"Ctrl-C stopped the search before rank {ranks[len(fits)]}")
    for text in warnings:
        warn(text)
    return RankSelection(
        scores=scores,
        errors=[fit.errors for fit in fits],
        models=models,
        rank=None if suggested is None else suggested.rank,
        rule=rule,
        warnings=warnings,
        _error=solver.error_name,
    )


def _sort_ranks(ranks: Any, x: Any, method: Method) -> list[Any]:
    """Return the ranks to try, each once, in ascending order: tuples for a Tucker model."""
    if not isinstance(ranks, Iterable):
        raise TypeError(f"ranks is {ranks!r}, expected several integers, such as range(1, 11)")
    if method.model == "Tucker":
        distinct: set[Any] = set()
        for rank in ranks:
            core = [rank] * x.ndim if np.ndim(rank) == 0 else rank
            distinct.add(tuple(find_tucker_rank(x, core, x.ndim)))
        # Of cores, the lowest has the fewest numbers, with those of its factors.
        in_order = sorted(
            distinct, key=lambda core: (math.prod(core) + np.dot(core, x.shape), core)
        )
    else:
        in_order = sorted({check_rank(rank) for rank in ranks})
    if not in_order:
        raise ValueError("ranks is empty, expected at least one rank")
    return in_order


def _check_holdout(x: Any, holdout: Any, method: Method, options: Mapping[str, Any]) -> None:
    """Check that `holdout` is a share, and that entries of these data can be held out."""
    check_real(holdout, "holdout", 0)
    if holdout >= 1:
        raise ValueError(f"holdout is {holdout!r}, expected a number from 0 to below 1")
    if not holdout:
        return
    if not method.can_hold_out:
        suitable = [name for name, row in METHODS.items() if row.can_hold_out]
        raise ValueError(
            f"{method.name} has no mask, so nothing can be held out: pass holdout=0, or one of the "
            f"methods {suitable}"
        )
    find_exact(method.find_loss(options), " to hold entries out: pass holdout=0")
    if options.get("confidence") is not None:
        raise ValueError(
            "confidence is given, but select_rank holds entries out itself: pass holdout=0"
        )
    if options.get("mask") is not None and not method.is_ours:
        raise ValueError(f"mask is for methods of this package, and holdout=0 for {method.name}")
    if x.nnz < 2:
        raise ValueError(f"x has {x.nnz} nonzeros, expected two or more: pass holdout=0")


def _leave_out_unknown(
    x: Any, method: Method, options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return a tensor without the values at unknown cells, so that no start sees them, and options.

    The `mask` of the options becomes a `MissingEntries`, or is left out if the method needs none.
    """
    options = dict(options)
    mask = options.pop("mask", None)
    unknown = None if mask is None else find_missing(x, mask, lists=True)
    if unknown is None:
        return x, options
    if not isinstance(x, RaggedTensor):
        x = unknown.observed
        unknown = unknown.of(x)
    if method.is_ours and method.knows_zeros:
        options["mask"] = unknown
    return x, options


def _find_tolerance(
    dtype: np.dtype, method: Method, options: Mapping[str, Any], errors: Sequence[Any]
) -> float:
    """Return a difference of losses that early stopping alone explains.

    An error that approaches its limit like 1 / n changes by `tol` when it still is about the root
    of `tol` above, and by d after n iterations when it is n * d above. Rounding in errors, which
    are roots of differences of squares, has the root of eps.
    """
    tol = options.get("tol", method.defaults.get("tol")) or 0.0
    nearness = float(max(tol, np.finfo(dtype).eps) ** 0.5)
    if len(errors) < 2 or method.error_name == "loss":
        return nearness
    return max(nearness, len(errors) * abs(float(errors[-2]) - float(errors[-1])))


class _RankFit(NamedTuple):
    """The fits with one rank."""

    score: RankScore  # its held-out loss is nan until all ranks are compared
    model: Any  # of all entries
    errors: np.ndarray  # of the runs
    terms: Any  # of the held-out loss, for each entry; None if nothing is held out
    tolerance: float  # see `_find_tolerance`


@dataclass(frozen=True)
class _RankSearch:
    """The data and options that the fits of all ranks share."""

    x: Any
    method: Method
    options: Mapping[str, Any]
    heldout: HeldOutLoss | None
    n_runs: int
    seed: int
    keep_all: bool

    def fit_all(self, ranks: Sequence[Any]) -> list[_RankFit]:
        """Fit the models rank by rank; after Ctrl-C return the finished ranks."""
        fits: list[_RankFit] = []
        try:
            for number, rank in enumerate(ranks, 1):
                report(f"rank {rank} ({number} of {len(ranks)}): {self.n_runs} runs")
                fits.append(self.fit(rank))
        except KeyboardInterrupt:
            if not fits:
                raise
        return fits

    def fit(self, rank: Any) -> _RankFit:
        """Fit the models of one rank: several runs, then the best one to all entries."""
        method = self.method
        data = self.x
        options = dict(self.options)
        if self.heldout is not None:
            data = self.heldout.data
            options |= self.heldout.options
        starts = best_of(
            method.function, data, rank, self.n_runs, self.seed, self.keep_all, **options
        )
        model = starts.best
        if method.model == "CP" and not isinstance(model, CPTensor):
            raise TypeError(f"{method.name} returns a {type(model).__name__}, expected a CP model")
        error = float(starts.final_errors.min())
        terms = None
        if self.heldout is not None:
            terms = self.heldout.list_terms(model)
            best_seed = starts.seeds[starts.best_number]
            model, refit_errors = self._fit_all_entries(rank, model, best_seed)
            if len(refit_errors):
                error = float(refit_errors[-1])
        score = RankScore(
            rank=rank,
            error=error,
            heldout_loss=np.nan,
            heldout_se=np.nan,
            difference_se=np.nan,
            core_consistency=self._find_core_consistency(rank, model),
            match=starts.match,
        )
        best_errors = starts.errors[starts.best_number]
        tolerance = _find_tolerance(self.x.dtype, method, self.options, best_errors)
        return _RankFit(score, model, starts.final_errors, terms, tolerance)

    def _fit_all_entries(self, rank: Any, model: Any, seed: int) -> tuple[Any, Sequence[Any]]:
        """Fit a model to all entries, from one that has not seen the held-out ones."""
        options = self.method.prefer_momentum(self.x, self.options)
        options["init"] = take_components(model, rank)  # biases are fitted anew
        return run_once(self.method, self.x, rank, seed, options)

    def _find_core_consistency(self, rank: Any, model: Any) -> float:
        """Return the core consistency; nan for other models than CP, or if it takes too long."""
        x = self.x
        if self.method.model != "CP" or x.ndim < 2 or not suits("core_consistency", model):
            return np.nan
        if x.nnz * rank ** (x.ndim - 1) > _MAX_CORE_OPERATIONS:
            return np.nan
        return core_consistency(x, model, self.options.get("mask"))
