"""Models of a tensor that grows by slices: least squares (CP-stream), and counts (online EM).

The history of all slices is a matrix (R, R), or an array as large as each factor, so a slice costs
as much as it would alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..array_modules import Array, array_module
from ..linalg.tall_skinny import solve, transposed_product
from ..ops.slices import Slice
from ..tensor.tensor import FlycooTensor
from .cp_loop import iterate, measure_by, start
from .cp_model import multiply_all
from .generalized_parafac import generalized_parafac
from .parafac import LeastSquares
from .stopping import has_converged
from .whole_tensor import WholeTensor

#: Sweeps over the first slices, and the change of the relative error that ends them.
_FIRST_SWEEPS, _FIRST_TOLERANCE = 200, 1e-6

#: Added to the counts of each index, as a part of their mean in the component. An index without
#: counts so far can have some later.
_PRIOR = 1e-3


class LeastSquaresStream:
    r"""A CP model that least squares fit to slices, one after the other.

    The rows :math:`s_i` of the streaming mode are computed once. The other factors :math:`A_n` fit
    the new slice and, instead of the old ones, the old model :math:`A'_n` of them:

    .. math:: |X_t - [A; s_t]|^2 + \sum_{i < t} \mu^{t - i} |[A'; s_i] - [A; s_i]|^2

    Only the matrix of the :math:`\mu^{t - i} s_i s_i^T` is needed of the rows.

    Attributes
    ----------
    factors : list of array (I_n, R)
        Of all modes but the streaming one.
    state : list of array
        The history (R, R).
    """

    def __init__(self, factors: Sequence[Array], state: Sequence[Array]) -> None:
        self.factors, self.state = list(factors), list(state)

    #: Whether data and model are non-negative.
    is_nonnegative = False

    @staticmethod
    def list_shapes(shape: Sequence[int], rank: int) -> list[tuple[int, int]]:
        """List the shapes of `state`."""
        return [(rank, rank)]

    @classmethod
    def begin(
        cls, factors: Sequence[Array], rows: Array, forget: float
    ) -> tuple["LeastSquaresStream", Array]:
        """Take up a model of the slices so far, the latest in the last of `rows`.

        Returns the rows too, which another stream may scale.
        """
        return cls(factors, [transposed_product(discount(rows, forget), rows)]), rows

    @staticmethod
    def fit(x: FlycooTensor, rank: int, random_state: Any) -> list[Array]:
        """Decompose the first slices together by `parafac`: factors of all modes."""
        model = start(x, None, rank, "random", "", random_state, solver="parafac")
        data = WholeTensor(x)
        cp_tensor, _ = iterate(
            model, LeastSquares(data, list(range(x.ndim)), 0, 0, None), measure_by(data, True),
            solver="parafac", tensor=x, n_iter_max=_FIRST_SWEEPS,
            is_over=lambda errors: has_converged(errors, _FIRST_TOLERANCE, "abs_rec_error"),
        )  # fmt: skip
        return list(cp_tensor.factors)

    def grow(self, shape: Sequence[int]) -> None:
        """Append rows of zeros to the factors: all cells of new indices were zeros so far."""
        self.factors = [
            append_zeros(factor, size) for factor, size in zip(self.factors, shape, strict=True)
        ]

    def add(self, x: Slice, forget: float, n_iter_max: int, tol: float) -> Array:
        """Update the model with a slice, and return the slice's row (R,) of the streaming mode.

        Ends when a sweep lowers the squared residual of the slice by less than `tol` times the
        square of its norm.
        """
        old, factors, history = self.factors, list(self.factors), forget * self.state[0]
        grams = [transposed_product(factor, factor) for factor in factors]
        crosses, last = list(grams), np.inf
        square = float((x.values**2).sum(dtype=np.float64))
        for _ in range(n_iter_max):
            row = solve(multiply_all(grams), x.multiply_all(factors)[:, None])[:, 0]
            outer = row[:, None] * row
            for n, before in enumerate(old):
                gram = multiply_all(grams, n)
                change = history * (multiply_all(crosses, n) - gram) - gram * outer
                product = x.mttkrp(factors, row, n)
                # Solving for the change leaves columns as they are that no slice depends on.
                matrix, targets = gram * (outer + history), product + before @ change
                factors[n] = as_rows(before + solve(matrix, targets.T).T)
                grams[n] = transposed_product(factors[n], factors[n])
                crosses[n] = transposed_product(before, factors[n])
            inner = float((product * factors[-1]).sum(dtype=np.float64))
            residual = square - 2 * inner + float((multiply_all(grams) * outer).sum())
            if abs(last - residual) <= tol * square:
                break
            last = residual
        self.factors, self.state = factors, [history + outer]
        return row


def discount(rows: Array, forget: float) -> Array:
    """Multiply the last row by 1, the one before by `forget`, and so on."""
    ages = array_module(rows).arange(rows.shape[0] - 1, -1, -1)
    return rows * (forget ** ages.astype(rows.dtype))[:, None]


def append_zeros(array: Array, num_rows: int) -> Array:
    """Return an array with `num_rows` rows, the new ones zeros; the array itself if it has them."""
    if num_rows <= array.shape[0]:
        return array
    longer = array_module(array).zeros((num_rows, *array.shape[1:]), array.dtype)
    longer[: array.shape[0]] = array
    return longer


def as_rows(factor: Array) -> Array:
    """Make a factor C-contiguous."""
    return array_module(factor).ascontiguousarray(factor)


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
