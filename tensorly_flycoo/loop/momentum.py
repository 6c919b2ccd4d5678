"""Nesterov's momentum: iterations that begin at extrapolated factors and never raise the error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.array_modules import Array
from ..io.checkpoint import Resumed
from .cp_loop import AlternatingRun
from .cp_model import multiply_grams
from .initial_guess import spread_factors

#: What `linesearch=` is called for momentum.
NESTEROV = "nesterov"

#: The most rounding of an error's square, relative to the tensor's, with which steps are taken.
#: With 5e-4 errors rose by up to .009 (kinships, rank 25, float32); with 1e-4 they fell slower.
_MAX_ROUNDING = 2e-4


class Pace:
    """Nesterov's sequence of steps: t' = (1 + sqrt(1 + 4 t^2)) / 2, and a step of (t - 1) / t'.

    A step that is taken back halves t (at least 1), and the next one is 0.
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
        return 0.0 if self._was_taken_back else (self.t - 1) / self._next

    def advance(self) -> None:
        self.t = self._next
        self._was_taken_back = False

    def take_back(self) -> None:
        self.t = max(1.0, self.t / 2)
        self._was_taken_back = True


def extrapolate(after: Array, before: Array, step: Any) -> Array:
    """Return ``after + step * (after - before)``, in the memory of one result."""
    further = after - before
    further *= step
    further += after
    return further


@dataclass
class MomentumRun(AlternatingRun):
    r"""A run that, with `has_momentum`, begins its iterations at extrapolated factors.

    Iteration k updates :math:`y = x_k + b_k (x_k - x_{k-1})`, with the steps of `Pace`. The MTTKRP
    of the last mode gives the error of the result, so the test takes no pass over the nonzeros. If
    it is above that of :math:`x_k`, the result is dropped and :math:`x_k` itself is updated. So
    errors never rise where those of plain iterations do not, and what these leave unchanged, this
    one does too. No step is taken where rounding would decide which error is lower. (`parafac`
    names the paper. There t begins anew at 1 where the error rises; half of it needs up to a tenth
    fewer iterations.) Two models are kept.

    Entries that `data` lacks are imputed from the extrapolated factors.
    """

    has_momentum: bool = field(default=False, kw_only=True)

    def prepare(self) -> None:
        self._pace, self._before = Pace(), dict[int, Array]()
        self._loss: Any = None  # of the last model
        if not self.has_momentum or not isinstance(self.init, Resumed):
            return
        state = self.state
        self._loss = self.init.errors[-1]
        if "pace" in state and all(f"before_{n}" in state for n in self.moved):
            before = self.factors.copy()
            for n in self.moved:
                before[n] = self.tensor._engine.xp.asarray(state[f"before_{n}"])
            before = spread_factors(self.tensor, before)
            self._before = {n: before[n] for n in self.moved}
            self._pace = Pace(float(state["pace"]))

    @property
    def moved(self) -> list[int]:
        """The modes whose factors are extrapolated."""
        return self.modes

    def project(self, mode: int, factor: Array) -> Array:
        """Make an extrapolated factor one that is allowed."""
        return factor

    def save_state(self) -> Mapping[str, Array]:
        if not self.has_momentum:
            return {}
        before = {f"before_{n}": factor for n, factor in self._before.items()}
        return {"pace": np.asarray(self._pace.t), **before}

    def step(self, iteration: int) -> Any:
        if not self.has_momentum:
            return super().step(iteration)
        weights = self.weights
        start = self.factors.copy()
        is_first = not self._before
        further = self._extrapolate(start)
        self._before = {n: start[n] for n in self.moved}
        if further is not None:
            values = self.data.values
            self.data.impute(weights, further)
            self.factors[:] = further
            del further  # to be freed factor by factor
            error = super().step(iteration)
            loss = self._find_loss(error)
            if loss <= self._loss:
                self._pace.advance()
                self._loss = loss
                return error
            self._pace.take_back()
            self.weights = weights
            self.data.values = values
        if not is_first:
            self._pace.advance()
        self.factors[:] = start
        error = super().step(iteration)
        self._loss = self._find_loss(error)
        return error

    def _find_loss(self, error: Any) -> Any:
        """Return the loss, which must not rise: imputed entries change the norm of errors."""
        return error if self.data.residual is None else self.data.residual

    def _extrapolate(self, factors: list[Array]) -> list[Array] | None:
        """Return extrapolated factors, and drop the model before; None where no step is taken."""
        before = self._before
        step = self._pace.step
        further = list(factors)
        if not before or not step or not self._is_resolved(factors):
            return None
        for n in self.moved:
            further[n] = self.project(n, extrapolate(factors[n], before.pop(n), step))
        return further

    def _is_resolved(self, factors: list[Array]) -> bool:
        """Return whether the errors of models with components as large as these can be compared.

        Where large components cancel, the square of the error is a difference of such numbers.
        """
        eps = float(np.finfo(factors[0].dtype).eps)
        if eps < 1e-12:  # they would have to be a million times as large as the tensor
            return True
        size = float(np.sqrt(multiply_grams(self.weights, factors).diagonal()).sum())
        return eps * size**2 <= _MAX_ROUNDING * float(self.tensor.norm()) ** 2
