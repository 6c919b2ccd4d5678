"""Compare models of several ranks."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorly as tl

from ..base.checks import check_count, check_rank, check_real, warn
from ..decomposition.methods import METHODS, Method, find_method
from ..loop.losses import find_exact
from ..loop.masks import find_missing
from ..loop.ranks import find_tucker_rank
from ..loop.unknown_cells import forget_unknown, obey_unknown
from ..ops.ragged import RaggedTensor
from ..results.labelled_models import label_result
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import mirror
from ..tensor.labelled import LabelledTensor, number_modes
from .best_of import refuse_progress
from .heldout_loss import HeldOutLoss
from .rank_search import RankSearch
from .rank_selection import RankSelection
from .suggest_rank import list_doubts


@mirror
def select_rank(
    x: Any,
    ranks: Iterable[Any],
    n_runs: int = 20,
    method: str | Callable[..., Any] = "parafac",
    holdout: float = 0.2,
    random_state: int | np.random.RandomState | None = None,
    keep_all: bool = False,
    quiet: bool = False,
    **options: Any,
) -> RankSelection:
    """Fit models of several ranks to a sparse tensor, score them, and suggest a rank.

    Some entries are held out: a share of the nonzeros, and as many cells, nearly all zeros, whose
    indices are drawn from those of the nonzeros. (`observed_parafac` does not know the other cells:
    only nonzeros are held out.) For each rank, several runs start at random and are fitted without
    these entries; neither a start nor an update sees their values. The run with the least error
    has to predict them. The model of the rank is then fitted to all entries, from that run. Only
    ranks that may be suggested get all runs, the others a few (see Notes).

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
        Random starts of a rank that is suggested, since many starts end in poor local minima. Up to
        five are made for each rank.
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
        Whether all runs of all ranks are made, and `best_of` drops no run of `parafac` before its
        end.
    quiet : bool
        Whether nothing is printed. Else standard error, which a notebook shows too, gets a line for
        each rank when it is fitted, and again when all of its runs are.
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
    Runs take most of the time; those of `parafac` run together. If `n_runs` is above five, a search
    spends them where ranks are decided. First, each rank gets five random starts of a tenth of
    `n_iter_max` iterations, ten at least, and of a CP model as many from the model of the rank
    before, with random components added. The one with the least error goes on to the end of its
    iterations and predicts. Then the rank that these losses suggest gets all `n_runs`, as in a
    search by them alone, and is judged anew. If it is not suggested any more, as its runs
    disagree, the next suggestion gets them, until a rank with all runs stays suggested. Until a
    rank has them, its runs count as ones that agree, unless the best one has no component but
    biases, and its `match` is that of the five after their first iterations. `observed_parafac`
    chooses its ridge once for each rank.

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
    search = RankSearch(
        x=x,
        method=solver,
        options=options,
        heldout=heldout,
        ranks=ranks,
        num_runs=n_runs,
        seed=seed,
        keep_all=keep_all,
        quiet=quiet,
    )
    fits, stopped_before = search.fit_all()
    scores = search.judge(fits)
    models = [fit.model for fit in fits]
    if labelled is not None and not isinstance(x, RaggedTensor):  # which has its own
        models = [label_result(model, labelled) for model in models]
    suggested, rule = search.suggest(fits)
    warnings = list_doubts(scores, suggested)
    if stopped_before:
        warnings.insert(0, f"Ctrl-C stopped the search before {stopped_before}")
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
