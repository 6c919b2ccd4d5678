"""Missing values: entries of a sparse tensor that a CP model fills in, again in each iteration.

A mask is 1 but for a few entries. The observed entries are one tensor, planned once; the missing
ones are another, small one, of which only the values change. What is linear, as MTTKRP is, is
computed of both and added.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ..array_modules import Array
from ..checks import densify_error
from ..linalg.sparse_matrices import by_rows, make_csc
from ..linalg.tall_skinny import inner_product
from ..ops.cp_entries import choose_block_size, evaluate_model
from ..ops.lazy import LazyArray
from ..ops.mttkrp import mttkrp
from ..ops.sampling import NonzeroSampler
from ..ops.unfolding_svd import Unfolding
from ..tensor.coo_cache import as_flycoo, is_raw_sparse, is_sparse
from ..tensor.tensor import FlycooTensor
from .cp_model import residual_square

_EXPECTED = "expected a sparse.COO with fill_value 1 whose stored zeros are the missing entries"


class _Part(LazyArray):
    """What stands for an array of the shape of a tensor whose entries `missing` lists."""

    _instead = "masks work in parafac and non_negative_parafac"

    def __init__(self, missing):
        self.missing, self.tensor = missing, missing.tensor
        self.shape, self.ndim, self.dtype = self.tensor.shape, self.tensor.ndim, self.tensor.dtype

    def __repr__(self):
        return f"<{type(self).__name__} of shape {self.shape}, {self.missing.count} missing>"


class Mask(_Part):
    """Stand for the mask: 0 at the missing entries, 1 elsewhere; ``1 - mask`` is `.missing`."""

    def __rsub__(self, one):
        return self.missing if one == 1 else NotImplemented


class MissingValues(_Part):
    """Stand for a tensor that is `values` (count,) at the missing entries, and 0 elsewhere."""

    def __init__(self, missing, values):
        super().__init__(missing)
        self.values = values


class MaskedTensor(_Part):
    """Stand for a sparse tensor whose missing entries are `values` (count,).

    Multiplied with its mask they are zeros, and `MissingValues` can be added.
    """

    def __init__(self, missing, values):
        super().__init__(missing)
        self.values = values

    def __mul__(self, mask):
        if not isinstance(mask, Mask) or mask.missing is not self.missing:
            return NotImplemented
        return MaskedTensor(self.missing, self.values * 0)

    def __add__(self, other):
        if not isinstance(other, MissingValues) or other.missing is not self.missing:
            return NotImplemented
        return MaskedTensor(self.missing, self.values + other.values)

    def norm(self):
        """Compute the Frobenius norm, added up in float64."""
        values = self.values.astype(np.float64)
        square = self.missing.observed._layout.norm**2 + (values * values).sum()
        return np.sqrt(square).astype(self.dtype)

    def inner_of_change(self, before):
        """Compute the inner product of this tensor with its change, added up in float64."""
        change = (self.values - before.values).astype(np.float64)
        return (change * self.values).sum().astype(self.dtype)


class MissingEntries(LazyArray):
    """The entries that a mask leaves out of a tensor: planned once, their values come and go.

    Stands for ``1 - mask``.

    Parameters
    ----------
    x : FlycooTensor
    coords : integer array (ndim, count)
        Of the missing entries, on the host; at least one. What `x` has there is only where
        imputation starts.

    Attributes
    ----------
    tensor : FlycooTensor
        `x`.
    observed : FlycooTensor
        `x` without what it has at missing entries; itself where that is nothing.
    start : array (count,)
        What `x` has at the missing entries, in the order of `coords`.
    coords : int64 array (ndim, count)
        Sorted, each entry once, on the device of `x`.
    count : int

    Notes
    -----
    Keeps ``count`` records, an index for each mode but one and the rows of each mode that have
    missing entries.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1, 2], [2, 0, 1]], [2.0, 3.0, 4.0], shape=(3, 3))
    >>> missing = MissingEntries(x, np.array([[2, 0], [1, 0]]))
    >>> missing, missing.start, missing.observed.nnz
    (<MissingEntries: 2 of shape (3, 3)>, array([0., 4.]), 2)
    """

    _instead = "masks work in parafac and non_negative_parafac"

    def __init__(self, x, coords):
        self.tensor, self.shape, self.ndim, self.dtype = x, x.shape, x.ndim, x.dtype
        options = {"layout": "indexed", "device": x.device}
        ones = np.ones(coords.shape[1], x.dtype)
        # Sorted, and what comes twice once; checked too.
        self.coords, _ = FlycooTensor(coords, ones, x.shape, **options)._sorted_nonzeros()
        self.count = self.coords.shape[1]
        self.start = NonzeroSampler(x).entries(self.coords)
        self.observed = x
        if (self.start != 0).any():
            # A value less itself is exactly zero, and so no nonzero any more.
            self.observed = x - FlycooTensor(self.coords, self.start, x.shape, **options)
        pairs = [np.unique(rows, return_inverse=True) for rows in self.coords]
        self._rows = [rows for rows, _ in pairs]
        # Between rows that have missing entries, so that no row of a factor without is touched.
        compact = x._engine.xp.stack([ids.reshape(-1) for _, ids in pairs])
        sizes = [rows.size for rows in self._rows]
        ones = x._engine.xp.ones(self.count, x.dtype)
        self._pattern = FlycooTensor(compact, ones, sizes, **options)

    def __repr__(self):
        return f"<MissingEntries: {self.count} of shape {self.shape}>"

    def evaluate(self, weights: Array | None, factors: Sequence[Array]) -> Array:
        """Return what a CP model has at the missing entries: (count,)."""
        return evaluate_model(self.coords, weights, factors).astype(self.dtype, copy=False)

    def reconstruct(self, weights, factors):
        """Compute what a CP model has at the missing entries: `MissingValues`."""
        values = evaluate_model(self.coords, weights, factors)
        return MissingValues(self, values.astype(self.dtype, copy=False))

    def add_mttkrp(self, out, values, factors, mode, weights=None):
        """Add to `out` (I_mode, R) the MTTKRP of a tensor that is `values` at missing entries."""
        xp = self.tensor._engine.xp
        # Records in one order: new values go where those of the pattern are.
        part = self._pattern._map_values(lambda _: values)
        rows = [
            # The factor of `mode` is not read: only its shape matters.
            xp.empty((ids.size, factor.shape[1]), self.dtype)
            if n == mode
            else factor[ids].astype(self.dtype, copy=False)
            for n, (factor, ids) in enumerate(zip(factors, self._rows, strict=True))
        ]
        out[self._rows[mode]] += mttkrp(part, rows, mode, weights=weights)
        return out

    @cached_property
    def _union(self):
        """Return a tensor that numbers observed and missing entries from 1, and their values."""
        xp = self.tensor._engine.xp
        coords, values = self.observed._sorted_nonzeros()
        coords = xp.concatenate([coords, self.coords], axis=1)
        numbers = xp.arange(1.0, coords.shape[1] + 1)
        options = {"layout": "indexed", "device": self.tensor.device}
        numbered = FlycooTensor(coords, numbers, self.shape, **options)
        return numbered, xp.concatenate([values, self.start])

    def unfold_imputed(self, mode: int, rank: int, num_repeats: int) -> Unfolding:
        """Return the unfolding along a mode with its missing entries imputed, several times over.

        From the leading `rank` singular vectors of the unfolding before; with ``num_repeats=0`` it
        is that of the tensor as it is.
        """
        if num_repeats == 0:
            return Unfolding(self.tensor, mode)
        matrix = self.unfold(mode)
        for _ in range(num_repeats):
            matrix = matrix.impute(matrix.svd(min(rank, *matrix.shape))[0])
        return matrix

    def unfold(self, mode):
        """Return the unfolding of the tensor along one mode, with entries that can be imputed."""
        numbered, values = self._union
        matrix, rows = Unfolding(numbered, mode)._nonempty_part
        numbers = matrix.data.astype(np.int64) - 1
        matrix = make_csc(values[numbers].astype(np.float64), *_structure(matrix))
        places = np.flatnonzero(numbers >= self.observed.nnz)
        return ImputedUnfolding(self.tensor, mode, (matrix, rows), places)


class ImputedTensor:
    """A sparse tensor whose missing entries have values that change from model to model.

    Attributes
    ----------
    missing : MissingEntries
    values : array (count,)
        At the missing entries; at first what the tensor itself has there.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [2, 0]], [6.0, 2.0], shape=(3, 3))
    >>> imputed = ImputedTensor(MissingEntries(x, np.array([[0, 1], [0, 2]])))
    >>> factors = [np.array([[3.0], [1.0], [0.0]]), np.array([[2.0], [0.0], [2.0]])]
    >>> imputed.measure(None, factors)
    (0.0, array([6., 2.]))
    """

    def __init__(self, missing: MissingEntries) -> None:
        self.missing, self.values = missing, missing.start

    def impute(self, weights: Array | None, factors: Sequence[Array]) -> None:
        """Take the missing entries from a model."""
        self.values = self.missing.evaluate(weights, factors)

    def mttkrp(self, weights: Array | None, factors: Sequence[Array], mode: int) -> Array:
        """Compute the MTTKRP of observed and missing entries: (I_mode, R)."""
        observed = mttkrp(self.missing.observed, factors, mode, weights=weights)
        return self.missing.add_mttkrp(observed, self.values, factors, mode, weights)

    def measure(
        self, weights: Array | None, factors: Sequence[Array], last_mttkrp: Array | None = None
    ) -> tuple[float, Array]:
        """Measure how far a model is from the observed entries.

        Parameters
        ----------
        last_mttkrp : array (I_N, R), optional
            That of the last mode with this model's other factors, if there is one.

        Returns
        -------
        error : float
            The norm of the residual at the observed entries, over the norm of the tensor with the
            model's values at the missing ones.
        values : array (count,)
            These.
        """
        if last_mttkrp is None:
            last_mttkrp = self.mttkrp(weights, factors, len(factors) - 1)
        values = self.missing.evaluate(weights, factors)
        exact = values.astype(np.float64)
        square = self.missing.observed._layout.norm**2 + (exact * exact).sum()
        # last_mttkrp is of the values before.
        change = ((exact - self.values) * exact).sum()
        inner = inner_product(last_mttkrp, factors[-1]) + change
        residual = residual_square(square, weights, factors, inner)
        return float(np.sqrt(residual / square)), values


class ImputedUnfolding(Unfolding):
    """An unfolding with values of its own at some `places` of its non-empty part, a CSC matrix."""

    def __init__(self, x, mode, nonempty_part, places):
        super().__init__(x, mode)
        self._nonempty_part, self._places = nonempty_part, places

    def impute(self, left):
        """Replace the values by those of the projection to the span of `left`, orthonormal (I, R).

        That is what the leading part of a singular value decomposition has there: of the right
        vectors, which have a row for each column, only those of columns with missing entries are
        made.
        """
        matrix, rows = self._nonempty_part
        starts = matrix.indptr
        columns = np.searchsorted(starts, self._places.astype(starts.dtype), side="right") - 1
        columns, inverse = np.unique(columns, return_inverse=True)
        left = left[rows].astype(np.float64)
        right = by_rows(matrix[:, columns].T) @ left
        data = matrix.data.copy()
        block_size = choose_block_size(left, left.shape[1])
        for start in range(0, self._places.size, block_size):
            block = slice(start, start + block_size)
            places = self._places[block]
            model = left[matrix.indices[places]] * right[inverse[block]]
            data[places] = model.sum(axis=1)
        part = (make_csc(data, *_structure(matrix)), rows)
        return ImputedUnfolding(self.tensor, self.mode, part, self._places)


def _structure(matrix):
    """Return what a CSC matrix is made of but for its values."""
    return matrix.indices, matrix.indptr, matrix.shape


class MaskedStart(FlycooTensor):
    """A tensor as decompositions begin with it, which knows its missing entries."""

    def __init__(self, missing):
        self._set(missing.tensor._engine, missing.tensor._layout)
        self.missing = missing


def find_missing(x, mask):
    """Find the entries of a sparse tensor that a mask leaves out, or None if there are none.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
    mask : sparse.COO
        Of the shape of `x`, with fill_value 1 and stored zeros. Stored ones say nothing.

    Returns
    -------
    MissingEntries or None

    Raises
    ------
    DensifyError
        If `mask` has fill_value 0: all that it does not store would be missing.
    TypeError
        If one of the two is dense.
    ValueError
        If the shapes differ, or there is another number than 0 and 1 in the mask.

    Examples
    --------
    >>> import sparse
    >>> x = FlycooTensor([[0, 1, 2], [2, 0, 1]], [2.0, 3.0, 4.0], shape=(3, 3))
    >>> find_missing(x, sparse.COO([[1], [1]], [0.0], (3, 3), fill_value=1.0))
    <MissingEntries: 1 of shape (3, 3)>
    """
    if not is_sparse(x):
        raise TypeError(f"tensor is a {type(x).__name__}, expected a sparse one: mask is sparse")
    if not is_sparse(mask):
        raise TypeError(f"mask is a {type(mask).__name__}, {_EXPECTED}")
    if tuple(mask.shape) != tuple(x.shape):
        raise ValueError(f"mask has shape {tuple(mask.shape)}, expected {tuple(x.shape)}")
    if not is_raw_sparse(mask) or mask.fill_value == 0:
        instead = f"{_EXPECTED}; tensorly_flycoo.observed_parafac fits to stored entries only"
        raise densify_error("a mask that stores what is observed", tuple(x.shape), instead)
    mask = mask if hasattr(mask, "coords") else mask.asformat("coo")
    is_missing = mask.data == 0
    for value in (mask.fill_value, *mask.data[~is_missing & (mask.data != 1)][:1]):
        if value != 1:
            raise ValueError(f"mask holds {value}, {_EXPECTED}")
    coords = mask.coords[:, is_missing]
    return MissingEntries(as_flycoo(x, check_coords=True), coords) if coords.size else None
