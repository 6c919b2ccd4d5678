"""Steps of an update, until TensorLy would stop.

Steps that the engines have are taken by `run_rule`. A GPU itself finds out how many are enough,
where one launch takes them all: the host, which would wait once for each factor of an iteration, is
told at its end, if at all. Elsewhere, and for steps of other kinds, `run_steps` does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from ..base.array_modules import Array, is_cupy, move
from ..engines import engine_of
from ..engines.row_rules import Method, ReadMeasures, RowRule
from ..spread.row_shards import update_rows

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


@dataclass(frozen=True)
class UpdatedRows:
    """A factor after some steps."""

    rows: Any  # (I, R)
    dual: Any  # (I, R) of ADMM, else None
    read_measures: ReadMeasures | None

    @cached_property
    def measures(self) -> list[list[float]]:
        """What each step measured; the host waits for a GPU that has not got there yet."""
        assert self.read_measures is not None
        return self.read_measures()


def run_rule(
    rule: RowRule,
    targets: Any,
    matrix: Array,
    penalty: Array | None,
    rows: Any,
    dual: Any,
    num_steps: int,
    tolerance: float,
    wants_measures: bool = True,
) -> UpdatedRows:
    """Take up to `num_steps` steps of a rule; stop where TensorLy does: see `stops_after`.

    The arguments are those of `Engine.update_rows`, but that factors may be row-sharded.
    """
    if is_cupy(targets):
        exact_matrix = matrix.astype(np.float64, copy=False)
        updated = engine_of(targets).update_rows_until(
            rule,
            targets,
            rows,
            dual,
            num_steps,
            penalty,
            exact_matrix,
            tolerance,
            wants_measures,
        )
        if updated is not None:
            return UpdatedRows(*updated)
    return run_steps(
        partial(update_rows, rule, targets, matrix, penalty),
        rows,
        num_steps,
        partial(stops_after, rule.method, tolerance),
        dual,
        is_final=partial(changes_nothing, rule.method),
    )


def stops_after(
    method: Method, tolerance: float, first: Sequence[float], last: Sequence[float]
) -> bool:
    """Return whether TensorLy stops after a step, by what that and the first one measured.

    HALS stops where little is left of the first sweep's error; ADMM where the factor and its copy
    agree, and stay. On GPUs `add_measures.cu` says the same.

    >>> stops_after(Method.HALS, 0.1, [4.0, 9.0], [0.3, 2.0])
    True
    """
    if method is Method.HALS:
        return last[0] < tolerance * first[0]
    gap, size, change, dual_size = np.sqrt(last)
    return bool(gap < tolerance * size and change < tolerance * dual_size)


def changes_nothing(method: Method, measures: Sequence[float]) -> bool:
    """Return whether a step is known to have changed nothing, so that no later one would."""
    return method is Method.HALS and measures[1] == 0


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

    def read_measures() -> list[list[float]]:
        return measures

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
            del measures[num_needed:]
            return UpdatedRows(updated, updated_dual, read_measures)
        rows = updated
        dual = updated_dual
        if batch_size > 1:
            batch_size = min(2 * batch_size, _LARGEST_BATCH)
    return UpdatedRows(rows, dual, read_measures)


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
