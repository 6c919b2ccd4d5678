"""Products of a sparse tensor with the factors of all modes but some, and their singular vectors.

With the factors of all modes but one (TTMc, the tensor-times-matrix chain) each index of that mode
has a row of columns, and only those with nonzeros are kept. Where modes are left out besides, as
`partial_tucker` does, a product is an operator that is applied to vectors.
"""

import math
import weakref

import numpy as np

from ..array_modules import array_module, is_cupy
from ..checks import densify_error
from ..linalg.leading_pairs import (
    MAX_DIRECT_SIZE,
    MAX_GRAM_SIZE,
    Multipliable,
    find_singular_pairs,
    multiply_by_gram,
)
from ..tensor.tensor import FlycooTensor
from .contraction import join_modes
from .nonempty_rows import count_nonempty_rows, find_nonempty_rows

#: Items of a matrix that are converted to float64 at a time.
_BLOCK_SIZE = 2**22

_merged: weakref.WeakKeyDictionary[FlycooTensor, dict] = weakref.WeakKeyDictionary()


def check_free_modes(x, modes):
    """Refuse an array with a row for each index of some modes, if those are more than nonzeros.

    Of one mode it is as tall as a factor, and of more no taller than the list of nonzeros.
    """
    sizes = [x.shape[n] for n in modes]
    if len(modes) > 1 and math.prod(sizes) > x.nnz:
        names = " and ".join(map(str, modes))
        raise densify_error(
            f"multiplying with factors of all modes but {names}",
            (*sizes, "..."),
            "leave out one mode at most, or modes with fewer indices together than x has nonzeros",
        )


def merge_modes(x, modes, dtype):
    """Give a tensor where some modes are one, whose indices count the last of them fastest.

    Returns
    -------
    merged : FlycooTensor
        Of `dtype`; `x` itself if it will do, else made once and kept as long as `x`.
    mode : int
        Which of its modes is the merged one.
    places : dict of int to int
        Which of its modes the others of x are.
    """
    others = [n for n in range(x.ndim) if n not in modes]
    if len(modes) == 1 and dtype == x.dtype:
        return x, modes[0], {n: n for n in others}
    known, key = _merged.setdefault(x, {}), (*modes, np.dtype(dtype))
    if key not in known:
        coords, values = x._sorted_nonzeros()
        rows = join_modes(x, coords, modes)
        coords = x._engine.xp.stack([rows, *(coords[n] for n in others)])
        size, options = math.prod(x.shape[n] for n in modes), {"layout": x.layout}
        shape = (size, *(x.shape[n] for n in others))
        known[key] = FlycooTensor(coords, values, shape, dtype=dtype, device=x.device, **options)
    return known[key], 0, {n: place for place, n in enumerate(others, start=1)}


def multiply_nonempty_rows(x, mode, factors):
    """Compute TTMc: unfold along `mode`, times the Kronecker product of the factors of all others.

    Returns
    -------
    rows : array (number of non-empty rows, prod K_n)
        Columns count those of the factors, the last mode's fastest.
    numbers : integer array, or slice(None)
        The indices that the rows are of.
    """
    num_columns = math.prod(factor.shape[1] for factor in factors.values())
    rows = x._engine.xp.empty((count_nonempty_rows(x, mode), num_columns), x.dtype)
    numbers, slots = find_nonempty_rows(x, mode)
    x._engine.ttmc(x._layout, mode, factors, rows, slots)
    return rows, numbers


def find_leading_pairs(x, mode, other_modes, factors, rank):
    """Decompose the unfolding along `mode` of `x` times factors of all but `other_modes`.

    Returns
    -------
    vectors : float64 array (number of non-empty rows, R)
        Left singular vectors; R is `rank`, or the smaller of the sizes if that is less.
    values : float64 array (R,)
        Singular values, falling.
    numbers : integer array, or slice(None)
        The indices that the rows are of.
    """
    matrix: Multipliable
    if other_modes:
        check_free_modes(x, other_modes)
        numbers, _ = find_nonempty_rows(x, mode)
        matrix = _Operator(x, mode, numbers, other_modes, factors)
    else:
        array, numbers = multiply_nonempty_rows(x, mode, factors)
        matrix = _Matrix(array)
    return *find_singular_pairs(matrix, min(rank, *matrix.shape), x._engine.xp), numbers


class _Matrix:
    """An array of any precision, to be multiplied in float64 without a copy of all of it."""

    max_gram_size = MAX_GRAM_SIZE

    def __init__(self, array):
        self._array = array
        self.shape = array.shape

    def _blocks(self, axis=0):
        """Yield slices of an axis, and what they hold of the array in float64, C-contiguous."""
        length = max(1, _BLOCK_SIZE // max(1, self.shape[1 - axis]))
        xp = array_module(self._array)
        for start in range(0, self.shape[axis], length):
            block = slice(start, start + length)
            part = self._array[block] if axis == 0 else self._array[:, block]
            yield block, xp.ascontiguousarray(part.astype(np.float64, copy=False))

    def multiply(self, block):
        return np.concatenate([part @ block for _, part in self._blocks()])

    def multiply_transposed(self, block):
        return sum(part.T @ block[rows] for rows, part in self._blocks())

    def gram(self, of_rows):
        """Compute the lower triangle of ``A @ A.T``, or of ``A.T @ A``."""
        size = self.shape[0 if of_rows else 1]
        if is_cupy(self._array):
            parts = (part for _, part in self._blocks(axis=int(of_rows)))
            return np.tril(sum(p @ p.T if of_rows else p.T @ p for p in parts))
        from scipy.linalg.blas import dsyrk

        gram = np.zeros((size, size), order="F")
        for _, part in self._blocks(axis=int(of_rows)):
            # Its upper triangle in Fortran's order is the lower one in C's.
            gram = dsyrk(1.0, part.T, trans=of_rows, beta=1.0, c=gram, overwrite_c=True)
        return gram.T


class _Operator:
    """The unfolding of a tensor times factors where other modes are left out, which it merges.

    It has the rows that are not empty. Its columns count the indices of the merged mode, and
    fastest the columns of the factors, in an order of its own. In float64, so that what iterates on
    it converges.
    """

    max_gram_size = MAX_DIRECT_SIZE

    def __init__(self, x, mode, rows, other_modes, factors):
        self._rows, self._num_indices = rows, x.shape[mode]
        self._x, self._other, places = merge_modes(x, other_modes, np.float64)
        self._mode, self._engine = places[mode], x._engine
        # The widest last: it is what is read and added as vectors.
        by_width = sorted(factors.items(), key=lambda item: item[1].shape[1])
        self._inputs = {places[n]: factor.astype(np.float64) for n, factor in by_width}
        ranks = [factor.shape[1] for factor in self._inputs.values()]
        self._num_columns = math.prod(ranks)
        self._spread = {
            n: _spread_columns(factor, math.prod(ranks[:w]), math.prod(ranks[w + 1 :]))
            for w, (n, factor) in enumerate(self._inputs.items())
        }
        num_others = self._x.shape[self._other]
        self.shape = (count_nonempty_rows(x, mode), num_others * self._num_columns)

    def multiply_transposed(self, block):
        """Multiply the transposed unfolding: a TTMc with the vectors as a factor of the mode."""
        num_vectors, xp = block.shape[1], self._engine.xp
        vectors = xp.zeros((self._num_indices, num_vectors))
        vectors[self._rows] = block
        out = xp.zeros((self._x.shape[self._other], num_vectors * self._num_columns))
        inputs = {self._mode: vectors, **self._inputs}
        self._engine.ttmc(self._x._layout, self._other, inputs, out)
        out = out.reshape(-1, num_vectors, self._num_columns)
        return out.transpose(0, 2, 1).reshape(-1, num_vectors)

    def multiply(self, block):
        """Multiply the unfolding: the columns of an MTTKRP, added up, for each vector."""
        return np.stack([self._multiply_vector(vector) for vector in block.T], axis=1)

    def _multiply_vector(self, vector):
        xp = self._engine.xp
        out = xp.empty((self._num_indices, self._num_columns))
        factors = {self._other: vector.reshape(-1, self._num_columns), self._mode: out}
        factors |= self._spread
        factors = [factors[n] for n in range(self._x.ndim)]
        self._engine.mttkrp(self._x._layout, factors, self._mode, out)
        return out.sum(axis=1)[self._rows]

    def gram(self, of_rows):
        size = self.shape[0 if of_rows else 1]
        return np.tril(multiply_by_gram(self, self._engine.xp.eye(size), of_rows))


def _spread_columns(factor, num_before, num_after):
    """Repeat columns as in a Kronecker product with rows of `num_before` and `num_after` ones."""
    return np.tile(np.repeat(factor, num_after, axis=1), (1, num_before))
