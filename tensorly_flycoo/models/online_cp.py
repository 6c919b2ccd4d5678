"""CP models of a tensor that grows by slices: least squares (CP-stream), and counts (online EM)."""

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module, invert_positive, is_cupy, move
from ..base.checks import check_choice, check_count, check_integer, check_rank, check_real
from ..decomposition import generalized_parafac
from ..decomposition.parafac import LeastSquares
from ..engines.tall import multiply, solve, transposed_product
from ..loop.cp_loop import start
from ..loop.cp_model import make_cp_tensor, multiply_all
from ..loop.whole_tensor import WholeTensor
from ..ops.mttkrp import mttkrp, mttkrp_of_ratios
from ..tensor.coo_cache import SparseData
from ..tensor.tensor import FlycooTensor
from .estimator import Parameters
from .online_slices import Slices, read_slices

#: Sweeps over the first slices, and the change of the relative error that ends them.
_FIRST_SWEEPS, _FIRST_TOLERANCE = 200, 1e-6

#: Added to the counts of each index, as a part of their mean in the component. An index without
#: counts so far can have some later.
_PRIOR = 1e-3


@dataclass
class LeastSquaresStream:
    r"""A CP model that least squares fit to slices, one after the other.

    The rows :math:`s_i` of the streaming mode are computed once. The other factors :math:`A_n` fit
    the new slice and, instead of the old ones, the old model :math:`A'_n` of them:

    .. math:: |X_t - [A; s_t]|^2 + \sum_{i < t} \mu^{t - i} |[A'; s_i] - [A; s_i]|^2

    The rows enter only as the sum of the :math:`\mu^{t - i} s_i s_i^T`, the history (R, R).
    """

    factors: list[Array]  # of all modes but the streaming one
    state: list[Array]  # the history
    is_nonnegative: ClassVar[bool] = False  # whether data and model are

    @classmethod
    def begin(cls, factors: Sequence[Array], rows: Array, forget: float) -> tuple[Self, Array]:
        """Begin with a model of past slices, the latest one last in `rows`; return these too."""
        return cls(list(factors), [transposed_product(discount(rows, forget), rows)]), rows

    @staticmethod
    def fit(x: FlycooTensor, rank: int, random_state: Any) -> list[Array]:
        """Decompose the first slices together by `parafac`: factors of all modes."""
        model = start(x, None, rank, "random", "", random_state, solver="parafac")
        run = LeastSquares(
            WholeTensor(x), list(range(x.ndim)), tensor=x, model=model, n_iter_max=_FIRST_SWEEPS,
            tol=_FIRST_TOLERANCE,
        )  # fmt: skip
        return list(run.iterate().factors)

    def grow(self, shape: Sequence[int]) -> None:
        """Append rows of zeros to the factors: all cells of new indices were zeros so far."""
        self.factors = list(map(append_zeros, self.factors, shape))

    def add(self, x: FlycooTensor, forget: float, n_iter_max: int, tol: float) -> Array:
        """Update the model with a slice, and return the slice's row (R,) of the streaming mode.

        Ends when a sweep lowers the squared residual by less than `tol` times the squared norm.
        """
        old, factors, history = self.factors, list(self.factors), forget * self.state[0]
        grams = [transposed_product(factor, factor) for factor in factors]
        crosses, last = list(grams), np.inf
        square = float(x._layout.norm) ** 2
        for _ in range(n_iter_max):
            targets = (mttkrp(x, factors, 0) * factors[0]).sum(axis=0)
            row = solve(multiply_all(grams), targets[:, None])[:, 0]
            outer = row[:, None] * row
            for n, before in enumerate(old):
                gram = multiply_all(grams, n)
                change = history * (multiply_all(crosses, n) - gram) - gram * outer
                product = mttkrp(x, factors, n, weights=row)
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
    added = num_rows - array.shape[0]
    return array_module(array).pad(array, ((0, added), (0, 0))) if added > 0 else array


def as_rows(factor: Array) -> Array:
    return array_module(factor).ascontiguousarray(factor)


@dataclass
class CountStream:
    r"""A CP model of the means of Poisson counts, fitted to one slice after the other.

    The columns of the factors have sum 1; the rows of the streaming mode are expected counts. The
    row of a slice is the likeliest one for the factors so far. Then each count is divided among the
    components in proportion to their parts of the model; the factors are proportional to the sums
    of these parts over all slices, discounted by their age. These sums are the `state`, (I_n, R)
    each, like the `factors` of all modes but the streaming one.
    """

    factors: list[Array]
    state: list[Array]
    is_nonnegative: ClassVar[bool] = True

    @classmethod
    def begin(cls, factors: Sequence[Array], rows: Array, forget: float) -> tuple[Self, Array]:
        """Begin with a model of past slices, the latest last in `rows`; return scaled rows too."""
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
        grown = list(map(append_zeros, self.state, shape))
        triples = zip(self.factors, self.state, grown, strict=True)
        self.factors = [own if new is old else _smooth(new) for own, old, new in triples]
        self.state = grown

    def add(self, x: FlycooTensor, forget: float, n_iter_max: int, tol: float) -> Array:
        """Update the model with a slice, and return the slice's row (R,) of the streaming mode.

        The row is fitted by up to `n_iter_max` steps of EM, which end when the log-likelihood rises
        by less than `tol` times the sum of the counts.
        """
        row = self._fit_row(x, n_iter_max, tol)
        weighted = [self.factors[0] * row, *self.factors[1:]]
        self.state = [
            forget * sums + weighted[n] * mttkrp_of_ratios(x, weighted, n, 0.0)[0]
            for n, sums in enumerate(self.state)
        ]
        self.factors = [_smooth(sums) for sums in self.state]
        return row

    def _fit_row(self, x: FlycooTensor, n_iter_max: int, tol: float) -> Array:
        coords, values = x._sorted_nonzeros()
        xp, rank = array_module(values), self.factors[0].shape[1]
        products = multiply_all([f[of] for f, of in zip(self.factors, coords, strict=True)])
        total, last = values.sum(), -np.inf
        row = xp.full(rank, total / rank, values.dtype)
        for _ in range(n_iter_max):
            model = multiply(products, row[:, None])[:, 0]
            ratios = values * invert_positive(model, 0)
            row = row * transposed_product(products, ratios[:, None])[:, 0]
            logs = values * xp.log(xp.where(model > 0, model, 1))
            log_sum = float(logs.sum(dtype=np.float64))
            if log_sum - last <= tol * float(total):
                break
            last = log_sum
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


#: The kind of stream for each loss.
STREAMS: dict[str, type[LeastSquaresStream] | type[CountStream]] = {
    "gaussian": LeastSquaresStream,
    "poisson_count": CountStream,
}


@dataclass(eq=False)
class OnlineCP(Parameters):
    """A CP model of a tensor that grows along one mode, updated by each new slice.

    What a slice costs, and the memory, do not depend on the number of slices before it.

    Parameters
    ----------
    rank : int
    mode : int
        The streaming mode, along which the tensor grows; -1 is the last.
    loss : {"gaussian", "poisson_count"}
        Least squares, by CP-stream; or the likelihood of counts, by online EM.
    forget : float
        The weight of a slice relative to the next one, above 0 and at most 1. The model remembers
        about ``1 / (1 - forget)`` slices; 1 forgets nothing.
    init : {"random"} or CPTensor
        With "random", the slices of the first `partial_fit` are decomposed together, by several
        sweeps from a random start: pass as many as you can. A CPTensor is a model of past slices,
        from any decomposition, which is continued.
    n_iter_max : int
        The most sweeps over the modes for each slice; with "poisson_count", the most updates of its
        row.
    tol : float
        A slice's sweeps end when the loss changes by less than this, relative to its size.
    keep : int
        How many rows of the streaming mode `cp_tensor_` has: those of the last slices.
    random_state : int or numpy.random.RandomState, optional

    Attributes
    ----------
    cp_tensor_ : CPTensor
        The model of the last `keep` slices.
    rows_ : array (T, R)
        The rows of the streaming mode for the T slices of the last `partial_fit`.
    n_slices_ : int
        The number of slices so far.

    Notes
    -----
    A sweep of a slice takes ``nnz * R * ndim**2`` operations for its nonzeros, and
    ``sum(shape) * R**2`` for the factors, which "poisson_count" updates only once for each slice,
    in ``sum(shape) * R`` operations. Each slice is built as a tensor. With "poisson_count", a
    slice takes ``nnz * R`` numbers more.

    Rows of the streaming mode are not computed again, so old ones belong to the model of their
    time. A slice has the same effect alone as together with others, except in the first call. To go
    on in another process, pickle the estimator.

    References
    ----------
    Cappé and Moulines, "On-line expectation-maximization algorithm for latent data models", Journal
    of the Royal Statistical Society B 71, 2009. Smith, Huang, Sidiropoulos and Karypis, "Streaming
    tensor factorization for infinite data sources", SDM 2018.

    Examples
    --------
    >>> from tensorly_flycoo import OnlineCP
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, _ = planted_tensor((20, 30, 40), 2, nnz_per_component=500, random_state=0)
    >>> online = OnlineCP(2, random_state=0).partial_fit(x[:, :, :30])
    >>> online.partial_fit(x[:, :, 30:]).n_slices_
    40
    >>> online.rows_.shape, [factor.shape for factor in online.cp_tensor_.factors]
    ((10, 2), [(20, 2), (30, 2), (40, 2)])
    """

    rank: int
    mode: int = -1
    loss: str = "gaussian"
    forget: float = 0.99
    _: KW_ONLY
    init: Any = "random"
    n_iter_max: int = 20
    tol: float = 1e-3
    keep: int = 1000
    random_state: Any = None

    def partial_fit(self, slices: "SparseData | tuple[Array, ...]", y: None = None) -> Self:
        """Update the model with new slices, one after the other, and return the estimator.

        Parameters
        ----------
        slices : FlycooTensor, sparse.COO, (coords, values, shape) or (coords, values)
            With all modes: coords (ndim, nnz), repeated ones add up. In the streaming mode, index 0
            is the first slice after the earlier ones, and each index is a slice, also without
            nonzeros; a single slice has size 1 there. Other modes may have more indices than the
            model so far, which then grows, or fewer. Without a shape, they have the model's, and
            the last slice is the last one with nonzeros.

        Raises
        ------
        TypeError
            If `slices` or a parameter is of the wrong type.
        ValueError
            If a coordinate is outside the shape, a value is not finite, the number of modes
            differs or, in the first slices, is below three, these have no shape or no nonzeros, or
            a parameter is out of range. The model then stays as it was.
        """
        self._check()
        if not hasattr(self, "_stream") and not isinstance(self.init, str):
            begun, rows = STREAMS[self.loss].begin(*self._take_guess(), self.forget)
            self._set(begun, rows, rows[:0], 0)
        stream, dtype = getattr(self, "_stream", None), None
        known: Any = None
        if stream is not None:
            dtype, known = stream.factors[0].dtype, [len(factor) for factor in stream.factors]
        new = read_slices(slices, self.mode, dtype, known)
        if STREAMS[self.loss].is_nonnegative and not (new.values >= 0).all():
            least = float(new.values.min())
            raise ValueError(f"slices holds {least}, expected 0 or more for loss={self.loss!r}")
        if stream is None:
            return self._fit_first(new)
        sizes = [size for n, size in enumerate(new.shape) if n != new.mode]
        if len(sizes) != len(known):
            raise ValueError(
                f"slices has {len(new.shape)} modes, expected {len(known) + 1}: a single slice has "
                "size 1 in the streaming mode"
            )
        xp = array_module(stream.factors[0])
        new = Slices(move(new.coords, xp), move(new.values, xp), new.shape, new.mode)
        shape = [*map(max, sizes, known)]
        stream = copy.copy(stream)  # the old one stays if a slice fails
        stream.grow(shape)
        options = (self.forget, self.n_iter_max, self.tol)
        added = np.stack([stream.add(x, *options) for x in new.iterate(shape)])
        self._set(stream, np.concatenate([self._rows, added]), added, self.n_slices_ + len(new))
        return self

    @property
    def cp_tensor_(self) -> CPTensor:
        """The model of the last `keep` slices."""
        factors = list(self._stream.factors)
        factors.insert(self.mode % (len(factors) + 1), self._rows)
        return make_cp_tensor(None, factors)

    def _check(self) -> None:
        check_rank(self.rank)
        check_integer(self.mode, "mode")
        check_count(self.n_iter_max, "n_iter_max")
        check_count(self.keep, "keep")
        check_choice(self.loss, "loss", tuple(STREAMS))
        check_real(self.forget, "forget")
        check_real(self.tol, "tol", 0)
        if not 0 < self.forget <= 1:
            raise ValueError(f"forget is {self.forget}, expected a number above 0 and at most 1")
        if isinstance(self.init, str) and self.init != "random":
            raise ValueError(f"init is {self.init!r}, expected 'random' or a CP tensor")

    def _take_guess(self) -> tuple[list[Array], Array]:
        """Copy the factors of `init`, and its rows of the streaming mode."""
        weights, factors = self.init
        factors = [array_module(factor).array(factor, order="C") for factor in factors]
        ranks = {factor.shape[1] for factor in factors}
        if ranks != {self.rank}:
            raise ValueError(f"init has rank {sorted(ranks)[0]}, expected {self.rank}")
        if not -len(factors) <= self.mode < len(factors):
            raise ValueError(f"mode is {self.mode}, expected {-len(factors)} to {len(factors) - 1}")
        if STREAMS[self.loss].is_nonnegative and any(not (f >= 0).all() for f in factors):
            raise ValueError(f"init has negative elements, expected none for loss={self.loss!r}")
        rows = factors.pop(self.mode)
        return factors, rows if weights is None else rows * weights

    def _fit_first(self, new: Slices) -> Self:
        if len(new.shape) < 3:
            whole = list(new.shape)
            whole.insert(len(whole) + 1 + self.mode if self.mode < 0 else self.mode, 1)
            raise ValueError(
                f"the first slices have shape {new.shape}, expected three modes or more, all those "
                f"of the tensor: pass a matrix that is one slice with shape {tuple(whole)}"
            )
        if not new.values.any():
            raise ValueError("the first slices have no nonzeros, expected some to start from")
        device = "cuda" if is_cupy(new.values) else "cpu"
        x = FlycooTensor(new.coords, new.values, new.shape, device=device)
        kind = STREAMS[self.loss]
        factors = [as_rows(factor) for factor in kind.fit(x, self.rank, self.random_state)]
        rows = factors.pop(new.mode)
        stream, rows = kind.begin(factors, rows, self.forget)
        self._set(stream, rows, rows, len(new))
        return self

    def _set(self, stream: Any, rows: Array, added: Array, num_slices: int) -> None:
        self._stream, self._rows = stream, rows[-self.keep :]
        self.rows_, self.n_slices_ = added, num_slices
