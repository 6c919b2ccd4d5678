"""Parts of a sparse tensor: `x[3]`, `x[:, 1:5]`, `x[..., 0]`, `x[[1, 2]]`, `for part in x`."""

from __future__ import annotations

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
    items: list[_Item] = list(index) if isinstance(index, tuple) else [index]
    # By identity: an array among the items would compare elements.
    places = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(places) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    num_indexed = len(items) - len(places)
    if num_indexed > len(shape):
        raise IndexError(
            f"too many indices for array: array is {len(shape)}-dimensional, but {num_indexed} "
            "were indexed"
        )
    # Without an ellipsis, the modes that are not indexed are the last ones.
    place = places[0] if places else len(items)
    items[place : place + 1] = [slice(None)] * (len(shape) - num_indexed)
    selectors = [_select(item, mode, shape[mode]) for mode, item in enumerate(items)]
    num_lists = sum(isinstance(selector, np.ndarray) for selector in selectors)
    if num_lists > 1:
        raise IndexError(f"{_VALID}: got {num_lists} lists; index one mode after the other")
    return selectors


def order_kept(selectors: Sequence[Selector]) -> list[int]:
    """Return the modes that are left, in the order that NumPy gives them.

    An array comes first if a range lies between it and an integer.

    >>> order_kept([1, range(4), np.array([0, 2])])
    [2, 1]
    """
    kept = [mode for mode, item in enumerate(selectors) if not isinstance(item, int)]
    picked = [mode for mode, item in enumerate(selectors) if not isinstance(item, range)]
    is_split = bool(picked) and picked[-1] - picked[0] >= len(picked)
    return sorted(kept, key=lambda mode: is_split and isinstance(selectors[mode], range))


def is_whole(selector: Selector, size: int) -> bool:
    """Return whether a selector takes all indices of a mode of this size, in their order."""
    return isinstance(selector, range) and selector == range(size)


def _select(item: Any, mode: int, size: int) -> Selector:
    """Turn an item of an index into the selector of a mode of this size."""
    place = f"mode {mode}, which has size {size}"
    if isinstance(item, slice):
        selected = range(size)[item]
        if not selected:
            raise ValueError(f"{item} selects nothing from {place}")
        return selected
    if is_cupy(item):
        item = move(item, np)
    if isinstance(item, list | tuple | range | np.ndarray) and np.ndim(item) == 1:
        numbers = np.asarray(item)
        if numbers.size == 0:
            raise ValueError(f"an empty list selects nothing from {place}")
        if numbers.dtype.kind not in "iu":
            raise IndexError(f"{_VALID}: got a list of {numbers.dtype}")
        is_outside = (numbers < -size) | (numbers >= size)
        if is_outside.any():
            raise _out_of_bounds(numbers[np.argmax(is_outside)], mode, size)
        return numbers.astype(np.int64) % size
    try:
        if isinstance(item, bool | EllipsisType):
            raise TypeError
        number = operator.index(item)
    except TypeError:
        raise IndexError(f"{_VALID}: got a {type(item).__name__}") from None
    if not -size <= number < size:
        raise _out_of_bounds(number, mode, size)
    return number % size


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
    is_kept: Array | None = None
    with piece.hold_records() as records:
        for mode, selector in enumerate(selectors):
            if is_whole(selector, shape[mode]):
                continue
            is_in = _is_in(piece.read_rows(records, mode), selector, piece.xp)
            is_kept = is_in if is_kept is None else is_kept & is_in
        selected = records.copy() if is_kept is None else records[is_kept]
        return piece.read_coords(selected), piece.read_values(selected)


def _is_in(rows: Array, selector: Selector, xp: ModuleType) -> Array:
    """Mark the indices of a mode that a selector takes."""
    if isinstance(selector, int):
        return rows == selector
    if isinstance(selector, np.ndarray):
        numbers = xp.asarray(np.unique(selector))
        wanted = rows.astype(np.int64)
        places = xp.minimum(xp.searchsorted(numbers, wanted), numbers.size - 1)
        return numbers[places] == wanted
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
    counts = xp.searchsorted(numbers, rows, side="right") - firsts
    ends = xp.cumsum(counts)
    pairs = xp.arange(int(ends[-1]) if rows.size else 0)
    sources = xp.searchsorted(ends, pairs, side="right")
    nth_match = pairs - (ends - counts)[sources]  # of the row with one of the numbers
    return sources, firsts[sources] + nth_match
