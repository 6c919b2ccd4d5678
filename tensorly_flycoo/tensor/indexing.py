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
    """
    indices: list[_Item] = list(index) if isinstance(index, tuple) else [index]
    places = [n for n, item in enumerate(indices) if item is Ellipsis]
    if len(places) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    num_indexed = len(indices) - len(places)
    if num_indexed > len(shape):
        raise IndexError(
            f"too many indices for array: array is {len(shape)}-dimensional, but {num_indexed} "
            "were indexed"
        )
    place = places[0] if places else len(indices)
    indices[place : place + 1] = [slice(None)] * (len(shape) - num_indexed)
    selectors = [_select(item, *mode) for item, mode in zip(indices, enumerate(shape), strict=True)]
    num_lists = sum(isinstance(selector, np.ndarray) for selector in selectors)
    if num_lists > 1:
        raise IndexError(f"{_VALID}: got {num_lists} lists; index one mode after the other")
    return selectors


def order_kept(selectors: Sequence[Selector]) -> list[int]:
    """Return the modes that are left, in the order that NumPy gives them.

    An array comes first if a range lies between it and an integer.
    """
    kept = [mode for mode, item in enumerate(selectors) if not isinstance(item, int)]
    picked = [mode for mode, item in enumerate(selectors) if not isinstance(item, range)]
    is_split = bool(picked) and picked[-1] - picked[0] >= len(picked)
    return sorted(kept, key=lambda mode: is_split and isinstance(selectors[mode], range))


def is_whole(selector: Selector, size: int) -> bool:
    return isinstance(selector, range) and selector == range(size)


def _select(item: Any, mode: int, size: int) -> Selector:
    place = f"mode {mode}, which has size {size}"
    outside = f"is out of bounds for axis {mode} with size {size}"
    if isinstance(item, slice):
        selected = range(size)[item]
        if not selected:
            raise ValueError(f"{item} selects nothing from {place}")
        return selected
    if isinstance(item, list | tuple | range | np.ndarray) or is_cupy(item):
        numbers = np.asarray(move(item, np) if is_cupy(item) else item)
        if numbers.ndim == 1:
            if numbers.size == 0:
                raise ValueError(f"an empty list selects nothing from {place}")
            if numbers.dtype.kind not in "iu":
                raise IndexError(f"{_VALID}: got a list of {numbers.dtype}")
            is_outside = (numbers < -size) | (numbers >= size)
            if is_outside.any():
                raise IndexError(f"index {numbers[np.argmax(is_outside)]} {outside}")
            return numbers.astype(np.int64) % size
    try:
        if isinstance(item, bool | EllipsisType):
            raise TypeError
        number = operator.index(item)
    except TypeError:
        raise IndexError(f"{_VALID}: got a {type(item).__name__}") from None
    if not -size <= number < size:
        raise IndexError(f"index {number} {outside}")
    return number % size


def find_kept(
    piece: Piece, shape: Sequence[int], selectors: Sequence[Selector], kept: Sequence[int]
) -> tuple[Array, Array]:
    """Return positions of selected nonzeros in the ranges and the array, and their values."""
    xp, (coords, values) = piece.xp, _select_from_piece(piece, shape, selectors)
    for mode, selector in enumerate(selectors):
        if isinstance(selector, range):
            coords[mode] = (coords[mode] - selector.start) // selector.step
    for mode, selector in enumerate(selectors):
        if isinstance(selector, np.ndarray):
            order = xp.argsort(xp.asarray(selector), kind="stable")
            sources, places = match_sorted(coords[mode], xp.asarray(selector)[order], xp)
            coords = coords[:, sources]
            values = values[sources]
            coords[mode] = order[places]
    return coords[kept], values


def find_value(piece: Piece, shape: Sequence[int], selectors: Sequence[Selector]) -> Array:
    return _select_from_piece(piece, shape, selectors)[1].sum()


def _select_from_piece(
    piece: Piece, shape: Sequence[int], selectors: Sequence[Selector]
) -> tuple[Array, Array]:
    """Copy the coordinates and the values of the selected nonzeros of a piece."""
    is_kept: Array | None = None
    with piece.hold_records() as records:
        for mode, selector in enumerate(selectors):
            if not is_whole(selector, shape[mode]):
                is_in = _is_in(piece.read_rows(records, mode), selector, piece.xp)
                is_kept = is_in if is_kept is None else is_kept & is_in
        records = records.copy() if is_kept is None else records[is_kept]
        return piece.read_coords(records), piece.read_values(records)


def _is_in(rows: Array, selector: Selector, xp: ModuleType) -> Array:
    if isinstance(selector, int):
        return rows == selector
    if isinstance(selector, np.ndarray):
        numbers = xp.asarray(np.unique(selector))
        rows = rows.astype(np.int64)
        return numbers[xp.minimum(xp.searchsorted(numbers, rows), numbers.size - 1)] == rows
    low, high = sorted((selector[0], selector[-1]))
    is_in = (rows >= low) & (rows <= high)
    return is_in if abs(selector.step) == 1 else is_in & ((rows - low) % abs(selector.step) == 0)


def match_sorted(rows: Array, numbers: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Find all pairs of places, in `rows` and in sorted `numbers`, with the same value."""
    firsts = xp.searchsorted(numbers, rows)
    counts = xp.searchsorted(numbers, rows, side="right") - firsts
    ends = xp.cumsum(counts)
    pairs = xp.arange(int(ends[-1]) if rows.size else 0)
    sources = xp.searchsorted(ends, pairs, side="right")
    return sources, firsts[sources] + pairs - (ends - counts)[sources]
