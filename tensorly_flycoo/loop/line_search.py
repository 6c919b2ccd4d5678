"""Bro's line search, which extrapolates the change of an iteration."""

from collections.abc import Callable, Sequence
from typing import Any, final

from ..base.array_modules import Array


@final
class LineSearch:
    """Bro's line search: extrapolates an iteration's change if that lowers the error.

    Iteration t multiplies the change by ``t ** (1 / power)``; repeated failures increase `power`.
    """

    _MAX_FAILURES = 4

    def __init__(self, verbose: int) -> None:
        self._verbose = verbose
        self._power = 2
        self._num_failures = 0

    def is_due(self, iteration: int) -> bool:
        """Return whether an iteration is extrapolated: every other one after the first six."""
        return iteration % 2 == 0 and iteration > 5

    def extrapolate(
        self,
        iteration: int,
        before: Sequence[Array],
        after: list[Array],
        error: Any,
        measure: Callable[[list[Array]], tuple[Any, ...]],
    ) -> tuple[list[Array], tuple[Any, ...] | None]:
        """Return the better factors; if these are new, also what `measure` returned for them.

        `error` is the last one. What `measure` returns for factors begins with their error.
        """
        jump = iteration ** (1 / self._power)
        further = [old + (new - old) * jump for old, new in zip(before, after, strict=True)]
        measured = measure(further)
        is_better = measured[0] < error
        if self._verbose:
            outcome = "accepted" if is_better else "failed"
            print(f"Line search of jump {jump} {outcome}")
        if is_better:
            self._num_failures = 0
            return further, measured
        self._num_failures += 1
        if self._num_failures == self._MAX_FAILURES:
            self._power += 1
            self._num_failures = 0
        return after, None
