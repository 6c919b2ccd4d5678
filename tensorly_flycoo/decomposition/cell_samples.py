"""Samples of the cells of a sparse tensor, for sums over all cells.

A sum of g(x, m) over all cells is a sum of g(0, m) over all cells, and of g(x, m) - g(0, m) over
the nonzeros. Both are estimated from samples, drawn uniformly and with replacement: the
semi-stratified sampling of [1]_, which need not look up whether a cell is a nonzero.

References
----------
.. [1] Kolda and Hong, "Stochastic Gradients for Large-Scale Tensor Decomposition", SIAM Journal on
   Mathematics of Data Science 2, 2020.
"""

from typing import Any, NamedTuple

import numpy as np

from ..array_modules import Array
from ..checks import num_cells
from ..ops.sampling import NonzeroSampler, make_sampler
from ..tensor.tensor import FlycooTensor
from .losses import Elementwise, Loss
from .masks import ObservedData


class Samples(NamedTuple):
    """Sampled nonzeros, then sampled cells, with how many cells each stands for.

    Attributes
    ----------
    coords : integer array (ndim, count)
    values : array (count,)
        Zero for the sampled cells.
    num_nonzeros : int
        How many of the samples are nonzeros.
    weights : float64 array (count,)
        0 for a missing cell.
    """

    coords: Array
    values: Array
    num_nonzeros: int
    weights: Array

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
    """Draws samples of the observed nonzeros and cells of a tensor.

    Coordinates are drawn mode by mode, so the number of cells is not limited.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [2, 0], [5, 5], [1, 1]], [3.0, 4.0], (2**16,) * 4)
    >>> sampler = CellSampler(ObservedData(x))
    >>> samples = sampler.draw(np.random.RandomState(0), 1, 2)
    >>> samples.coords.shape, samples.values.tolist(), float(samples.weights[0])
    ((4, 3), [3.0, 0.0, 0.0], 2.0)
    """

    def __init__(self, data: ObservedData) -> None:
        x, missing = data.tensor, data.missing
        self.data, self.nonzeros, self._xp = data, make_sampler(x), data.xp
        self._missing_cells = None
        if missing is not None:
            ones = self._xp.ones(missing.count, x.dtype)
            options: dict[str, Any] = {"layout": "indexed", "device": x._engine.local_device}
            cells = FlycooTensor(missing.coords, ones, x.shape, **options, slabs=1)
            self._missing_cells = NonzeroSampler(cells)

    def draw(self, random: np.random.RandomState, num_nonzeros: int, num_cells_: int) -> Samples:
        """Draw nonzeros and cells; all nonzeros, if there are no more than `num_nonzeros`."""
        nonzeros, xp = self.nonzeros, self._xp
        if num_nonzeros < nonzeros.nnz:
            places = xp.asarray(random.randint(0, nonzeros.nnz, num_nonzeros, dtype=np.int64))
        else:
            places, num_nonzeros = slice(None), nonzeros.nnz
        coords, values = nonzeros.take(places)
        drawn = [random.randint(0, size, num_cells_, dtype=np.int64) for size in nonzeros.shape]
        cells = xp.asarray(np.stack(drawn))
        weights = xp.empty(num_nonzeros + num_cells_)
        weights[:num_nonzeros] = nonzeros.nnz / max(num_nonzeros, 1)
        weights[num_nonzeros:] = num_cells(nonzeros.shape) / num_cells_
        if self._missing_cells is not None:
            weights[num_nonzeros:] *= self._missing_cells.entries(cells) == 0
        return Samples(
            xp.concatenate([coords.astype(np.int64), cells], axis=1),
            xp.concatenate([values, xp.zeros(num_cells_, values.dtype)]),
            num_nonzeros,
            weights,
        )
