"""Steps of an update, until a rule stops them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..base.array_modules import Array, move

#: Takes steps from rows (I, R) and ADMM's dual variable (I, R) or None; returns both, and what each
#: step measured, (num_steps, K).
TakeSteps: TypeAlias = Callable[[Any, Any, int], tuple[Any, Any, Array]]

#: Whether the last step was enough; called with the measures of all steps so far.
IsEnough: TypeAlias = Callable[[Sequence[np.ndarray]], bool]

#: Steps of a pass over the rows.
BATCH_SIZE = 10


class UpdatedRows(NamedTuple):
    """A factor after some steps."""

    rows: Any  # (I, R)
    dual: Any  # (I, R) of ADMM, else None
    measures: list[np.ndarray]  # of each step


def run_steps(
    take_steps: TakeSteps,
    rows: Any,
    num_steps: int,
    is_enough: IsEnough,
    dual: Any = None,
    batch_size: int = BATCH_SIZE,
) -> UpdatedRows:
    """Take up to `num_steps` steps; stop after the first one that was enough.

    A pass over the rows takes a batch of steps, and measures each. If one before the last was
    enough, the pass is done again, with fewer steps: so the result is that of single steps, to the
    bit. The host waits for a GPU once for each pass.
    """

    def take_batch(before: UpdatedRows, count: int) -> UpdatedRows:
        rows, dual, measures = take_steps(before.rows, before.dual, count)
        return UpdatedRows(rows, dual, [*before.measures, *move(measures, np)])

    result = UpdatedRows(rows, dual, [])
    while len(result.measures) < num_steps:
        before = result
        num_before = len(before.measures)
        count = min(batch_size, num_steps - num_before)
        result = take_batch(before, count)
        num_needed = _count_needed(result.measures, num_before, is_enough)
        if num_needed is None:
            continue
        if num_needed < len(result.measures):
            result = take_batch(before, num_needed - num_before)
        break
    return result


def _count_needed(
    measures: Sequence[np.ndarray], num_before: int, is_enough: IsEnough
) -> int | None:
    """Return how many steps are enough, if any; the first `num_before` are not.

    >>> _count_needed([4, 2, 1], 1, lambda measures: measures[-1] < 3)
    2
    """
    for count in range(num_before + 1, len(measures) + 1):
        if is_enough(measures[:count]):
            return count
    return None
