"""Poisson CP of counts that come by slices: online EM.

The history of all slices is an array as large as each factor, so a slice costs as much as it would
alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..array_modules import Array, array_module
from ..ops.slices import Slice
from ..tensor.tensor import FlycooTensor
from .cp_stream import append_zeros, discount
from .generalized_parafac import generalized_parafac

#: Added to the counts of each index, as a part of their mean in the component. An index without
#: counts so far can have some later.
_PRIOR = 1e-3

#: Sweeps over the first slices.
_FIRST_SWEEPS = 200


class CountStream:
    r"""A CP model of the means of Poisson counts, fitted to one slice after the other.

    The columns of the factors have sum 1; the rows of the streaming mode are expected counts. The
    row of a slice is the likeliest one for the factors so far. Then each count is divided among the
    components in proportion to their parts of the model; the factors are proportional to the sums
    of these parts over all slices, discounted by their age. These sums are the `state`, (I_n, R)
    each, like the `factors` of all modes but the streaming one.
    """

    #: Whether data and model are non-negative.
    is_nonnegative = True

    def __init__(self, factors: Sequence[Array], state: Sequence[Array]) -> None:
        self.factors, self.state = list(factors), list(state)

    @staticmethod
    def list_shapes(shape: Sequence[int], rank: int) -> list[tuple[int, int]]:
        """List the shapes of `state`."""
        return [(size, rank) for size in shape]

    @classmethod
    def begin(
        cls, factors: Sequence[Array], rows: Array, forget: float
    ) -> tuple["CountStream", Array]:
        """Take up a model of the slices so far, the latest in the last of `rows`.

        Returns the rows too, as they go with factors whose columns have sum 1.
        """
        for factor in factors:
            rows = rows * factor.sum(axis=0)
        counts = discount(rows, forget).sum(axis=0)
        shares = [_divide_columns(factor) for factor in factors]
        state = [share * counts for share in shares]
        return cls([_smooth(sums) for sums in state], state), rows

    @staticmethod
    def fit(x: FlycooTensor, rank: int, random_state: Any) -> list[Array]:
        """Decompose the first slices together: factors of all modes."""
        options = {"n_iter_max": _FIRST_SWEEPS, "random_state": random_state}
        return list(generalized_parafac(x, rank, **options).factors)

    def grow(self, shape: Sequence[int]) -> None:
        """Append indices without counts so far."""
        for n, size in enumerate(shape):
            if size > self.state[n].shape[0]:
                self.state[n] = append_zeros(self.state[n], size)
                self.factors[n] = _smooth(self.state[n])

    def add(self, x: Slice, forget: float, n_iter_max: int, tol: float) -> Array:
        """Update the model with a slice, and return the slice's row (R,) of the streaming mode.

        The row is fitted by up to `n_iter_max` steps of EM, which end when the log-likelihood rises
        by less than `tol` times the sum of the counts.
        """
        total, rank = x.values.sum(), self.state[0].shape[1]
        row = array_module(total).full(rank, total / rank, self.state[0].dtype)
        last = -np.inf
        for _ in range(n_iter_max):
            row, log_sum = x.share_row(self.factors, row)
            if log_sum - last <= tol * float(total):
                break
            last = log_sum
        state = [forget * sums for sums in self.state]
        x.share_all(self.factors, row, state)
        self.state, self.factors = state, [_smooth(sums) for sums in state]
        return row


def _divide_columns(sums: Array) -> Array:
    """Divide each column by its sum; columns of zeros become constant."""
    totals = sums.sum(axis=0)
    ones = array_module(sums).ones_like(totals)
    is_empty = totals <= 0
    return (sums + is_empty) / array_module(sums).where(is_empty, sums.shape[0] * ones, totals)


def _smooth(sums: Array) -> Array:
    """Return sums of counts as probabilities: columns of sum 1 without zeros."""
    return (_divide_columns(sums) + _PRIOR / sums.shape[0]) / (1 + _PRIOR)
