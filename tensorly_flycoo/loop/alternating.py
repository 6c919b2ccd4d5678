"""Sweeps that update one factor of a CP model after the other, from their MTTKRPs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module
from ..tensor.tensor import FlycooTensor
from .cp_model import make_cp_tensor, multiply_grams, normalize, normalize_updated
from .factor_grams import FactorGrams
from .gram_products import GramProduct
from .initial_guess import spread_factors
from .masks import ImputedTensor
from .momentum import can_compare_errors
from .recorded_sweep import Iteration, RecordedSweep, UpdateMode
from .run import RunModel, Sweep
from .smoothness import add_differences
from .whole_tensor import WholeTensor

#: Returns a new factor from the old one, its MTTKRP (I, R), the other factors' Gram product (R, R)
#: and its mode.
FactorUpdate: TypeAlias = Callable[[Array, Array, Array, int], Array]


class RuleState(Protocol):
    """What a rule that updates factors knows besides the model."""

    def begin_iteration(self) -> bool:
        """Return whether updates are provisional: then `confirm` is called after all of them."""

    def confirm(self) -> bool:
        """Return whether the updates stand; else they are taken back and done again, for good."""

    def save_state(self) -> Mapping[str, Array]:
        """Return the arrays that a resumed run needs."""

    def keep(self) -> Any:
        """Return the state that `take_back` restores after the updates that follow."""

    def take_back(self, kept: Any) -> None:
        """Return to the state that `keep` has seen."""


@dataclass(kw_only=True)
class CpSweep(Sweep):
    """A sweep over the modes of a CP model; its final methods are those of `Movable`."""

    solver: str
    model: RunModel
    tensor: FlycooTensor
    data: WholeTensor | ImputedTensor
    modes: list[int]  # whose factors are updated
    rule_state: RuleState | None = None
    recorded: RecordedSweep | None = None

    @final
    def measure_start(self) -> Any:
        return self.data.measure(self.model.weights, self.model.factors)[0]

    @final
    def make(self) -> CPTensor:
        weights = self.model.weights
        if weights is None:
            # In the dtype of the tensor, though ADMM's factors are float64.
            first = self.model.factors[0]
            weights = array_module(first).ones(first.shape[1], self.tensor.dtype)
        return make_cp_tensor(weights, self.model.factors)

    @final
    def get_part(self, n: int) -> Array:
        return self.model.factors[n]

    @final
    def set_part(self, n: int, array: Array) -> None:
        self.model.factors[n] = self.data.round_factor(array, n)

    @final
    def place_parts(self, parts: Mapping[int, np.ndarray]) -> dict[int, Array]:
        """Return factors of a checkpoint on the devices of the model's factors."""
        factors = list(self.model.factors)
        for n, part in parts.items():
            factors[n] = self.tensor._engine.xp.asarray(part)
        # All factors together, for they share their devices.
        factors = spread_factors(self.tensor, factors)
        return {n: factors[n] for n in parts}

    @final
    def impute(self) -> None:
        """Set the missing entries to the values of the model."""
        self.data.impute(self.model.weights, self.model.factors)

    @final
    def find_loss(self, error: Any) -> Any:
        """Return the error or, as imputed entries change the norm in it, the residual."""
        if self.data.residual is None:
            return error
        return self.data.residual

    @final
    def can_compare_errors(self) -> bool:
        return can_compare_errors(self.tensor, self.model.weights, self.model.factors)

    @final
    def start_recording(
        self,
        update_mode: UpdateMode,
        num_iterations: int,
        *,
        wants_residual: bool,
        looks_ahead: bool,
    ) -> None:
        """Let a GPU launch iterations at once, if the host would need longer for their pieces."""
        rank = self.model.factors[0].shape[1]
        if RecordedSweep.suits(self.tensor, rank, self.modes):
            self.recorded = RecordedSweep(
                self.tensor,
                self.modes,
                update_mode,
                num_iterations,
                wants_residual=wants_residual,
                looks_ahead=looks_ahead,
            )

    @final
    def iterate_recorded(self) -> Iteration | None:
        """Do an iteration by a recording; return None if it has to go piece by piece."""
        if self.recorded is None:
            return None
        done = self.recorded.iterate(self.model.factors)
        if done is not None:
            self.model.factors[:] = done.factors
        return done

    @final
    def keep(self) -> tuple[Any, ...]:
        """Return the state that `take_back` restores after the updates that follow."""
        state = None if self.rule_state is None else self.rule_state.keep()
        return self.model.weights, list(self.model.factors), self.data.values, state

    @final
    def take_back(self, kept: tuple[Any, ...]) -> None:
        """Return to the model that `keep` has seen."""
        self.model.weights, self.model.factors[:], self.data.values, state = kept
        if self.rule_state is not None:
            self.rule_state.take_back(state)

    @final
    def save_state(self) -> Mapping[str, Array]:
        """Return the rule's state; without one, an iteration depends on the model alone."""
        return {} if self.rule_state is None else self.rule_state.save_state()


def measure_updated(
    data: WholeTensor | ImputedTensor,
    model: RunModel,
    last_mttkrp: Array,
    wants_error: bool,
    grams: FactorGrams | None = None,
) -> Any:
    """Return the error of an updated model, from the last mode's MTTKRP; impute from the model."""
    if not wants_error:
        data.impute(model.weights, model.factors)
        return None
    error, data.values = data.measure(model.weights, model.factors, last_mttkrp, grams)
    return error


@final
@dataclass(kw_only=True)
class AlternatingSweep(CpSweep):
    """A sweep that updates a factor by any rule, and imputes missing entries before each mode."""

    update_factor: FactorUpdate
    wants_errors: bool = True
    normalize_factors: bool = False  # whether each updated factor is normalised at once
    smoothness: Sequence[float] = ()  # of each mode
    factors_may_change: bool = True  # between iterations, by a callback
    _grams: FactorGrams = field(default_factory=FactorGrams)

    def look_ahead(self, num_iterations: int) -> None:
        """Let a GPU begin the next iteration while the host waits for an error.

        So many follow, and nothing else changes the factors.
        """
        if isinstance(self.data, WholeTensor):
            self.data.num_left = num_iterations
            memory = self.data.memory
            memory.has_unit_weights = self.model.weights is None and not self.normalize_factors
            memory.factors_may_change = self.factors_may_change

    def record(self, num_iterations: int, has_momentum: bool) -> None:
        """Let a GPU launch iterations at once, if they are plain and it saves time."""
        is_plain = isinstance(self.data, WholeTensor) and self.model.weights is None
        is_special = self.normalize_factors or any(self.smoothness) or self.rule_state is not None
        if is_plain and not is_special:
            self.start_recording(
                # Not a method of the sweep, which the collector alone would free then.
                partial(_update_recorded, self.update_factor),
                num_iterations,
                wants_residual=self.wants_errors,
                looks_ahead=not has_momentum and not self.factors_may_change,
            )

    def update(self, iteration: int) -> Any:
        """Do an iteration; return the error, None if nobody needs it."""
        done = self.iterate_recorded()
        if done is not None:
            if done.residual is None:
                return None
            return np.float64(done.residual) / self.tensor.norm()
        rule = self.rule_state
        if rule is None or not rule.begin_iteration():
            return self._update_modes()
        kept = self.keep()
        error = self._update_modes()
        if not rule.confirm():
            self.take_back(kept)
            error = self._update_modes()
        return error

    def _update_modes(self) -> Any:
        """Update the factors one after the other; return the error, None if nobody needs it."""
        model = self.model
        last = len(model.factors) - 1
        product: Any = None
        if self.factors_may_change:
            self._grams.forget()
        for mode in self.modes:
            self.impute()
            product = self._update_mode(mode)
            # The last one stays as it was fitted: its MTTKRP gives the error. `Run` normalises it.
            if self.normalize_factors and mode != self.modes[-1]:
                model.weights, model.factors[:] = normalize_updated(
                    model.weights, model.factors, mode
                )
        if last not in self.modes:  # it is fixed, but the error is measured from its MTTKRP
            product = self.data.mttkrp(model.weights, model.factors, last)
        return measure_updated(self.data, model, product, self.wants_errors, self._grams)

    def _update_mode(self, mode: int) -> Array:
        """Update a factor; return its MTTKRP."""
        weights, factors = self.model.weights, self.model.factors
        product = self.data.mttkrp(weights, factors, mode)
        if any(self.smoothness):
            gram = multiply_grams(weights, add_differences(factors, self.smoothness, mode), mode)
        else:
            gram = self._grams.multiply(weights, factors, mode)
        factors[mode] = self.update_factor(factors[mode], product, gram, mode)
        return product


def _update_recorded(
    update_factor: FactorUpdate, factor: Array, product: Array, gram: GramProduct, mode: int
) -> Array:
    """Update a factor by a rule; with the rule it is an `UpdateMode`."""
    return update_factor(factor, product, gram.compute(), mode)


def normalize_cp(model: RunModel) -> None:
    """Move the norms of the factors' columns into the weights."""
    model.weights, model.factors[:] = normalize(model.weights, model.factors)
