"""Least squares of a tensor that grows by slices: CP-stream.

The history of all slices is a matrix (R, R), so a slice costs as much as it would alone.
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
from .parafac import LeastSquares
from .stopping import has_converged
from .whole_tensor import WholeTensor

#: Sweeps over the first slices, and the change of the relative error that ends them.
_FIRST_SWEEPS, _FIRST_TOLERANCE = 200, 1e-6


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
