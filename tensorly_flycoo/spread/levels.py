"""Steps of non-negative ADMM that leave no element above zero, of which all rows must know.

TensorLy's operator sets all elements of such a step to the largest, a level c < 0. In the notation
of `RowRule`, let v be what is projected, ``y - d``. After a step to the level c

    x = c,  d = c - v,  and the next v is  m P + v (I - p P) + c w,  where w = 2 p (1 P) - 1

is the same vector for each row. So if the kernel takes 0 for c, as it does where it clips negative
elements, each v of the steps that follow is off by one vector for all rows, as long as these steps
leave nothing above zero, too. From the largest element of each column follow all their levels, and
one pass over the rows finds those of many steps.
"""

import math
from typing import Any

import numpy as np

from ..base.array_modules import Array, move
from ..engines.row_rules import Method, Operator, RowRule
from .row_shards import find_peaks


def find_levels(
    targets: Any, rows: Any, dual: Any, num_steps: int, penalty: Array, matrix: Array
) -> tuple[float, ...]:
    """Find the steps of non-negative ADMM that leave no element above zero in any row.

    Return the largest element before the projection of each such step, and nan for the others: the
    levels with which `Engine.update_rows` takes TensorLy's steps. The arguments are those of
    `update_rows`, but that factors may be row-sharded.
    """
    levels = np.full(num_steps, math.nan)
    num_known = 0  # steps before the first one whose level may be another
    while num_known < num_steps:
        rule = RowRule(Method.ADMM, Operator.NON_NEGATIVE, levels=tuple(levels.tolist()))
        peaks = find_peaks(rule, targets, matrix, penalty, rows, dual)
        # Read what is small once the pass has begun: the host waits for a GPU only then.
        host_matrix = move(matrix, np).astype(np.float64)
        num_known = _set_levels(levels, num_known, move(peaks, np), float(penalty), host_matrix)
    return tuple(levels.tolist())


def _set_levels(
    levels: np.ndarray, num_known: int, peaks: np.ndarray, penalty: float, matrix: np.ndarray
) -> int:
    """Set levels that follow from the peaks of a pass; return how many steps are known then.

    The pass has had the levels of the first `num_known` steps, and clipped in all others.
    """
    num_steps = len(levels)
    start = num_known
    while start < num_steps and not _is_level(peaks[start].max()):
        start += 1
    shift_of_level = 2 * penalty * matrix.sum(axis=0) - 1
    shift = np.zeros(len(matrix))
    for step in range(start, num_steps):
        level = (peaks[step] + shift).max()
        if not _is_level(level):
            return step
        levels[step] = level
        if peaks[step].max() > 0:  # the pass has left something, and its next steps are others
            return step + 1
        shift = shift - penalty * (shift @ matrix) + level * shift_of_level
    return num_steps


def _is_level(peak: float) -> bool:
    """Return whether the largest element is below zero; nan and that of no rows are not."""
    return -math.inf < peak < 0
