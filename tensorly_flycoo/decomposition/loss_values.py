"""The loss of a CP model: exact where the cells can be enumerated, else an estimate."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..array_modules import Array, array_module
from ..checks import num_cells
from ..ops.cp_entries import choose_block_size, evaluate_model
from .cell_samples import CellSampler, Samples
from .losses import Loss
from .masks import MissingEntries
from .poisson import evaluate_loss

#: The most cells that are enumerated, in about a second per 10^8 of them.
MAX_CELLS = 2**26

#: The most columns of a block of cells, and how many nonzeros are compared together.
_MAX_COLUMNS, _NUM_NONZEROS = 2**12, 2**20


class LossValue(NamedTuple):
    """A loss, summed over all observed cells.

    Attributes
    ----------
    loss : float
    standard_error : float
        Of an estimate; 0 if the loss is exact.
    num_samples : int
        The cells that were compared.
    """

    loss: float
    standard_error: float
    num_samples: int


def measure_loss(
    loss: Loss,
    sampler: CellSampler,
    weights: Array | None,
    factors: Sequence[Array],
    samples: Samples | None = None,
) -> LossValue:
    """Measure the loss of a model at all observed cells.

    All cells are enumerated, in about a second for 10^8 of them, or those of `samples` compared;
    "poisson_count" needs no enumeration.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> from tensorly_flycoo.decomposition.losses import LOSSES
    >>> from tensorly_flycoo.decomposition.masks import ObservedData
    >>> sampler = CellSampler(ObservedData(FlycooTensor([[0], [1]], [3.0], (2, 2))))
    >>> measure_loss(LOSSES["gaussian"], sampler, None, [np.ones((2, 1)), np.ones((2, 1))])
    LossValue(loss=7.0, standard_error=0.0, num_samples=4)
    """
    cells = num_cells(sampler.nonzeros.shape)
    if loss.name == "poisson_count":
        return LossValue(evaluate_loss(sampler.data, weights, factors), 0.0, cells)
    if samples is not None:
        return _estimate(loss, samples, weights, factors)
    total = sum_zeros(loss, factors, weights) + _sum_nonzeros(loss, sampler, weights, factors)
    if sampler.data.missing is not None:
        total -= _sum_missing(loss, sampler.data.missing, weights, factors)
    if math.isnan(total):
        raise ValueError(f"loss={loss.name!r} is nan, expected a number for each x and m")
    return LossValue(total, 0.0, cells)


def _estimate(
    loss: Loss, samples: Samples, weights: Array | None, factors: Sequence[Array]
) -> LossValue:
    model = evaluate_model(samples.coords, weights, factors)
    terms = samples.apply(loss, loss.value, model).astype(np.float64) * samples.weights
    parts = (terms[: samples.num_nonzeros], terms[samples.num_nonzeros :])
    is_all = samples.num_nonzeros > 0 and float(samples.weights[0]) == 1
    variance = 0.0 if is_all else float(parts[0].var()) * parts[0].size
    variance += float(parts[1].var()) * parts[1].size
    return LossValue(float(terms.sum()), variance**0.5, terms.size)


def sum_zeros(loss: Loss, factors: Sequence[Array], weights: Array | None = None) -> float:
    """Add up the loss of zeros at all cells, block by block."""
    first = factors[0] if weights is None else factors[0] * weights
    factors, xp = [first, *factors[1:]], array_module(first)
    shape, num_left = [factor.shape[0] for factor in factors], len(factors) - 1
    while num_left > 1 and math.prod(shape[num_left - 1 :]) <= _MAX_COLUMNS:
        num_left -= 1
    right = factors[-1]
    for factor in reversed(factors[num_left:-1]):
        right = (factor[:, None] * right).reshape(-1, right.shape[1])
    num_rows, total = math.prod(shape[:num_left]), 0.0
    step = choose_block_size(first, right.shape[0])
    for start in range(0, num_rows, step):
        numbers = xp.arange(start, min(start + step, num_rows))
        rows = xp.ones((numbers.size, first.shape[1]), first.dtype)
        for factor, ids in zip(factors, xp.unravel_index(numbers, shape[:num_left]), strict=False):
            rows = rows * factor[ids]
        model = rows @ right.T
        total += float(loss.value(xp.zeros_like(model), model).sum(dtype=np.float64))
    return total


def _sum_nonzeros(
    loss: Loss, sampler: CellSampler, weights: Array | None, factors: Sequence[Array]
) -> float:
    """Add up the loss of the nonzeros, less that of zeros there."""
    total = 0.0
    for start in range(0, sampler.nonzeros.nnz, _NUM_NONZEROS):
        coords, values = sampler.nonzeros.take(slice(start, start + _NUM_NONZEROS))
        model = evaluate_model(coords, weights, factors)
        change = loss.value(values, model) - loss.value(values * 0, model)
        total += float(change.sum(dtype=np.float64))
    return total


def _sum_missing(
    loss: Loss, missing: MissingEntries, weights: Array | None, factors: Sequence[Array]
) -> float:
    model = missing.evaluate(weights, factors)
    return float(loss.value(model * 0, model).sum(dtype=np.float64))
