r"""Models that are smooth along ordered modes: neighbouring slices differ little.

The penalty is s times the sum of the squared differences of the model's neighbouring slices. So it
is as if, along the mode, the tensor had a further slice of zeros for each pair of neighbours, and
the model their difference times :math:`\sqrt s`: a factor A gets the rows :math:`\sqrt s\, D A`.
Other modes see the Gram matrix :math:`A^T K A` of the longer factor, :math:`K = I + s D^T D`. The
factor itself solves :math:`K A \Gamma = M`, where :math:`K^{-1} M` is the smoothed MTTKRP. K is
tridiagonal. With several smooth modes differences of differences are penalised too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_modes, check_real
from ..spread.row_shards import RowShards, gather

#: The option: one strength for all modes, one per mode, or a dict for some modes.
Smoothness: TypeAlias = float | Sequence[float | None] | Mapping[int, float] | None


def read_smoothness(given: Any, ndim: int, linesearch: bool | str = False) -> list[float]:
    """Return the strength s of each mode, 0 for those that need not be smooth."""
    if isinstance(given, Mapping):
        check_modes(given, ndim, "smoothness")
        given = [given.get(mode) for mode in range(ndim)]
    strengths = list(given) if isinstance(given, list | tuple) else [given] * ndim
    if len(strengths) != ndim:
        raise ValueError(f"smoothness has {len(strengths)} numbers, expected {ndim}")
    for strength in strengths:
        if isinstance(strength, bool):
            raise TypeError(f"smoothness is {strength}, expected a number")
        check_real(0 if strength is None else strength, "a number of smoothness", 0)
    if any(strengths) and linesearch:
        instead = "expected False with smoothness=: it compares errors without the penalty"
        raise ValueError(f"linesearch is {linesearch!r}, {instead}")
    return [float(strength or 0) for strength in strengths]


def add_differences(factors: Sequence[Array], strengths: Sequence[float]) -> list[Array]:
    """Return factors with the further rows of smooth modes."""
    longer = list(factors)
    for mode, strength in enumerate(strengths):
        if strength:
            rows = gather(factors[mode])
            differences = math.sqrt(strength) * (rows[1:] - rows[:-1])
            longer[mode] = array_module(rows).concatenate([rows, differences])
    return longer


def smooth(columns: Array, strength: float) -> Array:
    """Return ``K^-1 @ columns``, in O(I) each; the columns themselves for a strength of 0."""
    return call_on_host(lambda own: _solve(own, strength), columns) if strength else columns


def fit_nonnegative(column: np.ndarray, strength: float) -> np.ndarray:
    """Return the ``x >= 0`` of the least ``(x - column) @ K @ (x - column)``.

    Off its diagonal K is not positive, so inverses of its parts are not negative: elements that are
    not held at zero only grow as others are set free. All are free in the end that may be positive.
    """
    target, is_free = weigh(column, strength), column > 0
    while True:
        x = _solve(np.where(is_free, target, 0), strength, is_free)
        gains = ~is_free & (weigh(x, strength) < target)
        if not gains.any():
            return np.maximum(x, 0)
        is_free |= gains


def weigh(columns: np.ndarray, strength: float) -> np.ndarray:
    """Return ``K @ columns``."""
    weighed, differences = columns.copy(), strength * np.diff(columns, axis=0)
    weighed[:-1] -= differences
    weighed[1:] += differences
    return weighed


def _solve(columns: np.ndarray, strength: float, is_free: Any = True) -> np.ndarray:
    """Solve K x = columns, where elements that are not free must be zero, in x too."""
    num_neighbours = np.full(len(columns), 2)
    num_neighbours[0] -= 1
    num_neighbours[-1] -= 1
    is_own = np.broadcast_to(is_free, len(columns))
    beside = -strength * (is_own[1:] & is_own[:-1])
    return solve_bands(columns.astype(np.float64), 1 + strength * num_neighbours, beside)


def solve_bands(columns: np.ndarray, diagonal: Any, beside: Any) -> np.ndarray:
    """Solve a symmetric tridiagonal system, in the dtype of the columns and O(I) each."""
    from scipy.linalg import solve_banded

    bands = np.zeros((3, len(columns)), columns.dtype)
    bands[0, 1:] = bands[2, :-1] = beside
    bands[1] = diagonal
    return solve_banded((1, 1), bands, columns)


def call_on_host(function: Callable[..., np.ndarray], first: Array, *others: Array) -> Array:
    """Call a function of whole matrices (I, R) on the host; return its result where `first` is."""
    found = function(*[move(gather(matrix), np) for matrix in (first, *others)])
    result = move(np.ascontiguousarray(found, first.dtype), array_module(first))
    return RowShards.scatter(result, first.sharding) if isinstance(first, RowShards) else result
