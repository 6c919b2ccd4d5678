"""Singular vectors of the unfoldings of a sparse tensor, an initial guess for ALS."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy, move
from ..base.checks import check_mode, check_rank, num_cells
from ..base.reporting import report
from ..engines.tall import find_signs, qr
from ..format.primitives import MTTKRP, LeadingPairs
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor
from .columns import Columns
from .eigen import SEED, root_squares
from .gram import UnfoldingGram

if TYPE_CHECKING:
    from sparse import SparseArray


class LazyMatrix:
    """A matrix that is never formed, but whose leading singular vectors can be computed.

    `tensor` is the one from which it is made, `mode` the mode of its rows.
    """

    tensor: FlycooTensor
    mode: int
    shape: tuple[int, ...]
    dtype: np.dtype

    #: The end of error messages if it is a `LazyArray`.
    _instead = "its singular value decomposition (tl.svd_interface) works without forming it"

    @abstractmethod
    def _find_leading_pairs(self, rank: int) -> LeadingPairs:
        """Compute up to `rank` leading singular values and their left vectors."""

    def svd(self, rank: int) -> tuple[Array, Array]:
        """Compute the leading left singular vectors (I_mode, rank) and the singular values (rank,).

        The largest element of each vector is positive; those of zero singular values are arbitrary.
        Values are descending; those below the rounding error of the largest are zero.

        With up to 8192 coupled rows (see `UnfoldingGram`), or columns, the Gram matrix is
        decomposed to rounding error: see `find_singular_pairs`. With more, 9 products with it, in
        the tensor's dtype, by `filter_leading_vectors` leave squared singular values short by less
        than 2 % of themselves where we measured, without gaps, and by orders of magnitude less with
        gaps. They are with the columns if these are fewer than the coupled rows.

        The workspace is about 30 bytes per nonzero while columns are found, and later the shared
        columns (20 to 32 bytes per nonzero) and a few blocks of `rank` + 8 numbers per coupled row
        or column. The initial vectors are fixed: a GPU gives the same bits in every run, and a CPU
        with the same number of threads of the BLAS.
        """
        rank = self._check_rank(rank)
        pairs = self._find_leading_pairs(rank)
        return self._assemble(rank, pairs)

    def randomized_svd(
        self, rank: int, random: Any, n_oversamples: int = 5, n_iter: int = 2
    ) -> tuple[Array, Array]:
        """Compute leading singular vectors from a random sketch, as TensorLy's `randomized_svd`.

        ``n_iter + 1`` products with the Gram matrix of the coupled rows; other rows are exact, and
        so is all of it where that costs less. Up to 4 million random numbers are TensorLy's, more
        are drawn on the device from a seed that `random` draws. A matrix that is not an unfolding
        gets the exact vectors. Halko, Martinsson, Tropp, SIAM Review 53, 2011, algorithms 4.4, 5.1.
        """
        return self.svd(rank)

    def _check_rank(self, rank: int) -> int:
        rank = check_rank(rank)
        if rank > min(self.shape):
            raise ValueError(f"rank is {rank}, expected at most {min(self.shape)} = min(shape)")
        report(f"singular vectors of mode {self.mode + 1} of {self.tensor.ndim}")
        return rank

    def _assemble(self, rank: int, pairs: LeadingPairs) -> tuple[Array, Array]:
        """Turn eigenpairs into left singular vectors and values: signs, scale, padding."""
        engine = self.tensor._engine
        vectors, values, _, sources = pairs
        signs = np.ones(sources.size, np.int64)
        if vectors.size:
            # A negative source is a free row, whose unit vector is positive.
            is_vector = sources >= 0
            signs[is_vector] = find_signs(vectors)[sources[is_vector]]
        left = engine.place_vectors(pairs, signs, (self.shape[0], rank), self.dtype)
        num_pairs = values.size
        if num_pairs < rank:
            left = complete_basis(left, num_pairs)
        padded_values = np.zeros(rank, self.dtype)
        padded_values[:num_pairs] = values
        return left, engine.xp.asarray(padded_values)


class Unfolding(LazyMatrix):
    """The unfolding of a sparse tensor along one mode: (I_mode, product of the other sizes).

    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 3, 2))
    >>> unfolding = Unfolding(x, 1)
    >>> unfolding, unfolding.shape
    (<Unfolding: mode 1 of shape (3, 3, 2)>, (3, 6))
    >>> left, values = unfolding.svd(2)
    >>> values.tolist(), left.round(3).tolist()
    ([3.0, 2.0], [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    """

    def __init__(self, x: FlycooTensor | SparseArray, mode: int) -> None:
        self.mode = check_mode(mode, len(x.shape))
        self.tensor = as_flycoo(x, check_coords=True)
        sizes = [*self.tensor.shape]
        self.shape = (sizes.pop(self.mode), num_cells(sizes))
        self.dtype = self.tensor.dtype

    def __repr__(self) -> str:
        return f"<Unfolding: mode {self.mode} of shape {self.tensor.shape}>"

    @cached_property
    def gram(self) -> tuple[UnfoldingGram, float]:
        """The Gram matrix of the unfolding divided by a power of two above its norm, and that."""
        layout = self.tensor._layout
        engine = self.tensor._engine
        _, exponent = math.frexp(float(layout.norm))
        scale = 2.0 ** min(exponent, 1023)  # the largest power that float64 has
        columns = Columns(layout, self.mode, engine)
        return UnfoldingGram(columns, scale, self.dtype), scale

    def _find_leading_pairs(self, rank: int) -> LeadingPairs:
        """Decompose the Gram matrix of the rows, or of the columns if these are fewer."""
        gram, scale = self.gram
        if gram.transposed is None:
            squares, vectors = gram.find_leading_pairs(min(rank, gram.size))
            return self._add_free_pairs(rank, squares, vectors)
        transposed = FlycooTensor._of(self.tensor._engine, gram.transposed)
        pairs = _find_pairs_from_columns(transposed, rank)
        return pairs._replace(values=scale * pairs.values)

    def _add_free_pairs(self, rank: int, squares: np.ndarray, vectors: Array) -> LeadingPairs:
        """Merge eigenpairs of the coupled rows with those of the free rows."""
        gram, scale = self.gram
        num_rows = self.shape[0]
        merged_squares, sources = gram.add_free_squares(squares, rank)
        values = scale * root_squares(merged_squares, num_rows)
        rows = None  # the vectors have all rows
        if gram.size < num_rows:
            rows = gram.rows
        return LeadingPairs(vectors, values, rows, sources)

    def randomized_svd(
        self, rank: int, random: Any, n_oversamples: int = 5, n_iter: int = 2
    ) -> tuple[Array, Array]:
        num_vectors = self._check_rank(rank) + n_oversamples
        gram, _ = self.gram
        if gram.transposed is not None or num_vectors > gram.size:
            return self._assemble(rank, self._find_leading_pairs(rank))
        squares, vectors = gram.sketch_leading_pairs(rank, num_vectors, n_iter, random)
        return self._assemble(rank, self._add_free_pairs(rank, squares, vectors))


def _find_pairs_from_columns(columns: FlycooTensor, rank: int) -> LeadingPairs:
    """Compute left singular vectors from the right ones of a transposed matrix with few rows."""
    engine = columns._engine
    matrix = Unfolding(columns, 0)
    num_pairs = min(rank, *columns.shape)
    right, values = matrix._assemble(num_pairs, matrix._find_leading_pairs(num_pairs))
    count = int(np.count_nonzero(values))
    right = engine.xp.ascontiguousarray(right[:, :count])
    values = values[:count]
    # A left vector is the matrix times the right one, divided by the singular value.
    products = engine.xp.empty((columns.shape[1], count), columns.dtype)
    columns._layout.apply(MTTKRP, engine, {0: right}, 1, products)
    # Rounding leaves the vectors of small values less than orthonormal.
    vectors = complete_basis(products / values, count)
    host_values = move(values, np).astype(np.float64)
    return LeadingPairs(vectors, host_values, None, np.arange(count))


def complete_basis(left: Array, num_known: int) -> Array:
    """Return `left` with orthonormal columns: random ones replace those from `num_known` on."""
    xp = array_module(left)
    full = left.astype(np.float64)
    free = full[:, num_known:]
    free[...] = xp.random.RandomState(SEED).standard_normal(free.shape)
    if is_cupy(left):
        basis, triangle = qr(full)
    else:
        # SciPy's BLAS, as for the Gram matrix: the idle threads of a second BLAS would spin.
        from scipy.linalg import qr as scipy_qr

        basis, triangle = scipy_qr(full, mode="economic", overwrite_a=True)
    # A QR decomposition may flip columns; those that were known keep their signs.
    basis *= xp.where(xp.diagonal(triangle) < 0, -1.0, 1.0)
    added = basis[:, num_known:]
    if added.size:
        added *= xp.asarray(find_signs(added), added.dtype)
    return basis.astype(left.dtype)
