"""Singular vectors of the unfoldings of a sparse tensor, an initial guess for ALS."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..array_modules import Array, array_module, is_cupy
from ..checks import check_mode, check_rank
from ..linalg.leading_pairs import MAX_GRAM_SIZE, find_singular_pairs
from ..linalg.sparse_matrices import by_rows, make_csc
from ..linalg.tall_skinny import qr
from ..reporting import report
from .lazy import LazyArray, ModeView
from .nonempty_rows import count_nonempty_rows, find_nonempty_rows

if TYPE_CHECKING:
    from sparse import SparseArray

    from ..engines.protocol import Engine
    from ..tensor.tensor import FlycooTensor

#: Seed of the vectors for zero singular values.
_SEED = 20240507


class LazyMatrix(LazyArray):
    """A matrix that is never formed, but whose leading singular vectors can be computed.

    Attributes
    ----------
    tensor : FlycooTensor
        The tensor from which the matrix is made.
    mode : int
        The mode of its rows.
    """

    tensor: FlycooTensor
    mode: int

    _instead = "its singular value decomposition (tl.svd_interface) works without forming it"

    @abstractmethod
    def _find_leading_pairs(self, rank: int) -> tuple[Array, Array, Array | slice]:
        """Compute the leading singular values, and the non-empty rows of their left vectors.

        Returns
        -------
        vectors : float64 array (number of non-empty rows, R)
            R is at most `rank`.
        values : float64 array (R,)
            Singular values, descending.
        rows : integer array, or slice(None)
            The index of each row of `vectors` in the matrix.
        """

    def svd(self, rank: int) -> tuple[Array, Array]:
        """Compute the leading left singular vectors and the singular values.

        Parameters
        ----------
        rank : int
            Number of vectors, up to ``min(shape)``.

        Returns
        -------
        left : array (I_mode, rank)
            Orthonormal columns, on the device of the tensor. Those of zero singular values are
            arbitrary.
        singular_values : array (rank,)
            Descending; those below the rounding error of the largest are zero.

        Raises
        ------
        TypeError, ValueError
            If `rank` is not an integer from 1 to ``min(shape)``.

        Notes
        -----
        Empty rows and columns are left out. If what remains has at most 8192 rows or columns, its
        Gram matrix is formed: singular values have an error of about ``eps`` times the square of
        the largest, divided by the value itself. Gram matrices of up to 256 rows are decomposed
        directly, larger ones by Lanczos iteration from a fixed initial vector: ARPACK, or block
        iteration on a GPU. If many singular values are almost equal, the last one may be too small
        by a small part of a percent. Results can differ in the last bits with the number of BLAS
        threads, and on a GPU from run to run, since cuSPARSE adds in no fixed order.
        """
        rank = check_rank(rank)
        if rank > min(self.shape):
            raise ValueError(f"rank is {rank}, expected at most {min(self.shape)} = min(shape)")
        report(f"singular vectors of mode {self.mode + 1} of {self.tensor.ndim}")
        vectors, values, rows = self._find_leading_pairs(rank)
        xp = array_module(values)
        left = xp.zeros((self.shape[0], rank))
        left[rows, : values.size] = vectors
        singular_values = xp.zeros(rank)
        singular_values[: values.size] = values
        left = complete_basis(left, int(np.count_nonzero(singular_values)))
        return left.astype(self.dtype), singular_values.astype(self.dtype)


class Unfolding(LazyMatrix, ModeView):
    """The unfolding of a sparse tensor along one mode: (I_mode, product of the other sizes).

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
    mode : int

    Attributes
    ----------
    shape : (int, int)
    dtype : numpy.dtype

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 3, 2))
    >>> Unfolding(x, 1)
    <Unfolding: mode 1 of shape (3, 3, 2)>
    """

    def __init__(self, x: FlycooTensor | SparseArray, mode: int) -> None:
        self.mode = check_mode(mode, len(x.shape))
        others = [n for n in range(len(x.shape)) if n != self.mode]
        super().__init__(x, [(self.mode,), others])

    def __repr__(self) -> str:
        return f"<Unfolding: mode {self.mode} of shape {self.tensor.shape}>"

    @cached_property
    def _nonempty_part(self) -> tuple[Any, Array | slice]:
        """The unfolding without empty rows and columns, as float64 CSC, and the index of each row.

        The order of entries does not depend on the resident mode, so sums have the same bits.
        """
        x, mode, xp = self.tensor, self.mode, self.tensor._engine.xp
        record_format, primitives = x._layout.record_format, x._engine
        with self._hold_columns() as (records, places):
            columns = primitives.split_columns(records, record_format, mode, places)
        is_new, row_ids, values = columns
        column_starts = xp.flatnonzero(is_new)

        numbers, slots = find_nonempty_rows(x, mode, row_ids.dtype)
        if slots is not None:
            row_ids = slots[row_ids]
        shape = (count_nonempty_rows(x, mode), column_starts.size - 1)
        return make_csc(values, row_ids, column_starts, shape), numbers

    @contextlib.contextmanager
    def _hold_columns(self) -> Iterator[tuple[Array, Array | None]]:
        """Yield the records, and places that order them column by column with ascending rows.

        The order is by modes mode + 1, ..., N - 1, 0, ..., mode. For mode 0 it is by N - 1, ..., 0
        instead: the order of mode N - 1, which needs no sort.
        """
        layout, primitives = self.tensor._layout, self.tensor._engine
        ndim = self.tensor.ndim
        with layout.hold_order(0 if self.mode else ndim - 1, primitives) as (records, places):
            if self.mode:
                later_modes = range(ndim - 1, self.mode, -1)
                arguments = (records, layout.record_format, later_modes, places)
                places = primitives.sort_places(*arguments)
            yield records, places

    def _find_leading_pairs(self, rank: int) -> tuple[Array, Array, Array | slice]:
        matrix, rows = self._nonempty_part
        rank, engine = min(rank, *matrix.shape), self.tensor._engine
        return *find_singular_pairs(_SparseMatrix(matrix, engine), rank, engine.xp), rows


class _SparseMatrix:
    """A float64 CSC matrix without empty rows, for `find_singular_pairs`."""

    max_gram_size = MAX_GRAM_SIZE

    def __init__(self, matrix: Any, engine: Engine) -> None:
        self._columns, self._engine = matrix, engine
        self.shape: tuple[int, int] = matrix.shape

    @cached_property
    def _rows(self) -> Any:
        return by_rows(self._columns)

    @cached_property
    def _transposed(self) -> Any:
        return by_rows(self._columns.T)

    def gram(self, of_rows: bool) -> Array:
        # Products of rows are sums over columns, and products of columns over rows.
        groups = self._columns if of_rows else self._columns.tocsr()
        return self._engine.gram(groups.indptr, groups.indices, groups.data, min(self.shape))

    def multiply(self, block: Array) -> Array:
        return self._rows @ block

    def multiply_transposed(self, block: Array) -> Array:
        return self._transposed @ block


def complete_basis(left: Array, num_known: int) -> Array:
    """Make the columns of `left` orthonormal, with new ones from `num_known` on."""
    xp = array_module(left)
    free = left[:, num_known:]
    free[...] = xp.random.RandomState(_SEED).standard_normal(free.shape)
    if is_cupy(left):
        basis, triangle = qr(left)
    else:
        # SciPy's BLAS, as for the Gram matrix: the idle threads of a second BLAS would spin.
        from scipy.linalg import qr as scipy_qr

        basis, triangle = scipy_qr(left, mode="economic", overwrite_a=True)
    return basis * xp.where(xp.diagonal(triangle) < 0, -1.0, 1.0)
