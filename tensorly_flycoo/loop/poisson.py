r"""Poisson CP decompositions: the loss of counts, and multiplicative updates that lower it.

The loss of a non-negative model m is, without constants,

.. math:: F = \sum_{\mathrm{cells}} m - \sum_{\mathrm{nonzeros}} x \log m

The first sum needs only the column sums of the factors, the second only the nonzeros. Missing
entries are subtracted from the first.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module, has_true, invert_positive, move
from ..engines.tall import sum_columns
from ..ops.mttkrp import mttkrp_of_ratios
from .cp_model import make_cp_tensor, multiply_all
from .masks import ObservedData
from .run import RunModel, Sweep
from .stopping import has_settled

#: By how much the longest step grows and shrinks.
_GROWTH = 4.0

#: A lifted zero becomes at most the first part of the mean of its column; an element up to the
#: second counts as zero: growing from there would take too many updates.
_LIFT = 0.01
_NEGLIGIBLE = 1e-10

#: Every so many sweeps, zeros are lifted if the last sweep lowered F by less than the second
#: number, relative to F.
_PERIOD = 10
_SETTLED = 1e-6


def divide_counts(
    data: ObservedData, factors: Sequence[Array], mode: int, **options: bool
) -> tuple[Array, Array | None]:
    """Call `mttkrp_of_ratios` for the observed nonzeros."""
    # The reciprocal of this, times a count, is finite, and so is a sum of such.
    smallest = float(np.sqrt(np.finfo(data.dtype).tiny))
    return mttkrp_of_ratios(data.tensor, data.send(factors), mode, smallest, **options)


def find_scales(data: ObservedData, factors: Sequence[Array], sums: Array, mode: int) -> Array:
    """Return the reciprocals of the factors of `mode`'s elements in the first sum of F.

    That sum, of the model's values, is linear in each element. All rows share the reciprocals,
    (1, R), unless entries are missing: (I_mode, R). They are 0 where that factor is 0.
    """
    if data.missing is None:
        return data.tensor._engine.invert_sums(sums, mode, data.dtype)
    whole = multiply_all(sums, mode)
    rows = data.xp.zeros(factors[mode].shape, data.dtype)
    ones = data.missing.make_ones()
    observed = whole - data.missing.add_mttkrp(rows, ones, factors, mode)
    # What is left of a row whose cells are all missing is rounding error.
    limits = 8 * float(np.finfo(data.dtype).eps) * whole
    return invert_positive(observed, limits).astype(data.dtype)


def complete_loss(data: ObservedData, factors: Sequence[Array], sums: Array, log_sum: Any) -> float:
    """Compute F from the column sums of the factors and the sum over the nonzeros."""
    total = float(multiply_all(move(sums, np)).sum()) - float(log_sum)
    if data.missing is not None:
        total -= data.missing.sum_model(None, factors)
    return total


def evaluate_loss(data: ObservedData, factors: Sequence[Array]) -> float:
    """Compute F of a model in one pass over the nonzeros."""
    _, log_sum = divide_counts(data, factors, 0, wants_logs=True)
    return complete_loss(data, factors, add_columns(factors), log_sum)


def add_columns(factors: Sequence[Array]) -> Array:
    """Return the column sums of the factors, float64 (ndim, R)."""
    return array_module(factors[0]).stack([sum_columns(factor) for factor in factors])


@final
class PoissonUpdates(Sweep):
    r"""Sweeps of one multiplicative update per mode, with SQUAREM.

    An update of a mode multiplies its factor by the MTTKRP of ratios, over what a row of ones adds
    to F. It never increases F. The pass over the nonzeros that begins a sweep also gives F of the
    sweep before, `loss`. An update cannot change a zero, though F would fall if one grew whose
    multiplier is above 1 ("inadmissible"): once F has settled, these are lifted if this lowers F.

    Every other sweep is extrapolated if this lowers F. From three models, :math:`r = t_1 - t_0` and
    :math:`v = t_2 - t_1 - r`, SQUAREM makes :math:`t_0 + 2 a r + a^2 v` with :math:`a = |r| / |v|`
    between 1, which is no extrapolation, and a longest step, which grows as long as proposals are
    accepted. An element that would not be above 0 stays as it is. Varadhan and Roland, "Simple and
    Globally Convergent Methods for Accelerating the Convergence of Any EM Algorithm", Scandinavian
    Journal of Statistics 35, 2008.
    """

    solver = "generalized_parafac"
    is_loss = True

    def __init__(
        self,
        data: ObservedData,
        model: RunModel,
        modes: list[int],  # whose factors are updated
        tol: float = 0,  # of the run
        state: Mapping[str, np.ndarray] | None = None,  # of a checkpoint
    ) -> None:
        self.data = data
        self.model = model
        self.modes = modes
        self._tol = tol
        state = state or {}
        xp = data.xp
        self._longest_step = float(state.get("longest_step", 1.0))
        self._growth = 1.0  # of the longest step, if the proposal is accepted
        # The factors before the last sweep; none if the next one is not to be extrapolated.
        self._base = {n: xp.asarray(state[f"base_{n}"]) for n in modes if f"base_{n}" in state}
        # Not summed again from a checkpoint: updates add rows in another order.
        sums: Array = state.get("sums")
        if sums is None:
            sums = add_columns(model.factors)
        sums = xp.asarray(sums)
        #: Of the model: its column sums, the MTTKRP of ratios of the first mode, and F.
        self._sums, self._product, self.loss = self._evaluate(model.factors, sums)

    def save_state(self) -> dict[str, Array]:
        state: dict[str, Array] = {"longest_step": np.asarray(self._longest_step)}
        for n, factor in self._base.items():
            state[f"base_{n}"] = factor
        state["sums"] = self._sums.copy()  # the next sweep writes to them
        return state

    def measure_start(self) -> float:
        return self.loss

    def make(self) -> CPTensor:
        return make_cp_tensor(self.model.weights, self.model.factors)

    def update(self, iteration: int) -> float:
        """Do multiplicative updates, try a longer step, and revive zeros if progress is slow."""
        factors = self.model.factors
        before = list(factors)
        self._multiply_factors()
        proposal = self._propose(before)
        # A proposal is measured in the same mode next: layout "remap" leaves the nonzeros in place.
        stays = proposal is not None
        self._sums, self._product, self.loss = self._evaluate(factors, self._sums, stays=stays)
        if proposal is not None and self._try(*proposal):
            factors[:] = proposal[0]
            self._longest_step *= self._growth
        elif proposal is not None:
            self._longest_step = max(1.0, self._longest_step / _GROWTH)
        losses = [*self.model.errors, self.loss]
        is_slow = len(losses) % _PERIOD == 0 and has_settled(losses, _SETTLED)
        if is_slow or has_settled(losses, self._tol):
            factors[:] = self._lift_zeros(factors)
        return self.loss

    def _multiply_factors(self) -> None:
        """Do one multiplicative update per mode, which also updates the column sums."""
        factors = self.model.factors
        for mode in self.modes:
            if mode == self.modes[0]:
                product = self._product
                del self._product  # it becomes the factor
            else:
                product, _ = divide_counts(self.data, factors, mode)
            scales = find_scales(self.data, factors, self._sums, mode)
            self.data.tensor._engine.scale_rows(product, factors[mode], scales, self._sums[mode])
            factors[mode] = product

    def _propose(self, before: list[Array]) -> tuple[list[Array], Array] | None:
        """Extrapolate every other sweep: return new factors and their column sums, or None."""
        if not self._base:
            self._base = {n: before[n] for n in self.modes}
            return None
        paths = {n: (base, before[n], self.model.factors[n]) for n, base in self._base.items()}
        self._base = {}
        step = self._choose_step(list(paths.values()))
        self._growth = 1.0
        if step >= self._longest_step:
            self._growth = _GROWTH
        if step == 1:
            self._longest_step *= self._growth
            return None
        sums = self._sums.copy()
        proposal = list(self.model.factors)
        for n, path in paths.items():
            proposal[n] = self.data.tensor._engine.extrapolate(path, step, sums[n])
        return proposal, sums

    def _choose_step(self, paths: list[tuple[Array, Array, Array]]) -> float:
        """Return SQUAREM's step from three factors of each mode: 1, or a longer one."""
        rank = self._sums.shape[1]
        squares = self.data.xp.empty((len(paths), 2, rank))
        for squares_of_mode, path in zip(squares, paths, strict=True):
            self.data.tensor._engine.measure_steps(path, squares_of_mode)
        change, bend = move(squares, np).sum(axis=(0, 2)).tolist()
        if not bend:
            return 1.0
        return min(max(1.0, (change / bend) ** 0.5), self._longest_step)

    def _try(self, proposal: list[Array], sums: Array) -> bool:
        """Take up a model unless it has a higher F; return whether it was taken up."""
        sums, product, loss = self._evaluate(proposal, sums)
        if not loss <= self.loss:
            return False
        self._sums = sums
        self._product = product
        self.loss = loss
        return True

    def _lift_zeros(self, factors: list[Array]) -> list[Array]:
        """Lift the zeros that should grow, in each mode where this lowers F."""
        for mode in self.modes:
            is_zero = factors[mode] <= _NEGLIGIBLE * _average_columns(factors[mode])
            # Rows without nonzeros are all zero, and stay so.
            if not (is_zero.any(axis=1) & ~is_zero.all(axis=1)).any():
                continue
            product = self._product
            if mode != self.modes[0]:
                product, _ = divide_counts(self.data, factors, mode)
            scales = find_scales(self.data, factors, self._sums, mode)
            proposal = list(factors)
            proposal[mode] = lift_zeros(factors[mode], product * scales)
            is_changed = proposal[mode] is not factors[mode]
            if is_changed and self._try(proposal, add_columns(proposal)):
                factors = proposal
                self._base = {}  # SQUAREM needs models one step apart: begin anew
        return factors

    def _evaluate(
        self, factors: list[Array], sums: Array, stays: bool = False
    ) -> tuple[Array, Array, float]:
        """Return the sums, the MTTKRP of ratios that the next update needs, and F, in one pass."""
        product, log_sum = divide_counts(
            self.data, factors, self.modes[0], wants_logs=True, stays=stays
        )
        return sums, product, complete_loss(self.data, factors, sums, log_sum)


def balance(factors: list[Array], modes: Sequence[int]) -> list[Array]:
    """Scale the columns of the factors of `modes` so that they have equal sums; keep the model."""
    xp = array_module(factors[0])
    balanced = list(factors)
    # A column of zeros has the sum 1 here, and stays.
    sums = {}
    for n in modes:
        of_mode = sum_columns(factors[n])
        sums[n] = xp.where(of_mode > 0, of_mode, 1)
    logs = sum(xp.log(of_mode) for of_mode in sums.values())
    geometric_mean = xp.exp(logs / len(sums))
    for n, of_mode in sums.items():
        scales = geometric_mean / of_mode
        balanced[n] = factors[n] * scales.astype(factors[n].dtype)
    return balanced


def lift_zeros(factor: Array, multipliers: Array | None = None) -> Array:
    """Raise the zeros in a factor to 1/100 of the mean of their column.

    With the `multipliers` of an update, raise only those whose multiplier m is above 1, and by
    ``m - 1`` times as much if that is less than 1. Return `factor` itself if there are none.
    """
    xp = array_module(factor)
    means = _average_columns(factor)
    levels = xp.broadcast_to(_LIFT * means, factor.shape)
    if multipliers is not None:
        levels = levels * xp.clip(multipliers - 1, 0, 1)
    limits = _NEGLIGIBLE * means
    is_lifted = (factor <= limits) & (levels > limits)
    if not has_true(is_lifted):
        return factor
    return xp.where(is_lifted, levels, factor)


def _average_columns(factor: Array) -> Array:
    """Return the means of a factor's columns (R,), and 1 for a column of zeros."""
    means = sum_columns(factor) / factor.shape[0]
    return array_module(factor).where(means > 0, means, 1).astype(factor.dtype)
