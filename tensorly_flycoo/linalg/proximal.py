"""Proximal operators for tall factors, in time and memory proportional to their rows.

They run on the host, since both are sequences of dependent steps; columns on a GPU are copied there
and back.
"""

import numpy as np

from ..array_modules import Array, array_module, move
from ..engines import select_engine


def fit_monotone(columns: Array, decreasing: bool = False) -> Array:
    """Find a monotone sequence near each column, as TensorLy's `monotonicity_prox` does.

    That is the nearest sequence in the sense of least squares, in which then all elements but the
    one at the largest end are cut off: below at zero, above at that end.

    Parameters
    ----------
    columns : array (I, R)
    decreasing : bool
        Whether sequences descend instead of ascend.

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
    engine, direction = select_engine("cpu"), -1 if decreasing else 1
    on_host = np.ascontiguousarray(move(columns, np)[::direction])
    # For each l TensorLy takes the largest mean of elements i to l, with zeros for i > l: only the
    # last l has no such zeros.
    ends = engine.fit_ascending(on_host)[-1:]
    starts = np.minimum(np.maximum(engine.fit_ascending(on_host[:-1]), 0), ends)
    fitted = np.concatenate([starts, ends])[::direction]
    return move(np.ascontiguousarray(fitted), array_module(columns))


def smooth(columns: Array, strength: float) -> Array:
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
