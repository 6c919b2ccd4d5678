"""The held-out loss: how badly a model predicts entries that it was not fitted to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from tensorly.parafac2_tensor import Parafac2Tensor
from tensorly.tucker_tensor import TuckerTensor

from ..base.array_modules import Array, move
from ..base.checks import num_cells
from ..decomposition.methods import Method
from ..decomposition.tucker_sweep import evaluate_tucker
from ..loop.holding_out import count_share, hold_out
from ..loop.losses import find_exact
from ..loop.masks import MissingEntries
from ..ops.cp_entries import evaluate_model, take_model
from ..ops.ragged import RaggedTensor
from ..ops.sampling import find_chances
from ..tensor.cells import find_places
from ..tensor.coo_cache import unwrap
from ..tensor.pieces import sum_values
from .rank_selection import RankScore

#: Means of counts are moved so much of the way to what the nonzeros of each index alone predict, or
#: of a count, if that is less: a model that calls a count impossible would be infinitely bad else.
_SHRINKAGE = 0.1


@dataclass(frozen=True)
class HeldOutLoss:
    """Entries that models have to predict, and the loss of models at them.

    The loss is a sum of one term for each entry: squared errors, whose sum's root is the loss, or
    for counts deviances. Terms are divided by `whole`, so a model that explains nothing has 1.
    """

    data: Any  # what to fit: the tensor without these entries, or slices
    options: dict[str, Any]  # for the fit: a mask that says that these are missing, not zero
    entries: MissingEntries
    weights: np.ndarray  # how many cells of the tensor each entry stands for
    independent: np.ndarray | None  # of counts: their means if modes were independent
    whole: float  # the sum of the terms of zeros, or of the mean: what is to be explained

    @classmethod
    def draw(
        cls,
        data: Any,
        share: float,
        method: Method,
        options: Mapping[str, Any],
        random: np.random.RandomState,
    ) -> Self:
        """Hold out a share of the nonzeros, and as many other cells if the method knows them.

        A `mask` among the options is a `MissingEntries`: cells that nobody knows.
        """
        unknown = options.get("mask")
        x = unwrap(data) if unknown is None else unknown.observed
        count = count_share(x.nnz, share)
        coords = hold_out(x, count, random, with_zeros=method.knows_zeros)
        if unknown is not None:
            is_unknown, _ = find_places(move(unknown.coords, np), coords, np)
            coords = coords[:, ~is_unknown]
        entries = MissingEntries(x, coords)
        if not method.knows_zeros:
            return cls._of_stored(entries)
        fitted: Any = data if isinstance(data, RaggedTensor) else entries.observed
        mask = _make_mask(fitted, entries, unknown, method)
        chances = find_chances(x, entries.coords)
        values = _list_values(entries)
        weights = _weigh(values, chances, count, x.nnz)
        if find_exact(method.find_loss(options)).is_count:
            sum_of_counts = sum_values(x._layout, x._engine)
            independent = sum_of_counts * chances
            whole = _measure_deviance_of_mean(values, weights, sum_of_counts / num_cells(x.shape))
        else:
            independent = None
            # No product of vectors, whose last bits depend on the threads of the BLAS.
            whole = float((weights * values**2).sum())
        return cls(fitted, {"mask": mask}, entries, weights, independent, whole)

    @classmethod
    def _of_stored(cls, entries: MissingEntries) -> Self:
        """Judge by stored entries alone, of the same weight, around their mean."""
        values = _list_values(entries)
        whole = float(((values - values.mean()) ** 2).sum() or (values**2).sum())
        weights = np.ones(values.size)
        return cls(entries.observed, {}, entries, weights, None, whole)

    def list_terms(self, model: Any) -> np.ndarray:
        """Return the term of each entry in the loss of a model, or in its square."""
        values = _list_values(self.entries)
        predicted = move(self._predict(model), np).astype(np.float64)
        if self.independent is None:
            return self.weights * (values - predicted) ** 2 / self.whole
        predicted += _SHRINKAGE * np.clip(self.independent - predicted, -1, 1)
        logs = np.log(np.where(values > 0, values, 1.0) / predicted)
        deviances = 2 * (predicted - values + values * logs)
        return self.weights * deviances / self.whole

    def _predict(self, model: Any) -> Array:
        """Return the values of a model at the entries."""
        coords = self.entries.coords
        if isinstance(model, TuckerTensor):
            return evaluate_tucker(coords, model.core, model.factors)
        if isinstance(model, Parafac2Tensor):
            # The slices are stacked into a matrix. On the host, where a small product for each
            # slice takes less than a launch.
            a, b, columns = (move(factor, np) for factor in model.factors)
            scales = a * move(model.weights, np)
            rows = np.zeros((self.entries.shape[0], len(b)))
            starts = self.data.starts
            for start, projection, scale in zip(starts, model.projections, scales, strict=True):
                end = start + len(projection)
                rows[start:end] = move(projection, np) @ (b * scale)
            return evaluate_model(move(coords, np), None, [rows, columns])
        return self.entries.impute(*take_model(model))

    def judge(self, scores: list[RankScore], terms: list[np.ndarray]) -> list[RankScore]:
        """Return the scores of ranks with their held-out losses and standard errors."""
        power = 0.5 if self.independent is None else 1.0
        least = min(terms, key=np.sum)
        judged = []
        for score, rank_terms in zip(scores, terms, strict=True):
            total = float(rank_terms.sum())
            loss = total**power
            loss_above = (total + self._measure_spread(rank_terms)) ** power
            # All ranks predict the same entries, so what they share cancels out in differences.
            spread_of_difference = self._measure_spread(rank_terms - least)
            loss_below = max(total - spread_of_difference, 0.0) ** power
            judged.append(
                score._replace(
                    heldout_loss=loss,
                    heldout_se=loss_above - loss,
                    difference_se=loss - loss_below,
                )
            )
        return judged

    def _measure_spread(self, terms: np.ndarray) -> float:
        """Return the standard error of a sum of terms: nonzeros and zeros are drawn apart."""
        is_zero = move(self.entries.start == 0, np)
        parts = (terms[is_zero], terms[~is_zero])
        return float(sum(part.var() * part.size for part in parts if part.size)) ** 0.5


def _list_values(entries: MissingEntries) -> np.ndarray:
    """Return the true values of held-out entries, in float64 on the host."""
    return move(entries.start, np).astype(np.float64)


def _make_mask(
    fitted: Any, entries: MissingEntries, unknown: MissingEntries | None, method: Method
) -> Any:
    """Return a mask of the held-out entries, and of those that nobody knows, for a method."""
    if not method.is_ours:
        return entries.to_mask()
    coords = entries.coords
    if unknown is not None:
        coords = np.hstack([coords, unknown.coords])
    return MissingEntries(unwrap(fitted), coords)  # planned once, for all runs


def _weigh(values: np.ndarray, chances: Array, count: int, nnz: int) -> np.ndarray:
    """Return the weights of drawn entries: one over their probabilities of being drawn.

    Sums with these weights are, on average, sums over all cells (Horvitz and Thompson). A cell is
    drawn as one of `count` nonzeros, or as another cell, with its chance in each of `count` draws.
    """
    with np.errstate(divide="ignore"):  # a chance of 1
        as_other = -np.expm1(count * np.log1p(-chances))
    as_nonzero = np.where(values == 0, 0.0, count / nnz)
    return 1 / (as_nonzero + (1 - as_nonzero) * as_other)


def _measure_deviance_of_mean(values: np.ndarray, weights: np.ndarray, mean: float) -> float:
    """Return the deviance of the mean of all cells, above 0.

    Over all cells, what the mean adds and what it misses cancel out: only logarithms are left.
    """
    logs = np.log(np.where(values > 0, values, 1.0)) - np.log(mean)
    deviance = 2 * float((weights * values * logs).sum())
    return max(deviance, np.finfo(np.float64).tiny)
