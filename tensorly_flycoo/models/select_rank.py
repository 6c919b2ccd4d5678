"""Compare models of several ranks."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.parafac2_tensor import Parafac2Tensor
from tensorly.tucker_tensor import TuckerTensor

from ..base.array_modules import Array, move
from ..base.checks import check_count, check_rank, check_real, num_cells, warn
from ..base.reporting import report
from ..base.tables import format_table
from ..decomposition.methods import METHODS, Method, find_method
from ..decomposition.tucker import evaluate_tucker
from ..loop.losses import find_exact
from ..loop.masks import MissingEntries, find_missing
from ..loop.model_uses import suits
from ..loop.ranks import find_tucker_rank
from ..loop.unknown_cells import forget_unknown, obey_unknown
from ..ops.cp_entries import evaluate_model, take_model
from ..ops.ragged import RaggedTensor
from ..ops.sampling import find_chances, make_sampler
from ..results.labelled_models import label_result
from ..tensor.cells import find_places
from ..tensor.coo_cache import as_flycoo, unwrap
from ..tensor.entrance import mirror
from ..tensor.labelled import LabelledTensor, number_modes
from ..tensor.pieces import sum_values
from ..tensor.tensor import FlycooTensor
from .best_of import LOW_MATCH, best_of, run_once, take_components
from .core_consistency import core_consistency

if TYPE_CHECKING:
    from pandas import DataFrame
#: Means of counts are moved so much of the way to what the nonzeros of each index alone predict, or
#: of a count, if that is less: a model that calls a count impossible would be infinitely bad else.
_SHRINKAGE = 0.1

#: Held-out entries are too few if the standard error of the least loss is a larger share of what
#: its rank explains: of planted ranks, hardly any is found then, and nearly all are else.
_LARGE_ERROR = 0.06

#: Core consistency is left out if it would take more operations than this.
_MAX_CORE_OPERATIONS = 10**10

#: Runs that agree are worth this share of what is explained: much data make any gain significant.
_SMALL_GAIN = 0.01


class RankScore(NamedTuple):
    """The scores of one rank's model; nan stands for a score that was not computed.

    Attributes
    ----------
    rank : int, of a Tucker model a tuple
    error : float
        The relative error of the model; of `generalized_parafac`, the loss F.
    heldout_loss : float
        What the best run, which was fitted without the held-out entries, does not explain there:
        the norm of the residual, relative to that of the values; with ``loss="poisson_count"`` the
        deviance, relative to that of the mean. Entries have weights: the loss is that of all cells.
        With `observed_parafac` they have none, and the mean is taken off the values.
    heldout_se : float
        The standard error of that loss, over the held-out entries.
    difference_se : float
        The standard error of its difference to the least loss of a rank.
    core_consistency : float
        That of a CP model, at most 100. See `core_consistency`.
    match : float
        Of CP models, the mean `factor_match_score` of the other runs with the best one.
    """

    rank: Any
    error: float
    heldout_loss: float
    heldout_se: float
    difference_se: float
    core_consistency: float
    match: float


@dataclass(frozen=True)
class RankSelection:
    """The result of `select_rank`.

    Attributes
    ----------
    scores : list of RankScore
        In ascending order of the ranks.
    errors : list of array (n_runs,)
        For each rank, the `error` of all runs, at the entries that were not held out.
    models : list of CPTensor, TuckerTensor or Parafac2Tensor
        For each rank, the model.
    rank : int, tuple of int or None
        The suggested rank; None if no entries were held out.
    rule : str
        Why this rank is suggested.
    warnings : list of str
        What speaks against the suggestion.
    """

    scores: list[RankScore]
    errors: list[np.ndarray]
    models: list[Any]
    rank: Any
    rule: str
    warnings: list[str]
    _error: str = "error"  # what `RankScore.error` is

    @property
    def best(self) -> Any:
        """The model of the suggested rank."""
        if self.rank is None:
            raise ValueError("no rank is suggested without held-out entries: choose from .models")
        return self.models[[score.rank for score in self.scores].index(self.rank)]

    @property
    def table(self) -> "DataFrame":
        """The scores as a DataFrame with a row for each rank; needs pandas."""
        import pandas

        return pandas.DataFrame(self.scores).set_index("rank")

    def __repr__(self) -> str:
        rows = [["rank", self._error, "held-out loss (se)", "core consistency", "match", ""]]
        for score in self.scores:
            core = score.core_consistency
            rows.append(
                [
                    str(score.rank),
                    f"{score.error:.4f}",
                    f"{score.heldout_loss:.4f} ({score.heldout_se:.4f})",
                    "< -999" if core < -999 else f"{core:.0f}",
                    f"{score.match:.2f}",
                    "<- suggested" if score.rank == self.rank else "",
                ]
            )
        # The warnings were shown when they arose.
        doubts = "; see .warnings for what speaks against it" if self.warnings else ""
        reason = "" if self.rank is None else f"\nrank {self.rank} is {self.rule}{doubts}"
        return format_table(rows) + reason


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
    labelled = x if isinstance(x, LabelledTensor) else None
    options = number_modes(x, options)
    known = [name for name in METHODS if name != "coupled_parafac"]
    solver = find_method(method, known=known)
    options = obey_unknown(x, solver.name, solver.defaults, options)
    if solver.model != "PARAFAC2":
        x = as_flycoo(x, check_coords=True)
    elif not isinstance(x, RaggedTensor):
        x = RaggedTensor(forget_unknown(x))
    if not isinstance(ranks, Iterable):
        raise TypeError(f"ranks is {ranks!r}, expected several integers, such as range(1, 11)")
    if solver.model == "Tucker":
        given = [[rank] * x.ndim if np.ndim(rank) == 0 else rank for rank in ranks]
        cores = {tuple(find_tucker_rank(x, core, x.ndim)) for core in given}
        ranks = sorted(cores, key=lambda core: (math.prod(core) + np.dot(core, x.shape), core))
    else:
        ranks = sorted({check_rank(rank) for rank in ranks})
    if not ranks:
        raise ValueError("ranks is empty, expected at least one rank")
    _check_holdout(x, holdout, solver, options)
    check_count(n_runs, "n_runs")
    options.pop("return_errors", None)  # best_of takes them in any case
    random = tl.check_random_state(random_state)
    seed = random.randint(2**31 - 1)
    if holdout and (mask := options.pop("mask", None)) is not None:
        unknown = find_missing(x, mask, lists=True)
        if unknown is not None:
            if not isinstance(x, RaggedTensor):  # no start sees its values there
                x = unknown.observed
                unknown = unknown.of(unknown.observed)
            options |= {"mask": unknown} if solver.is_ours and solver.knows_zeros else {}
    held_out = _HeldOut.draw(x, holdout, solver, options, random) if holdout else None
    results: list[tuple[RankScore, Any, np.ndarray, Any, float]] = []
    try:
        for number, rank in enumerate(ranks):
            report(f"rank {rank} ({number + 1} of {len(ranks)}): {n_runs} runs")
            results.append(_fit_rank(x, rank, n_runs, solver, held_out, seed, keep_all, options))
    except KeyboardInterrupt:
        if not results:
            raise
    scores, terms, errors, models, tolerances = map(list, zip(*results, strict=True))
    if held_out is not None:
        scores = held_out.judge(scores, terms)
    if labelled is not None and not isinstance(x, RaggedTensor):  # which has its own
        models = [label_result(model, labelled) for model in models]
    chosen, rule = _suggest(scores, tolerances)
    missing = ranks[len(results) :]
    texts = [f"Ctrl-C stopped the search before rank {missing[0]}"] if missing else []
    texts += _list_doubts(scores, chosen)
    for text in texts:
        warn(text)
    suggested = None if chosen is None else chosen.rank
    return RankSelection(scores, errors, models, suggested, rule, texts, solver.error_name)


def _check_holdout(x: Any, holdout: Any, method: Method, options: Mapping[str, Any]) -> None:
    check_real(holdout, "holdout", 0)
    if holdout >= 1:
        raise ValueError(f"holdout is {holdout!r}, expected a number from 0 to below 1")
    if not holdout:
        return
    if not method.can_hold_out:
        raise ValueError(
            f"{method.name} has no mask, so nothing can be held out: pass holdout=0, or one of the "
            f"methods {[name for name, known in METHODS.items() if known.can_hold_out]}"
        )
    find_exact(method.find_loss(options), " to hold entries out: pass holdout=0")
    if options.get("confidence") is not None:
        text = "is given, but select_rank holds entries out itself: pass holdout=0"
        raise ValueError(f"confidence {text}")
    if options.get("mask") is not None and not method.is_ours:
        raise ValueError(f"mask is for methods of this package, and holdout=0 for {method.name}")
    if x.nnz < 2:
        raise ValueError(f"x has {x.nnz} nonzeros, expected two or more: pass holdout=0")


def _find_tolerance(
    dtype: np.dtype, method: Method, options: Mapping[str, Any], errors: Sequence[Any]
) -> float:
    """Return by how much losses may differ for no other reason than that the fits ended.

    An error that approaches its limit like 1 / n changes by `tol` when it still is about the root
    of `tol` above, and by d after n iterations when it is n * d above. Rounding in errors, which
    are roots of differences of squares, has the root of eps.
    """
    tol = options.get("tol", method.defaults.get("tol")) or 0.0
    nearness = float(max(tol, np.finfo(dtype).eps) ** 0.5)
    if len(errors) < 2 or method.error_name == "loss":
        return nearness
    return max(nearness, len(errors) * abs(float(errors[-2]) - float(errors[-1])))


def _fit_rank(
    x: Any,
    rank: Any,
    n_runs: int,
    method: Method,
    held_out: "_HeldOut | None",
    seed: int,
    keep_all: bool,
    options: Mapping[str, Any],
) -> tuple[RankScore, Any, np.ndarray, Any, float]:
    """Fit the models of one rank.

    Return its scores, nan for those of the held-out loss; the terms of that loss; the errors of the
    runs; the model of all entries; and what `_find_tolerance` returns.
    """
    known = x if held_out is None else held_out.known
    masked = options if held_out is None else {**options, **held_out.options}
    starts = best_of(method.function, known, rank, n_runs, seed, keep_all, **masked)
    model = starts.best
    error = float(starts.final_errors.min())
    if method.model == "CP" and not isinstance(model, CPTensor):
        raise TypeError(f"{method.name} returns a {type(model).__name__}, expected a CP model")
    core = np.nan
    terms = None
    if held_out is not None:
        terms = held_out.list_terms(model)
        # Biases are fitted anew.
        begin = method.prefer_momentum(x, options) | {"init": take_components(model, rank)}
        model, errors = run_once(method, x, rank, starts.seeds[starts.best_number], begin)
        error = float(errors[-1]) if len(errors) else error
    if method.model == "CP" and x.ndim > 1 and suits("core_consistency", model):
        is_affordable = x.nnz * rank ** (x.ndim - 1) <= _MAX_CORE_OPERATIONS
        core = core_consistency(x, model, options.get("mask")) if is_affordable else core
    tolerance = _find_tolerance(x.dtype, method, options, starts.errors[starts.best_number])
    score = RankScore(rank, error, np.nan, np.nan, np.nan, core, starts.match)
    return score, terms, starts.final_errors, model, tolerance


@dataclass(frozen=True)
class _HeldOut:
    """Entries to predict: `known` lacks them, and `options` say that they are missing, not zero."""

    known: Any
    options: dict[str, Any]
    _missing: MissingEntries
    _weights: np.ndarray  # how many cells of the tensor each entry stands for
    _independent: np.ndarray | None  # of counts: their means if modes were independent
    _whole: float  # what is to be explained

    @classmethod
    def draw(
        cls,
        data: Any,
        share: float,
        method: Method,
        options: Mapping[str, Any],
        random: np.random.RandomState,
    ) -> Self:
        unknown = options.get("mask")
        x = unwrap(data) if unknown is None else unknown.observed
        drawn = draw_entries(x, share, random, method.knows_zeros)
        if unknown is not None:
            drawn = drawn[:, ~find_places(move(unknown.coords, np), drawn, np)[0]]
        missing = MissingEntries(x, drawn)
        values = move(missing.start, np).astype(np.float64)
        if not method.knows_zeros:
            whole = float(((values - values.mean()) ** 2).sum() or (values**2).sum())
            return cls(missing.observed, {}, missing, np.ones(values.size), None, whole)
        known: Any = data if isinstance(data, RaggedTensor) else missing.observed
        if method.is_ours:
            parts = [missing.coords] if unknown is None else [missing.coords, unknown.coords]
            mask: Any = MissingEntries(unwrap(known), np.hstack(parts))  # planned for all runs
        else:
            mask = missing.to_mask()
        held = known, {"mask": mask}, missing
        chances = find_chances(x, missing.coords)
        # One over the probabilities of being drawn (Horvitz and Thompson): sums with these weights
        # are, on average, sums over all cells.
        count = _count_drawn(x, share)
        with np.errstate(divide="ignore"):  # a chance of 1
            as_other = -np.expm1(count * np.log1p(-chances))
        as_nonzero = np.where(values == 0, 0.0, count / x.nnz)
        weights = 1 / (as_nonzero + (1 - as_nonzero) * as_other)
        if not find_exact(method.find_loss(options)).is_count:
            return cls(*held, weights, None, weights @ values**2)
        total = sum_values(x._layout, x._engine)
        # The deviance of the mean; over all cells, what it adds and what it misses cancel out.
        logs = np.log(np.where(values > 0, values, 1.0)) - np.log(total / num_cells(x.shape))
        whole = max(2 * weights @ (values * logs), np.finfo(np.float64).tiny)
        return cls(*held, weights, total * chances, whole)

    def _evaluate(self, model: Any) -> Array:
        """Return the values of a model at the entries."""
        if isinstance(model, TuckerTensor):
            return evaluate_tucker(self._missing.coords, model.core, model.factors)
        if isinstance(model, Parafac2Tensor):
            # On the host, where a small product for each slice takes less than a launch.
            a, b, columns = (move(factor, np) for factor in model.factors)
            scales = a * move(model.weights, np)
            rows = np.zeros((self._missing.shape[0], len(b)))
            for start, own, scale in zip(self.known.starts, model.projections, scales, strict=True):
                rows[start : start + len(own)] = move(own, np) @ (b * scale)
            return evaluate_model(move(self._missing.coords, np), None, [rows, columns])
        return self._missing.impute(*take_model(model))

    def list_terms(self, model: Any) -> np.ndarray:
        """Return the share of each entry in the held-out loss of a model, or in its square."""
        values = move(self._missing.start, np).astype(np.float64)
        found = move(self._evaluate(model), np).astype(np.float64)
        if self._independent is None:
            return self._weights * (values - found) ** 2 / self._whole
        found += _SHRINKAGE * np.clip(self._independent - found, -1, 1)
        logs = np.log(np.where(values > 0, values, 1.0) / found)
        deviances = 2 * (found - values + values * logs)
        return self._weights * deviances / self._whole

    def judge(self, scores: list[RankScore], terms: list[np.ndarray]) -> list[RankScore]:
        """Return the scores with their held-out losses and standard errors."""
        power = 0.5 if self._independent is None else 1.0
        least = min(terms, key=np.sum)
        judged = []
        for score, of_rank in zip(scores, terms, strict=True):
            total = float(of_rank.sum())
            loss = total**power
            above = (total + self._spread(of_rank)) ** power
            # The entries are the same for all ranks.
            below = max(total - self._spread(of_rank - least), 0.0) ** power
            errors = {"heldout_se": above - loss, "difference_se": loss - below}
            judged.append(score._replace(heldout_loss=loss, **errors))
        return judged

    def _spread(self, terms: np.ndarray) -> float:
        """Return the standard error of a sum of terms: nonzeros and zeros are drawn apart."""
        is_zero = move(self._missing.start == 0, np)
        parts = (terms[is_zero], terms[~is_zero])
        return float(sum(part.var() * part.size for part in parts if part.size)) ** 0.5


def _count_drawn(x: FlycooTensor, share: float) -> int:
    return min(max(1, round(share * x.nnz)), x.nnz - 1)


def draw_entries(
    x: FlycooTensor, share: float, random: np.random.RandomState, with_zeros: bool = True
) -> np.ndarray:
    """Draw a share of the nonzeros, and as many cells whose indices come from separate nonzeros."""
    count = _count_drawn(x, share)
    numbers = random.choice(x.nnz, count, replace=False)
    others = random.randint(x.nnz, size=(x.ndim if with_zeros else 0, count))
    places = x._engine.xp.asarray(np.append(numbers, others))
    coords = move(make_sampler(x).take(places)[0], np).reshape(x.ndim, -1, count)
    if not with_zeros:
        return coords[:, 0]
    rows = [np.append(of[0], of[1 + mode]) for mode, of in enumerate(coords)]
    return np.unique(np.stack(rows), axis=1)


def _suggest(
    scores: Sequence[RankScore], tolerances: Sequence[float]
) -> tuple[RankScore | None, str]:
    """Return the score of the suggested rank and why it is; None if nothing was held out."""
    if np.isnan(scores[0].heldout_loss):
        return None, ""
    least = min(scores, key=lambda score: score.heldout_loss)
    if least.heldout_loss >= 1:
        return scores[0], "the lowest: no rank predicts the held-out entries"
    gaps = {score: score.heldout_loss - least.heldout_loss for score in scores}
    pairs = zip(scores, tolerances, strict=True)
    good = [score for score, nearness in pairs if gaps[score] <= max(score.difference_se, nearness)]
    stable = [score for score in scores if np.max(score.rank) * (1 - score.match) < 0.5]
    margin = max(least.heldout_se, _SMALL_GAIN * (1 - least.heldout_loss))
    near = [score for score in stable if gaps[score] <= margin]
    both = [score for score in good if score in stable]
    of_least = f"of the least, that of rank {least.rank}"
    if near and not both:
        chosen = min(near, key=lambda score: gaps[score])
        return chosen, (
            f"the best whose runs agree (those of rank {good[0].rank} do not), with a held-out "
            f"loss within one standard error, or a hundredth of what is explained, {of_least}"
        )
    chosen = (both or good)[0]
    is_close = gaps[chosen] <= chosen.difference_se
    reach = "one standard error" if is_close else "what rounding and unfinished fits explain"
    rule = f"the lowest with a held-out loss within {reach} {of_least}"
    if chosen is not good[0]:
        rule += f", and with runs that agree (those of rank {good[0].rank} do not)"
    return chosen, rule


def _list_doubts(scores: Sequence[RankScore], chosen: RankScore | None) -> list[str]:
    if chosen is None:
        return []
    doubts = []
    least = min(scores, key=lambda score: score.heldout_loss)
    if least.heldout_loss >= 1:
        doubts.append("no rank predicts the held-out entries better than zeros or their mean do")
    if least.heldout_se > _LARGE_ERROR * abs(1 - least.heldout_loss):
        doubts.append(
            f"the held-out entries are too few to tell: the least loss is {least.heldout_loss:.4f} "
            f"with a standard error of {least.heldout_se:.4f}, so higher ranks than {chosen.rank} "
            "may go unseen; pass more data, or merge rows"
        )
    if chosen.rank == scores[-1].rank and len(scores) > 1:
        doubts.append(f"the suggested rank {chosen.rank} is the highest one tried: try higher ones")
    if chosen.match < LOW_MATCH:
        doubts.append(
            f"the runs of the suggested rank {chosen.rank} found different components (match "
            f"{chosen.match:.2f}): trust its fit, not its components"
        )
    return doubts
