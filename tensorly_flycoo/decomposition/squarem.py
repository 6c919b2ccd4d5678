"""SQUAREM: extrapolates the steps of an algorithm that converges slowly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..array_modules import Array, move

if TYPE_CHECKING:
    from ..engines.protocol import Engine

#: By how much the longest step grows and shrinks.
_GROWTH = 4.0


class Squarem:
    r"""Proposes to extrapolate every other step, with factors above 0.

    From three models, :math:`r = t_1 - t_0` and :math:`v = t_2 - t_1 - r`, it proposes :math:`t_0 +
    2 a r + a^2 v` with :math:`a = |r| / |v|` between 1, which is no extrapolation, and a longest
    step. This grows as long as proposals are accepted. An element that would not be above 0 stays
    as it is. The caller accepts a proposal only if it is better. Only the factors of `modes`
    change; `state` is what `save_state` returned, empty at the start.

    References
    ----------
    Varadhan and Roland, "Simple and Globally Convergent Methods for Accelerating the Convergence of
    Any EM Algorithm", Scandinavian Journal of Statistics 35, 2008.
    """

    def __init__(self, modes: Sequence[int], state: Mapping[str, Array], engine: Engine) -> None:
        self._modes, self._engine = list(modes), engine
        self._longest = float(state.get("longest_step", 1.0))
        self._base = {
            n: engine.xp.asarray(state[f"base_{n}"]) for n in modes if f"base_{n}" in state
        }
        self._was_longest = False

    def save_state(self) -> dict[str, Array]:
        """Return what a resumed run needs besides the factors."""
        base = {f"base_{n}": factor for n, factor in self._base.items()}
        return {"longest_step": np.asarray(self._longest), **base}

    def propose(
        self, before: Sequence[Array], after: Sequence[Array], sums: Array
    ) -> tuple[list[Array], Array] | None:
        """Return factors that may be better, and their column sums; None in every other step.

        `before` and `after` are the factors before and after a step. Sums are float64 (ndim, R);
        `sums` are those of `after`.
        """
        if not self._base:
            self._base = {n: before[n] for n in self._modes}
            return None
        steps = {n: (start, before[n], after[n]) for n, start in self._base.items()}
        self._base = {}
        step = self._choose_step(steps, sums)
        self._was_longest = step >= self._longest
        if step == 1:
            self.note(True)
            return None
        proposal, sums = list(after), sums.copy()
        for n, factors in steps.items():
            proposal[n] = self._engine.extrapolate(factors, step, sums[n])
        return proposal, sums

    def restart(self) -> None:
        """Forget the models so far: the last was changed by something other than a step."""
        self._base = {}

    def note(self, is_better: bool) -> None:
        """Note whether the proposal was accepted."""
        if not is_better:
            self._longest = max(1.0, self._longest / _GROWTH)
        elif self._was_longest:
            self._longest *= _GROWTH

    def _choose_step(self, steps: Mapping[int, Sequence[Array]], sums: Array) -> float:
        squares = self._engine.xp.empty((len(steps), 2, sums.shape[1]))
        for own, factors in zip(squares, steps.values(), strict=True):
            self._engine.measure_steps(factors, own)
        change_square, bend_square = move(squares, np).sum(axis=(0, 2)).tolist()
        if bend_square == 0:
            return 1.0
        return float(min(max(1.0, (change_square / bend_square) ** 0.5), self._longest))
