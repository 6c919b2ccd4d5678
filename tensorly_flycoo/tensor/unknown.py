"""Which cells of a tensor are unknown: none, all that it does not store, or those of a mask.

A mask is a `sparse.COO` with fill_value 1 that stores a zero for each unknown cell. In modes whose
indices are all alike it has size 1: then its zeros stand for blocks of cells, which are not listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import num_cells
from .converters import library_of
from .pieces import Piece, map_pieces, read_nonzeros
from .tensor import FlycooTensor, rebuild

if TYPE_CHECKING:
    from sparse import COO

#: None if cells without a value are zeros; "all" if they are unknown; or a mask.
Unknown: TypeAlias = "COO | str | None"

_EXPECTED = (
    'expected None, "all", or a sparse.COO with fill_value 1 whose stored zeros are the unknown '
    "cells"
)


def check_unknown(unknown: Any, shape: Sequence[int]) -> Unknown:
    """Return it, a mask as COO; refuse one that does not fit a tensor of this shape."""
    if unknown is None or (isinstance(unknown, str) and unknown == "all"):
        return unknown
    kind: type = type(unknown)
    if isinstance(unknown, str):
        raise ValueError(f"unknown is {unknown!r}, {_EXPECTED}")
    if library_of(kind) != "sparse" or not hasattr(unknown, "fill_value"):
        raise TypeError(f"unknown is a {kind.__name__}, {_EXPECTED}")
    sizes = tuple(unknown.shape)
    pairs = zip(sizes, shape, strict=False)
    if len(sizes) != len(shape) or any(size not in (1, whole) for size, whole in pairs):
        instead = f"expected {tuple(shape)}, or 1 in modes whose indices are all alike"
        raise ValueError(f"unknown has shape {sizes}, {instead}")
    if unknown.fill_value != 1:
        raise ValueError(f"unknown has fill_value {unknown.fill_value}, {_EXPECTED}")
    mask: Any = unknown if hasattr(unknown, "coords") else unknown.asformat("coo")
    if (others := mask.data[mask.data != 0]).size:
        raise ValueError(f"unknown stores {others[0]}, {_EXPECTED}")
    return mask if mask.nnz else None


def make_mask(cells: np.ndarray, shape: Sequence[int]) -> COO:
    """Make a mask of unknown cells (ndim, count), in any order; some may occur twice."""
    import sparse

    cells, _ = count_each(cells, shape)
    # COO itself would number cells, of which there may be more than 64 bits can.
    options = {"sorted": True, "has_duplicates": False, "fill_value": 1.0}
    return sparse.COO(cells, np.zeros(cells.shape[1]), tuple(shape), **options)


def describe(unknown: Any, shape: Sequence[int], names: Sequence[str]) -> str:
    """Say which cells are unknown, as in "58 blocks of donor x type"."""
    if unknown is None:
        return "no cells"
    if isinstance(unknown, str):
        return "all cells without a row"
    listed = list_modes(unknown.shape, shape)
    kind = "cell" if len(listed) == len(shape) else "slice" if len(listed) == 1 else "block"
    of = "" if kind == "cell" else " of " + " x ".join(names[mode] for mode in listed)
    return f"{unknown.nnz:,} {kind}{'s' * (unknown.nnz != 1)}{of}"


def are_same(one: Any, other: Any) -> bool:
    """Return whether the same cells are unknown."""
    if one is None or other is None or isinstance(one, str) or isinstance(other, str):
        return one is other or (isinstance(one, str) and isinstance(other, str))
    return one.shape == other.shape and np.array_equal(one.coords, other.coords)


def list_modes(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """List the modes in which a mask of these sizes has those of the tensor."""
    return [n for n, size in enumerate(shape) if sizes[n] == size]


def list_cells(coords: np.ndarray, sizes: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """List all cells (ndim, count) at the coords of a mask of these sizes, those of blocks too."""
    listed = list_modes(sizes, shape)
    wide = [n for n in range(len(shape)) if n not in listed]
    whole = [shape[n] for n in wide]
    inside = np.indices(whole).reshape(len(wide), num_cells(whole))
    cells = np.repeat(coords, inside.shape[1], axis=1)
    cells[wide] = np.tile(inside, coords.shape[1])
    return cells


def mark_unknown(data: COO, mask: Any) -> COO:
    """Return an array with nan at the unknown cells of a mask, whatever it stores there."""
    import sparse

    cells = list_cells(mask.coords, mask.shape, data.shape)
    is_known = _find_places(cells, data.coords) < 0
    coords = np.concatenate([data.coords[:, is_known], cells], axis=1)
    values = np.concatenate([data.data[is_known], np.full(cells.shape[1], np.nan, data.dtype)])
    return sparse.COO(coords, values, data.shape)


def find_blocks(cells: np.ndarray, shape: Sequence[int]) -> COO:
    """Make a mask of listed cells; it has size 1 in modes in which they fill whole fibres."""
    sizes = [*shape]
    for mode in range(len(shape)):
        others = cells.copy()
        others[mode] = 0
        blocks, counts = count_each(others, sizes)
        if sizes[mode] > 1 and counts.size and (counts == sizes[mode]).all():
            cells = blocks
            sizes[mode] = 1
    return make_mask(cells, sizes)


def transpose(unknown: Any, order: Sequence[int]) -> Unknown:
    """Reorder the modes."""
    return unknown if unknown is None or isinstance(unknown, str) else unknown.transpose(order)


def take_rows(unknown: Any, mode: int, rows: np.ndarray, size: int) -> Unknown:
    """Cut a mask to different rows of a mode of this size of the tensor."""
    if unknown is None or isinstance(unknown, str) or unknown.shape[mode] != size:
        return unknown
    places = np.full(size, -1)
    places[rows] = np.arange(rows.size)
    cells = unknown.coords.copy()
    cells[mode] = places[cells[mode]]
    shape = [*unknown.shape]
    shape[mode] = rows.size
    return make_mask(cells[:, cells[mode] >= 0], shape)


def count_each(cells: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ones of some cells (ndim, count), sorted, and how often each occurs."""
    if num_cells(shape) >= 2**63:
        return np.unique(cells, axis=1, return_counts=True)
    keys, counts = np.unique(np.ravel_multi_index([*cells], shape), return_counts=True)
    return np.stack(np.unravel_index(keys, shape)), counts


def count_cells(mask: Any, shape: Sequence[int]) -> int:
    """Count the unknown cells of a mask, those of its blocks too."""
    return int(mask.nnz) * (num_cells(shape) // num_cells(mask.shape))


def reduce(x: FlycooTensor, unknown: Any, gone: Sequence[int], name: str) -> tuple[Any, Unknown]:
    """Return the "sum", "mean", "max" or "min" of known cells over modes, and what is unknown then.

    Of a number or a vector, what has no known cell is nan.
    """
    is_all = isinstance(unknown, str)
    known = x if is_all else omit_unknown(x, unknown)
    if name in ("max", "min"):
        num_zeros = 0 if is_all else num_cells(x.shape) - count_cells(unknown, x.shape) - known.nnz
        return known._find_extreme(gone, name, num_zeros=num_zeros), None
    found: Any = known.sum(gone)
    if is_all:
        num_known: Any = x.map(lambda values: values != 0).astype(np.float64).sum(gone)
        if isinstance(found, FlycooTensor):
            return _average_stored(found, num_known, name), unknown
    elif len(gone) == x.ndim:
        num_known = num_cells(x.shape) - count_cells(unknown, x.shape)
    else:
        counts = CellCounts(unknown, x.shape, gone)
        if isinstance(found, FlycooTensor):
            return (average(found, counts) if name == "mean" else found), counts.find_unknown()
        num_known = counts.count_known(found.size)
    xp = array_module(found)
    divisors = xp.asarray(num_known, np.float64)
    divisors = xp.where(divisors > 0, divisors if name == "mean" else 1.0, np.nan)
    return (found / divisors).astype(found.dtype), None


def _average_stored(found: FlycooTensor, num_known: FlycooTensor, name: str) -> FlycooTensor:
    """Return a sum of cells of which all stored ones are known, or their mean."""
    check_kept(found.nnz, num_known.nnz)
    if name == "sum":
        return found
    cells, counts = (move(of, np) for of in num_known.nonzeros())
    return rebuild(found, _divide, [*range(found.ndim)], cells, counts, 1)


def check_kept(num_left: int, num_known: int) -> None:
    """Refuse a result that stores fewer or more cells than are known, where no other is known."""
    if num_left != num_known:
        raise ValueError(
            f"the result stores {num_left} cells, but {num_known} are known: where all others are "
            "unknown, no known cell may become 0, nor an unknown one known; to take cells without "
            "a row as zeros, compute with x.tensor"
        )


class CellCounts:
    """How many cells of a mask are merged into each cell of a sum over the modes `gone`.

    `cells` (kept, count) are those of the sum into which unknown ones are merged, `num_unknown`
    (count,) how many, of `total` each. Modes of size 1 in the mask have size 1 here, too.
    """

    def __init__(self, mask: Any, shape: Sequence[int], gone: Sequence[int]) -> None:
        kept = [n for n in range(len(shape)) if n not in gone]
        self.shape = [mask.shape[n] for n in kept]
        self.total = num_cells(shape[n] for n in gone)
        self.cells, counts = count_each(mask.coords[kept], self.shape)
        self.num_unknown = counts * (self.total // num_cells(mask.shape[n] for n in gone))

    def find_unknown(self) -> COO:
        """Return the mask of the cells of the sum of which nothing is known."""
        return make_mask(self.cells[:, self.num_unknown == self.total], self.shape)

    def count_known(self, size: int) -> np.ndarray:
        """Return the number of known cells (size,) for each element of a sum that is a vector."""
        num_known = np.full(self.shape[0], self.total)
        num_known[self.cells[0]] -= self.num_unknown
        return np.broadcast_to(num_known, size)


def average(found: FlycooTensor, counts: CellCounts) -> FlycooTensor:
    """Divide a sum that is a tensor by the numbers of known cells."""
    modes = list_modes(counts.shape, found.shape)
    num_known = counts.total - counts.num_unknown
    return rebuild(found, _divide, modes, counts.cells[modes], num_known, counts.total)


def _divide(
    piece: Piece, modes: list[int], cells: np.ndarray, num_known: np.ndarray, total: int
) -> tuple[Array, Array]:
    coords, values = read_nonzeros(piece)
    places = _find_places(cells, move(coords[modes], np))
    divisors = np.append(num_known, total)[places]
    return coords, values / move(divisors.astype(values.dtype), piece.xp)


def omit_unknown(x: FlycooTensor, mask: Any) -> FlycooTensor:
    """Return a tensor without what it stores at the cells of a mask."""
    modes = list_modes(mask.shape, x.shape)
    args = modes, mask.coords[modes]
    if not any(map_pieces(_stores_some, x._layout, x._engine, *args)):
        return x
    return rebuild(x, _omit, *args)


def _stores_some(piece: Piece, *args: Any) -> bool:
    return _omit(piece, *args)[1].size < piece.layout.nnz


def _omit(piece: Piece, modes: list[int], cells: np.ndarray) -> tuple[Array, Array]:
    coords, values = read_nonzeros(piece)
    is_kept = move(_find_places(cells, move(coords[modes], np)) < 0, piece.xp)
    return coords[:, is_kept], values[is_kept]


def _find_places(cells: np.ndarray, coords: np.ndarray) -> np.ndarray:
    """Return the place of each of some coords (n, count) among different cells (n, size), or -1.

    >>> _find_places(np.array([[0, 2], [5, 1]]), np.array([[2, 2, 0], [1, 5, 5]]))
    array([ 1, -1,  0])
    """
    numbers = np.zeros(cells.shape[1], np.int64)
    found = np.zeros(coords.shape[1], np.int64)
    is_found = np.ones(coords.shape[1], bool)
    for of_cells, rows in zip(cells, coords, strict=True):  # numbered mode by mode: none overflows
        size = int(max(of_cells.max(), rows.max(initial=0))) + 1
        keys = found * size + rows
        known, numbers = np.unique(numbers * size + of_cells, return_inverse=True)
        found = np.minimum(np.searchsorted(known, keys), known.size - 1)
        is_found &= known[found] == keys
    return np.where(is_found, np.argsort(numbers)[found], -1)
