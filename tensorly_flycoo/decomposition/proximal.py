"""Proximal operators for tall factors, in time and memory proportional to their rows.

The sequential steps run on the host; columns on a GPU are copied there and back.
"""

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..engines.row_rules import Operator


def project_rows(rows: Array, operator: Operator, strength: float) -> Array:
    """Apply one of the kernels' proximal operators, as `RowRule` defines them, to an array.

    >>> project_rows(np.array([[3.0, 4.0], [0.0, 0.5]]), Operator.GROUP_LASSO, 1.0)
    array([[2.4, 3.2],
           [0. , 0. ]])
    """
    if operator is Operator.NON_NEGATIVE:
        return np.maximum(rows, 0)
    if operator is Operator.L1:
        return np.sign(rows) * np.maximum(np.abs(rows) - strength, 0)
    if operator is Operator.L2_SQUARE:
        return rows / (1 + 2 * strength)
    if operator is Operator.GROUP_LASSO:
        norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        safe_norms = array_module(rows).where(norms > 0, norms, 1)
        return rows * np.maximum(1 - strength / safe_norms, 0)
    return rows


def clip_negative(factor: Array) -> Array:
    """Set negative elements to zero; if all are negative, all to the largest, as TensorLy does.

    So ADMM leaves a start that is far too large: after steps to zeros it would stay there.

    >>> clip_negative(np.array([-1.0, 2.0])), clip_negative(np.array([-1.0, -2.0]))
    (array([0., 2.]), array([-1., -1.]))
    """
    return np.clip(factor, 0, np.max(factor))


def fit_monotone(columns: Array, decreasing: bool = False) -> Array:
    """Find a monotone sequence near each column, as TensorLy's `monotonicity_prox` does.

    That is the least-squares fit, clipped below at zero and then above at its largest element, so
    that a fit without positive elements becomes constant. Pool adjacent violators, O(I * R).

    >>> fit_monotone(np.array([[1.0], [3.0], [2.0], [4.0]])).ravel()
    array([1. , 2.5, 2.5, 4. ])
    """
    direction = -1 if decreasing else 1
    on_host = move(columns, np)[::direction]
    # TensorLy takes, for each l, the maximum over i of the mean of elements i to l, which it sets
    # to zero if i > l. No i is greater than the last l, so the last element is not clipped at zero.
    ends = _fit_ascending(on_host)[-1:]
    starts = np.minimum(np.maximum(_fit_ascending(on_host[:-1]), 0), ends)
    fitted = np.concatenate([starts, ends])[::direction]
    return move(np.ascontiguousarray(fitted), array_module(columns))


def _fit_ascending(columns: np.ndarray) -> np.ndarray:
    """Return the ascending sequence nearest to each column, by least squares."""
    from scipy.optimize import isotonic_regression

    fitted = np.empty_like(columns)
    if not columns.size:
        return fitted
    for r in range(columns.shape[1]):
        fitted[:, r] = isotonic_regression(columns[:, r]).x
    return fitted


def fit_unimodal(columns: Array) -> Array:
    """Find a unimodal sequence near each column, as TensorLy's `unimodality_prox` does.

    The sequence ascends to a peak and descends after it. The peak is an element that is not below
    either monotone fit of the column: the one for which the ascending fit before it and the
    descending fit after it are nearest to the column. O(I * R).

    >>> fit_unimodal(np.array([[1.0], [5.0], [4.0], [4.5], [0.0]])).ravel()
    array([1.   , 5.   , 3.625, 3.625, 0.   ])
    """
    xp = array_module(columns)
    ascending = fit_monotone(columns)
    descending = fit_monotone(columns, decreasing=True)
    may_be_peak = (columns >= descending) & (columns >= ascending)
    # For each element as the peak: the distance of the ascending fit before it from the column,
    # plus that of the descending fit after it.
    before = abs(columns - ascending)
    after = abs(columns - descending)
    distances = xp.cumsum(before, axis=0) - before
    distances += xp.cumsum(after[::-1], axis=0)[::-1] - after
    distances = xp.where(may_be_peak, distances, 0)
    peaks = xp.argmin(xp.where(may_be_peak, distances, distances.max()), axis=0)
    places = xp.arange(columns.shape[0])[:, None]
    fitted = xp.where(places < peaks, ascending, columns)
    return xp.where(places > peaks, descending, fitted)
