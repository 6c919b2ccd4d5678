"""CP decompositions with any loss by Adam, from sampled gradients.

A sum of g(x, m) over all cells is a sum of g(0, m) over all cells, and of g(x, m) - g(0, m) over
the nonzeros. Both are estimated from samples, drawn uniformly and with replacement: the
semi-stratified sampling of Kolda and Hong (SIAM Journal on Mathematics of Data Science 2, 2020),
which need not look up whether a cell is a nonzero. The loss is exact where the cells can be
enumerated, else an estimate too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ..base.array_modules import Array, array_module
from ..base.checks import num_cells
from ..loop.cp_loop import Run, has_settled
from ..loop.cp_model import multiply_all
from ..loop.losses import Elementwise, Loss
from ..loop.masks import ObservedData
from ..loop.poisson import evaluate_loss
from ..ops.cp_entries import choose_block_size, evaluate_model
from ..ops.sampling import make_sampler
from ..ops.sparse_products import add_products
from ..tensor.cells import find_places
from ..tensor.pieces import sum_values

#: Steps of an epoch, the first learning rate, by what it decreases after an epoch that did not
#: lower the loss, and how often it does before the run stops: those of Kolda and Hong, but for the
#: last, which is 1 there.
_NUM_STEPS = 1000
_RATE = 1e-3
_DECAY = 0.1
_MAX_FAILURES = 2

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's own

#: The fewest and the most nonzeros, and cells, of a step; and those that an estimate compares.
_SAMPLES = (1000, 100_000)
_NUM_COMPARED = 200_000

#: The most cells that are enumerated, in about a second per 10^8 of them.
MAX_CELLS = 2**26

#: The most columns of a block of cells, and how many nonzeros are compared together.
_MAX_COLUMNS = 2**12
_NUM_NONZEROS = 2**20


class Samples(NamedTuple):
    """Sampled nonzeros, then sampled cells."""

    coords: Array  # (ndim, count)
    values: Array  # (count,); zeros for the sampled cells
    num_nonzeros: int
    weights: Array  # float64 (count,): how many cells each stands for; 0 for a missing one

    def apply(self, loss: Loss, function: Elementwise, model: Array) -> Array:
        """Return a function of data and model, for nonzeros less that of a zero; refuse nan."""
        results = function(self.values, model)
        zeros = function(self.values[: self.num_nonzeros] * 0, model[: self.num_nonzeros])
        results[: self.num_nonzeros] -= zeros
        if np.isnan(results).any():
            wrong = int(np.flatnonzero(np.isnan(results))[0])
            raise ValueError(
                f"loss={loss.name!r} is nan at x = {float(self.values[wrong])}, "
                f"m = {float(model[wrong])}, expected a number"
            )
        return results


class CellSampler:
    """Draws observed nonzeros and cells: coordinates mode by mode, so for any number of cells."""

    def __init__(self, data: ObservedData) -> None:
        self.data, self.nonzeros, self._xp = data, make_sampler(data.tensor), data.xp

    def draw(
        self, random: np.random.RandomState, num_nonzeros: int, num_cells_: int, num_steps: int = 1
    ) -> Iterator[Samples]:
        """Yield the samples of each step: all nonzeros, if there are no more than `num_nonzeros`.

        Several steps look their nonzeros up together, since on a cluster each look-up is a wait.
        """
        xp = self._xp
        shape = self.nonzeros.shape
        nnz = self.nonzeros.nnz
        count = min(num_nonzeros, nnz)
        draw = partial(random.randint, 0, dtype=np.int64)
        at_once = max(1, _NUM_NONZEROS // count)
        for start in range(0, num_steps, at_once):
            places = []
            cells = []
            for _ in range(start, min(start + at_once, num_steps)):
                places.append(draw(nnz, count) if count < nnz else np.arange(nnz))
                cells.append(np.stack([draw(size, num_cells_) for size in shape]))
            coords, values = self.nonzeros.take(xp.asarray(np.concatenate(places)))
            of_steps = (xp.split(array, len(cells), axis=-1) for array in (coords, values))
            for coords, values, own in zip(*of_steps, map(xp.asarray, cells), strict=True):
                weights = xp.empty(count + num_cells_)
                weights[:count] = nnz / count
                weights[count:] = num_cells(shape) / num_cells_
                if self.data.missing is not None:
                    is_missing, _ = find_places(self.data.missing.coords, own, xp)
                    weights[count:][is_missing] = 0
                coords = xp.concatenate([coords.astype(np.int64), own], axis=1)
                values = xp.concatenate([values, xp.zeros(num_cells_, values.dtype)])
                yield Samples(coords, values, count, weights)


def measure_loss(
    loss: Loss, sampler: CellSampler, factors: Sequence[Array], samples: Samples | None = None
) -> float:
    """Measure the loss of a model over all observed cells, or estimate it from `samples`.

    A truncated loss needs the nonzeros alone.
    """
    if loss.is_count:
        return evaluate_loss(sampler.data, factors)
    if samples is not None:
        model = evaluate_model(samples.coords, None, factors)
        terms = samples.apply(loss, loss.value, model).astype(np.float64) * samples.weights
        return float(terms.sum())
    change = 0.0  # the loss of the nonzeros, less that of zeros there
    for start in range(0, sampler.nonzeros.nnz, _NUM_NONZEROS):
        coords, values = sampler.nonzeros.take(slice(start, start + _NUM_NONZEROS))
        model = evaluate_model(coords, None, factors)
        losses = loss.value(values, model) - loss.value(values * 0, model)
        change += float(losses.sum(dtype=np.float64))
    total = change if loss.is_truncated else change + sum_zeros(loss, factors)
    if sampler.data.missing is not None:
        model = sampler.data.missing.impute(None, factors)
        total -= float(loss.value(model * 0, model).sum(dtype=np.float64))
    if math.isnan(total):
        raise ValueError(f"loss={loss.name!r} is nan, expected a number for each x and m")
    return total


def sum_zeros(loss: Loss, factors: Sequence[Array]) -> float:
    """Add up the loss of zeros at all cells, block by block."""
    first = factors[0]
    xp = array_module(factors[0])
    shape = [factor.shape[0] for factor in factors]
    num_left = len(factors) - 1
    while num_left > 1 and math.prod(shape[num_left - 1 :]) <= _MAX_COLUMNS:
        num_left -= 1
    right = factors[-1]
    for factor in reversed(factors[num_left:-1]):
        right = (factor[:, None] * right).reshape(-1, right.shape[1])
    num_rows = math.prod(shape[:num_left])
    total = 0.0
    step = choose_block_size(first, right.shape[0])
    for start in range(0, num_rows, step):
        numbers = xp.arange(start, min(start + step, num_rows))
        rows = xp.ones((numbers.size, first.shape[1]), first.dtype)
        for factor, ids in zip(factors, xp.unravel_index(numbers, shape[:num_left]), strict=False):
            rows = rows * factor[ids]
        model = rows @ right.T
        total += float(loss.value(xp.zeros_like(model), model).sum(dtype=np.float64))
    return total


def compute_gradients(
    loss: Loss, samples: Samples, factors: Sequence[Array], modes: Sequence[int]
) -> dict[int, Array]:
    """Estimate the gradient of the loss by the factors of `modes`: (I_n, R) each."""
    xp = array_module(factors[0])
    rows = [factor[ids] for factor, ids in zip(factors, samples.coords, strict=True)]
    ones = xp.ones_like(rows[0])
    before, after = [ones], [ones]  # products of the rows of modes before, and after, each mode
    for n in range(len(rows) - 1):
        before.append(before[-1] * rows[n])
        after.insert(0, after[0] * rows[-1 - n])
    model = (before[-1] * rows[-1]).sum(axis=1)
    slopes = samples.apply(loss, loss.slope, model) * samples.weights
    slopes = slopes.astype(factors[0].dtype, copy=False)
    places = xp.arange(model.size)
    return {
        n: add_products(
            slopes, samples.coords[n], places, before[n] * after[n], factors[n].shape[0]
        )
        for n in modes
    }


@dataclass
class Adam(Run):
    """Epochs of stochastic gradient steps with adaptive rates; `loss` is the model's.

    An epoch that does not lower the loss is undone, and the rate decreases.
    """

    solver = "generalized_parafac"
    function: Loss
    data: ObservedData
    modes: list[int]
    samples: tuple[int, int] | None  # the numbers of nonzeros and cells of a step
    seed: int

    def prepare(self) -> None:
        loss = self.function
        data = self.data
        state = self.state
        xp = self.data.xp
        self._sampler = CellSampler(data)
        if self.samples is None:
            count = int(np.clip(sum(data.tensor.shape), *_SAMPLES))
            self.samples = (count, 1 if loss.is_truncated else count)
        self._moments = {
            n: tuple(
                xp.asarray(state[f"{name}_{n}"]) if state else xp.zeros_like(self.factors[n])
                for name in ("mean", "square")
            )
            for n in self.modes
        }
        numbers: list[int] = state["numbers"].tolist() if state else [self.seed, 0, 0]
        self.seed, self._num_done, self._num_failures = numbers
        self._compared = None
        is_sum_of_cells = not (loss.is_count or loss.is_truncated)
        if is_sum_of_cells and num_cells(data.tensor.shape) > MAX_CELLS:
            drawn = np.random.RandomState(self.seed)
            (self._compared,) = self._sampler.draw(drawn, _NUM_COMPARED, _NUM_COMPARED)
        self.loss = measure_loss(loss, self._sampler, self.factors, self._compared)

    def save_state(self) -> dict[str, Array]:
        state = {"numbers": np.array([self.seed, self._num_done, self._num_failures], np.int64)}
        for n, (mean, square) in self._moments.items():
            state |= {f"mean_{n}": mean, f"square_{n}": square}
        return state

    def measure_start(self) -> float:
        return self.loss

    def is_over(self) -> bool:
        """Return whether too many epochs were undone, or the loss hardly fell in the last one."""
        losses = self.errors
        is_undone = len(losses) > 1 and losses[-1] == losses[-2]
        has_failed = self._num_failures > _MAX_FAILURES
        return has_failed or (not is_undone and has_settled(losses, self.tol))

    def update(self, iteration: int) -> float:
        factors = self.factors
        moments = dict(self._moments)
        num_done = self._num_done
        before = list(factors)
        rate = _RATE * _DECAY**self._num_failures
        # A seed for each epoch, so that a checkpoint need not hold the state of a generator.
        random = np.random.RandomState([self.seed, len(self.errors)])
        assert self.samples is not None
        for samples in self._sampler.draw(random, *self.samples, num_steps=_NUM_STEPS):
            gradients = compute_gradients(self.function, samples, factors, self.modes)
            self._num_done += 1
            for n, gradient in gradients.items():
                factors[n] = self._step(n, factors[n], gradient, rate)
        loss = measure_loss(self.function, self._sampler, factors, self._compared)
        if loss <= self.loss:
            self.loss = loss
        else:
            self._num_failures += 1
            factors[:], self._moments, self._num_done = before, moments, num_done
        return self.loss

    def _step(self, mode: int, factor: Array, gradient: Array, rate: float) -> Array:
        mean, square = self._moments[mode]
        mean = _BETA_1 * mean + (1 - _BETA_1) * gradient
        square = _BETA_2 * square + (1 - _BETA_2) * gradient * gradient
        self._moments[mode] = (mean, square)
        first, second = (1 - beta**self._num_done for beta in (_BETA_1, _BETA_2))
        xp = array_module(factor)
        moved = factor - rate / first * mean / (xp.sqrt(square / second) + _EPSILON)
        if self.function.lower_bound > -np.inf:
            moved = xp.maximum(moved, self.function.lower_bound)
        return moved.astype(factor.dtype, copy=False)


def scale_guess(
    loss: Loss, data: ObservedData, factors: list[Array], modes: Sequence[int]
) -> list[Array]:
    """Scale the factors of `modes` so that the mean of the model is about that of the data.

    A model that is a logarithm gets that of the mean; the first factor takes its sign. A
    truncated loss takes the mean of the nonzeros.
    """
    means = [factor.mean(axis=0, dtype=np.float64) for factor in factors]
    x = data.tensor
    count = x.nnz if loss.is_truncated else num_cells(x.shape)
    mean = sum_values(x._layout, x._engine) / count
    wanted = float(np.log(mean)) if loss.is_log and mean > 0 else mean
    ratio = wanted / float(multiply_all(means).sum())
    if not np.isfinite(ratio) or ratio == 0:
        return factors
    factors = list(factors)
    for n in modes:
        sign = np.sign(ratio) if n == modes[0] else 1.0
        factors[n] = (factors[n] * (sign * abs(ratio) ** (1 / len(modes)))).astype(data.dtype)
    return factors
