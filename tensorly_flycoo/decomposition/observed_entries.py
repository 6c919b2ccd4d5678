"""The entries that `observed_parafac` fits: their values, weights, and parts to hold out."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np

from ..base.array_modules import Array, array_module
from ..loop.cp_model import multiply_grams
from ..ops.cp_entries import evaluate_model
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor, group_cells

#: How many tenths of the entries are held out, one after the other, if ridges are close.
_NUM_TENTHS = 3


class ObservedEntries(NamedTuple):
    """The observed entries, in float64: what each adds to the Gram matrices and right-hand sides.

    An entry with weight w and value v adds ``w - unobserved`` and ``w * v``.
    """

    coords: Array  # (ndim, count)
    values: Array
    weights: Array | None  # None for ones
    targets: Array  # values times weights
    unobserved: float  # the weight of all other cells

    @property
    def excess(self) -> Array | None:
        """The weights less the weight of unobserved cells; None for ones."""
        if self.weights is None:
            return None
        return self.weights - self.unobserved

    @property
    def square(self) -> float:
        """The weighted sum of the squared values."""
        return float((self.targets * self.values).sum())

    def find_mean(self, shape: tuple[int, ...]) -> float:
        """Return the weighted mean, of all cells if all count."""
        total = float(self.values.size)
        excess = self.excess
        if excess is not None:
            total = float(excess.sum())
        return float(self.targets.sum()) / (total + self.unobserved * math.prod(shape))

    def measure(self, factors: list[Array]) -> float:
        """Return the relative error of a model."""
        model = evaluate_model(self.coords, None, factors)
        other_cells = 0.0
        if self.unobserved:
            all_cells = float(multiply_grams(None, factors).sum())
            observed_cells = float((model**2).sum())
            other_cells = max(0.0, all_cells - observed_cells)  # rounding may leave less than 0
        return self.compare(model, self.unobserved * other_cells)

    def compare(self, model: Array | float, square_elsewhere: float = 0.0) -> float:
        """Return the relative error of a model's values here, and the square of all others'."""
        residual = (self.values - model) ** 2
        if self.weights is not None:
            residual = self.weights * residual
        residual_square = float(residual.sum()) + square_elsewhere
        square = self.square or 1.0  # zeros alone have no size to compare with
        return (residual_square / square) ** 0.5

    def take(self, places: Array) -> Self:
        """Return the entries at some places."""
        weights = self.weights
        if weights is not None:
            weights = weights[places]
        return type(self)(
            coords=self.coords[:, places],
            values=self.values[places],
            weights=weights,
            targets=self.targets[places],
            unobserved=self.unobserved,
        )

    def divide(self) -> Iterator[tuple[Self, Self]]:
        """Yield most entries, and a tenth to judge by: the same ones for each rank and start."""
        xp = array_module(self.values)
        count = self.values.size
        places = xp.asarray(np.random.RandomState(0).permutation(count))
        num_out = max(1, count // 10)
        for start in range(0, count, num_out)[:_NUM_TENTHS]:
            held_out = self.take(xp.sort(places[start : start + num_out]))
            if count == 1:  # it is fitted and judges
                yield self, held_out
                continue
            kept = xp.concatenate([places[:start], places[start + num_out :]])
            yield self.take(xp.sort(kept)), held_out

    def find_fair(self, held_out: Self) -> Self:
        """Select the held-out entries whose rows all have entries here; if none has, return all."""
        is_fair = array_module(self.values).ones(held_out.values.size, bool)
        for rows, held_out_rows in zip(self.coords, held_out.coords, strict=True):
            counts = array_module(rows).bincount(rows, minlength=int(held_out_rows.max()) + 1)
            is_fair &= counts[held_out_rows] > 0
        if not is_fair.any():
            return held_out
        return held_out.take(is_fair)


def read_entries(tensor: Any, x: FlycooTensor, name: str) -> ObservedEntries:
    """Return the nonzeros of a tensor in the shape of `x`, all of weight 1."""
    y = as_flycoo(tensor, check_coords=True)
    if y.shape != x.shape or y.nnz == 0 or y.device != x.device:
        raise ValueError(
            f"{name} has shape {y.shape}, {y.nnz} nonzeros and device {y.device!r}, "
            f"expected shape {x.shape}, some nonzeros and device {x.device!r}"
        )
    coords, stored = y._sorted_nonzeros()
    values = stored.astype(np.float64)
    return ObservedEntries(coords, values, weights=None, targets=values, unobserved=0)


def weigh_entries(x: FlycooTensor, confidence: Any, unobserved: float) -> ObservedEntries:
    """Return the nonzeros of `x`, and its zeros that have a confidence, with their weights."""
    nonzeros = read_entries(x, x, "tensor")
    if confidence is None:
        return nonzeros
    weighted = read_entries(confidence, x, "confidence")
    weights = weighted.values
    least = float(weights.min())
    if not (least > 0 and least >= unobserved):
        raise ValueError(
            f"confidence has the weight {least}, expected weights above 0, and unobserved, which "
            f"is {unobserved}, or more"
        )
    # Each weighted cell gets a zero, to which its nonzero is added, if it has one.
    xp = x._engine.xp
    joined = xp.concatenate([weighted.coords, nonzeros.coords], axis=1)
    padded = xp.concatenate([xp.zeros_like(weights), nonzeros.values])
    coords, grouped, starts = group_cells(joined, padded, x.shape, x._engine)
    num_lacking = starts.size - weights.size
    if num_lacking:
        raise ValueError(f"confidence lacks {num_lacking} of tensor's nonzeros: give each a weight")
    values = x._engine.sum_groups(grouped, starts)
    return ObservedEntries(coords, values, weights, weights * values, unobserved)
