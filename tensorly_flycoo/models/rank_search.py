"""The fits of `select_rank`: few short runs of each rank, and all runs where the choice is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.reporting import report
from ..decomposition.methods import Method
from ..loop.model_uses import suits
from .best_of import best_of, go_on
from .core_consistency import core_consistency
from .heldout_loss import HeldOutLoss
from .rank_selection import RankScore
from .suggest_rank import suggest

#: Core consistency is left out if it would take more operations than this.
_MAX_CORE_OPERATIONS = 10**10

#: The runs that each rank gets at first, and their iterations; the best of them then goes on.
import os
_FIRST_RUNS = int(os.environ.get('FR', 5))
_FIRST_ITERATIONS = int(os.environ.get('FI', 20))


class RankFit(NamedTuple):
    """The fits with one rank."""

    score: RankScore  # its held-out loss is nan until all ranks are compared
    model: Any  # of all entries
    errors: np.ndarray  # of the runs
    terms: Any  # of the held-out loss, for each entry; None if nothing is held out
    tolerance: float  # see `find_tolerance`
    is_complete: bool  # whether all runs were made


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
    keep_all: bool
    quiet: bool

    def fit_all(self) -> tuple[list[RankFit], str]:
        """Fit the models rank by rank; then all runs of ranks that are suggested for want of them.

        Return the fits, and what Ctrl-C kept from being done. After it these are the fits so far.
        """
        fits: list[RankFit] = []
        stopped_before = ""
        try:
            for rank in self.ranks:
                stopped_before = f"rank {rank}"
                fits.append(self._fit_first(rank))
            if self.heldout is None:
                return fits, ""
            while True:
                place = self._find_suggested(fits)
                if fits[place].is_complete:
                    return fits, ""
                rank = self.ranks[place]
                stopped_before = f"all runs of rank {rank}"
                fits[place] = self._fit_completely(rank)
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

        A rank that has had few runs counts as one whose runs agree.
        """
        scores = self.judge(fits)
        assumed = []
        for score, fit in zip(scores, fits, strict=True):
            match = score.match if fit.is_complete else 1.0
            assumed.append(score._replace(match=match))
        chosen, rule = suggest(assumed, [fit.tolerance for fit in fits])
        if chosen is None:
            return None, rule
        return scores[assumed.index(chosen)], rule

    def _find_suggested(self, fits: Sequence[RankFit]) -> int:
        """Return the place of the rank that the fits so far suggest."""
        chosen, _ = self.suggest(fits)
        assert chosen is not None  # entries are held out
        return self.ranks.index(chosen.rank)

    def _fit_first(self, rank: Any) -> RankFit:
        """Fit a rank by few runs, or by all of them where few are not enough to begin with."""
        if self.keep_all or self.heldout is None or self.num_runs <= _FIRST_RUNS:
            return self._fit_completely(rank)
        report(self._head(rank, _FIRST_RUNS))
        return self._judge_runs(rank, self._run_briefly(rank), is_complete=False)

    def _fit_completely(self, rank: Any) -> RankFit:
        """Fit a rank by all of its runs."""
        report(self._head(rank, self.num_runs))
        return self._judge_runs(rank, self._run_all(rank), is_complete=True)

    def _head(self, rank: Any, num_runs: int) -> str:
        number = self.ranks.index(rank) + 1
        noun = "run" if num_runs == 1 else "runs"
        return f"rank {rank} ({number} of {len(self.ranks)}): {num_runs} {noun}"

    def _run_all(self, rank: Any) -> _Runs:
        """Make all runs of a rank, each to its end unless `best_of` drops it."""
        data, options = self._take_fitted()
        starts = best_of(
            self.method.function, data, rank, self.num_runs, self.seed, self.keep_all, **options
        )
        number = starts.best_number
        return _Runs(
            best=starts.best,
            best_errors=starts.errors[number],
            best_seed=starts.seeds[number],
            errors=starts.final_errors,
            match=starts.match,
        )

    def _run_briefly(self, rank: Any) -> _Runs:
        """Begin a few runs of a rank, and let the best one go on to its end."""
        data, options = self._take_fitted()
        method = self.method
        num_iterations = options.get("n_iter_max", method.defaults.get("n_iter_max"))
        is_short = num_iterations is not None and num_iterations > _FIRST_ITERATIONS
        if is_short:
            options["n_iter_max"] = _FIRST_ITERATIONS
        starts = best_of(
            method.function, data, rank, _FIRST_RUNS, self.seed, self.keep_all, **options
        )
        number = starts.best_number
        best = starts.best
        best_errors = list(starts.errors[number])
        errors = starts.final_errors
        if is_short:
            options["n_iter_max"] = num_iterations - _FIRST_ITERATIONS
            best, later_errors = go_on(method, data, rank, starts.seeds[number], best, options)
            best_errors += later_errors
            errors[number] = best_errors[-1]
        return _Runs(best, best_errors, starts.seeds[number], errors, starts.match)

    def _take_fitted(self) -> tuple[Any, dict[str, Any]]:
        """Return the data without held-out entries, and the options to fit them."""
        if self.heldout is None:
            return self.x, dict(self.options)
        return self.heldout.data, {**self.options, **self.heldout.options}

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
            options = method.prefer_momentum(self.x, self.options)
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
        return RankFit(score, model, runs.errors, terms, tolerance, is_complete)

    def _find_core_consistency(self, rank: Any, model: Any) -> float:
        """Return the core consistency; nan for other models than CP, or if it takes too long."""
        x = self.x
        if self.method.model != "CP" or x.ndim < 2 or not suits("core_consistency", model):
            return np.nan
        if x.nnz * rank ** (x.ndim - 1) > _MAX_CORE_OPERATIONS:
            return np.nan
        return core_consistency(x, model, self.options.get("mask"))


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
