"""The alternating direction method of multipliers (ADMM) for a factor under a constraint."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy
from ..engines import engine_of
from ..engines.row_rules import Method, Operator, RowRule
from ..loop.row_updates import (
    BATCH_SIZE,
    TakeSteps,
    UpdatedRows,
    run_rule,
    run_steps,
    stops_after,
)
from ..spread.array_admm import Projection, step_blocks, step_whole
from ..spread.levels import find_levels
from ..spread.row_shards import RowShards, update_rows

#: Factors with fewer elements in all are copied for an iteration: on a GPU, the host's waits for
#: each update of such factors take longer than the updates.
_SMALL_SIZE = 2**24


@dataclass(frozen=True)
class ModeConstraint:
    """The constraint or penalty of a mode, by its proximal operator."""

    project: Projection  # of a whole factor, or of any rows if it is separable
    operator: Operator | None = None  # that kernels have; None if `project` has to be called
    strength: float = 0.0  # its parameter
    is_separable: bool = True  # whether it maps each row for itself


@final
class Admm:
    """ADMM for a factor, with its state from one iteration to the next.

    A violation is the distance from a factor to the least squares solution, relative to its norm.

    Updates of small factors on a GPU are provisional: `confirm` looks at all of an iteration at its
    end, so that the host waits once. After an iteration that had to be done again, the host decides
    at once for some time, each time twice as long.
    """

    def __init__(
        self,
        factors: Sequence[Array],
        modes: Sequence[int],  # whose factors are updated
        constraints: Sequence[ModeConstraint],  # of all modes
        num_steps: int,  # at most, for a factor
        tol: float,
    ) -> None:
        self._constraints = constraints
        self._num_steps = num_steps
        self._tol = tol
        # Scaled dual variables.
        self._duals = {mode: _make_zeros(factors[mode]) for mode in modes}
        # How far a factor is from its unconstrained copy, relatively; unknown before an update.
        self.violations: dict[int, Any] = dict.fromkeys(modes, math.inf)
        self._are_small = _are_small_on_gpu(factors)
        self._is_provisional = False
        self._unconfirmed: dict[int, UpdatedRows] = {}  # by mode
        self._num_decided = 0  # iterations to come for which the host decides at once
        self._pause = 1  # how many these will be the next time
        # Where a step of the last update left nothing above zero, as one of the next may.
        self._levelled_modes: set[int] = set()

    def resume(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on where `save_state` was called; refuse the state of other free modes."""
        saved_modes = {name for name in state if name.startswith("dual_")}
        if saved_modes != {f"dual_{mode}" for mode in self._duals}:
            raise ValueError(
                "the checkpoint has other free modes than this call, or was written by another "
                "decomposition: resume with the same fixed_modes"
            )
        for mode, dual in self._duals.items():
            saved = array_module(dual).asarray(state[f"dual_{mode}"], dual.dtype)
            if isinstance(dual, RowShards):
                saved = RowShards.scatter(saved, dual.sharding)
            self._duals[mode] = saved
            self.violations[mode] = float(state[f"violation_{mode}"])

    def begin_iteration(self) -> bool:
        self._is_provisional = self._are_small and self._num_decided == 0
        self._num_decided = max(0, self._num_decided - 1)
        return self._is_provisional

    def keep(self) -> tuple[dict[int, Any], dict[int, Any]]:
        return dict(self._duals), dict(self.violations)

    def take_back(self, kept: tuple[dict[int, Any], dict[int, Any]]) -> None:
        duals, violations = kept
        self._duals.update(duals)
        self.violations.update(violations)

    def save_state(self) -> dict[str, Array]:
        duals = {f"dual_{mode}": dual for mode, dual in self._duals.items()}
        return duals | {f"violation_{mode}": number for mode, number in self.violations.items()}

    def update_factor(self, factor: Array, product: Array, gram: Array, mode: int) -> Array:
        """Return the factor after some steps from the last one."""
        inverse, penalty = engine_of(gram).invert_penalized(gram)
        constraint = self._constraints[mode]
        if constraint.operator is not None:
            rule = RowRule(Method.ADMM, constraint.operator, constraint.strength)
            if constraint.operator is Operator.NON_NEGATIVE and not self._is_provisional:
                take_rows = partial(update_rows, rule, product, inverse, penalty)
                take_levels = _LevelledSteps(rule, product, inverse, penalty)
                updated = self._run_non_negative(take_rows, take_levels, factor, mode)
            else:
                dual = self._duals[mode]
                updated = run_rule(
                    rule, product, inverse, penalty, factor, dual, self._num_steps, self._tol
                )
        elif constraint.is_separable:
            take_blocks = partial(step_blocks, constraint.project, product, penalty, inverse)
            updated = self._run(take_blocks, factor, mode)
        else:
            take_whole = partial(step_whole, constraint.project, product, penalty, inverse)
            # Step by step: an operator that sees all rows need not be called in vain.
            updated = self._run(take_whole, factor, mode, batch_size=1)
        self._duals[mode] = updated.dual
        if self._is_provisional:
            self._unconfirmed[mode] = updated
        else:
            self.violations[mode] = _measure_violation(updated)
        return updated.rows

    def confirm(self) -> bool:
        """Return whether the updates of the iteration stand; read what they measured."""
        updates = self._unconfirmed
        self._unconfirmed = {}
        for mode, updated in updates.items():
            self.violations[mode] = _measure_violation(updated)
        non_negative = [
            updated
            for mode, updated in updates.items()
            if self._constraints[mode].operator is Operator.NON_NEGATIVE
        ]
        if not any(map(_has_zeros_alone, non_negative)):
            return True
        self._is_provisional = False
        self._num_decided = self._pause
        self._pause *= 2
        return False

    def _run_non_negative(
        self,
        take_rows: TakeSteps,
        take_levels: "_LevelledSteps",
        factor: Array,
        mode: int,
    ) -> UpdatedRows:
        """Take the steps of TensorLy's operator, `clip_negative`.

        It is that of the kernels, but where it sets all elements of a factor to the largest.
        """
        if mode not in self._levelled_modes:
            updated = self._run(take_rows, factor, mode)
            if not _has_zeros_alone(updated):
                return updated
        updated = self._run(take_levels, factor, mode)
        self._levelled_modes.discard(mode)
        if take_levels.has_found:
            self._levelled_modes.add(mode)
        return updated

    def _run(
        self, take_steps: TakeSteps, factor: Array, mode: int, batch_size: int = BATCH_SIZE
    ) -> UpdatedRows:
        """Take steps until they are enough."""
        dual = self._duals[mode]
        is_enough = partial(stops_after, Method.ADMM, self._tol)
        return run_steps(take_steps, factor, self._num_steps, is_enough, dual, batch_size)


def _are_small_on_gpu(factors: Sequence[Any]) -> bool:
    """Return whether factors are on one GPU, and copies of them are cheap."""
    return all(map(is_cupy, factors)) and sum(factor.size for factor in factors) < _SMALL_SIZE


@dataclass
class _LevelledSteps:
    """Takes non-negative steps that may leave nothing above zero."""

    rule: RowRule
    product: Any
    inverse: Array
    penalty: Array
    has_found: bool = False  # such a step

    def __call__(self, rows: Any, dual: Any, num_steps: int) -> tuple[Any, Any, Array]:
        arguments = (rows, dual, num_steps)
        levels = find_levels(self.product, *arguments, self.penalty, self.inverse)
        self.has_found |= not np.isnan(levels).all()
        rule = replace(self.rule, levels=levels)
        return update_rows(rule, self.product, self.inverse, self.penalty, *arguments)


def _has_zeros_alone(updated: UpdatedRows) -> bool:
    """Return whether a step of the kernels has left no element above zero."""
    return any(size == 0 for _, size, _, _ in updated.measures)


def _measure_violation(updated: UpdatedRows) -> float:
    """Return the distance from a factor to its unconstrained copy, relative to its norm.

    It is infinite before the first step. One below the rounding of the factor is none: in float32
    TensorLy's default tolerance, 1e-8, would never be met.
    """
    if not updated.measures:
        return math.inf
    gap, size, _, _ = np.sqrt(updated.measures[-1])
    with np.errstate(divide="ignore", invalid="ignore"):  # of zeros, which are warned of
        violation = gap / size
    if violation < np.finfo(updated.rows.dtype).eps:
        return 0.0
    return float(violation)


def _make_zeros(factor: Any) -> Any:
    """Make a dual variable for a factor, on its devices."""
    zeros = array_module(factor).zeros(factor.shape, factor.dtype)
    if isinstance(factor, RowShards):
        return RowShards.scatter(zeros, factor.sharding)
    return zeros
