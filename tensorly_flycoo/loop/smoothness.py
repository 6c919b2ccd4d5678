r"""Models that are smooth along ordered modes: neighbouring slices differ little.

The penalty is s times the sum of the squared differences of the model's neighbouring slices. So it
is as if, along the mode, the tensor had a further slice of zeros for each pair of neighbours, and
the model their difference times :math:`\sqrt s`: a factor A gets the rows :math:`\sqrt s\, D A`.
Other modes see the longer factor's Gram matrix :math:`A^T K A`, where :math:`K = I + s D^T D` is
tridiagonal. The factor itself solves :math:`K A \Gamma = M`: as usual, but with the smoothed MTTKRP
:math:`K^{-1} M`. With several smooth modes differences of differences are penalised too.

The option `smoothness=` is read by `read_smoothness`, and acts in `OwnSolver` (`least_squares.py`),
`hals.py` and `decomposition/parafac2.py`. That of `constrained_parafac` is TensorLy's own penalty.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import read_strengths
from ..spread.row_shards import RowShards, gather

#: The option: one strength for all modes, one per mode, or a dict for some modes.
Smoothness: TypeAlias = (
    float | Sequence[float | None] | Mapping[int, float] | Mapping[str, float] | None
)

#: Beyond about 4e15 a slice would vanish beside its differences: K would be singular.
_MOST = 1e12


def read_smoothness(option: Any, ndim: int, linesearch: bool | str = False) -> list[float]:
    """Return the strength s of each mode, 0 for those that need not be smooth.

    >>> read_smoothness({2: 10}, 3)
    [0.0, 0.0, 10.0]
    """
    strengths = read_strengths(option, ndim, "smoothness")
    largest = max(strengths)
    if largest > _MOST:
        raise ValueError(f"smoothness is {largest:g}, expected at most {_MOST:g}")
    if any(strengths) and linesearch:
        raise ValueError(f"linesearch is {linesearch!r}, expected False with smoothness=")
    return strengths


def add_differences(
    factors: Sequence[Array], strengths: Sequence[float], skip: int | None = None
) -> list[Array]:
    """Return the factors, with further rows in smooth modes other than `skip`.

    >>> add_differences([np.array([[1.0], [3.0]])], [4.0])[0].ravel()
    array([1., 3., 4.])
    """
    longer = list(factors)
    for mode, strength in enumerate(strengths):
        if strength and mode != skip:
            rows = gather(factors[mode])
            differences = math.sqrt(strength) * np.diff(rows, axis=0)
            longer[mode] = np.concatenate([rows, differences])
    return longer


def smooth(columns: Array, strength: float, free_ends: bool = True) -> Array:
    """Return ``K^-1 @ columns``; ends that are not free are drawn to zero, as in TensorLy."""
    if not strength:
        return columns
    solve = partial(_solve, strength=strength, free_ends=free_ends)
    return call_on_host(solve, columns)


def fit_nonnegative(column: Array, strength: float) -> Array:
    """Minimise ``(x - column) @ K @ (x - column)`` over ``x >= 0``, by an active-set method.

    Unlike a general active set, the free elements only grow in number. K has no positive element
    off its diagonal, so inverses of its principal submatrices have no negative one: to free an
    element that gains by it raises all other free ones.
    """
    target = weigh(column, strength)
    is_free = column > 0
    while True:
        x = _solve(np.where(is_free, target, 0), strength, is_free)
        # The gradient of an element at zero is negative: a larger one is better.
        gains = ~is_free & (weigh(x, strength) < target)
        if not gains.any():
            return np.maximum(x, 0)
        is_free |= gains


def weigh(column: Array, strength: float) -> Array:
    """Return ``K @ column``, without forming K."""
    # Ends that are repeated differ by zero from their neighbours: they are free.
    second_differences = np.diff(column, 2, prepend=column[:1], append=column[-1:])
    return column - strength * second_differences


def _solve(columns: Array, strength: float, is_free: Any = True, free_ends: bool = True) -> Array:
    """Solve K x = columns, where elements that are not free must be zero, in x too."""
    from scipy.linalg import solve_banded

    size = len(columns)
    is_free_row = np.broadcast_to(is_free, size)
    couplings = -strength * (is_free_row[1:] & is_free_row[:-1])
    bands = np.zeros((3, size))  # above the diagonal, on it and below
    bands[0, 1:] = couplings
    bands[2, :-1] = couplings
    bands[1] = 1 + 2 * strength
    if free_ends:  # they have one neighbour
        bands[1, 0] -= strength
        bands[1, -1] -= strength
    return solve_banded((1, 1), bands, columns)


def call_on_host(function: Callable[..., Array], first: Array, *rest: Array) -> Array:
    """Call a function of float64 copies on the host; return its result as the first matrix is."""
    copies = [move(gather(array), np).astype(np.float64) for array in (first, *rest)]
    host_result = np.ascontiguousarray(function(*copies), first.dtype)
    result = move(host_result, array_module(first))
    if isinstance(first, RowShards):
        return RowShards.scatter(result, first.sharding)
    return result
