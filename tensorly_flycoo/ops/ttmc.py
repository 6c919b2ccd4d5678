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
    others = [mode for mode in range(x.ndim) if mode not in modes]
    if len(modes) == 1 and dtype == x.dtype and cells is None:
        return separate_modes(x), modes[0], {mode: mode for mode in others}
    kept = _kept.setdefault(x._layout, {})
    key = (*modes, np.dtype(dtype), cells is None)
    if key not in kept:
        size = math.prod(x.shape[mode] for mode in modes)
        if cells is not None:
            size = cells.size
        shape = (size, *(x.shape[mode] for mode in others))
        kept[key] = rebuild(
            x, _merge_modes, x.shape, modes, others, cells, shape=shape, dtype=dtype, groups=None
        )
    return kept[key], 0, {mode: place for place, mode in enumerate(others, start=1)}


def separate_modes(x: FlycooTensor) -> FlycooTensor:
    """Return `x` without groups of modes, which TTMc needs; one built is kept as long as `x`."""
    if len(x.groups) == x.ndim:
        return x
    kept = _kept.setdefault(x._layout, {})
    if () not in kept:
        kept[()] = rebuild(x, read_nonzeros, shape=x.shape, groups=None)
    separate: FlycooTensor = kept[()]
    return separate


def _merge_modes(
    piece: Piece,
    shape: Sequence[int],
    modes: Sequence[int],
    others: Sequence[int],
    cells: np.ndarray | None,
) -> tuple[Array, Array]:
    """Return the nonzeros of a piece with some modes joined to the first."""
    coords, values = read_nonzeros(piece)
    rows = join_modes(shape, coords, modes)
    if cells is not None:
        rows = piece.xp.searchsorted(piece.xp.asarray(cells), rows)
    return piece.xp.stack([rows, *(coords[n] for n in others)]), values


def list_cells(x: FlycooTensor, modes: Sequence[int]) -> np.ndarray:
    """List the cells of some modes that have nonzeros, ascending, on the host; kept with `x`."""
    kept = _kept.setdefault(x._layout, {})
    key = tuple(modes)
    if key not in kept:
        parts = map_pieces(_list_cells, x._layout, x._engine, x.shape, modes)
        cells = [move(part, np) for part in parts]
        kept[key] = cells[0]
        if len(cells) > 1:  # slabs may have the same cells
            kept[key] = np.unique(np.concatenate(cells))
    listed: np.ndarray = kept[key]
    return listed


def _list_cells(piece: Piece, shape: Sequence[int], modes: Sequence[int]) -> Array:
    """List the cells of some modes in which a piece has nonzeros, ascending."""
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
        """Say so if a Gram matrix is small enough to be formed."""
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
        """Compute the Gram matrix of the rows or of the columns."""
        parts = (part for _, part in self._blocks(axis=int(of_rows)))
        if is_cupy(self._array):
            if of_rows:
                return sum(part @ part.T for part in parts)
            return sum(part.T @ part for part in parts)
        from scipy.linalg.blas import dsyrk

        size = self.shape[0 if of_rows else 1]
        gram = np.zeros((size, size), order="F")
        for part in parts:
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
        self._engine = x._engine
        self._rows = rows
        self._num_indices = x.shape[mode]
        # With the other modes merged into mode `_other`.
        self._x, self._other, places = merge_modes(x, other_modes, np.float64)
        self._mode = places[mode]
        # The widest comes last: kernels read and add its rows as vectors.
        by_width = sorted(factors.items(), key=lambda item: item[1].shape[1])
        self._inputs = {places[n]: factor.astype(np.float64) for n, factor in by_width}
        self._num_columns = math.prod(factor.shape[1] for factor in self._inputs.values())
        self._spread = self._spread_columns()
        self.shape = (count_nonempty_rows(x, mode), self._x.shape[self._other] * self._num_columns)

    def _spread_columns(self) -> dict[int, Array]:
        """Give each factor a column for each combination of the columns of all factors.

        It is the Kronecker product of the factor with ones for those before it, and after it.
        """
        num_before = 1
        num_after = self._num_columns
        spread = {}
        for mode, factor in self._inputs.items():
            rank = factor.shape[1]
            num_after //= rank
            spread[mode] = np.tile(np.repeat(factor, num_after, axis=1), (1, num_before))
            num_before *= rank
        return spread

    def multiply_transposed(self, block: Array) -> Array:
        """Multiply the transpose by vectors: a TTMc with them as the factor of the mode."""
        num_vectors = block.shape[1]
        xp = self._engine.xp
        vectors = xp.zeros((self._num_indices, num_vectors))
        vectors[self._rows] = block
        out = xp.empty((self._x.shape[self._other], num_vectors * self._num_columns))
        inputs = {self._mode: vectors, **self._inputs}
        self._x._layout.apply(TTMC, self._engine, inputs, self._other, out)
        by_vector = out.reshape(-1, num_vectors, self._num_columns)
        return by_vector.transpose(0, 2, 1).reshape(-1, num_vectors)

    def multiply(self, block: Array) -> Array:
        """Multiply the unfolding by vectors, a few at a time."""
        return np.concatenate([self._multiply(part) for part in eigen.split_columns(block)], axis=1)

    def _multiply(self, block: Array) -> Array:
        """Multiply the unfolding by a few vectors: sums of columns of an MTTKRP.

        The MTTKRP has `_num_columns` columns for each vector: `block` is cut to the factor of one
        mode, and the factors of the other modes are repeated.
        """
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
        if size <= eigen.MAX_DIRECT_SIZE:
            return True
        if size > eigen.MAX_GRAM_SIZE or not self._engine.is_gram_cheap(size, max(self.shape)):
            return False
        gram_cost = self._count_pairs(size) * self._num_columns
        round_cost = self._x.nnz * self._num_columns
        width = eigen.choose_width(rank, size)
        return gram_cost <= width * (_MAX_ROUNDS * round_cost - _ELEMENT_COST * size**2)

    def _count_pairs(self, size: int) -> float:
        """Count the products of two nonzeros, or of one and a unit vector, in a Gram matrix."""
        if size != self.shape[0]:  # that of the columns
            return self._x.nnz * size
        columns = list_cells(self._x, (self._other, self._mode)) // self._num_indices
        _, counts = np.unique(columns, return_counts=True)
        return float((counts**2.0).sum() / 2)

    def gram(self, of_rows: bool) -> Array:
        """Compute the Gram matrix of the rows, from the few nonzeros of each column."""
        xp = self._engine.xp
        size = self.shape[0 if of_rows else 1]
        if not of_rows:
            return eigen.multiply_by_gram(self, xp.eye(size), of_rows)
        # Number the nonempty cells (column, row) of the matrix, and compute their lines: `x` has
        # each cell as an index, and the TTMc of that mode has a line for each.
        cells = list_cells(self._x, (self._other, self._mode))
        column_ids, row_ids = np.divmod(cells, self._num_indices)
        _, columns = np.unique(column_ids, return_inverse=True)
        _, rows = np.unique(row_ids, return_inverse=True)
        places_in_gram = xp.stack([xp.asarray(columns), xp.asarray(rows)])
        x, mode, places = merge_modes(self._x, (self._other, self._mode), np.float64, cells)
        inputs = {places[n]: factor for n, factor in self._inputs.items()}
        # Some columns of the last factor at a time, so that the lines take little memory.
        last, widest = [*inputs.items()][-1]
        max_numbers = max(2 * _BLOCK_SIZE, size**2 // 2) * widest.shape[1]
        step = max(1, max_numbers // (cells.size * self._num_columns))
        gram = xp.zeros((size, size))
        for first in range(0, widest.shape[1], step):
            inputs[last] = xp.ascontiguousarray(widest[:, first : first + step])
            lines = xp.empty((cells.size, math.prod(f.shape[1] for f in inputs.values())))
            x._layout.apply(TTMC, self._engine, inputs, mode, lines)
            gram += self._engine.gram(places_in_gram, lines, xp.zeros(size))
        return gram
