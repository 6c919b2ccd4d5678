"""The fits of `select_rank`: few short runs of each rank, and all runs where the choice is."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import array_module
from ..base.reporting import report
from ..base.watching import clear_line
from ..decomposition.methods import Method
from ..loop.cp_model import count_zeros, make_cp_tensor
from ..loop.initial_guess import draw_factors
from ..loop.model_uses import suits
from ..tensor.tensor import FlycooTensor
from .best_of import best_of, go_on, keep_ridge, take_components
from .core_consistency import core_consistency
from .heldout_loss import HeldOutLoss
from .rank_selection import RankScore
from .suggest_rank import suggest

#: Core consistency is left out if it would take more operations than this.
_MAX_CORE_OPERATIONS = 10**10

#: The runs that each rank gets at first, to choose one that goes on to its end.
_FIRST_RUNS = 5

#: Their iterations: this share of `n_iter_max`, but as many as `best_of` makes before it compares.
_FIRST_SHARE = 0.1
_LEAST_ITERATIONS = 10


class RankFit(NamedTuple):
    """The fits with one rank."""

    score: RankScore  # its held-out loss is nan until all ranks are compared
    model: Any  # of all entries
    fitted: Any  # that of the best run, without the held-out entries
    errors: np.ndarray  # of the runs
    terms: Any  # of the held-out loss, for each entry; None if nothing is held out
    tolerance: float  # see `find_tolerance`
    is_complete: bool  # whether all runs were made
    has_components: bool  # whether the best run has any but biases


class _Runs(NamedTuple):
    """The runs of one rank, without the held-out entries."""

    best: Any  # the model of the best run
    best_errors: Sequence[Any]  # after each of its iterations
    best_seed: int
    errors: np.ndarray  # the last one of each run
    match: float


@dataclass(frozen=True)
class RankSearch:
    """The data and options that the fits of all ranks share."""

    x: Any
    method: Method
    options: Mapping[str, Any]
    heldout: HeldOutLoss | None
    ranks: Sequence[Any]
    num_runs: int
    seed: int
    keep_all: bool  # whether all ranks get all runs, none of which is dropped
    quiet: bool  # whether no lines are printed

    def fit_all(self) -> tuple[list[RankFit], str]:
        """Fit the ranks one by one, then the suggested one by all runs, until it stays suggested.

        Return the fits, after Ctrl-C those that were finished; and what it stopped, else "".
        """
        fits: list[RankFit] = []
        stopped_before = ""
        try:
            below = None
            for rank in self.ranks:
                stopped_before = f"rank {rank}"
                below = self._fit_first(rank, below)
                fits.append(below)
            if self.heldout is None:
                return fits, ""
            while True:
                place = self._find_suggested(fits)
                if fits[place].is_complete:
                    return fits, ""
                rank = self.ranks[place]
                stopped_before = f"all runs of rank {rank}"
                fits[place] = self._fit_completely(rank, fits[place])
        except KeyboardInterrupt:
            if not fits:
                raise
            return fits, stopped_before

    def judge(self, fits: Sequence[RankFit]) -> list[RankScore]:
        """Return the scores of ranks with their held-out losses, if entries are held out."""
        scores = [fit.score for fit in fits]
        if self.heldout is None:
            return scores
        return self.heldout.judge(scores, [fit.terms for fit in fits])

    def suggest(self, fits: Sequence[RankFit]) -> tuple[RankScore | None, str]:
        """Return the score of the suggested rank, and the reason.

        A rank that has had few runs counts as one whose runs agree, if there is something to agree
        on.
        """
        scores = self.judge(fits)
        assumed = list(scores)
        for place, (score, fit) in enumerate(zip(scores, fits, strict=True)):
            if fit.is_complete or np.isnan(score.match) or not fit.has_components:
                continue
            assumed[place] = score._replace(match=1.0)
        chosen, rule = suggest(assumed, [fit.tolerance for fit in fits])
        if chosen is None:
            return None, rule
        return scores[assumed.index(chosen)], rule

    def _find_suggested(self, fits: Sequence[RankFit]) -> int:
        """Return the place of the rank that the fits so far suggest."""
        chosen, _ = self.suggest(fits)
        assert chosen is not None  # entries are held out
        return self.ranks.index(chosen.rank)

    def _fit_first(self, rank: Any, below: RankFit | None) -> RankFit:
        """Fit a rank by few short runs, one of them from the rank below; or at once by all runs."""
        if self.keep_all or self.heldout is None or self.num_runs <= _FIRST_RUNS:
            return self._fit_completely(rank)
        self._begin(rank, _FIRST_RUNS)
        start = time.monotonic()
        runs = self._run_briefly(rank, below)
        fit = self._judge_runs(rank, runs, is_complete=False)
        self._show(fit, start)
        return fit

    def _fit_completely(self, rank: Any, first: RankFit | None = None) -> RankFit:
        """Fit a rank by all of its runs, with the ridge that its first ones chose, if any."""
        self._begin(rank, self.num_runs)
        start = time.monotonic()
        options = self._list_options()
        if first is not None:
            options = keep_ridge(self.method, first.fitted, options)
        runs = self._run(rank, self.num_runs, options)
        fit = self._judge_runs(rank, runs, is_complete=True)
        self._show(fit, start)
        return fit

    def _begin(self, rank: Any, num_runs: int) -> None:
        """Report that the runs of a rank begin."""
        number = self.ranks.index(rank) + 1
        report(f"rank {rank} ({number} of {len(self.ranks)}): {num_runs} runs")

    def _show(self, fit: RankFit, start: float) -> None:
        """Print a line about a rank on standard error, which notebooks show too."""
        if self.quiet:
            return
        number = self.ranks.index(fit.score.rank) + 1
        (score,) = self.judge([fit])
        facts = [f"{len(fit.errors)} runs"]
        if self.heldout is None:
            facts.append(f"{self.method.error_name} {score.error:.4f}")
        else:
            facts.append(f"held-out loss {score.heldout_loss:.4f} ({score.heldout_se:.4f})")
        if not np.isnan(score.match):
            facts.append(f"match {score.match:.2f}")
        facts.append(f"{time.monotonic() - start:.1f} s")
        line = f"rank {score.rank} ({number} of {len(self.ranks)}): {', '.join(facts)}"
        clear_line()
        print(line, file=sys.stderr, flush=True)

    def _run_briefly(self, rank: Any, below: RankFit | None) -> _Runs:
        """Begin a few runs of a rank, and let the best one go on to its end."""
        options = self._list_options()
        first, later = self._divide_iterations(options)
        runs = self._run(rank, _FIRST_RUNS, first)
        if below is not None and self.method.model == "CP" and "init" in self.method.defaults:
            runs = self._run_from_below(rank, runs, below, first)
        if later is not None:
            runs = self._finish_best(rank, runs, later)
        return runs

    def _divide_iterations(
        self, options: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return options for the first iterations of a run, and for the later ones, if any."""
        num_all = options.get("n_iter_max", self.method.defaults.get("n_iter_max"))
        # Without a number, or with one that the method refuses, runs are whole.
        if not isinstance(num_all, int | np.integer) or num_all <= _LEAST_ITERATIONS:
            return options, None
        num_first = max(_LEAST_ITERATIONS, round(_FIRST_SHARE * num_all))
        return options | {"n_iter_max": num_first}, options | {"n_iter_max": num_all - num_first}

    def _run(self, rank: Any, num_runs: int, options: Mapping[str, Any]) -> _Runs:
        """Make some runs of a rank from random starts."""
        starts = best_of(
            self.method.function, self._fitted, rank, num_runs, self.seed, self.keep_all, **options
        )
        return _Runs(
            best=starts.best,
            best_errors=starts.errors[starts.best_number],
            best_seed=starts.seeds[starts.best_number],
            errors=starts.final_errors,
            match=starts.match,
        )

    def _run_from_below(
        self, rank: Any, runs: _Runs, below: RankFit, options: Mapping[str, Any]
    ) -> _Runs:
        """Add a run from the model of the rank below, to which random components are added."""
        options = keep_ridge(self.method, runs.best, options)
        seed = runs.best_seed
        guess = _add_components(self._fitted, below, rank, seed)
        model, model_errors = go_on(self.method, self._fitted, rank, seed, guess, options)
        error = np.nan_to_num(float(model_errors[-1]), nan=np.inf)
        is_best = error < runs.errors.min()
        runs = runs._replace(errors=np.append(runs.errors, error))
        if is_best:
            runs = runs._replace(best=model, best_errors=model_errors)
        return runs

    def _finish_best(self, rank: Any, runs: _Runs, options: Mapping[str, Any]) -> _Runs:
        """Let the best run go on."""
        options = keep_ridge(self.method, runs.best, options)
        model, later = go_on(self.method, self._fitted, rank, runs.best_seed, runs.best, options)
        errors = runs.errors.copy()
        errors[np.argmin(errors)] = later[-1]
        return runs._replace(best=model, best_errors=[*runs.best_errors, *later], errors=errors)

    @property
    def _fitted(self) -> Any:
        """The data without held-out entries."""
        return self.x if self.heldout is None else self.heldout.data

    def _list_options(self) -> dict[str, Any]:
        """Return the options of runs, which hide the held-out entries."""
        if self.heldout is None:
            return dict(self.options)
        return {**self.options, **self.heldout.options}

    def _judge_runs(self, rank: Any, runs: _Runs, *, is_complete: bool) -> RankFit:
        """Let the best run predict the held-out entries, and fit it to all entries."""
        method = self.method
        model = runs.best
        if method.model == "CP" and not isinstance(model, CPTensor):
            raise TypeError(f"{method.name} returns a {type(model).__name__}, expected a CP model")
        error = float(np.min(runs.errors))
        terms = None
        if self.heldout is not None:
            terms = self.heldout.list_terms(model)
            options = keep_ridge(method, model, method.prefer_momentum(self.x, self.options))
            model, refit_errors = go_on(method, self.x, rank, runs.best_seed, model, options)
            if len(refit_errors):
                error = float(refit_errors[-1])
        score = RankScore(
            rank=rank,
            error=error,
            heldout_loss=np.nan,
            heldout_se=np.nan,
            difference_se=np.nan,
            core_consistency=self._find_core_consistency(rank, model),
            match=runs.match,
        )
        tolerance = find_tolerance(self.x.dtype, method, self.options, runs.best_errors)
        return RankFit(
            score=score,
            model=model,
            fitted=runs.best,
            errors=runs.errors,
            terms=terms,
            tolerance=tolerance,
            is_complete=is_complete,
            has_components=method.model != "CP" or count_zeros(runs.best) < rank,
        )

    def _find_core_consistency(self, rank: Any, model: Any) -> float:
        """Return the core consistency; nan for other models than CP, or if it takes too long."""
        x = self.x
        if self.method.model != "CP" or x.ndim < 2 or not suits("core_consistency", model):
            return np.nan
        if x.nnz * rank ** (x.ndim - 1) > _MAX_CORE_OPERATIONS:
            return np.nan
        return core_consistency(x, model, self.options.get("mask"))


def _add_components(x: FlycooTensor, below: RankFit, rank: int, seed: int) -> CPTensor:
    """Return the model of a lower rank with random components, each as large as its mean one."""
    num_below = below.score.rank
    weights, factors = take_components(below.fitted, num_below)
    xp = array_module(factors[0])
    if weights is None:
        weights = xp.ones(num_below)
    sizes = abs(weights)
    for factor in factors:
        sizes = sizes * xp.linalg.norm(factor, axis=0)
    size = float(sizes.mean()) or 1.0
    random = draw_factors(x, rank - num_below, tl.check_random_state(seed))
    joined = []
    for factor, new in zip(factors, random, strict=True):
        scaled = new / xp.linalg.norm(new, axis=0) * size ** (1 / x.ndim)
        joined.append(xp.concatenate([factor, scaled], axis=1).astype(factor.dtype))
    joined[0][:, :num_below] *= weights
    return make_cp_tensor(None, joined)


def find_tolerance(
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
