"""Nesterov's momentum: iterations that begin at extrapolated factors and never raise the error."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array
from ..io.checkpoint import Resumed
from ..tensor.tensor import FlycooTensor
from .cp_loop import Measure, Update
from .initial_guess import spread_factors
from .masks import ImputedTensor
from .whole_tensor import WholeTensor

#: What `linesearch=` is called for momentum.
NESTEROV = "nesterov"


class Pace:
    """Nesterov's sequence of steps: t' = (1 + sqrt(1 + 4 t^2)) / 2, and a step of (t - 1) / t'.

    A step that is taken back halves t (at least 1), and the next one is 0.
    """

    def __init__(self, t: float = 1.0) -> None:
        self.t, self._was_taken_back = t, False

    @property
    def _next(self) -> float:
        return (1 + (1 + 4 * self.t**2) ** 0.5) / 2

    @property
    def step(self) -> float:
        """By how much of the last change to extrapolate."""
        return 0.0 if self._was_taken_back else (self.t - 1) / self._next

    def advance(self) -> None:
        self.t, self._was_taken_back = self._next, False

    def take_back(self) -> None:
        self.t, self._was_taken_back = max(1.0, self.t / 2), True


def extrapolate(after: Array, before: Array, step: Any) -> Array:
    """Return ``after + step * (after - before)``."""
    return after + step * (after - before)


class Momentum:
    r"""An `Update` that runs another one from extrapolated factors.

    Iteration k updates :math:`y = x_k + b_k (x_k - x_{k-1})`, with the steps of `Pace`. The MTTKRP
    of the last mode gives the error of the result, so the test takes no pass over the nonzeros. If
    it is above that of :math:`x_k`, the result is dropped and :math:`x_k` itself is updated. So
    errors never rise where those of the other update do not, and what that one leaves unchanged,
    this one does too. (`parafac` names the paper. There t begins anew at 1 where the error rises;
    half of it needs up to a tenth fewer iterations.) Two models are kept.

    The factors of `modes` are extrapolated, and entries that `data` lacks imputed from them.
    `find_loss` takes the error that was measured last, and returns what must not rise. `project`
    takes a mode and an extrapolated factor, and makes it one that is allowed.
    """

    def __init__(
        self, update: Update, measure: Measure, data: WholeTensor | ImputedTensor,
        modes: Sequence[int], find_loss: Callable[[Any], Any] = lambda error: error,
        project: Callable[[int, Array], Array] = lambda mode, factor: factor,
    ) -> None:  # fmt: skip
        self._update, self._measure, self._data = update, measure, data
        self._modes, self._find_loss, self._project = list(modes), find_loss, project
        self._pace, self._before = Pace(), dict[int, Array]()
        self._loss: Any = None  # of the last model

    def save_state(self) -> dict[str, Array]:
        """Return what a resumed run needs besides the factors."""
        before = {f"before_{n}": factor for n, factor in self._before.items()}
        return {"pace": np.asarray(self._pace.t), **before}

    def restore(self, init: Resumed, x: FlycooTensor, factors: list[Array]) -> None:
        """Restore what `save_state` returned, if it is in a checkpoint; `factors` are its own."""
        state, self._loss = init.saved.state, init.errors[-1]
        if "pace" not in state or any(f"before_{n}" not in state for n in self._modes):
            return
        before = factors.copy()
        for n in self._modes:
            before[n] = x._engine.xp.asarray(state[f"before_{n}"])
        before = spread_factors(x, before)
        self._pace, self._before = Pace(float(state["pace"])), {n: before[n] for n in self._modes}

    def __call__(
        self, iteration: int, weights: Any, factors: list[Array], errors: list[Any]
    ) -> tuple[Any, list[Array], Any]:
        start, is_first = list(factors), not self._before
        further = self._extrapolate(start)
        self._before = {n: start[n] for n in self._modes}
        if further is not None:
            values = self._data.values
            self._data.impute(weights, further)
            new_weights, further, result = self._update(iteration, weights, further, errors)
            error = self._measure(new_weights, further, result)
            loss = self._find_loss(error)
            if loss <= self._loss:
                self._pace.advance()
                self._loss = loss
                return new_weights, further, error
            del further, result  # to be freed before the other update
            self._pace.take_back()
            self._data.values = values
        if not is_first:
            self._pace.advance()
        weights, factors, result = self._update(iteration, weights, start.copy(), errors)
        error = self._measure(weights, factors, result)
        self._loss = self._find_loss(error)
        return weights, factors, error

    def _extrapolate(self, factors: list[Array]) -> list[Array] | None:
        """Return extrapolated factors, and drop the model before; None where the step is 0."""
        before, step, further = self._before, self._pace.step, list(factors)
        if not before or not step:
            return None
        for n in self._modes:
            further[n] = self._project(n, extrapolate(factors[n], before.pop(n), step))
        return further


def add_momentum(
    update: Update, measure: Measure, data: WholeTensor | ImputedTensor, modes: Sequence[int],
    init: Any, factors: list[Array], **options: Any,
) -> tuple[Momentum, Measure, Callable[[], Mapping[str, Array]]]:  # fmt: skip
    """Return what `iterate` takes for an update with momentum, from a start or a checkpoint."""
    momentum = Momentum(update, measure, data, modes, **options)
    if isinstance(init, Resumed) and isinstance(data, WholeTensor):
        momentum.restore(init, data.tensor, factors)
    return momentum, take_error, momentum.save_state


def take_error(weights: Any, factors: list[Array], error: Any) -> Any:
    """Measure a model whose `Update` has measured it."""
    return error
