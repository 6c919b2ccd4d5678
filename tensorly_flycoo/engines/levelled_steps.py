"""Non-negative steps of ADMM by array functions, for a kernel that does not know their levels."""

import math

import numpy as np

from ..base.array_modules import Array, array_module
from .row_rules import RowRule


def step_by_arrays(
    rule: RowRule,
    targets: Array,
    rows: Array,
    dual: Array,
    num_steps: int,
    penalty: Array,
    matrix: Array,
) -> tuple[Array, Array, Array, Array]:
    """Take non-negative steps of ADMM, some to a level, as `Engine.update_rows` does.

    Return the rows, the dual variable, and of each step what it measured and its peaks: see
    `Engine.find_peaks`.
    """
    xp = array_module(rows)
    dtype = rows.dtype
    matrix = matrix.astype(dtype)
    measures = xp.zeros((num_steps, 4))
    peaks = xp.full((num_steps, rows.shape[1]), -np.inf)
    for step in range(num_steps):
        before = rows
        split = (targets + penalty.astype(dtype) * (rows + dual)) @ matrix
        wanted = split - dual
        if len(rows) > 0:
            peaks[step] = wanted.max(axis=0)
        if np.isnan(peaks[step]).any():
            peaks[step] = np.nan
        level = math.nan
        if rule.levels:
            level = rule.levels[step]
        rows = wanted.clip(0) if math.isnan(level) else xp.full_like(wanted, level)
        dual = dual + rows - split
        for n, array in enumerate((rows - split, rows, rows - before, dual)):
            measures[step, n] = np.square(array.astype(np.float64)).sum()
    return rows, dual, measures, peaks
