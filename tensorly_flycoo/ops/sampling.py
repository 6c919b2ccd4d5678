"""Sampled fibres and entries of a sparse tensor, found by search in its sorted nonzeros."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..array_modules import Array, array_module
from ..checks import densify_error
from ..linalg.sparse_matrices import by_rows, make_csc
from ..linalg.tall_skinny import sum_rows, transposed_product
from ..tensor.tensor import FlycooTensor
from .lazy import LazyArray
from .mttkrp import mttkrp


class NonzeroSampler:
    """Looks up entries and fibres of a sparse tensor by bisection in its sorted nonzeros.

    Parameters
    ----------
    x : FlycooTensor
        Its nonzeros are shared where they cannot move, else copied once.

    Notes
    -----
    The nonzeros stay packed, in the order of modes 0, 1, ..., ndim - 1. For each mode but the last,
    an order in which its fibres are contiguous is sorted when its fibres are first asked for, and
    kept: 4 bytes a nonzero and mode. Each look-up takes ``log2(nnz)`` steps.

    Examples
    --------
    >>> sampler = NonzeroSampler(FlycooTensor([[0, 1, 1], [2, 0, 1]], [1.0, 2.0, 3.0], (2, 3)))
    >>> sampler.entries([np.array([1, 0, 1]), np.array([0, 0, 1])])
    array([2., 0., 3.])
    >>> sampler.fibres(1, {0: np.array([1, 0])}).toarray()
    array([[2., 0.],
           [3., 0.],
           [0., 1.]])
    """

    def __init__(self, x: FlycooTensor) -> None:
        self.shape, self.ndim, self.nnz, self.dtype = x.shape, x.ndim, x.nnz, x.dtype
        self._xp, self._record_format = x._engine.xp, x._layout.record_format
        self._primitives = x._engine
        with x._layout.hold_order(0, self._primitives) as (records, places):
            self._records = records if places is None else self._primitives.gather(records, places)

    @functools.cached_property
    def _orders(self) -> list[Array]:
        """For each mode the order by the modes after it, cyclically, and by itself last."""
        orders = [None]  # of the last mode: as the records lie
        for mode in range(self.ndim - 1, 0, -1):
            arguments = (self._records, self._record_format, [mode], orders[0])
            orders.insert(0, self._primitives.sort_places(*arguments))
        return orders

    def entries(self, coords: Sequence[Array]) -> Array:
        """Return the entries (count,) at coords, an integer array (count,) a mode."""
        first, last = self._find(None, dict(enumerate(coords)))
        entries, is_stored = self._xp.zeros(first.shape, self.dtype), first < last
        records = self._records[first[is_stored]]
        entries[is_stored] = self._record_format.values(records)
        return entries

    def fibres(self, mode: int, coords: Mapping[int, Array]) -> Any:
        """Return fibres of a mode as the columns of a sparse matrix (I_mode, count), CSC.

        Parameters
        ----------
        mode : int
        coords : dict of int to integer array (count,)
            For each other mode where the fibres are.
        """
        xp, order = self._xp, self._orders[mode]
        following = [*range(mode + 1, self.ndim), *range(mode)]
        first, last = self._find(order, {n: coords[n] for n in following})
        starts = xp.zeros(first.size + 1, np.int64)
        starts[1:] = xp.cumsum(last - first)
        numbers, ends = xp.arange(int(starts[-1])), starts[1:]
        fibre_ids = xp.searchsorted(ends, numbers, side="right")
        places = numbers + (last - ends)[fibre_ids]
        records = self._records[places if order is None else order[places]]
        rows = self._record_format.rows(records, mode, xp)
        values = self._record_format.values(records)
        return make_csc(values, rows, starts, (self.shape[mode], first.size))

    def _find(self, order: Array | None, wanted: dict[int, Array]) -> tuple[Array, Array]:
        """Find where in an order the nonzeros with some coordinates begin and end.

        That order is by the modes of `wanted`, the first of them most significant.
        """
        return self._count_before(order, wanted, False), self._count_before(order, wanted, True)

    def _count_before(self, order: Array | None, wanted: dict[int, Array], or_equal: bool) -> Array:
        """Count the nonzeros that come before each of the wanted coordinates, by bisection."""
        xp = self._xp
        count = len(next(iter(wanted.values())))
        low = xp.zeros(count, np.int64)
        high = xp.full(count, self.nnz, np.int64)
        for _ in range(self.nnz.bit_length()):
            middle = (low + high) // 2
            inside = xp.minimum(middle, self.nnz - 1)
            records = self._records[inside if order is None else order[inside]]
            is_before, is_equal = xp.zeros(count, bool), low < high
            for mode, indices in wanted.items():
                rows = self._record_format.rows(records, mode, xp)
                is_before |= is_equal & (rows < indices)
                is_equal &= rows == indices
            if or_equal:
                is_before |= is_equal
            low, high = xp.where(is_before, middle + 1, low), xp.where(is_before, high, middle)
        return low


def fit_fibres(matrix: Array, fibres: Any, weights: Array | None = None) -> Array:
    """Fit each row of a factor to sampled fibres by least squares, the smallest where many fit.

    Parameters
    ----------
    matrix : array (count, R)
        Sampled rows of the Khatri-Rao product of the other factors.
    fibres : sparse matrix (I, count)
        The fibres at the same places, of `NonzeroSampler.fibres`.
    weights : array (count,), optional
        Of each sample.

    Returns
    -------
    array (I, R)

    Notes
    -----
    Singular values of `matrix` below ``max(matrix.shape) * eps`` times the largest count as zero.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [0, 1]], [2.0, 3.0], (2, 2))
    >>> fit_fibres(np.eye(2), NonzeroSampler(x).fibres(0, {1: np.array([0, 1])}))
    array([[2., 0.],
           [0., 3.]])
    """
    weighted = matrix if weights is None else matrix * weights[:, None]
    left, values, right = np.linalg.svd(weighted, full_matrices=False)
    smallest = max(matrix.shape) * np.finfo(values.dtype).eps * values[:1]
    rank = int(np.count_nonzero(values > smallest))  # they descend
    inverse = (left[:, :rank] / values[:rank]) @ right[:rank]
    if weights is not None:
        inverse = inverse * weights[:, None]
    return by_rows(fibres) @ array_module(inverse).ascontiguousarray(inverse)


_INSTEAD = "lists of indices, for all modes or for all but one, are what can be sampled"


class SampledTensor(FlycooTensor):
    """A FlycooTensor that gives sampled entries and fibres, as `randomised_parafac` indexes them.

    With lists of indices for all modes, ``x[i, j, k]`` is an array of entries; with a full slice
    for one of the modes, ``x[i, :, k]`` is a `SampledFibres`.

    Parameters
    ----------
    x : FlycooTensor
        Its nonzeros are shared where they cannot move, else copied once.

    Notes
    -----
    The nonzeros stay packed, in the order of modes 0, 1, ..., ndim - 1. For each mode but the last,
    places in an order in which its fibres lie together are sorted when fibres are first asked for,
    and kept: 4 bytes a nonzero and mode. Each sample is searched for in ``log2(nnz)`` steps.

    Examples
    --------
    >>> x = SampledTensor(FlycooTensor([[0, 1, 1], [2, 0, 1]], [1.0, 2.0, 3.0], shape=(2, 3)))
    >>> x[[1, 0, 1], [0, 0, 1]]
    array([2., 0., 3.])
    >>> x[[1, 0], :]
    <SampledFibres: 2 of mode 1, 3 nonzeros>
    """

    def __init__(self, x):
        self._set(x._engine, x._layout)

    @property
    def shape(self):
        return _Sizes(super().shape)

    @functools.cached_property
    def _records(self):
        primitives = self._engine
        with self._layout.hold_order(0, primitives) as (records, places):
            return records if places is None else primitives.gather(records, places)

    @functools.cached_property
    def _orders(self):
        """The places of each mode's order: by the modes that follow it, in a circle, and itself."""
        record_format, primitives = self._layout.record_format, self._engine
        orders = [None]  # of the last mode: as the records lie
        for mode in range(self.ndim - 1, 0, -1):
            places = primitives.sort_places(self._records, record_format, [mode], orders[0])
            orders.insert(0, places)
        return orders

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        is_slice = [isinstance(i, slice) and i == slice(None) for i in index]
        if len(index) != self.ndim or sum(is_slice) > 1:
            raise densify_error(f"x[{index!r}]", self.shape, _INSTEAD)
        xp = self._engine.xp
        wanted = {n: xp.asarray(i) for n, i in enumerate(index) if not is_slice[n]}
        if not any(is_slice):
            return self._find_entries(wanted)
        return self._find_fibres(is_slice.index(True), wanted)

    def _find_entries(self, wanted):
        first, last = self._search(None, wanted)
        entries, is_stored = self._engine.xp.zeros(first.shape, self.dtype), first < last
        records = self._records[first[is_stored]]
        entries[is_stored] = self._layout.record_format.values(records)
        return entries

    def _find_fibres(self, mode, wanted):
        xp, record_format = self._engine.xp, self._layout.record_format
        places = self._orders[mode]
        following = [*range(mode + 1, self.ndim), *range(mode)]
        first, last = self._search(places, {n: wanted[n] for n in following})
        ends = xp.cumsum(last - first)
        numbers = xp.arange(int(ends[-1]) if ends.size else 0)
        samples = xp.searchsorted(ends, numbers, side="right")
        positions = numbers + (last - ends)[samples]
        records = self._records[positions if places is None else places[positions]]
        values, rows = record_format.values(records), record_format.rows(records, mode, xp)
        return SampledFibres(values, samples, rows, (first.size, self.shape[mode]), mode)

    def _search(self, places, wanted):
        """Find where the nonzeros with `wanted` coordinates begin and end in the order `places`.

        That order is by the modes of `wanted`, a dict of an array each, the first of which counts
        most.
        """
        return self._count_before(places, wanted, False), self._count_before(places, wanted, True)

    def _count_before(self, places, wanted, or_equal):
        """Count the nonzeros that come before each of the wanted coordinates, by bisection."""
        xp, record_format = self._engine.xp, self._layout.record_format
        num_samples = len(next(iter(wanted.values())))
        low = xp.zeros(num_samples, np.int64)
        high = xp.full(num_samples, self.nnz, np.int64)
        for _ in range(self.nnz.bit_length()):
            middle = (low + high) // 2
            inside = xp.minimum(middle, self.nnz - 1)
            records = self._records[inside if places is None else places[inside]]
            is_before, is_equal = xp.zeros(num_samples, bool), low < high
            for mode, indices in wanted.items():
                rows = record_format.rows(records, mode, xp)
                is_before |= is_equal & (rows < indices)
                is_equal &= rows == indices
            if or_equal:
                is_before |= is_equal
            low, high = xp.where(is_before, middle + 1, low), xp.where(is_before, high, middle)
        return low

    def __sub__(self, other):
        if isinstance(other, Reconstruction):
            return Residual(self, other)
        return super().__sub__(other)


class _Sizes(tuple):
    """The sizes of modes, of which `numpy.prod` is exact, however many cells there are."""

    def prod(self, axis=None, out=None):
        return math.prod(self)


class SampledFibres(LazyArray):
    """Fibres of a sparse tensor, one a row: the right-hand side of a least squares problem.

    Parameters
    ----------
    values : array (n,)
    samples, rows : integer array (n,)
        For each nonzero the number of its fibre, rising, and where in this it is.
    shape : (int, int)
        Number of fibres, and their length.
    mode : int
    """

    _instead = "tl.lstsq takes them as they are"

    def __init__(self, values, samples, rows, shape, mode):
        self.shape, self.mode, self.dtype = shape, mode, values.dtype
        self._nonzeros = (values, samples, rows)

    def __repr__(self):
        num_nonzeros = self._nonzeros[0].size
        return f"<SampledFibres: {self.shape[0]} of mode {self.mode}, {num_nonzeros} nonzeros>"

    def __mul__(self, weights):
        """Multiply each fibre with its weight; those are an array (number of fibres, 1)."""
        values, samples, rows = self._nonzeros
        return SampledFibres(values * weights[samples, 0], samples, rows, self.shape, self.mode)

    def multiply_left(self, matrix):
        """Compute ``matrix @ self`` of an array (R, number of fibres)."""
        values, samples, rows = self._nonzeros
        starts = np.searchsorted(samples, array_module(samples).arange(self.shape[0] + 1))
        transposed = make_csc(values, rows, starts, self.shape[::-1])
        return (by_rows(transposed) @ matrix.T.copy()).T

    def solve(self, matrix):
        """Solve ``matrix @ x = self`` by least squares, with the smallest `x` where many do.

        Parameters
        ----------
        matrix : array (number of fibres, R)

        Returns
        -------
        x : array (R, length of fibres)
        residuals : array (0,)
            They are not computed.
        rank : int
        singular_values : array (R,)
            Of `matrix`; those below ``max(matrix.shape) * eps`` times the largest count as zero.
        """
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        is_known = values > max(matrix.shape) * np.finfo(values.dtype).eps * values[:1]
        rank = int(np.count_nonzero(is_known))  # they fall, so the known ones lead
        inverse = (right[:rank].T / values[:rank]) @ left[:, :rank].T
        return self.multiply_left(inverse), values[:0], rank, values


class Reconstruction(LazyArray):
    """Stand for the dense tensor of CP factors, to be subtracted from a sparse one.

    Parameters
    ----------
    weights : array (R,)
    factors : list of array (I_n, R)
    """

    _instead = "only its distance from a sparse tensor is computed without forming it"

    def __init__(self, weights, factors):
        self.weights, self.factors = weights, factors
        self.shape = tuple(factor.shape[0] for factor in factors)
        self.ndim = len(self.shape)

    def __repr__(self):
        return f"<Reconstruction of shape {self.shape}>"


class Residual(LazyArray):
    """Stand for what a `Reconstruction` leaves of a sparse tensor; it has a norm."""

    _instead = "tl.norm works without forming it"

    def __init__(self, x, reconstruction):
        self.shape, self.ndim = x.shape, x.ndim
        self._x, self._model = x, reconstruction

    def __repr__(self):
        return f"<Residual of shape {self.shape}>"

    def norm(self):
        """Compute the Frobenius norm as ``sqrt(|x|^2 + |model|^2 - 2 <x, model>)``.

        Near an exact fit that cancels: the result has an error of ``sqrt(eps)`` times the norm.
        """
        weights, factors = self._model.weights, list(self._model.factors)
        gram = weights[:, None] * weights
        for factor in factors:
            gram = gram * transposed_product(factor, factor)
        last = mttkrp(self._x, factors, self.ndim - 1, weights=weights)
        inner = sum_rows(last * factors[-1]).sum()
        return np.sqrt(np.abs(self._x.norm() ** 2 + gram.sum() - 2 * inner))
