"""Steps of an update, until a rule stops them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..base.array_modules import Array, move

#: Takes steps from rows (I, R) and ADMM's dual variable (I, R) or None; returns both, and what each
#: step measured, (num_steps, K).
TakeSteps: TypeAlias = Callable[[Any, Any, int], tuple[Any, Any, Array]]

#: Whether a step was enough; called with the measures of the first step and of this one.
IsEnough: TypeAlias = Callable[[Sequence[float], Sequence[float]], bool]

#: Whether no later step would change anything; called with the measures of a step.
IsFinal: TypeAlias = Callable[[Sequence[float]], bool]

#: Steps of the first pass over the rows. A later one takes twice as many as the one before, so that
#: those taken in vain are never more than the others; up to a limit, for each is measured.
BATCH_SIZE = 10
_LARGEST_BATCH = 100


class UpdatedRows(NamedTuple):
    """A factor after some steps."""

    rows: Any  # (I, R)
    dual: Any  # (I, R) of ADMM, else None
    measures: list[list[float]]  # of each step


def run_steps(
    take_steps: TakeSteps,
    rows: Any,
    num_steps: int,
    is_enough: IsEnough,
    dual: Any = None,
    batch_size: int = BATCH_SIZE,
    is_final: IsFinal = lambda measures: False,
) -> UpdatedRows:
    """Take up to `num_steps` steps; stop after the first one that was enough, or is final.

    A pass over the rows takes a batch of steps, and measures each. If one before the last was
    enough, the pass is done again, with fewer steps: so the result is that of single steps, to the
    bit. Steps after a final one have changed nothing. The host waits for a GPU once for each pass.
    With a `batch_size` of 1 no step is in vain.
    """
    measures: list[list[float]] = []
    while len(measures) < num_steps:
        num_before = len(measures)
        count = min(batch_size, num_steps - num_before)
        updated, updated_dual, measured = take_steps(rows, dual, count)
        measures += move(measured, np).tolist()
        num_needed = _count_needed(measures, num_before, is_enough, is_final)
        if num_needed is not None:
            is_cut = num_needed < len(measures) and not is_final(measures[num_needed - 1])
            if is_cut:
                updated, updated_dual, _ = take_steps(rows, dual, num_needed - num_before)
            return UpdatedRows(updated, updated_dual, measures[:num_needed])
        rows = updated
        dual = updated_dual
        if batch_size > 1:
            batch_size = min(2 * batch_size, _LARGEST_BATCH)
    return UpdatedRows(rows, dual, measures)


def _count_needed(
    measures: list[list[float]], num_before: int, is_enough: IsEnough, is_final: IsFinal
) -> int | None:
    """Return how many steps are needed, if that is known; the first `num_before` are not enough.

    >>> _count_needed([[4.0], [2.0], [1.0]], 1, lambda first, last: last[0] < 3, lambda last: False)
    2
    """
    for step in range(num_before, len(measures)):
        if is_enough(measures[0], measures[step]) or is_final(measures[step]):
            return step + 1
    return None
