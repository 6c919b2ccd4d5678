"""Singular vectors of the unfoldings of a sparse tensor, for the initialisation of ALS."""

import contextlib
from functools import cached_property

import numpy as np

from ..array_modules import array_module, is_cupy
from ..checks import check_mode, check_rank, densify_error
from ..format.primitives import index_dtype
from ..linalg.eigen import find_leading_eigenpairs
from ..linalg.sparse_matrices import by_rows, make_csc
from ..linalg.tall_skinny import qr
from .lazy import LazyArray, ModeView

#: Up to this many rows (or columns) the Gram matrix is formed.
MAX_GRAM_SIZE = 8192

#: Up to this many rows, or where this part of all vectors is wanted, it is decomposed directly.
MAX_DIRECT_SIZE = 256
_MOST = 4

#: The relative residual at which Lanczos iteration has converged: singular vectors are then as good
#: as they get with less. And that at which the search for a missed singular value stops.
_TOLERANCE = 1e-12
_SEARCH_TOLERANCE = 1e-2

#: Vectors that a sparse matrix on a GPU is multiplied with at a time.
_VECTORS_AT_ONCE = 8

#: Seeds what has no answer of its own: the start of an iteration, vectors for zero singular values.
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
        rank = min(rank, *matrix.shape)
        return *_leading_pairs(matrix, rank, self.tensor._engine), rows


def count_nonempty_rows(x, mode):
    """Count the indices of a mode that have nonzeros."""
    return x.shape[mode] - x._layout.tilings[mode].empty_rows.size


def find_nonempty_rows(x, mode, dtype=None):
    """Number the indices of a mode that have nonzeros.

    Returns
    -------
    numbers : integer array, or slice(None)
        These indices; the slice if they are all that there are.
    slots : integer array (I_mode,), or None
        Which of them an index is, or anything if it has no nonzero, in `dtype`, by default the
        smallest for the size of the mode; None if all have nonzeros.
    """
    xp, empty_rows = x._engine.xp, x._layout.tilings[mode].empty_rows
    if empty_rows.size == 0:
        return slice(None), None
    is_used = xp.ones(x.shape[mode], bool)
    is_used[empty_rows] = False
    slots = xp.cumsum(is_used, dtype=dtype or index_dtype(x.shape[mode])) - 1
    return xp.flatnonzero(is_used), slots


def _leading_pairs(matrix, rank, engine):
    """Return left singular vectors and singular values of a CSC matrix without empty rows."""
    if rank == 0:
        return engine.xp.zeros((matrix.shape[0], 0)), engine.xp.zeros(0)
    size, is_wide = min(matrix.shape), matrix.shape[0] <= matrix.shape[1]
    wants_most = _wants_most(rank, size)
    if size <= MAX_GRAM_SIZE or wants_most:
        # Of the rows from the entries of each column, or of the columns from those of each row.
        groups = matrix if is_wide else matrix.tocsr()
        gram = engine.gram(groups.indptr, groups.indices, groups.data, size)
        direct = size <= MAX_DIRECT_SIZE or wants_most
        squares, vectors = (_eigh_pairs if direct else _lanczos_gram_pairs)(gram, rank)
    else:
        inner, outer = (matrix.T, matrix) if is_wide else (matrix, matrix.T)
        squares, vectors = _lanczos_sparse_pairs(inner, outer, size, rank, engine)
    values = _known_roots(squares, size)
    if not is_wide:
        vectors = (by_rows(matrix) @ vectors) / np.where(values > 0, values, 1)
    return vectors, values


def _wants_most(rank, size):
    """Say whether so many of all vectors are wanted that they are better found directly."""
    return _MOST * rank >= size


def _known_roots(squares, size):
    """Take roots of eigenvalues; those below the rounding error of the largest are zero."""
    is_known = squares > size * np.finfo(np.float64).eps * squares[0]
    return np.sqrt(np.where(is_known, squares, 0))


def _eigh_pairs(gram, rank):
    size = gram.shape[0]
    if is_cupy(gram):
        squares, vectors = np.linalg.eigh(gram)
        return squares[::-1][:rank], vectors[:, ::-1][:, :rank]
    from scipy.linalg import eigh

    squares, vectors = eigh(gram, subset_by_index=[size - rank, size - 1], overwrite_a=True)
    return squares[::-1], vectors[:, ::-1]


def _lanczos_gram_pairs(gram, rank):
    if is_cupy(gram):
        full = gram + np.tril(gram, -1).T
        return find_leading_eigenpairs(full.__matmul__, gram.shape[0], rank, array_module(gram))
    from scipy.linalg.blas import dsymv

    # The lower triangle in C's order is the upper one in Fortran's: nothing is copied.
    return _lanczos_pairs(lambda vector: dsymv(1.0, gram.T, vector), gram.shape[0], rank)


def _lanczos_sparse_pairs(inner, outer, size, rank, engine):
    """Return eigenpairs of ``outer @ inner``, which is never formed."""
    if engine.xp is np:
        return _lanczos_pairs(lambda vector: outer @ (inner @ vector), size, rank)
    inner, outer = by_rows(inner), by_rows(outer)

    def multiply(block):
        # A few vectors at a time: `inner @ block` may have many more rows than the block.
        parts = np.array_split(block, -(-block.shape[1] // _VECTORS_AT_ONCE), axis=1)
        return np.concatenate([outer @ (inner @ part) for part in parts], axis=1)

    return find_leading_eigenpairs(multiply, size, rank, engine.xp)


def _lanczos_pairs(multiply, size, rank):
    """Return the largest eigenvalues (falling) of a symmetric operator, and their vectors.

    Lanczos iteration sees one vector only of an eigenvalue that occurs more than once, and may
    have finished before rounding shows it another. So what is left is searched for an eigenvalue
    above the smallest of those found, until there is none.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    random = np.random.RandomState(_SEED)

    def find(multiply, rank, tol=_TOLERANCE):
        operator = LinearOperator((size, size), matvec=multiply, dtype=np.float64)
        operator.matvec = multiply  # SciPy's looks at each vector first, in a tenth of the time
        return eigsh(operator, k=rank, v0=random.standard_normal(size), tol=tol)

    squares, vectors = find(multiply, rank)
    while True:

        def multiply_rest(vector, squares=squares, vectors=vectors):
            return multiply(vector) - vectors @ (squares * (vectors.T @ vector))

        # What the search returns is at most the largest that is left, and near it.
        (largest,), _ = find(multiply_rest, 1, tol=_SEARCH_TOLERANCE)
        if largest <= (1 + size * np.finfo(np.float64).eps) * squares.min():
            break
        (square,), vector = find(multiply_rest, 1)
        smallest = np.argmin(squares)
        squares[smallest], vectors[:, smallest] = square, vector[:, 0]
    order = np.argsort(squares)[::-1]
    return squares[order], vectors[:, order]


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
