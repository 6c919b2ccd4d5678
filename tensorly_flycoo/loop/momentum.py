"""Nesterov's momentum: its steps, how far each goes, and where rounding forbids them.

`acceleration` has the iterations that take these steps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array
from ..tensor.tensor import FlycooTensor
from .cp_model import multiply_grams

#: The value of `linesearch=` for momentum.
NESTEROV = "nesterov"

#: The most rounding of an error's square, relative to the tensor's, with which steps are taken.
#: With 5e-4 errors rose by up to .009 (kinships, rank 25, float32); with 1e-4 they fell slower.
_MAX_ROUNDING = 2e-4

#: Below this rounding of the dtype, components would have to be a million times as large as the
#: tensor for `_MAX_ROUNDING`.
_EXACT = 1e-12


class Pace:
    """Nesterov's sequence of steps: t' = (1 + sqrt(1 + 4 t^2)) / 2, and a step of (t - 1) / t'.

    A step that is taken back halves t (at least 1), and the next one is 0.

    >>> pace = Pace()
    >>> for _ in range(3):
    ...     print(round(pace.step, 3))
    ...     pace.advance()
    0.0
    0.282
    0.434
    """

    def __init__(self, t: float = 1.0) -> None:
        self.t = t
        self._was_taken_back = False

    @property
    def _next(self) -> float:
        return (1 + (1 + 4 * self.t**2) ** 0.5) / 2

    @property
    def step(self) -> float:
        """By how much of the last change to extrapolate."""
        if self._was_taken_back:
            return 0.0
        return (self.t - 1) / self._next

    def advance(self) -> None:
        self.t = self._next
        self._was_taken_back = False

    def take_back(self) -> None:
        self.t = max(1.0, self.t / 2)
        self._was_taken_back = True


def extrapolate(after: Array, before: Array, step: Any) -> Array:
    """Return ``after + step * (after - before)``, in the memory of one result.

    >>> extrapolate(np.array([3.0]), np.array([1.0]), 0.5)
    array([4.])
    """
    further = after - before
    further *= step
    further += after
    return further


def can_compare_errors(x: FlycooTensor, weights: Array | None, factors: Sequence[Array]) -> bool:
    """Return whether errors of CP models with components as large as these can be compared.

    Where large components cancel, the square of the error is a difference of such numbers.
    """
    eps = float(np.finfo(factors[0].dtype).eps)
    if eps < _EXACT:
        return True
    size = float(np.sqrt(multiply_grams(weights, factors).diagonal()).sum())
    return eps * size**2 <= _MAX_ROUNDING * float(x.norm()) ** 2
