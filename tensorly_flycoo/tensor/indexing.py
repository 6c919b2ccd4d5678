"""Parts of a sparse tensor: `x[3]`, `x[:, 1:5]`, `x[..., 0]`, `x[[1, 2]]`, `for part in x`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from types import EllipsisType, ModuleType
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

from ..base.array_modules import Array, is_cupy, move
from .pieces import Piece

_VALID = "only integers, slices (`:`), ellipsis (`...`) and one list of integers are valid indices"

#: An index, or one item of an index.
_Item: TypeAlias = SupportsIndex | slice | EllipsisType | Sequence[int] | Array
Index: TypeAlias = _Item | tuple[_Item, ...]

#: The selected indices of one mode: an int, which drops the mode, a range, or an array.
Selector: TypeAlias = int | range | np.ndarray


def parse_index(index: Index, shape: Sequence[int]) -> list[Selector]:
    """Turn an index into one selector per mode: an int from 0 to size - 1, a range or an array.

    At most one item may be a sequence, and none may select nothing: a FlycooTensor has no mode of
    size 0.

    >>> parse_index((1, ..., slice(0, None, 2)), (3, 4, 5))
    [1, range(0, 4), range(0, 5, 2)]
    """
    items = _complete(index, len(shape))
    selectors = [_select(item, mode, shape[mode]) for mode, item in enumerate(items)]
    num_lists = sum(isinstance(selector, np.ndarray) for selector in selectors)
    if num_lists > 1:
        raise IndexError(f"{_VALID}: got {num_lists} lists; index one mode after the other")
    return selectors


def _complete(index: Index, ndim: int) -> list[_Item]:
    """Return an item for each mode: modes that the index leaves out get ``:``.

    >>> _complete((1, ...), 3)
    [1, slice(None, None, None), slice(None, None, None)]
    """
    items: list[_Item] = list(index) if isinstance(index, tuple) else [index]
    # By identity: an array among the items would compare elements.
    places = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(places) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    num_indexed = len(items) - len(places)
    if num_indexed > ndim:
        raise IndexError(
            f"too many indices for array: array is {ndim}-dimensional, but {num_indexed} "
            "were indexed"
        )
    wholes = [slice(None)] * (ndim - num_indexed)
    if not places:
        return [*items, *wholes]
    (place,) = places
    return [*items[:place], *wholes, *items[place + 1 :]]


def order_kept(selectors: Sequence[Selector]) -> list[int]:
    """Return the modes that are left, in the order that NumPy gives them.

    An array comes first if a range lies between it and an integer.

    >>> order_kept([1, range(4), np.array([0, 2])])
    [2, 1]
    """
    kept = [mode for mode, selector in enumerate(selectors) if not isinstance(selector, int)]
    # NumPy indexes by the array and the integers together; ranges may lie between them.
    picked = [mode for mode, selector in enumerate(selectors) if not isinstance(selector, range)]
    is_split = bool(picked) and picked[-1] - picked[0] >= len(picked)
    if not is_split:
        return kept
    return sorted(kept, key=lambda mode: isinstance(selectors[mode], range))


def is_whole(selector: Selector, size: int) -> bool:
    """Return whether a selector takes all indices of a mode of this size, in their order."""
    return isinstance(selector, range) and selector == range(size)


def _select(item: Any, mode: int, size: int) -> Selector:
    """Turn an item of an index into the selector of a mode of this size."""
    if isinstance(item, slice):
        selected = range(size)[item]
        if not selected:
            raise _nothing_selected(item, mode, size)
        return selected
    if is_cupy(item):
        item = move(item, np)
    if isinstance(item, list | tuple | range | np.ndarray) and np.ndim(item) == 1:
        return _select_list(np.asarray(item), mode, size)
    try:
        if isinstance(item, bool | EllipsisType):
            raise TypeError
        number = operator.index(item)
    except TypeError:
        raise IndexError(f"{_VALID}: got a {type(item).__name__}") from None
    if not -size <= number < size:
        raise _out_of_bounds(number, mode, size)
    return number % size


def _select_list(numbers: np.ndarray, mode: int, size: int) -> np.ndarray:
    """Turn a list of an index into the indices of a mode of this size, from 0 on."""
    if numbers.size == 0:
        raise _nothing_selected("an empty list", mode, size)
    if numbers.dtype.kind not in "iu":
        raise IndexError(f"{_VALID}: got a list of {numbers.dtype}")
    is_outside = (numbers < -size) | (numbers >= size)
    if is_outside.any():
        first = np.argmax(is_outside)
        raise _out_of_bounds(numbers[first], mode, size)
    return numbers.astype(np.int64) % size


def _nothing_selected(item: Any, mode: int, size: int) -> ValueError:
    return ValueError(f"{item} selects nothing from mode {mode}, which has size {size}")


def _out_of_bounds(number: int, mode: int, size: int) -> IndexError:
    return IndexError(f"index {number} is out of bounds for axis {mode} with size {size}")


def find_kept(
    piece: Piece, shape: Sequence[int], selectors: Sequence[Selector], kept: Sequence[int]
) -> tuple[Array, Array]:
    """Return positions of selected nonzeros in the ranges and the array, and their values."""
    xp = piece.xp
    coords, values = _select_from_piece(piece, shape, selectors)
    for mode, selector in enumerate(selectors):
        if isinstance(selector, range):
            coords[mode] = (coords[mode] - selector.start) // selector.step
    # The array last: it may repeat an index, and with it the nonzeros there.
    for mode, selector in enumerate(selectors):
        if isinstance(selector, np.ndarray):
            numbers = xp.asarray(selector)
            order = xp.argsort(numbers, kind="stable")
            sources, places = match_sorted(coords[mode], numbers[order], xp)
            coords = coords[:, sources]
            values = values[sources]
            coords[mode] = order[places]
    return coords[kept], values


def find_value(piece: Piece, shape: Sequence[int], selectors: Sequence[Selector]) -> Array:
    """Return the value of a piece at one index of each mode; 0 if it stores none."""
    _, values = _select_from_piece(piece, shape, selectors)
    return values.sum()


def _select_from_piece(
    piece: Piece, shape: Sequence[int], selectors: Sequence[Selector]
) -> tuple[Array, Array]:
    """Copy the coordinates and the values of the selected nonzeros of a piece."""
    cut_modes = [n for n, size in enumerate(shape) if not is_whole(selectors[n], size)]
    with piece.hold_records() as records:
        if cut_modes:
            # A generator: the condition of one mode exists at a time.
            conditions = (
                _is_in(piece.read_rows(records, mode), selectors[mode], piece.xp)
                for mode in cut_modes
            )
            selected = records[functools.reduce(operator.and_, conditions)]
        else:
            selected = records.copy()
        return piece.read_coords(selected), piece.read_values(selected)


def _is_in(rows: Array, selector: Selector, xp: ModuleType) -> Array:
    """Mark the indices of a mode that a selector takes."""
    if isinstance(selector, int):
        return rows == selector
    if isinstance(selector, np.ndarray):
        numbers = xp.asarray(np.unique(selector))
        indices = rows.astype(np.int64)
        places = xp.searchsorted(numbers, indices)
        places = xp.minimum(places, numbers.size - 1)
        return numbers[places] == indices
    low, high = sorted((selector[0], selector[-1]))
    is_in = (rows >= low) & (rows <= high)
    step = abs(selector.step)
    if step == 1:
        return is_in
    return is_in & ((rows - low) % step == 0)


def match_sorted(rows: Array, numbers: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Find all pairs of places, in `rows` and in sorted `numbers`, with the same value.

    >>> match_sorted(np.array([7, 5]), np.array([5, 7, 7]), np)
    (array([0, 0, 1]), array([1, 2, 0]))
    """
    firsts = xp.searchsorted(numbers, rows)
    ends = xp.searchsorted(numbers, rows, side="right")
    return list_ranges(firsts, ends, xp)


def list_ranges(firsts: Array, ends: Array, xp: ModuleType) -> tuple[Array, Array]:
    """List the integers of some ranges, one range after the other, and the range of each.

    Return the number of its range (count,) first, then the integer itself (count,).

    >>> list_ranges(np.array([5, 3, 0]), np.array([7, 3, 1]), np)
    (array([0, 0, 2]), array([5, 6, 0]))
    """
    ends_in_list = xp.cumsum(ends - firsts)
    count = 0
    if ends_in_list.size:
        count = int(ends_in_list[-1])
    places = xp.arange(count)
    ranges = xp.searchsorted(ends_in_list, places, side="right")
    shifts = ends - ends_in_list  # from a place in the list to the integer there
    return ranges, places + shifts[ranges]
