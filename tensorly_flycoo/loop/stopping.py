"""When a run is over: every rule by which a loop of ours ends before its last iteration.

A decomposition chooses its rule where it makes its `Run`. Not here are the rules of TensorLy's own
loops: `parafac` runs that without a mask, checkpoint, smoothness or acceleration, and `tucker`
without a mask, checkpoint or callback. Runs of `parafac` that go together stop as `Converged` does
(`models/many_starts.Stopping`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np


def has_converged(errors: Sequence[float], tol: float, criterion: str) -> bool:
    """Return whether the last error changed by less than `tol`; False if there is only one.

    With "abs_rec_error" the absolute change counts, with "rec_error" the decrease: then an increase
    stops the loop too. A `tol` of 0 never stops.
    """
    if not tol or len(errors) < 2:
        return False
    decrease = float(errors[-2]) - float(errors[-1])
    if criterion == "abs_rec_error":
        return bool(abs(decrease) < tol)
    if criterion == "rec_error":
        return bool(decrease < tol)
    raise TypeError(f"cvg_criterion is {criterion!r}, expected 'abs_rec_error' or 'rec_error'")


def has_settled(losses: Sequence[float], tol: float) -> bool:
    """Return whether the last loss decreased by less than `tol`, relative to itself."""
    if not tol or len(losses) < 2:
        return False
    return bool(losses[-2] - losses[-1] < tol * abs(losses[-1]))


class Stop(ABC):
    """A rule that ends a run."""

    @abstractmethod
    def is_over(self, errors: Sequence[float]) -> bool:
        """Return whether to end after these errors, one for each iteration so far."""


@final
@dataclass(frozen=True)
class Converged(Stop):
    """The error hardly changed: see `has_converged`.

    >>> Converged(tol=0.1).is_over([0.9, 0.5, 0.45])
    True
    """

    tol: float
    criterion: str = "abs_rec_error"
    num_skipped: int = 0  # the first errors, which are not compared with each other

    def is_over(self, errors: Sequence[float]) -> bool:
        is_comparable = len(errors) > 1 + self.num_skipped
        return is_comparable and has_converged(errors, self.tol, self.criterion)


@final
@dataclass(frozen=True)
class Settled(Stop):
    """The loss hardly decreased, relative to itself: see `has_settled`.

    >>> Settled(tol=0.1).is_over([200.0, 101.0, 100.0])
    True
    """

    tol: float
    skips_repeats: bool = False  # whether a loss that repeats is that of an iteration taken back

    def is_over(self, errors: Sequence[float]) -> bool:
        if self.skips_repeats and len(errors) > 1 and errors[-1] == errors[-2]:
            return False
        return has_settled(errors, self.tol)


@final
@dataclass(frozen=True)
class OutOfPatience(Stop):
    """The smallest error is so many iterations ago, or more.

    >>> rule = OutOfPatience(2)
    >>> rule.is_over([0.5, 0.3, 0.4]), rule.is_over([0.5, 0.3, 0.4, 0.4])
    (False, True)
    """

    num_iterations: int

    def is_over(self, errors: Sequence[float]) -> bool:
        num_since = len(errors) - 1 - int(np.argmin(errors))
        return num_since >= self.num_iterations


@final
@dataclass(frozen=True)
class Feasible(Stop):
    """The constraint violations, which a sweep updates, add up to less than `tol`."""

    violations: Mapping[int, Any]  # of each mode
    tol: float

    def is_over(self, errors: Sequence[float]) -> bool:
        return len(errors) > 1 and bool(sum(self.violations.values()) < self.tol)


@final
@dataclass(frozen=True)
class GivesUp(Stop):
    """The sweep itself says that further iterations would be in vain."""

    has_given_up: Callable[[], bool]

    def is_over(self, errors: Sequence[float]) -> bool:
        return self.has_given_up()


@final
class AnyOf(Stop):
    """The first of several rules that says so."""

    def __init__(self, *rules: Stop) -> None:
        self._rules = rules

    def is_over(self, errors: Sequence[float]) -> bool:
        return any(rule.is_over(errors) for rule in self._rules)
