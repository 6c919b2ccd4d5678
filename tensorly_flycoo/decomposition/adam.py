"""CP decompositions with any loss by Adam, from sampled gradients.

A sum of g(x, m) over all cells is a sum of g(0, m) over all cells, and of g(x, m) - g(0, m) over
the nonzeros. Both are estimated from samples, drawn uniformly and with replacement: the
semi-stratified sampling of Kolda and Hong (SIAM Journal on Mathematics of Data Science 2, 2020),
which need not look up whether a cell is a nonzero. The loss is exact where the cells can be
enumerated, else an estimate too.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module
from ..base.checks import num_cells
from ..loop.cp_model import make_cp_tensor, multiply_all
from ..loop.losses import Elementwise, Loss
from ..loop.masks import ObservedData
from ..loop.poisson import evaluate_loss
from ..loop.run import RunModel, Sweep
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

#: Adam's own.
_BETA_1 = 0.9
_BETA_2 = 0.999
_EPSILON = 1e-8

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
        """Evaluate a function of data and model; at nonzeros, subtract its value for a zero."""
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
        self.data = data
        self.nonzeros = make_sampler(data.tensor)
        self._xp = data.xp

    def draw(
        self, random: np.random.RandomState, num_nonzeros: int, num_cells_: int, num_steps: int = 1
    ) -> Iterator[Samples]:
        """Yield the samples of each step: all nonzeros, if there are no more than `num_nonzeros`.

        Several steps look their nonzeros up together, since on a cluster each look-up is a wait.
        """
        xp = self._xp
        count = min(num_nonzeros, self.nonzeros.nnz)
        num_together = max(1, _NUM_NONZEROS // count)
        for start in range(0, num_steps, num_together):
            places = []
            cells = []
            for _ in range(start, min(start + num_together, num_steps)):
                places.append(self._draw_places(random, count))
                cells.append(self._draw_cells(random, num_cells_))
            coords, values = self.nonzeros.take(xp.asarray(np.concatenate(places)))
            coords_of_steps = xp.split(coords, len(cells), axis=-1)
            values_of_steps = xp.split(values, len(cells), axis=-1)
            for parts in zip(coords_of_steps, values_of_steps, cells, strict=True):
                yield self._join(*parts)

    def _draw_places(self, random: np.random.RandomState, count: int) -> np.ndarray:
        """Draw nonzeros by number, or list all of them."""
        nnz = self.nonzeros.nnz
        if count == nnz:
            return np.arange(nnz)
        return random.randint(0, nnz, count, np.int64)

    def _draw_cells(self, random: np.random.RandomState, count: int) -> np.ndarray:
        """Draw cells, mode by mode: (ndim, count)."""
        return np.stack([random.randint(0, size, count, np.int64) for size in self.nonzeros.shape])

    def _join(self, coords: Array, values: Array, cells_on_host: np.ndarray) -> Samples:
        """Make the samples of a step from its nonzeros and its cells."""
        xp = self._xp
        cells = xp.asarray(cells_on_host)
        num_nonzeros = values.size
        num_drawn = cells.shape[1]
        # A sample stands for as many nonzeros, or cells, as there are for each that was drawn.
        weights = xp.empty(num_nonzeros + num_drawn)
        weights[:num_nonzeros] = self.nonzeros.nnz / num_nonzeros
        weights[num_nonzeros:] = num_cells(self.nonzeros.shape) / num_drawn
        if self.data.missing is not None:
            is_missing, _ = find_places(self.data.missing.coords, cells, xp)
            weights[num_nonzeros:][is_missing] = 0
        return Samples(
            coords=xp.concatenate([coords.astype(np.int64), cells], axis=1),
            values=xp.concatenate([values, xp.zeros(num_drawn, values.dtype)]),
            num_nonzeros=num_nonzeros,
            weights=weights,
        )


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
    # The loss of the nonzeros, less that of zeros there; then of zeros at all cells.
    total = 0.0
    for start in range(0, sampler.nonzeros.nnz, _NUM_NONZEROS):
        coords, values = sampler.nonzeros.take(slice(start, start + _NUM_NONZEROS))
        model = evaluate_model(coords, None, factors)
        losses = loss.value(values, model) - loss.value(values * 0, model)
        total += float(losses.sum(dtype=np.float64))
    if not loss.is_truncated:
        total += sum_zeros(loss, factors)
    if sampler.data.missing is not None:
        model = sampler.data.missing.impute(None, factors)
        total -= float(loss.value(model * 0, model).sum(dtype=np.float64))
    if math.isnan(total):
        raise ValueError(f"loss={loss.name!r} is nan, expected a number for each x and m")
    return total


def sum_zeros(loss: Loss, factors: Sequence[Array]) -> float:
    """Add up the loss of zeros at all cells, block by block.

    The model of a block is a product of two matrices: rows of the modes on the left, one for each
    combination of their indices, and all combinations of the modes on the right.
    """
    first = factors[0]
    xp = array_module(first)
    shape = [factor.shape[0] for factor in factors]
    # As many modes on the right as give few columns, and at least one on each side.
    num_left = len(factors) - 1
    while num_left > 1 and math.prod(shape[num_left - 1 :]) <= _MAX_COLUMNS:
        num_left -= 1
    right = factors[-1]
    for factor in reversed(factors[num_left:-1]):
        right = (factor[:, None] * right).reshape(-1, right.shape[1])
    num_rows = math.prod(shape[:num_left])
    block_size = choose_block_size(first, right.shape[0])
    total = 0.0
    for start in range(0, num_rows, block_size):
        numbers = xp.arange(start, min(start + block_size, num_rows))
        indices = xp.unravel_index(numbers, shape[:num_left])
        left = xp.ones((numbers.size, first.shape[1]), first.dtype)
        for factor, ids in zip(factors[:num_left], indices, strict=True):
            left = left * factor[ids]
        model = left @ right.T
        total += float(loss.value(xp.zeros_like(model), model).sum(dtype=np.float64))
    return total


def compute_gradients(
    loss: Loss, samples: Samples, factors: Sequence[Array], modes: Sequence[int]
) -> dict[int, Array]:
    """Estimate the gradient of the loss by the factors of `modes`: (I_n, R) each."""
    xp = array_module(factors[0])
    rows = [factor[ids] for factor, ids in zip(factors, samples.coords, strict=True)]
    ones = xp.ones_like(rows[0])
    # For each mode, the products of the rows of the modes before it, and of those after it.
    before = [ones]
    after = [ones]
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


@final
class Adam(Sweep):
    """Epochs of stochastic gradient steps with adaptive rates; `loss` is the model's.

    An epoch that does not lower the loss is undone, and the rate decreases.
    """

    solver = "generalized_parafac"
    is_loss = True

    def __init__(
        self,
        function: Loss,
        data: ObservedData,
        model: RunModel,
        modes: list[int],  # whose factors are updated
        samples: tuple[int, int] | None,  # how many nonzeros and cells a step draws
        seed: int,
        state: Mapping[str, np.ndarray],  # of a checkpoint, whose seed counts; else empty
    ) -> None:
        self.function = function
        self.model = model
        self.modes = modes
        xp = data.xp
        self._sampler = CellSampler(data)
        if samples is None:
            count = int(np.clip(sum(data.tensor.shape), *_SAMPLES))
            num_sampled_cells = count
            if function.is_truncated:  # zeros say nothing to it
                num_sampled_cells = 1
            samples = (count, num_sampled_cells)
        self._samples = samples
        #: Means of the gradients and of their squares, of each mode.
        self._moments: dict[int, tuple[Array, Array]] = {}
        if state:
            self.seed, self._num_done, self._num_failures = state["numbers"].tolist()
            for n in modes:
                mean, square = state[f"mean_{n}"], state[f"square_{n}"]
                self._moments[n] = xp.asarray(mean), xp.asarray(square)
        else:
            self.seed, self._num_done, self._num_failures = seed, 0, 0
            for n in modes:
                zeros = xp.zeros_like(model.factors[n])
                self._moments[n] = zeros, zeros
        self._compared = self._draw_compared()
        self.loss = measure_loss(function, self._sampler, model.factors, self._compared)

    def _draw_compared(self) -> Samples | None:
        """Draw the samples that estimate the loss, if the cells are too many to enumerate."""
        is_sum_of_cells = not (self.function.is_count or self.function.is_truncated)
        if not is_sum_of_cells or num_cells(self._sampler.data.tensor.shape) <= MAX_CELLS:
            return None
        random = np.random.RandomState(self.seed)
        (samples,) = self._sampler.draw(random, _NUM_COMPARED, _NUM_COMPARED)
        return samples

    def save_state(self) -> dict[str, Array]:
        numbers = [self.seed, self._num_done, self._num_failures]
        state = {"numbers": np.array(numbers, np.int64)}
        for n, (mean, square) in self._moments.items():
            state |= {f"mean_{n}": mean, f"square_{n}": square}
        return state

    def measure_start(self) -> float:
        return self.loss

    def make(self) -> CPTensor:
        return make_cp_tensor(self.model.weights, self.model.factors)

    def has_failed(self) -> bool:
        """Return whether too many epochs were undone."""
        return self._num_failures > _MAX_FAILURES

    def update(self, iteration: int) -> float:
        """Do an epoch."""
        factors = self.model.factors
        before = list(factors)
        moments = dict(self._moments)
        num_done = self._num_done
        rate = _RATE * _DECAY**self._num_failures
        # A seed for each epoch, so that a checkpoint need not hold the state of a generator.
        random = np.random.RandomState([self.seed, len(self.model.errors)])
        for samples in self._sampler.draw(random, *self._samples, num_steps=_NUM_STEPS):
            gradients = compute_gradients(self.function, samples, factors, self.modes)
            self._num_done += 1
            for n, gradient in gradients.items():
                factors[n] = self._step(n, factors[n], gradient, rate)
        loss = measure_loss(self.function, self._sampler, factors, self._compared)
        if loss <= self.loss:
            self.loss = loss
        else:
            self._num_failures += 1
            factors[:] = before
            self._moments = moments
            self._num_done = num_done
        return self.loss

    def _step(self, mode: int, factor: Array, gradient: Array, rate: float) -> Array:
        """Move a factor against its gradient, as far as its moments say."""
        mean, square = self._moments[mode]
        mean = _BETA_1 * mean + (1 - _BETA_1) * gradient
        square = _BETA_2 * square + (1 - _BETA_2) * gradient * gradient
        self._moments[mode] = (mean, square)
        # Both moments began at zero: these correct them for it.
        mean_share = 1 - _BETA_1**self._num_done
        square_share = 1 - _BETA_2**self._num_done
        xp = array_module(factor)
        size = xp.sqrt(square / square_share) + _EPSILON
        moved = factor - rate / mean_share * mean / size
        if self.function.lower_bound > -np.inf:
            moved = xp.maximum(moved, self.function.lower_bound)
        return moved.astype(factor.dtype, copy=False)


def scale_guess(
    loss: Loss, data: ObservedData, factors: list[Array], modes: Sequence[int]
) -> list[Array]:
    """Scale the factors of `modes` so that model and data have about the same mean.

    A model that is a logarithm gets that of the mean; the first factor takes its sign. A
    truncated loss takes the mean of the nonzeros.
    """
    x = data.tensor
    count = num_cells(x.shape)
    if loss.is_truncated:
        count = x.nnz
    target = sum_values(x._layout, x._engine) / count
    if loss.is_log and target > 0:
        target = float(np.log(target))
    means = [factor.mean(axis=0, dtype=np.float64) for factor in factors]
    ratio = target / float(multiply_all(means).sum())
    if not np.isfinite(ratio) or ratio == 0:
        return factors
    scaled = list(factors)
    size = abs(ratio) ** (1 / len(modes))
    for n in modes:
        scale = size
        if n == modes[0]:
            scale = np.sign(ratio) * size
        scaled[n] = (factors[n] * scale).astype(data.dtype)
    return scaled
