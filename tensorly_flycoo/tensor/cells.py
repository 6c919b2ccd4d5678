"""A sorted list of cells of a tensor: find cells in it, or omit the nonzeros at them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType

import numpy as np

from ..base.array_modules import Array, move
from ..engines import Engine
from .pieces import Piece, map_pieces, read_nonzeros
from .tensor import FlycooTensor, rebuild


def count_before(
    read: Callable[[Array], Iterable[Array]],
    size: int,
    wanted: Sequence[Array],
    xp: ModuleType,
    *,
    or_equal: bool = False,
) -> Array:
    """Count the cells of a sorted list before (or at, if `or_equal`) each of the wanted ones.

    `read` returns the indices of cells of the list, mode by mode, as `wanted` has those to look up.
    """
    # A bisection for all wanted cells at once: low <= count <= high.
    low = xp.zeros(wanted[0].size, np.int64)
    high = xp.full(wanted[0].size, size, np.int64)
    for _ in range(size.bit_length()):
        middle = (low + high) // 2
        is_before = xp.zeros(low.size, bool)
        is_equal = low < high
        for rows, indices in zip(read(xp.minimum(middle, size - 1)), wanted, strict=True):
            is_before |= is_equal & (rows < indices)
            is_equal &= rows == indices
        if or_equal:
            is_before |= is_equal
        low = xp.where(is_before, middle + 1, low)
        high = xp.where(is_before, high, middle)
    return low


def find_places(cells: Array, coords: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Find some coords (n, count) in a sorted list of cells (n, size).

    Return which are in it, (count,), and the places of these.

    >>> cells = np.array([[0, 0, 2], [1, 5, 4]])
    >>> find_places(cells, np.array([[2, 0, 1], [4, 1, 1]]), np)
    (array([ True,  True, False]), array([2, 0]))
    """
    num_modes, size = cells.shape
    if num_modes == 0:  # there is one cell of no modes, and it is in the list
        count = coords.shape[1]
        return xp.ones(count, bool), xp.zeros(count, np.int64)
    places = None
    if xp is np and coords.size:
        places = _bisect_numbers(cells, coords)
    if places is None:
        places = count_before(lambda some: cells[:, some], size, [*coords], xp)
    places = xp.minimum(places, size - 1)
    is_found = (cells[:, places] == coords).all(axis=0)
    return is_found, places[is_found]


def _bisect_numbers(cells: np.ndarray, coords: np.ndarray) -> np.ndarray | None:
    """Do as `count_before`, by numbers of the cells; None if these do not fit 64 bits.

    The bisection of numbers is compiled.
    """
    pairs = zip(cells, coords, strict=True)
    spans = [max(int(rows.max()), int(wanted.max())) + 1 for rows, wanted in pairs]
    if math.prod(spans) >= 2**63:
        return None
    numbers = np.ravel_multi_index([*cells], spans)
    wanted_numbers = np.ravel_multi_index([*coords], spans)
    return np.searchsorted(numbers, wanted_numbers)


def omit_entries(x: FlycooTensor, modes: Sequence[int], cells: Array) -> FlycooTensor:
    """Return a tensor without its nonzeros whose indices in `modes` are among sorted cells."""
    engine = x._engine
    host_cells = move(cells, np)  # from where each piece takes them to its device
    stores_some = map_pieces(_stores_some, x._layout, engine, engine, [*modes], host_cells)
    if not any(stores_some):
        return x
    return rebuild(x, _read_others, engine, [*modes], host_cells)


def _stores_some(piece: Piece, engine: Engine, modes: list[int], cells: np.ndarray) -> bool:
    """Return whether a piece stores a nonzero at any of the cells."""
    _, values = _read_others(piece, engine, modes, cells)
    return values.size < piece.layout.nnz


def _read_others(
    piece: Piece, engine: Engine, modes: list[int], cells: np.ndarray
) -> tuple[Array, Array]:
    """Read the nonzeros of a piece that are at none of the cells."""
    coords, values = read_nonzeros(piece)
    is_listed, _ = find_places(engine.xp.asarray(cells), coords[modes], engine.xp)
    return coords[:, ~is_listed], values[~is_listed]
