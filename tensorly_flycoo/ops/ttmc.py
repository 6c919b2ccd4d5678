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
from ..format.primitives import MTTKRP, TTMC, list_nonempty_rows
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
    other_modes = [mode for mode in range(x.ndim) if mode not in modes]
    if len(modes) == 1 and dtype == x.dtype and cells is None:
        return separate_modes(x), modes[0], {mode: mode for mode in other_modes}
    kept = _kept.setdefault(x._layout, {})
    key = (*modes, np.dtype(dtype), cells is None)
    if key not in kept:
        size = math.prod(x.shape[mode] for mode in modes)
        if cells is not None:
            size = cells.size
        other_sizes = [x.shape[mode] for mode in other_modes]
        kept[key] = rebuild(
            x,
            _merge_modes,
            x.shape,
            modes,
            other_modes,
            cells,
            shape=(size, *other_sizes),
            dtype=dtype,
            groups=None,
        )
    return kept[key], 0, {mode: place for place, mode in enumerate(other_modes, start=1)}


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
    other_modes: Sequence[int],
    cells: np.ndarray | None,
) -> tuple[Array, Array]:
    """Return the nonzeros of a piece with `modes` joined into one, which comes first.

    With `cells`, as of `merge_modes`, the place of a cell in that list is its index there.
    """
    xp = piece.xp
    coords, values = read_nonzeros(piece)
    rows = join_modes(shape, coords, modes)
    if cells is not None:
        rows = xp.searchsorted(xp.asarray(cells), rows)
    other_coords = [coords[n] for n in other_modes]
    return xp.stack([rows, *other_coords]), values


def list_cells(x: FlycooTensor, modes: Sequence[int]) -> np.ndarray:
    """List the cells of some modes that have nonzeros, ascending, on the host; kept with `x`."""
    kept = _kept.setdefault(x._layout, {})
    key = tuple(modes)
    if key not in kept:
        parts = map_pieces(_list_cells, x._layout, x._engine, x.shape, modes)
        cells_of_pieces = [move(part, np) for part in parts]
        kept[key] = cells_of_pieces[0]
        if len(cells_of_pieces) > 1:  # slabs may have the same cells
            kept[key] = np.unique(np.concatenate(cells_of_pieces))
    listed: np.ndarray = kept[key]
    return listed


def _list_cells(piece: Piece, shape: Sequence[int], modes: Sequence[int]) -> Array:
    """List the cells of some modes in which a piece has nonzeros, ascending."""
    coords, _ = read_nonzeros(piece)
    cells = piece.xp.sort(join_modes(shape, coords, modes))
    # NumPy's `unique` hashes, which takes longer.
    is_first = piece.xp.diff(cells, prepend=-1) > 0
    return cells[is_first]


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
    size = x.shape[mode]
    rows = list_nonempty_rows(empty_rows, size)
    slots = xp.zeros(size, rows.dtype)
    slots[rows] = xp.arange(rows.size)
    return rows, slots


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
            part = self._array[block]
            if axis == 1:
                part = self._array[:, block]
            yield block, xp.ascontiguousarray(part.astype(np.float64, copy=False))

    def multiply(self, block: Array) -> Array:
        return np.concatenate([part @ block for _, part in self._blocks()])

    def multiply_transposed(self, block: Array) -> Array:
        return sum(part.T @ block[rows] for rows, part in self._blocks())

    def gram(self, of_rows: bool) -> Array:
        """Compute the Gram matrix of the rows or of the columns."""
        # The Gram matrix of the rows adds up over blocks of columns, and the other way round.
        parts = (part for _, part in self._blocks(axis=int(of_rows)))
        if is_cupy(self._array):
            if of_rows:
                return sum(part @ part.T for part in parts)
            return sum(part.T @ part for part in parts)
        from scipy.linalg.blas import dsyrk

        num_rows, num_columns = self.shape
        size = num_rows if of_rows else num_columns
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
        num_merged = self._x.shape[self._other]
        self.shape = (count_nonempty_rows(x, mode), num_merged * self._num_columns)

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
            repeated = np.repeat(factor, num_after, axis=1)
            spread[mode] = np.tile(repeated, (1, num_before))
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
        products = [self._multiply(part) for part in eigen.split_columns(block)]
        return np.concatenate(products, axis=1)

    def _multiply(self, block: Array) -> Array:
        """Multiply the unfolding by a few vectors: sums of columns of an MTTKRP.

        The MTTKRP has `_num_columns` columns for each vector: `block` is cut to the factor of one
        mode, and the factors of the other modes are repeated.
        """
        xp = self._engine.xp
        num_vectors = block.shape[1]
        # The MTTKRP has a component for each vector and each combination of factors' columns.
        rank = num_vectors * self._num_columns
        factors = {n: np.tile(factor, (1, num_vectors)) for n, factor in self._spread.items()}
        by_vector = block.reshape(-1, self._num_columns, num_vectors).transpose(0, 2, 1)
        factors[self._other] = by_vector.reshape(-1, rank)
        out = xp.empty((self._num_indices, rank))
        self._x._layout.apply(MTTKRP, self._engine, factors, self._mode, out)
        sums = out.reshape(-1, num_vectors, self._num_columns).sum(axis=2)
        return sums[self._rows]

    def is_gram_cheap(self, rank: int) -> bool:
        """Say so if it costs no more than some rounds of an iteration, and takes 512 MB at most."""
        size = min(self.shape)
        if size <= eigen.MAX_DIRECT_SIZE:
            return True
        if size > eigen.MAX_GRAM_SIZE or not self._engine.is_gram_cheap(size, max(self.shape)):
            return False
        gram_cost = self._count_pairs(size) * self._num_columns
        rounds_cost = _MAX_ROUNDS * self._x.nnz * self._num_columns
        elements_cost = _ELEMENT_COST * size**2
        width = eigen.choose_width(rank, size)
        return gram_cost <= width * (rounds_cost - elements_cost)

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
        num_rows, num_columns = self.shape
        if not of_rows:
            return eigen.multiply_by_gram(self, xp.eye(num_columns), of_rows)
        # 1. The cells of the row's mode and the merged mode that have nonzeros: where they are.
        cells = list_cells(self._x, (self._other, self._mode))
        column_ids, row_ids = np.divmod(cells, self._num_indices)
        _, columns = np.unique(column_ids, return_inverse=True)
        _, rows = np.unique(row_ids, return_inverse=True)
        coords = xp.stack([xp.asarray(columns), xp.asarray(rows)])
        # 2. A TTMc has a line of numbers for each of these cells: of all factors but the widest,
        # and of as many columns of the widest at a time as fit in memory.
        x, mode, places = merge_modes(self._x, (self._other, self._mode), np.float64, cells)
        inputs = {places[n]: factor for n, factor in self._inputs.items()}
        # Some columns of the last factor at a time, so that the lines take little memory.
        last, widest = [*inputs.items()][-1]
        rank = widest.shape[1]
        max_numbers = max(2 * _BLOCK_SIZE, num_rows**2 // 2)
        step = max(1, max_numbers * rank // (cells.size * self._num_columns))
        gram = xp.zeros((num_rows, num_rows))
        for first in range(0, rank, step):
            inputs[last] = xp.ascontiguousarray(widest[:, first : first + step])
            length = math.prod(factor.shape[1] for factor in inputs.values())
            lines = xp.empty((cells.size, length))
            x._layout.apply(TTMC, self._engine, inputs, mode, lines)
            gram += self._engine.gram(coords, lines, xp.zeros(num_rows))
        return gram
