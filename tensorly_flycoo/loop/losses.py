"""The losses of generalized CP decompositions, by name: functions of a cell and its model value.

All functions are elementwise, of the data x and the model m, NumPy's or CuPy's. Constants that
depend on x alone are left out, as by Hong, Kolda and Duersch (SIAM Review 62, 2020). Counts without
zeros are those of López, Lehoucq and Dunlavy (arXiv 2201.10014).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..base.array_modules import Array
from ..tensor.pieces import find_extreme, map_pieces
from ..tensor.tensor import FlycooTensor, check_has_nonzeros

#: Takes the data and the model, arrays of one shape. They are Any, since mypy would take seconds to
#: try each lambda with every pair of kinds of arrays.
Elementwise: TypeAlias = Callable[[Any, Any], Any]

#: Added to the model where it divides or its logarithm is taken, as in pyttb.
_EPSILON = 1e-10


@dataclass(frozen=True)
class Loss:
    """A loss of a cell, f(x, m)."""

    name: str  # "custom" for a user's own
    value: Elementwise  # f
    slope: Elementwise  # the derivative of f by m
    lower_bound: float = -np.inf  # the least value of the factors' elements
    takes: str = "numbers"  # the values that the data may have
    is_log: bool = False  # whether the model is the logarithm of a mean, or of odds
    is_exact: bool = False  # whether its sum over all cells of any tensor needs no samples
    is_count: bool = False  # whether `poisson` computes that sum, and multiplicative updates
    is_truncated: bool = False  # whether f(0, m) is 0: a zero says nothing about the model


_NONNEGATIVE = "numbers of 0 or more"
_BINARY = "zeros and ones"
_POSITIVE = "numbers of 1 or more"

#: The least and the largest value that data of each kind may have.
_BOUNDS = {_NONNEGATIVE: (0, np.inf), _BINARY: (0, 1), _POSITIVE: (1, np.inf)}


def _truncated_value(x: Array, m: Array) -> Array:
    """Return -log P(x) of a Poisson count that is not 0, less log(x!); 0 where x is 0."""
    m = m.astype(np.float64) + _EPSILON
    return (x > 0) * (m + np.log(-np.expm1(-m)) - x * np.log(m))


def _truncated_slope(x: Array, m: Array) -> Array:
    """Return the derivative of `_truncated_value` by m."""
    m = m.astype(np.float64) + _EPSILON  # near 0, two large terms nearly cancel
    return (x > 0) * (-1 / np.expm1(-m) - x / m)


#: The losses by name: to add one, add it here and to the docstring of `generalized_parafac`.
LOSSES = {
    loss.name: loss
    for loss in (
        Loss(
            "poisson_count",
            lambda x, m: m - x * np.log(m + _EPSILON),
            lambda x, m: 1 - x / (m + _EPSILON),
            lower_bound=0.0,
            takes=_NONNEGATIVE,
            is_exact=True,
            is_count=True,
        ),
        Loss(
            "poisson_log",
            lambda x, m: np.exp(m) - x * m,
            lambda x, m: np.exp(m) - x,
            takes=_NONNEGATIVE,
            is_log=True,
        ),
        Loss(
            "bernoulli_odds",
            lambda x, m: np.log1p(m) - x * np.log(m + _EPSILON),
            lambda x, m: 1 / (m + 1) - x / (m + _EPSILON),
            lower_bound=0.0,
            takes=_BINARY,
        ),
        Loss(
            "bernoulli_logit",
            lambda x, m: np.logaddexp(0, m) - x * m,
            lambda x, m: (1 + np.tanh(m / 2)) / 2 - x,
            takes=_BINARY,
            is_log=True,
        ),
        Loss(
            "zero_truncated_poisson",
            _truncated_value,
            _truncated_slope,
            lower_bound=0.0,
            takes=_POSITIVE,
            is_truncated=True,
        ),
        Loss("gaussian", lambda x, m: (x - m) ** 2, lambda x, m: 2 * (m - x), is_exact=True),
        Loss(
            "gamma",
            lambda x, m: x / (m + _EPSILON) + np.log(m + _EPSILON),
            lambda x, m: 1 / (m + _EPSILON) - x / (m + _EPSILON) ** 2,
            lower_bound=0.0,
            takes=_NONNEGATIVE,
        ),
        Loss(
            "rayleigh",
            lambda x, m: 2 * np.log(m + _EPSILON) + np.pi / 4 * (x / (m + _EPSILON)) ** 2,
            lambda x, m: 2 / (m + _EPSILON) - np.pi / 2 * x**2 / (m + _EPSILON) ** 3,
            lower_bound=0.0,
            takes=_NONNEGATIVE,
        ),
    )
}

#: The losses that `cp_fit`, `fold_in` and `select_rank` take.
EXACT_LOSSES = tuple(sorted(name for name, loss in LOSSES.items() if loss.is_exact))

_EXPECTED = f"expected one of {[*LOSSES]} or a tuple (f, df, lower_bound)"


def find_loss(loss: Any) -> Loss:
    """Return a loss by its name, or a user's tuple ``(f, df, lower_bound)`` as a `Loss`."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise ValueError(f"loss is {loss!r}, {_EXPECTED}")
        return LOSSES[loss]
    if not isinstance(loss, tuple | list):
        raise TypeError(f"loss is a {type(loss).__name__}, {_EXPECTED}")
    if len(loss) != 3:
        raise ValueError(f"loss has {len(loss)} items, {_EXPECTED}")
    value, slope, bound = loss
    if not (callable(value) and callable(slope)):
        raise TypeError(f"f and df of loss are {value!r} and {slope!r}, expected two functions")
    lower_bound = -np.inf if bound is None else float(bound)
    if np.isnan(lower_bound) or lower_bound == np.inf:
        raise ValueError(
            f"the lower_bound of loss is {lower_bound}, expected a number, -inf or None"
        )
    return Loss("custom", value, slope, lower_bound)


def find_exact(loss: Any, purpose: str = "") -> Loss:
    """Return one of `EXACT_LOSSES` by its name; refuse any other."""
    if loss not in EXACT_LOSSES:
        raise ValueError(f"loss is {loss!r}, expected one of {EXACT_LOSSES}{purpose}")
    return LOSSES[loss]


def check_data(loss: Loss, x: FlycooTensor) -> None:
    """Refuse a tensor without nonzeros, or with values that the loss is not defined for."""
    check_has_nonzeros(x)
    if loss.takes == "numbers":
        return
    least, most = _BOUNDS[loss.takes]
    extremes = ["min"]
    if most < np.inf:  # each extreme is a pass over the values
        extremes.append("max")
    for name in extremes:
        for extreme in map_pieces(find_extreme, x._layout, x._engine, name):
            if extreme.size and not least <= float(extreme) <= most:
                raise ValueError(
                    f"tensor holds {float(extreme)}, expected {loss.takes} for loss={loss.name!r}"
                )
