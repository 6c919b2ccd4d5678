"""CP decompositions with any loss by Adam, from sampled gradients."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..array_modules import Array, array_module
from ..checks import num_cells
from ..linalg.sparse_matrices import make_csc, multiply
from ..tensor.pieces import sum_values
from .cell_samples import CellSampler, Samples
from .cp_model import multiply_all
from .loss_values import MAX_CELLS, LossValue, measure_loss
from .losses import Loss
from .masks import ObservedData

#: Steps of an epoch, the first learning rate, by what it decreases after an epoch that did not
#: lower the loss, and how often it does before the run stops: those of Kolda and Hong, but for the
#: last, which is 1 there.
_NUM_STEPS, _RATE, _DECAY, _MAX_FAILURES = 1000, 1e-3, 0.1, 2

#: Adam's own.
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8

#: The fewest and the most nonzeros, and cells, of a step; and those that an estimate compares.
_SAMPLES, _NUM_COMPARED = (1000, 100_000), 200_000


def compute_gradients(
    loss: Loss, samples: Samples, factors: Sequence[Array], modes: Sequence[int]
) -> dict[int, Array]:
    """Estimate the gradient of the loss by the factors of `modes`: (I_n, R) each.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> from tensorly_flycoo.decomposition.losses import LOSSES
    >>> samples = Samples(np.array([[0], [1]]), np.array([0.0]), 0, np.array([4.0]))
    >>> compute_gradients(LOSSES["gaussian"], samples, [np.ones((2, 1)), np.ones((2, 1))], [1])
    {1: array([[0.],
           [8.]])}
    """
    xp, rows = (
        array_module(factors[0]),
        [f[c] for f, c in zip(factors, samples.coords, strict=True)],
    )
    ones = xp.ones_like(rows[0])
    before, after = [ones], [ones]  # products of the rows of modes before, and after, each mode
    for n in range(len(rows) - 1):
        before.append(before[-1] * rows[n])
        after.insert(0, after[0] * rows[-1 - n])
    model = (before[-1] * rows[-1]).sum(axis=1)
    slopes = samples.apply(loss, loss.slope, model) * samples.weights
    slopes = slopes.astype(factors[0].dtype, copy=False)
    starts, gradients = xp.arange(model.size + 1), {}
    for n in modes:
        shape = (factors[n].shape[0], model.size)
        matrix = make_csc(slopes, samples.coords[n], starts, shape)
        gradients[n] = multiply(matrix, before[n] * after[n])
    return gradients


class Adam:
    """Epochs of stochastic gradient steps with adaptive rates.

    An epoch that does not lower the loss is undone, and the rate decreases. A step draws `samples`
    nonzeros and cells, and updates the factors of `modes`; `state` is that of a checkpoint, as
    `save_state` returned it. `value` is the loss of the model.
    """

    def __init__(
        self,
        loss: Loss,
        data: ObservedData,
        modes: list[int],
        factors: list[Array],
        samples: tuple[int, int] | None,
        random: np.random.RandomState,
        state: Mapping[str, Array],
    ) -> None:
        self._loss, self._data, self._modes, self._random = loss, data, modes, random
        self._sampler = CellSampler(data)
        if samples is None:
            count = int(np.clip(sum(data.tensor.shape), *_SAMPLES))
            samples = (count, count)
        self._num_samples = samples
        self._restore(factors, state)
        self._compared = None
        if loss.name != "poisson_count" and num_cells(data.tensor.shape) > MAX_CELLS:
            drawn = np.random.RandomState(self._seed)
            self._compared = self._sampler.draw(drawn, _NUM_COMPARED, _NUM_COMPARED)
        self.value = self._measure(factors)

    def _restore(self, factors: list[Array], state: Mapping[str, Array]) -> None:
        """Begin, or go on from the state of a checkpoint."""
        xp = self._data.xp
        self._moments = {
            n: tuple(
                xp.asarray(state[f"{name}_{n}"]) if state else xp.zeros_like(factors[n])
                for name in ("mean", "square")
            )
            for n in self._modes
        }
        if state:
            position, self._seed, self._num_done, self._num_failures = state["numbers"].tolist()
            self._random = np.random.RandomState()
            self._random.set_state(("MT19937", state["random_keys"], position, 0, 0.0))
        else:
            self._seed = int(self._random.randint(2**31))
            self._num_done = self._num_failures = 0

    def save_state(self) -> dict[str, Array]:
        """Return what a resumed run needs besides the factors."""
        _, keys, position, *_ = self._random.get_state(legacy=True)
        numbers = [position, self._seed, self._num_done, self._num_failures]
        state = {"random_keys": keys, "numbers": np.array(numbers, np.int64)}
        for n, (mean, square) in self._moments.items():
            state |= {f"mean_{n}": mean, f"square_{n}": square}
        return state

    @property
    def has_failed(self) -> bool:
        """Whether so many epochs did not lower the loss that the run stops."""
        return self._num_failures > _MAX_FAILURES

    def __call__(
        self, iteration: int, weights: None, factors: list[Array], errors: list[float]
    ) -> tuple[None, list[Array], float]:
        before, moments, num_done = list(factors), dict(self._moments), self._num_done
        rate = _RATE * _DECAY**self._num_failures
        for _ in range(_NUM_STEPS):
            samples = self._sampler.draw(self._random, *self._num_samples)
            gradients = compute_gradients(self._loss, samples, factors, self._modes)
            self._num_done += 1
            for n, gradient in gradients.items():
                factors[n] = self._step(n, factors[n], gradient, rate)
        value = self._measure(factors)
        if value.loss <= self.value.loss:
            self.value = value
            return None, factors, value.loss
        self._num_failures += 1
        self._moments, self._num_done = moments, num_done
        return None, before, self.value.loss

    def _step(self, mode: int, factor: Array, gradient: Array, rate: float) -> Array:
        mean, square = self._moments[mode]
        mean = _BETA_1 * mean + (1 - _BETA_1) * gradient
        square = _BETA_2 * square + (1 - _BETA_2) * gradient * gradient
        self._moments[mode] = (mean, square)
        first, second = (1 - beta**self._num_done for beta in (_BETA_1, _BETA_2))
        xp = self._data.xp
        moved = factor - rate / first * mean / (xp.sqrt(square / second) + _EPSILON)
        if self._loss.lower_bound > -np.inf:
            moved = xp.maximum(moved, self._loss.lower_bound)
        return moved.astype(factor.dtype, copy=False)

    def _measure(self, factors: list[Array]) -> LossValue:
        return measure_loss(self._loss, self._sampler, None, factors, self._compared)


def scale_guess(
    loss: Loss, data: ObservedData, factors: list[Array], modes: Sequence[int]
) -> list[Array]:
    """Scale the factors of `modes` so that the mean of the model is about that of the data.

    If the model is a logarithm, it is that of the mean, and the first of the factors takes its
    sign.
    """
    means = [factor.mean(axis=0, dtype=np.float64) for factor in factors]
    mean = sum_values(data.tensor._layout, data.tensor._engine) / num_cells(data.tensor.shape)
    wanted = float(np.log(mean)) if loss.is_log and mean > 0 else mean
    ratio = wanted / float(multiply_all(means).sum())
    if not np.isfinite(ratio) or ratio == 0:
        return factors
    factors = list(factors)
    for n in modes:
        sign = np.sign(ratio) if n == modes[0] else 1.0
        factors[n] = (factors[n] * (sign * abs(ratio) ** (1 / len(modes)))).astype(data.dtype)
    return factors
