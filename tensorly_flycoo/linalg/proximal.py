"""Proximal operators for tall factors, in time and memory that grow with their rows, not squared.

They run on the host, where both are sequences of steps that depend on each other; columns on a GPU
are copied there and back.
"""

import numpy as np

from ..array_modules import array_module, move


def fit_monotone(columns, decreasing=False):
    """Do what TensorLy's monotonicity_prox does: find a monotone sequence near each column.

    That is the sequence nearest in the sense of least squares; but all of its elements except the
    largest end are cut off at zero, where they are negative, and then at that end.

    Parameters
    ----------
    columns : array (I, R)
    decreasing : bool
        Whether sequences are to fall instead of to rise.

    Returns
    -------
    array (I, R)

    Notes
    -----
    Pool adjacent violators, O(I * R).

    Examples
    --------
    >>> fit_monotone(np.array([[-1.0, 3.0], [3.0, 1.0], [2.0, 5.0]]))
    array([[0. , 2. ],
           [2.5, 2. ],
           [2.5, 5. ]])
    """
    direction = -1 if decreasing else 1
    on_host = np.ascontiguousarray(move(columns, np)[::direction])
    # TensorLy takes the largest mean over elements i to l for each l, and sets to zero those with
    # i beyond l, of which only the last l has none.
    ends = _fit_rising(on_host)[-1:]
    starts = np.minimum(np.maximum(_fit_rising(on_host[:-1]), 0), ends)
    fitted = np.concatenate([starts, ends])[::direction]
    return move(np.ascontiguousarray(fitted), array_module(columns))


def _fit_rising(columns):
    from ..engines.cpu.engine import launch
    from ..engines.cpu.solvers import fit_rising

    fitted = np.empty_like(columns)
    launch(fit_rising, columns.shape[1], columns, fitted)
    return fitted


def smooth(columns, strength):
    """Solve ``(I + strength * L) x = columns``, where L is the second difference along columns.

    L has 2 on its diagonal and -1 beside it.

    Parameters
    ----------
    columns : array (I, ...)
    strength : float

    Returns
    -------
    array (I, ...)

    Notes
    -----
    A banded solver, O(I) a column.

    Examples
    --------
    >>> smooth(np.array([[0.0], [8.0], [0.0]]), 1.0).round(3).tolist()
    [[1.143], [3.429], [1.143]]
    """
    from scipy.linalg import solve_banded

    bands = np.empty((3, columns.shape[0]), columns.dtype)
    bands[0] = bands[2] = -strength
    bands[1] = 1 + 2 * strength
    return move(solve_banded((1, 1), bands, move(columns, np)), array_module(columns))
