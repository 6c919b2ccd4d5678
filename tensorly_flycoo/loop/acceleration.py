r"""Accelerated iterations: with Nesterov's momentum, and by Gauss-Newton steps after it.

An iteration of ``linesearch="nesterov"`` is `Momentum.step`; of "gauss-newton" or "auto" it is
`GaussNewton.step`, which calls the former until it is time for steps of its own.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

import numpy as np

from ..base.array_modules import Array
from ..engines.tall import call_lapack, inner_product, multiply
from .gauss_newton import (
    GAUSS_NEWTON,
    SLACK,
    Damping,
    find_step,
    is_step_cheap,
    multiply_pairs,
)
from .least_squares import LeastSquares
from .momentum import Pace, extrapolate
from .run import Accelerator, RunModel, find_state

#: `GAUSS_NEWTON` begins with so many iterations of momentum: far away, the steps' model is poor.
_NUM_FIRST = 5

#: `AUTO`: momentum crawls if so many iterations raise the fit by less than this part of it.
_WINDOW = 5
_CRAWL = 2.5e-3


class Movable(Protocol):
    """A sweep as momentum needs it: its model has numbered parts, factors and perhaps a core."""

    model: RunModel

    def get_part(self, n: int) -> Array:
        """Return a part of the model."""

    def set_part(self, n: int, array: Array) -> None:
        """Replace a part of the model."""

    def update(self, iteration: int) -> Any:
        """Improve the model in place; return its error."""

    def impute(self) -> None:
        """Set the missing entries to the values of the model, which was replaced."""

    def find_loss(self, error: Any) -> Any:
        """Return the loss, after an update with this error: a longer step must not raise it."""

    def can_compare_errors(self) -> bool:
        """Return whether rounding leaves the errors of models like this one comparable."""

    def keep(self) -> Any:
        """Return the state that `take_back` restores after the updates that follow."""

    def take_back(self, kept: Any) -> None:
        """Return to the model that `keep` has seen."""


class Resumable(Movable, Protocol):
    """Such a sweep, whose run may go on from a checkpoint."""

    def place_parts(self, parts: Mapping[int, np.ndarray]) -> dict[int, Array]:
        """Return parts of a checkpoint on the devices of the model's parts."""


def start_momentum(
    sweep: Resumable,
    parts: Sequence[int],
    init: Any,
    project: Callable[[int, Array], Array] | None = None,
) -> "Momentum":
    """Return the momentum of a run, or that of the checkpoint `init`."""
    momentum = Momentum(sweep, parts, project)
    momentum.resume(find_state(init), sweep.place_parts)
    return momentum


@final
class Momentum(Accelerator):
    r"""Begins iterations at an extrapolated model, and takes back those that raise the loss.

    Iteration k updates :math:`y = x_k + b_k (x_k - x_{k-1})`, with the steps of `Pace`. The MTTKRP
    of the last mode gives the error of the result, so the test takes no pass over the nonzeros. If
    it is above that of :math:`x_k`, the result is dropped and :math:`x_k` itself is updated. So
    errors never rise where those of plain iterations do not, and what these leave unchanged, this
    one does too. No step is taken where rounding would decide which error is lower. (`parafac`
    names the paper. There t begins anew at 1 where the error rises; half of it needs up to a tenth
    fewer iterations.) Two models are kept.

    Missing entries are imputed from the extrapolated model.
    """

    def __init__(
        self,
        sweep: Movable,
        parts: Sequence[int],  # that are extrapolated
        project: Callable[[int, Array], Array] | None = None,  # onto a part's constraints
    ) -> None:
        self._sweep = sweep
        self._parts = parts
        self._project = project
        self._pace = Pace()
        self._before: dict[int, Array] = {}  # the parts of the model before
        errors = sweep.model.errors
        self._loss: Any = errors[-1] if errors else None  # of the model

    def resume(
        self,
        state: Mapping[str, np.ndarray],
        place: Callable[[Mapping[int, np.ndarray]], dict[int, Array]],
    ) -> None:
        """Go on where `save_state` was called, if the run that saved had momentum.

        `place` moves parts to the devices on which those of the model are.
        """
        if "pace" not in state or any(f"before_{n}" not in state for n in self._parts):
            return
        saved = {n: state[f"before_{n}"] for n in self._parts}
        self._before = place(saved)
        self._pace = Pace(float(state["pace"]))

    def save_state(self) -> Mapping[str, Array]:
        before = {f"before_{n}": part for n, part in self._before.items()}
        return {"pace": np.asarray(self._pace.t), **before}

    def step(self, iteration: int) -> Any:
        """Update the extrapolated model; if that raises the loss, the model itself."""
        sweep = self._sweep
        kept = sweep.keep()
        start = {n: sweep.get_part(n) for n in self._parts}
        is_first = not self._before
        takes_step = bool(not is_first and self._pace.step and sweep.can_compare_errors())
        if takes_step:
            self._extrapolate()
        self._before = start
        if takes_step:
            sweep.impute()
            error = sweep.update(iteration)
            loss = sweep.find_loss(error)
            if loss <= self._loss:
                self._pace.advance()
                self._loss = loss
                return error
            # The loss has risen, or is nan.
            self._pace.take_back()
            sweep.take_back(kept)
        if not is_first:
            self._pace.advance()
        error = sweep.update(iteration)
        self._loss = sweep.find_loss(error)
        return error

    def _extrapolate(self) -> None:
        """Move the parts further; the model before is dropped part by part."""
        for n in self._parts:
            further = extrapolate(self._sweep.get_part(n), self._before.pop(n), self._pace.step)
            if self._project is not None:
                further = self._project(n, further)
            self._sweep.set_part(n, further)


@final
class GaussNewton(Accelerator):
    """Turns from momentum's iterations to Gauss-Newton steps, when they pay.

    A step moves all factors but the longest, which then becomes the best one for the others: its
    MTTKRP gives that factor and the error. If the error rises, the step is taken back at the cost
    of that MTTKRP, and tried with more damping. Else the other MTTKRPs follow, for the next step.
    """

    def __init__(
        self, sweep: LeastSquares, momentum: Momentum, linesearch: str, state: Mapping[str, Any]
    ) -> None:
        self._sweep = sweep
        self._momentum: Momentum | None = momentum  # None from the first step on
        self._linesearch = linesearch
        self._eps = float(np.finfo(sweep.tensor.dtype).eps)
        self._damping = Damping(self._eps)
        self._loss = float(state.get("loss", 0))
        self._grams = np.empty(0)  # (ndim, R, R), of all modes
        model = sweep.model
        if model.weights is not None:  # ones, but for normalised starts
            model.factors[0] = model.factors[0] * model.weights
            model.weights = model.weights**0
        if "damping" in state:
            self._momentum = None
            self._damping = Damping(self._eps, float(state["damping"]))
            self._grams = np.stack(multiply_pairs(model.factors, model.factors))

    def save_state(self) -> Mapping[str, Array]:
        if self._momentum is not None:
            return self._momentum.save_state()
        return {"damping": np.asarray(self._damping.strength), "loss": np.asarray(self._loss)}

    def step(self, iteration: int) -> Any:
        """Do an iteration of momentum, or from its turn on a Gauss-Newton step."""
        if self._momentum is not None:
            if not self._is_turn():
                return self._momentum.step(iteration)
            self._momentum = None  # frees the model that it keeps
            self._sweep.end_rounding()
            _, self._loss, self._grams = self._solve_longest()
        return self._move_all()

    def _is_turn(self) -> bool:
        """Return whether momentum has done its part."""
        errors = self._sweep.model.errors
        if self._linesearch == GAUSS_NEWTON:
            return len(errors) >= _NUM_FIRST
        rank = self._sweep.model.factors[0].shape[1]
        if len(errors) <= _WINDOW or not is_step_cheap(self._sweep.tensor.nnz, rank):
            return False
        decrease = errors[-1 - _WINDOW] - errors[-1]
        fit = 1 - errors[-1]
        return bool(decrease < _CRAWL * fit)

    def _move_all(self) -> Any:
        """Change all factors; return the error."""
        sweep = self._sweep
        factors = sweep.model.factors
        start = list(factors)
        modes = self._list_moved()
        products = {n: sweep.data.mttkrp(None, start, n) for n in modes}
        moved = multiply_pairs([start[n] for n in modes], [products[n] for n in modes])
        inner = dict(zip(modes, moved, strict=True))
        limit = (float(self._loss) ** 2 + SLACK * self._eps) ** 0.5  # a smaller rise is rounding
        while self._damping.may_help:
            self._take_step(start, products, inner)
            with contextlib.suppress(np.linalg.LinAlgError):  # of a step that overflows
                error, loss, grams = self._solve_longest()
                if loss <= limit:
                    self._loss = min(loss, self._loss)
                    self._grams = grams
                    self._damping.ease()
                    return error
            self._damping.brake()
        factors[:] = start
        return sweep.model.errors[-1]

    def _take_step(
        self, start: list[Array], products: dict[int, Array], inner: dict[int, np.ndarray]
    ) -> None:
        """Replace all factors but the longest, by a step with the current damping."""
        sweep = self._sweep
        dtype = sweep.tensor.dtype
        step = call_lapack(
            find_step, self._grams, inner, sweep.modes, self._damping.strength, sweep.l2_reg
        )
        of_products, of_factors = sweep.tensor._engine.xp.asarray(step.astype(dtype))
        for n, product in products.items():
            sweep.model.factors[n] = multiply(product, of_products[n])
            sweep.model.factors[n] += multiply(start[n], of_factors[n])

    @property
    def _longest(self) -> int:
        """The mode whose factor is the best one for the others, before and after each step."""
        return max(self._sweep.modes, key=lambda n: self._sweep.model.factors[n].shape[0])

    def _list_moved(self) -> list[int]:
        """List all modes but the longest, in which order groups of modes share their passes."""
        modes = self._sweep.modes
        place = modes.index(self._longest)
        return modes[place + 1 :] + modes[:place]

    def _solve_longest(self) -> tuple[float, float, np.ndarray]:
        """Make the longest factor the best one; return the error, the loss and the Gram matrices.

        The loss is the error, or with a ridge the root of its square and of the ridge's share.
        """
        sweep = self._sweep
        factors = sweep.model.factors
        product = sweep.solve_mode(self._longest)
        square = float(sweep.tensor.norm()) ** 2
        inner = inner_product(product, factors[self._longest])
        grams = np.stack(multiply_pairs(factors, factors))
        model_square = grams.prod(axis=0).sum()
        residual = abs(square + model_square - 2 * float(inner)) / square
        ridge = sweep.l2_reg * grams.trace(axis1=1, axis2=2).sum() / square
        return float(residual**0.5), float((residual + ridge) ** 0.5), grams
