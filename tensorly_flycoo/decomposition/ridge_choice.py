"""How `observed_parafac` chooses its ridge: the one that predicts held-out entries best."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..base.array_modules import Array
from ..base.reporting import report
from ..loop import observed_rows
from ..ops.cp_entries import evaluate_model
from .observed_entries import ObservedEntries
from .observed_problem import Problem, RowSolver, fit_all

#: The ridges that "validation" tries; 1 where all cells count and no part can be held out.
RIDGES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 1e-2, 1e-4, 1e-6)

#: Of a run that tries a ridge: the most iterations, and how many end it by which changes of two
#: errors, relative to these. That of held-out entries stands still on a plateau, which a run may
#: leave fifty iterations later; that of the entries which it fits then still falls.
_NUM_TRIED = 100
_NUM_STILL = 3
_TRIED_TOL = 3e-3
_FIT_TOL = 3e-5

#: The part by which an error is clearly less than another; by which two may differ by chance; and
#: by which one is larger only if its run ended in a poor local minimum.
_CLARITY = 5e-3
_CHANCE = 1.5e-2
_STUCK = 5e-2

#: The ridges without a clearly better prediction that end the search: after a model that has
#: components, and after one that has none, or less than a part of the values' scale of them.
_NUM_WORSE = 1
_NUM_WORSE_WITHOUT = 3
_TRACE = 1e-2

#: The ridges, the largest ones that leave components, to try from another start if none helps.
_NUM_RETRIED = 2


class Trial(NamedTuple):
    """The result of a run with one ridge."""

    error: float  # of held-out entries
    is_unfinished: bool  # whether it still fell when the run was cut off
    has_components: bool  # whether the ridge left some
    seed: int  # of its guess
    factors: list[Array]  # of the model, empty if another ridge is clearly better


#: Entries to fit, and others to hold out.
Split = tuple[ObservedEntries, ObservedEntries]


def choose_ridge(problem: Problem, splits: Iterator[Split]) -> tuple[float, Trial, float]:
    """Return the ridge that predicts best, its trial, and the error of the mean where it judges.

    The first split finds the ridge, and others that are as good but for chance; the next ones
    decide between these. A smaller ridge has to be clearly better, unless its run still improves
    when it is cut off, as it does without noise.
    """
    rows, held_out = _hold_out(problem, next(splits))
    error_of_mean = held_out.compare(problem.mean)
    chosen, trials = _search(problem, rows, held_out, error_of_mean)
    best = trials[chosen]
    most = best.error * (1 + _CHANCE)
    close = {l2_reg: trial for l2_reg, trial in trials.items() if trial.error <= most}
    if len(close) > 1 and not best.is_unfinished:
        errors = [[trial.error for trial in close.values()]]  # (split, ridge)
        for split in splits:
            rows, held_out = _hold_out(problem, split)
            errors_here = []
            for l2_reg, trial in close.items():
                repeated = try_ridge(problem, rows, l2_reg, held_out, trial.seed)
                errors_here.append(repeated.error)
            errors.append(errors_here)
        chosen = _decide(list(close), np.array(errors), best.error, chosen)
    return chosen, trials[chosen], error_of_mean


def _hold_out(problem: Problem, split: Split) -> tuple[RowSolver, ObservedEntries]:
    """Return the solver of rows for the fitted part of a split, and the entries that judge it."""
    fitted, rest = split
    held_out = fitted.find_fair(rest)
    return problem.make_rows(fitted, RIDGES[0]), held_out


def _decide(close: list[float], errors: np.ndarray, least: float, default: float) -> float:
    """Return the largest ridge that is as good as any, by errors of some splits (split, ridge).

    Each split counts by how much it is worse than the best one there.
    """
    excess = errors - np.min(errors, axis=1, keepdims=True)
    excess[excess > _STUCK * least] = np.nan
    means = np.nanmean(excess, axis=0)
    most = means.min() + _CLARITY * least
    good = [l2_reg for l2_reg, mean in zip(close, means, strict=True) if mean <= most]
    return max(good, default=default)  # none if a number is nan


def _search(
    problem: Problem, rows: RowSolver, held_out: ObservedEntries, error_of_mean: float
) -> tuple[float, dict[float, Trial]]:
    """Try ridges on one split, from the largest; return the best, and the trial of each.

    The search ends when smaller ridges have been worse in a row. A large ridge removes all
    components and leaves only biases, and the next ones can be worse than it before one finds
    components. So while the best has none, more are tried; if all stay worse, ridges that found
    components are tried from another start, as they may have ended in poor local minima.
    """
    chosen = RIDGES[0]
    num_worse = 0
    trials: dict[float, Trial] = {}
    best = Trial(math.inf, is_unfinished=False, has_components=False, seed=0, factors=[])
    for l2_reg in RIDGES:
        trial = try_ridge(problem, rows, l2_reg, held_out)
        trials[l2_reg] = trial
        # A smaller ridge has to be clearly better, unless its run still improved when it was cut
        # off: without noise every smaller ridge is a little better, if given the iterations.
        clarity = 0 if trial.is_unfinished else _CLARITY
        if trial.error < best.error * (1 - clarity):
            chosen = l2_reg
            best = trial
            num_worse = 0
        else:
            num_worse += 1
        for tried in trials.values():
            if tried.error > best.error * (1 + _CHANCE):
                tried.factors.clear()  # their memory is not needed
        most_worse = _NUM_WORSE
        if not best.has_components:
            most_worse = _NUM_WORSE_WITHOUT
        # Clearly better than to predict the mean, or zeros.
        is_useful = best.error < min(error_of_mean, 1.0) * (1 - _CLARITY)
        if num_worse >= most_worse and is_useful:
            break
    if not best.has_components:
        with_components = [l2_reg for l2_reg, trial in trials.items() if trial.has_components]
        for l2_reg in with_components[:_NUM_RETRIED]:
            trial = try_ridge(problem, rows, l2_reg, held_out, seed=1)
            if trial.error < best.error * (1 - _CLARITY):
                chosen = l2_reg
                best = trial
                trials[l2_reg] = trial
    return chosen, trials


def try_ridge(
    problem: Problem, rows: RowSolver, l2_reg: float, held_out: ObservedEntries, seed: int = 0
) -> Trial:
    """Run with a ridge until the errors of held-out entries and of the others stand still."""
    report(f"trying l2_reg {l2_reg:g}")
    rows.set_ridge(l2_reg)
    factors = problem.start(seed)
    error = math.inf
    fit = math.inf
    num_still = 0
    for _ in range(_NUM_TRIED):
        fit_all(rows, factors)
        last_error = error
        error = held_out.measure(factors)
        last_fit = fit
        fit = rows.measure(factors)
        is_still = abs(last_error - error) < _TRIED_TOL * error
        is_still &= abs(last_fit - fit) < _FIT_TOL * fit
        if is_still:
            num_still += 1
        else:
            num_still = 0
        if num_still == _NUM_STILL:
            break
    components = [factor[:, : problem.rank] for factor in factors]
    size = observed_rows.measure_scale(evaluate_model(held_out.coords, None, components))
    return Trial(
        error=error,
        is_unfinished=last_error - error >= _TRIED_TOL * error,
        has_components=size > _TRACE * problem.scale,
        seed=seed,
        factors=factors,
    )


def is_better_start(
    problem: Problem,
    entries: ObservedEntries,
    ridge: float,
    model: list[Array],
    guess: list[Array],
) -> bool:
    """Return whether a run from a trial's model ends clearly lower than one from a guess.

    A guess may end in a poor local minimum with one ridge and not with another, or with all entries
    and not with nine tenths of them.
    """
    rows = problem.make_rows(entries, ridge)
    of_model = _find_minimum(rows, list(model))
    of_guess = _find_minimum(rows, list(guess))
    return of_model < of_guess * (1 - _CLARITY)


def _find_minimum(rows: RowSolver, factors: list[Array]) -> float:
    """Iterate until the fit settles; return the objective relative to the sum of squares."""
    fit = math.inf
    for _ in range(_NUM_TRIED):
        fit_all(rows, factors)
        last_fit = fit
        fit = rows.measure(factors)
        if abs(last_fit - fit) < _FIT_TOL * fit:
            break
    squares = [(factor**2).sum(axis=0, dtype=np.float64) for factor in factors]
    penalty = float((sum(squares) * rows.ridges).sum())
    return fit**2 + penalty / rows.square
