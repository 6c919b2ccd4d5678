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
from .cells import find_places, omit_entries
from .converters import is_raw_sparse
from .pieces import Piece, read_nonzeros
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
    if unknown is None:
        return None
    if isinstance(unknown, str):
        if unknown != "all":
            raise ValueError(f"unknown is {unknown!r}, {_EXPECTED}")
        return unknown
    if not is_raw_sparse(unknown):
        raise TypeError(f"unknown is a {type(unknown).__name__}, {_EXPECTED}")
    check_mask_shape(unknown, shape, "unknown")
    if unknown.fill_value != 1:
        raise ValueError(f"unknown has fill_value {unknown.fill_value}, {_EXPECTED}")
    mask: Any = unknown
    if not hasattr(mask, "coords"):
        mask = mask.asformat("coo")  # a GCXS of pydata/sparse
    wrong_values = mask.data[mask.data != 0]
    if wrong_values.size:
        raise ValueError(f"unknown stores {wrong_values[0]}, {_EXPECTED}")
    if mask.nnz == 0:
        return None
    return mask


def check_mask_shape(mask: Any, shape: Sequence[int], name: str) -> None:
    """Refuse a mask that has another size than the tensor, or 1, in a mode."""
    sizes = tuple(mask.shape)
    expected = tuple(shape)
    if len(sizes) == len(expected):
        pairs = zip(sizes, expected, strict=True)
        if all(size in (1, whole) for size, whole in pairs):
            return
    instead = f"expected {expected}, or 1 in modes whose indices are all alike"
    raise ValueError(f"{name} has shape {sizes}, {instead}")


def make_mask(cells: np.ndarray, shape: Sequence[int]) -> COO:
    """Make a mask of unknown cells (ndim, count), in any order; some may occur twice."""
    import sparse

    cells, _ = count_each(cells, shape)
    # COO itself would number cells to sort them, of which there may be more than 64 bits can.
    return sparse.COO(
        cells,
        np.zeros(cells.shape[1]),
        tuple(shape),
        sorted=True,
        has_duplicates=False,
        fill_value=1.0,
    )


def describe(unknown: Any, shape: Sequence[int], names: Sequence[str]) -> str:
    """Say which cells are unknown, as in "58 blocks of donor x type"."""
    if unknown is None:
        return "no cells"
    if isinstance(unknown, str):
        return "all cells without a row"
    listed_modes = list_modes(unknown.shape, shape)
    plural = "" if unknown.nnz == 1 else "s"
    if len(listed_modes) == len(shape):
        return f"{unknown.nnz:,} cell{plural}"
    kind = "slice" if len(listed_modes) == 1 else "block"
    listed_names = " x ".join(names[mode] for mode in listed_modes)
    return f"{unknown.nnz:,} {kind}{plural} of {listed_names}"


def are_same(unknown1: Any, unknown2: Any) -> bool:
    """Return whether the same cells are unknown."""
    if unknown1 is None or unknown2 is None:
        return unknown1 is unknown2
    # The only text is "all".
    is_text1 = isinstance(unknown1, str)
    is_text2 = isinstance(unknown2, str)
    if is_text1 or is_text2:
        return is_text1 and is_text2
    have_same_shape = unknown1.shape == unknown2.shape
    return have_same_shape and np.array_equal(unknown1.coords, unknown2.coords)


def list_modes(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """List the modes in which a mask of these sizes has those of the tensor."""
    return [n for n, size in enumerate(shape) if sizes[n] == size]


def list_cells(coords: np.ndarray, sizes: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """List all cells (ndim, count) at the coords of a mask of these sizes, those of blocks too.

    >>> list_cells(np.array([[1], [0]]), (3, 1), (3, 2))
    array([[1, 1],
           [0, 1]])
    """
    listed_modes = list_modes(sizes, shape)
    whole_modes = [mode for mode in range(len(shape)) if mode not in listed_modes]
    block_shape = [shape[mode] for mode in whole_modes]
    block_size = num_cells(block_shape)
    # Block by block: the block's own coords, and those of its cells in the modes that it fills.
    cells = np.repeat(coords, block_size, axis=1)
    coords_in_block = np.indices(block_shape).reshape(len(whole_modes), block_size)
    num_blocks = coords.shape[1]
    cells[whole_modes] = np.tile(coords_in_block, num_blocks)
    return cells


def mark_unknown(data: COO, mask: Any) -> COO:
    """Return an array with nan at the unknown cells of a mask, whatever it stores there."""
    import sparse

    cells = list_cells(mask.coords, mask.shape, data.shape)
    cells, _ = count_each(cells, data.shape)  # sorted
    is_unknown, _ = find_places(cells, data.coords, np)
    known_coords = data.coords[:, ~is_unknown]
    known_values = data.data[~is_unknown]
    marks = np.full(cells.shape[1], np.nan, data.dtype)
    coords = np.concatenate([known_coords, cells], axis=1)
    values = np.concatenate([known_values, marks])
    return sparse.COO(coords, values, data.shape)


def find_blocks(cells: np.ndarray, shape: Sequence[int]) -> COO:
    """Make a mask of listed cells; it has size 1 in modes in which they fill whole fibres."""
    sizes = [*shape]
    for mode, size in enumerate(shape):
        # A fibre along the mode is given by its other indices; is each listed fibre whole?
        fibres = cells.copy()
        fibres[mode] = 0
        blocks, counts = count_each(fibres, sizes)
        are_whole = counts.size > 0 and np.all(counts == size)
        if size > 1 and are_whole:
            cells = blocks
            sizes[mode] = 1
    return make_mask(cells, sizes)


def transpose(unknown: Any, order: Sequence[int]) -> Unknown:
    """Reorder the modes."""
    if unknown is None or isinstance(unknown, str):
        return unknown
    mask: Unknown = unknown.transpose(order)
    return mask


def take_rows(unknown: Any, mode: int, rows: np.ndarray, size: int) -> Unknown:
    """Select distinct `rows` of a mode; `size` is the tensor's in it.

    >>> mask = make_mask(np.array([[0, 2], [1, 1]]), (3, 2))
    >>> take_rows(mask, 0, np.array([2, 1]), 3).coords.tolist()
    [[0], [1]]
    """
    if unknown is None or isinstance(unknown, str):
        return unknown
    if unknown.shape[mode] != size:  # a mask of size 1 there: of whole fibres
        return unknown
    new_rows = np.full(size, -1)  # of each old row; -1 if it is not selected
    new_rows[rows] = np.arange(rows.size)
    cells = unknown.coords.copy()
    cells[mode] = new_rows[cells[mode]]
    is_taken = cells[mode] >= 0
    shape = [*unknown.shape]
    shape[mode] = rows.size
    return make_mask(cells[:, is_taken], shape)


def count_each(cells: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ones of some cells (ndim, count), sorted, and how often each occurs."""
    if num_cells(shape) >= 2**63:  # their numbers would overflow
        return np.unique(cells, axis=1, return_counts=True)
    # Each cell as one number, which is faster to sort than columns.
    keys = np.ravel_multi_index(tuple(cells), shape)
    distinct_keys, counts = np.unique(keys, return_counts=True)
    distinct_cells = np.unravel_index(distinct_keys, shape)
    return np.stack(distinct_cells), counts


def count_cells(mask: Any, shape: Sequence[int]) -> int:
    """Count the unknown cells of a mask, those of its blocks too."""
    block_size = num_cells(shape) // num_cells(mask.shape)
    return int(mask.nnz) * block_size


def reduce(x: FlycooTensor, unknown: Any, gone: Sequence[int], name: str) -> tuple[Any, Unknown]:
    """Return the "sum", "mean", "max" or "min" of known cells over modes, and the unknown cells.

    A number, or an element of a vector, is nan if no known cell goes into it.
    """
    if isinstance(unknown, str):
        return _reduce_stored(x, gone, name)
    known_part = _omit_unknown(x, unknown)
    num_unknown = count_cells(unknown, x.shape)
    num_known = num_cells(x.shape) - num_unknown
    if name in ("max", "min"):
        num_zeros = num_known - known_part.nnz
        return known_part._find_extreme(gone, name, num_zeros=num_zeros), None
    total: Any = known_part.sum(gone)
    if len(gone) == x.ndim:
        return _divide_known(total, num_known, name), None
    counts = CellCounts(unknown, x.shape, gone)
    if not isinstance(total, FlycooTensor):
        known_counts = counts.count_known(total.size)
        return _divide_known(total, known_counts, name), None
    if name == "mean":
        return average(total, counts), counts.find_unknown()
    return total, counts.find_unknown()


def _reduce_stored(x: FlycooTensor, gone: Sequence[int], name: str) -> tuple[Any, Unknown]:
    """Reduce a tensor of which the stored cells alone are known, as `reduce` does."""
    if name in ("max", "min"):
        return x._find_extreme(gone, name, num_zeros=0), None
    total: Any = x.sum(gone)
    # The known cells are those stored: the sum of a one for each counts them.
    is_nonzero = x.map(lambda values: values != 0)
    ones = is_nonzero.astype(np.float64)
    num_known: Any = ones.sum(gone)
    if isinstance(total, FlycooTensor):
        return _average_stored(total, num_known, name), "all"
    return _divide_known(total, num_known, name), None


def _divide_known(total: Any, num_known: Any, name: str) -> Any:
    """Return a sum, a number or a vector, or its "mean"; nan where no cell is known."""
    xp = array_module(total)
    counts = xp.asarray(num_known, np.float64)
    divisors: Any = 1.0
    if name == "mean":
        divisors = counts
    divisors = xp.where(counts > 0, divisors, np.nan)
    return (total / divisors).astype(total.dtype)


def _average_stored(total: FlycooTensor, num_known: FlycooTensor, name: str) -> FlycooTensor:
    """Return a sum of cells of which all stored ones are known, or their mean."""
    check_kept(total.nnz, num_known.nnz)
    if name == "sum":
        return total
    cells, counts = num_known.nonzeros()
    all_modes = list(range(total.ndim))
    return rebuild(total, _divide, all_modes, cells, counts, 1)


def check_kept(num_left: int, num_known: int) -> None:
    """Refuse a result that stores fewer or more cells than are known, where no other is known."""
    if num_left != num_known:
        raise ValueError(
            f"the result stores {num_left} cells, but {num_known} are known: where all others are "
            "unknown, no known cell may become 0, nor an unknown one known; to take cells without "
            "a row as zeros, compute with x.tensor"
        )


class CellCounts:
    """The number of cells of a mask that go into each cell of a sum over the modes `gone`.

    `cells` (kept, count) are those of the sum into which unknown ones are merged, sorted, and
    `num_unknown` (count,) how many, of `total` each. Modes of size 1 in the mask have size 1 here,
    too.
    """

    def __init__(self, mask: Any, shape: Sequence[int], gone: Sequence[int]) -> None:
        kept = [mode for mode in range(len(shape)) if mode not in gone]
        self.shape = [mask.shape[mode] for mode in kept]
        self.total = num_cells(shape[mode] for mode in gone)
        self.cells, num_blocks = count_each(mask.coords[kept], self.shape)
        # A zero of the mask stands for a block if the mask has size 1 in modes that are summed.
        most_blocks = num_cells(mask.shape[mode] for mode in gone)
        block_size = self.total // most_blocks
        self.num_unknown = num_blocks * block_size

    def find_unknown(self) -> COO:
        """Return the mask of the cells of the sum of which nothing is known."""
        is_unknown = self.num_unknown == self.total
        return make_mask(self.cells[:, is_unknown], self.shape)

    def count_known(self, size: int) -> np.ndarray:
        """Return the number of known cells (size,) for each element of a sum that is a vector."""
        num_known = np.full(self.shape[0], self.total)
        num_known[self.cells[0]] -= self.num_unknown
        return np.broadcast_to(num_known, size)


def average(total: FlycooTensor, counts: CellCounts) -> FlycooTensor:
    """Divide a sum that is a tensor by the numbers of known cells."""
    modes = list_modes(counts.shape, total.shape)
    num_known = counts.total - counts.num_unknown
    return rebuild(total, _divide, modes, counts.cells[modes], num_known, counts.total)


def _omit_unknown(x: FlycooTensor, mask: Any) -> FlycooTensor:
    """Return a tensor without the nonzeros at the cells of a mask."""
    listed_modes = list_modes(mask.shape, x.shape)
    blocks = mask.coords[listed_modes]
    return omit_entries(x, listed_modes, blocks)


def _divide(
    piece: Piece, modes: list[int], cells: np.ndarray, num_known: np.ndarray, total: int
) -> tuple[Array, Array]:
    """Divide a piece at sorted cells by the number of known ones, and elsewhere by `total`."""
    coords, values = read_nonzeros(piece)
    host_coords = move(coords[modes], np)
    is_listed, places = find_places(cells, host_coords, np)
    divisors = np.full(values.size, total, values.dtype)
    divisors[is_listed] = num_known[places]
    return coords, values / move(divisors, piece.xp)
