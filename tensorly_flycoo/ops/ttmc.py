"""Products of a sparse tensor with the factors of most modes, and their singular vectors.

With the factors of all modes but one (TTMc, the tensor-times-matrix chain), the product has a row
for each index of that mode; only non-empty rows are kept: hypersparse modes have millions of empty
ones. If more modes have no factor, as in `partial_tucker`, the product is an operator on vectors.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy, move
from ..base.checks import densify_error
from ..format.primitives import MTTKRP, TTMC, index_dtype
from ..spread.slab_layout import AnyLayout
from ..svd import eigen
from ..tensor.pieces import Piece, map_pieces, read_nonzeros
from ..tensor.tensor import FlycooTensor, rebuild
from .contraction import join_modes

#: Elements of a matrix converted to float64 at a time.
_BLOCK_SIZE = 2**22

#: Rounds of an iteration that a Gram matrix may cost: gaps in the spectrum end one after about 10,
#: a flat spectrum after 300. And what LAPACK's or ARPACK's work on an element of it costs for each
#: vector of a block, in multiplications.
_MAX_ROUNDS = 32
_ELEMENT_COST = 4

#: Merged tensors, and lists of cells, kept as long as the layouts they were made from.
_kept: weakref.WeakKeyDictionary[AnyLayout, dict[tuple, Any]] = weakref.WeakKeyDictionary()


def check_free_modes(x: FlycooTensor, modes: Sequence[int]) -> None:
    """Refuse an array with a row for each cell of several modes, if these exceed the nonzeros."""
    sizes = [x.shape[n] for n in modes]
    if len(modes) > 1 and math.prod(sizes) > x.nnz:
        names = " and ".join(map(str, modes))
        raise densify_error(
            f"multiplying by factors of all modes but {names}",
            (*sizes, "..."),
            "multiply all modes but one, or leave out modes with fewer cells than x has nonzeros",
        )


def merge_modes(
    x: FlycooTensor, modes: Sequence[int], dtype: Any, cells: np.ndarray | None = None
) -> tuple[FlycooTensor, int, dict[int, int]]:
    """Join some modes of a tensor into one, the last of them varying fastest.

    `cells` are those of these modes that have nonzeros, ascending: if given, only they are indices.

    Returns the tensor, which is `x` itself if nothing changes, else built once and kept as long as
    `x`; the number of the merged mode there; and the number there of each other mode of `x`.
    """
    others = [n for n in range(x.ndim) if n not in modes]
    if len(modes) == 1 and dtype == x.dtype and cells is None:
        return separate_modes(x), modes[0], {n: n for n in others}
    known = _kept.setdefault(x._layout, {})
    key = (*modes, np.dtype(dtype), cells is None)
    if key not in known:
        size = math.prod(x.shape[n] for n in modes) if cells is None else cells.size
        shape = (size, *(x.shape[n] for n in others))
        args = (x.shape, modes, others, cells)
        options: dict[str, Any] = {"shape": shape, "dtype": dtype, "groups": None}
        known[key] = rebuild(x, _merge_modes, *args, **options)
    return known[key], 0, {n: place for place, n in enumerate(others, start=1)}


def separate_modes(x: FlycooTensor) -> FlycooTensor:
    """Return `x` without groups of modes, which TTMc needs; one built is kept as long as `x`."""
    if len(x.groups) == x.ndim:
        return x
    known = _kept.setdefault(x._layout, {})
    if () not in known:
        known[()] = rebuild(x, read_nonzeros, shape=x.shape, groups=None)
    return known[()]


def _merge_modes(
    piece: Piece,
    shape: Sequence[int],
    modes: Sequence[int],
    others: Sequence[int],
    cells: np.ndarray | None,
) -> tuple[Array, Array]:
    coords, values = read_nonzeros(piece)
    rows = join_modes(shape, coords, modes)
    if cells is not None:
        rows = piece.xp.searchsorted(piece.xp.asarray(cells), rows)
    return piece.xp.stack([rows, *(coords[n] for n in others)]), values


def list_cells(x: FlycooTensor, modes: Sequence[int]) -> np.ndarray:
    """List the cells of some modes that have nonzeros, ascending, on the host; kept with `x`."""
    known = _kept.setdefault(x._layout, {})
    key = tuple(modes)
    if key not in known:
        parts = map_pieces(_list_cells, x._layout, x._engine, x.shape, modes)
        cells = [move(part, np) for part in parts]
        known[key] = cells[0] if len(cells) == 1 else np.unique(np.concatenate(cells))
    return known[key]


def _list_cells(piece: Piece, shape: Sequence[int], modes: Sequence[int]) -> Array:
    coords, _ = read_nonzeros(piece)
    cells = piece.xp.sort(join_modes(shape, coords, modes))
    return cells[piece.xp.diff(cells, prepend=-1) > 0]  # `unique` hashes, which takes longer


def count_nonempty_rows(x: FlycooTensor, mode: int) -> int:
    """Count the indices of a mode that have nonzeros."""
    return x.shape[mode] - x._layout.find_empty_rows(mode).size


def find_nonempty_rows(x: FlycooTensor, mode: int) -> tuple[Array | slice, Array | None]:
    """Find and number the indices of a mode that have nonzeros.

    Returns these indices, ascending, and `slots` (I_mode,): the position of each index among them,
    undefined for one without nonzeros; ``slice(None)`` and None if all have nonzeros.
    """
    xp = x._engine.xp
    empty_rows = x._layout.find_empty_rows(mode)
    if empty_rows.size == 0:
        return slice(None), None
    is_used = xp.ones(x.shape[mode], bool)
    is_used[empty_rows] = False
    return xp.flatnonzero(is_used), xp.cumsum(is_used, dtype=index_dtype(x.shape[mode])) - 1


def multiply_nonempty_rows(
    x: FlycooTensor, mode: int, factors: Mapping[int, Array]
) -> tuple[Array, Array | slice]:
    """Compute TTMc: the unfolding along `mode` times the Kronecker product of all other factors.

    Returns the non-empty rows, with a column for each combination of the factors' columns, the last
    mode's fastest; and the index of each row, ``slice(None)`` if none is empty.
    """
    num_columns = math.prod(factor.shape[1] for factor in factors.values())
    rows = x._engine.xp.empty((count_nonempty_rows(x, mode), num_columns), x.dtype)
    numbers, slots = find_nonempty_rows(x, mode)
    separate_modes(x)._layout.apply(TTMC, x._engine, factors, mode, rows, slots=slots)
    return rows, numbers


class Matrix:
    """An array of any precision, multiplied in float64 without converting all of it at once."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape: tuple[int, int] = array.shape

    def is_gram_cheap(self, rank: int) -> bool:
        return min(self.shape) <= eigen.MAX_GRAM_SIZE

    def _blocks(self, axis: int = 0) -> Iterator[tuple[slice, Array]]:
        """Yield slices of an axis, and their parts of the array, float64 and C-contiguous."""
        length = max(1, _BLOCK_SIZE // max(1, self.shape[1 - axis]))
        xp = array_module(self._array)
        for start in range(0, self.shape[axis], length):
            block = slice(start, start + length)
            part = self._array[block] if axis == 0 else self._array[:, block]
            yield block, xp.ascontiguousarray(part.astype(np.float64, copy=False))

    def multiply(self, block: Array) -> Array:
        return np.concatenate([part @ block for _, part in self._blocks()])

    def multiply_transposed(self, block: Array) -> Array:
        return sum(part.T @ block[rows] for rows, part in self._blocks())

    def gram(self, of_rows: bool) -> Array:
        size = self.shape[0 if of_rows else 1]
        if is_cupy(self._array):
            parts = (part for _, part in self._blocks(axis=int(of_rows)))
            return sum(p @ p.T if of_rows else p.T @ p for p in parts)
        from scipy.linalg.blas import dsyrk

        gram = np.zeros((size, size), order="F")
        for _, part in self._blocks(axis=int(of_rows)):
            # The upper triangle in Fortran order is the lower one in C order.
            gram = dsyrk(1.0, part.T, trans=of_rows, beta=1.0, c=gram, overwrite_c=True)
        return gram.T


class Operator:
    """The unfolding along `mode` of a tensor times factors, if other modes have no factor either.

    The other modes are merged into one. Empty rows are left out. Columns run over the indices of
    the merged mode and, fastest, over the columns of the factors from the narrowest to the widest.
    Everything is in float64, so that iterations with it converge.
    """

    def __init__(
        self,
        x: FlycooTensor,
        mode: int,
        rows: Array | slice,
        other_modes: Sequence[int],
        factors: Mapping[int, Array],
    ) -> None:
        self._rows = rows
        self._num_indices = x.shape[mode]
        self._x, self._other, places = merge_modes(x, other_modes, np.float64)
        self._mode = places[mode]
        self._engine = x._engine
        # The widest comes last: kernels read and add its rows as vectors.
        by_width = sorted(factors.items(), key=lambda item: item[1].shape[1])
        self._inputs = {places[n]: factor.astype(np.float64) for n, factor in by_width}
        ranks = [factor.shape[1] for factor in self._inputs.values()]
        self._num_columns = math.prod(ranks)
        self._spread = {
            # The Kronecker product of the factor with ones for those before it, and after it.
            n: np.tile(np.repeat(f, math.prod(ranks[w + 1 :]), axis=1), (1, math.prod(ranks[:w])))
            for w, (n, f) in enumerate(self._inputs.items())
        }
        self.shape = (count_nonempty_rows(x, mode), self._x.shape[self._other] * self._num_columns)

    def multiply_transposed(self, block: Array) -> Array:
        # A TTMc with the vectors as the factor of the mode.
        num_vectors = block.shape[1]
        xp = self._engine.xp
        vectors = xp.zeros((self._num_indices, num_vectors))
        vectors[self._rows] = block
        out = xp.empty((self._x.shape[self._other], num_vectors * self._num_columns))
        inputs = {self._mode: vectors, **self._inputs}
        self._x._layout.apply(TTMC, self._engine, inputs, self._other, out)
        out = out.reshape(-1, num_vectors, self._num_columns)
        return out.transpose(0, 2, 1).reshape(-1, num_vectors)

    def multiply(self, block: Array) -> Array:
        return np.concatenate([self._multiply(part) for part in eigen.split_columns(block)], axis=1)

    def _multiply(self, block: Array) -> Array:
        """Multiply the unfolding by a few vectors: sums of columns of an MTTKRP."""
        xp = self._engine.xp
        num_vectors = block.shape[1]
        columns = block.reshape(-1, self._num_columns, num_vectors).transpose(0, 2, 1)
        out = xp.empty((self._num_indices, num_vectors * self._num_columns))
        factors = {n: np.tile(factor, (1, num_vectors)) for n, factor in self._spread.items()}
        factors[self._other] = columns.reshape(-1, out.shape[1])
        self._x._layout.apply(MTTKRP, self._engine, factors, self._mode, out)
        return out.reshape(-1, num_vectors, self._num_columns).sum(axis=2)[self._rows]

    def is_gram_cheap(self, rank: int) -> bool:
        """Say so if it costs no more than some rounds of an iteration, and takes 512 MB at most."""
        size = min(self.shape)
        width = eigen.choose_width(rank, min(self.shape))
        if size <= eigen.MAX_DIRECT_SIZE:
            return True
        if size > eigen.MAX_GRAM_SIZE or not self._engine.is_gram_cheap(size, max(self.shape)):
            return False
        num_pairs: Any = self._x.nnz * size
        if size == self.shape[0]:
            columns = list_cells(self._x, (self._other, self._mode)) // self._num_indices
            num_pairs = (np.unique(columns, return_counts=True)[1] ** 2.0).sum() / 2
        most = width * (_MAX_ROUNDS * self._x.nnz * self._num_columns - _ELEMENT_COST * size**2)
        return num_pairs * self._num_columns <= most

    def gram(self, of_rows: bool) -> Array:
        """Compute the Gram matrix, that of the rows from the columns' few nonzeros."""
        xp = self._engine.xp
        size = self.shape[0 if of_rows else 1]
        if not of_rows:
            return eigen.multiply_by_gram(self, xp.eye(size), of_rows)
        cells = list_cells(self._x, (self._other, self._mode))
        pair = np.divmod(cells, self._num_indices)
        columns, rows = (xp.asarray(np.unique(ids, return_inverse=True)[1]) for ids in pair)
        x, mode, places = merge_modes(self._x, (self._other, self._mode), np.float64, cells)
        *narrow, (last, widest) = ((places[n], factor) for n, factor in self._inputs.items())
        most = max(2 * _BLOCK_SIZE, size**2 // 2) * widest.shape[1]
        step = max(1, most // (cells.size * self._num_columns))
        gram = xp.zeros((size, size))
        for first in range(0, widest.shape[1], step):
            inputs = {**dict(narrow), last: xp.ascontiguousarray(widest[:, first : first + step])}
            lines = xp.empty((cells.size, math.prod(f.shape[1] for f in inputs.values())))
            x._layout.apply(TTMC, self._engine, inputs, mode, lines)
            gram += self._engine.gram(xp.stack([columns, rows]), lines, xp.zeros(size))
        return gram
