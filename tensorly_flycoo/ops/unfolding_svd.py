"""Singular vectors of the unfoldings of a sparse tensor, for the initialisation of ALS."""

import contextlib
from functools import cached_property
from typing import Any

import numpy as np

from ..array_modules import Array, array_module, is_cupy
from ..checks import check_mode, check_rank, densify_error
from ..linalg.leading_pairs import MAX_GRAM_SIZE, find_singular_pairs
from ..linalg.sparse_matrices import by_rows, make_csc
from ..linalg.tall_skinny import qr
from .lazy import LazyArray, ModeView
from .nonempty_rows import count_nonempty_rows, find_nonempty_rows

#: Seeds the vectors that belong to singular values of zero.
_SEED = 20240507


class LazyMatrix(LazyArray):
    """Stand for a matrix that is never formed, but whose leading singular vectors can be had.

    It has a `tensor`, from which `_find_leading_pairs(rank)` finds what of them is not zero.
    """

    _instead = "its singular value decomposition (tl.svd_interface) works without forming it"

    def svd(self, rank):
        """Compute the leading left singular vectors and the singular values.

        Parameters
        ----------
        rank : int
            How many, up to ``min(shape)``.

        Returns
        -------
        left : array (I_mode, rank)
            On the device of the tensor. Orthonormal columns, also where singular values are zero.
        singular_values : array (rank,)
            Falling; those below the rounding error of the largest are zero.

        Raises
        ------
        TypeError, ValueError
            If `rank` is no integer from 1 to ``min(shape)``.

        Notes
        -----
        Empty rows and columns are left out. Where the rest has at most 8192 rows or columns, its
        Gram matrix is formed: singular values have an error of about ``eps`` times the square of
        the largest, over themselves. Up to 256 it is decomposed directly; beyond that by Lanczos
        iteration from a fixed start (ARPACK; on a GPU in blocks, where everything stays on it);
        where singular values occur many times over, it may return one that is less than the last
        one wanted by a small part of a percent. Results can differ in the last bits with the number
        of threads of the BLAS, and on a GPU, whose cuSPARSE adds in no fixed order, in every run.
        """
        rank = check_rank(rank)
        if rank > min(self.shape):
            raise ValueError(f"rank is {rank}, expected at most {min(self.shape)} = min(shape)")
        vectors, values, rows = self._find_leading_pairs(rank)
        xp = array_module(values)
        left = xp.zeros((self.shape[0], rank))
        left[rows, : values.size] = vectors
        singular_values = xp.zeros(rank)
        singular_values[: values.size] = values
        left = _complete_basis(left, int(np.count_nonzero(singular_values)))
        return left.astype(self.dtype), singular_values.astype(self.dtype)


class Unfolding(LazyMatrix, ModeView):
    """Stand for the unfolding of a sparse tensor along one mode: (I_mode, all other cells).

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

    def __init__(self, x, mode):
        self.mode = check_mode(mode, len(x.shape))
        others = [n for n in range(len(x.shape)) if n != self.mode]
        super().__init__(x, [(self.mode,), others])

    def __repr__(self):
        return f"<Unfolding: mode {self.mode} of shape {self.tensor.shape}>"

    @cached_property
    def _nonempty_part(self):
        """The unfolding without its empty rows and columns, as float64 CSC, and its rows' numbers.

        Its entries are in one defined order, whatever mode is resident, so sums over them are too.
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
    def _hold_columns(self):
        """Give records and the order of them in which columns lie together and their rows rise.

        The nonzeros come by modes mode + 1, ..., N - 1, 0, ..., mode; but for mode 0 by modes
        N - 1, ..., 0, which is the order of mode N - 1 and need not be made.
        """
        layout, primitives = self.tensor._layout, self.tensor._engine
        ndim = self.tensor.ndim
        with layout.hold_order(0 if self.mode else ndim - 1, primitives) as (records, places):
            if self.mode:
                later_modes = range(ndim - 1, self.mode, -1)
                arguments = (records, layout.record_format, later_modes, places)
                places = primitives.sort_places(*arguments)
            yield records, places

    def _find_leading_pairs(self, rank):
        """Find what is not zero: left vectors without empty rows, values, and the rows' numbers."""
        matrix, rows = self._nonempty_part
        rank, engine = min(rank, *matrix.shape), self.tensor._engine
        return *find_singular_pairs(_SparseMatrix(matrix, engine), rank, engine.xp), rows


class _SparseMatrix:
    """A CSC matrix without empty rows, to be multiplied in float64."""

    max_gram_size = MAX_GRAM_SIZE

    def __init__(self, matrix: Any, engine: Any):
        self._columns, self._engine = matrix, engine
        self.shape = matrix.shape

    @cached_property
    def _rows(self) -> Any:
        return by_rows(self._columns)

    @cached_property
    def _transposed(self) -> Any:
        return by_rows(self._columns.T)

    def gram(self, of_rows: bool) -> Array:
        # Rows are multiplied column by column, and columns row by row.
        groups = self._columns if of_rows else self._columns.tocsr()
        return self._engine.gram(groups.indptr, groups.indices, groups.data, min(self.shape))

    def multiply(self, block: Array) -> Array:
        return self._rows @ block

    def multiply_transposed(self, block: Array) -> Array:
        return self._transposed @ block


def _complete_basis(left, num_known):
    """Make the columns of `left` orthonormal; those from `num_known` on are free to choose."""
    xp = array_module(left)
    free = left[:, num_known:]
    free[...] = xp.random.RandomState(_SEED).standard_normal(free.shape)
    if is_cupy(left):
        basis, triangle = qr(left)
    else:
        # SciPy's BLAS as above, not NumPy's: each keeps threads that spin when the other computes.
        from scipy.linalg import qr as scipy_qr

        basis, triangle = scipy_qr(left, mode="economic", overwrite_a=True)
    return basis * xp.where(xp.diagonal(triangle) < 0, -1.0, 1.0)


class LazySVD:
    """Compute the SVD of an `Unfolding` when it is known how many vectors are wanted.

    TensorLy asks for all singular vectors and then slices the leading ones, ``U[:, :n]``, ``S[:n]``
    and ``V[:n, :]``. Iterate over this object for the three; each slice is a fresh array, and V,
    which has a column for every cell of the other modes, is never made.
    """

    def __init__(self, unfolding):
        self.unfolding = unfolding
        self._computed = {}

    def __iter__(self):
        return iter((_LeftVectors(self), _SingularValues(self), _RightVectors(self)))

    def compute(self, rank):
        """Return the left vectors and values, computed once for each rank."""
        if rank not in self._computed:
            self._computed[rank] = self.unfolding.svd(rank)
        return self._computed[rank]


class _SvdPart(LazyArray):
    _instead = "slice the leading singular vectors first, as tl.svd_interface does"

    def __init__(self, svd):
        self._svd = svd
        self._full = min(svd.unfolding.shape)

    def __repr__(self):
        return f"<{type(self).__name__[1:]} of {self._svd.unfolding!r}>"

    def _leading(self, index):
        """Understand ``[:n]``; all else would need the whole."""
        if isinstance(index, slice) and index.start in (None, 0) and index.step in (None, 1):
            return len(range(self._full)[index])
        raise densify_error(f"indexing {self!r} with {index!r}", self.shape, self._instead)


class _LeftVectors(_SvdPart):
    @property
    def shape(self):
        return (self._svd.unfolding.shape[0], self._full)

    def __getitem__(self, index):
        if not (isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None)):
            raise densify_error(f"indexing {self!r} with {index!r}", self.shape, self._instead)
        return self._svd.compute(self._leading(index[1]))[0].copy()


class _SingularValues(_SvdPart):
    ndim = 1

    @property
    def shape(self):
        return (self._full,)

    def __getitem__(self, index):
        return self._svd.compute(self._leading(index))[1].copy()


class _RightVectors(_SvdPart):
    """Have a shape, and signs that can be flipped; nothing else of V is ever needed."""

    _instead = "the right singular vectors of an unfolding have a column for every cell"

    @property
    def shape(self):
        return (self._full, self._svd.unfolding.shape[1])

    @property
    def dtype(self):
        return self._svd.unfolding.dtype

    def __getitem__(self, index):
        rows, columns = index if isinstance(index, tuple) and len(index) == 2 else (index, None)
        if columns not in (None, slice(None)):
            raise densify_error(f"indexing {self!r} with {index!r}", self.shape, self._instead)
        part = _RightVectors(self._svd)
        part._full = self._leading(rows)
        return part

    def __mul__(self, signs):
        return self
