"""Non-negative least squares for tall factors by hierarchical ALS, many rows at once."""

from functools import partial
from typing import Any

import numpy as np

from ..base.array_modules import Array
from ..engines.row_rules import Method, RowRule
from .row_updates import run_rule
from .smoothness import call_on_host, fit_nonnegative, smooth

#: Sweeps over the columns of a factor, and the tolerance that ends them: TensorLy's numbers.
_SWEEPS = (5, 1e-8)
_EXACT_SWEEPS = (50_000, 1e-16)


def solve_nonnegative(
    targets: Any,
    gram: Array,
    rows: Any,
    num_sweeps: int,
    tolerance: float,
    sparsity: float | None = None,
) -> Any:
    """Minimise ``|x U.T - m|`` over rows ``x >= 0``; return them.

    `targets` is the MTTKRP ``m U`` (I, R), `gram` is ``U.T U`` (R, R), `rows` (I, R) the initial
    guess; `targets` and `rows` are of one dtype, maybe `RowShards`. `sparsity` penalises the sum of
    the elements.

    Each column in turn is set to its minimiser while the others are held fixed; one with a zero on
    the diagonal of `gram` stays unchanged. The order of the columns and the stopping rule are those
    of TensorLy's `hals_nnls`: stop when the error of a sweep, the sum of the squared distances of
    all columns from each new one, is less than `tolerance` of the first sweep's. A sweep that
    changes nothing is the last.

    ``2 * I * R**2`` operations per sweep, in one pass over the rows for all sweeps. The result does
    not depend on the number of threads. `non_negative_parafac_hals` names the paper.
    """
    rule = RowRule(Method.HALS, strength=sparsity or 0.0)
    updated = run_rule(
        rule, targets, gram, None, rows, None, num_sweeps, tolerance, wants_measures=False
    )
    return updated.rows


def improve(
    targets: Array,
    gram: Array,
    factor: Array,
    sparsity: float | None = None,
    exact: bool = False,
    smoothness: float = 0,
) -> Array:
    """Return the factor after some sweeps of HALS: see `solve_nonnegative`."""
    num_sweeps, tolerance = _EXACT_SWEEPS if exact else _SWEEPS
    if smoothness:
        sweep_smooth = partial(
            _sweep_smooth, strength=smoothness, num_sweeps=num_sweeps, tolerance=tolerance
        )
        return call_on_host(sweep_smooth, targets - (sparsity or 0), factor, gram)
    return solve_nonnegative(targets, gram, factor, num_sweeps, tolerance, sparsity)


def _sweep_smooth(
    targets: Array,
    rows: Array,
    gram: Array,
    *,
    strength: float,
    num_sweeps: int,
    tolerance: float,
) -> Array:
    """Return the rows after sweeps that minimise a column as a whole, since rows are coupled."""
    smoothed = smooth(targets, strength)
    for _ in range(num_sweeps):
        before = rows.copy()
        for k in np.flatnonzero(gram.diagonal()):
            residual = smoothed[:, k] - (rows * gram[k]).sum(axis=1)
            rows[:, k] = fit_nonnegative(rows[:, k] + residual / gram[k, k], strength)
        if ((rows - before) ** 2).sum() <= tolerance * (rows**2).sum():
            break
    return rows
