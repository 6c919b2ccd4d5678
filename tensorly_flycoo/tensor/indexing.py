"""Parts of a sparse tensor: `x[3]`, `x[:, 1:5]`, `x[..., 0]`, `for part in x`."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from types import EllipsisType, ModuleType
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

import numpy as np

from ..array_modules import Array, move
from ..checks import DensifyError, early_bound_hint

if TYPE_CHECKING:
    from ..format.layout import Layout
    from .tensor import FlycooTensor

_VALID = "only integers, slices (`:`) and ellipsis (`...`) are valid indices of a sparse tensor"

#: An index, or one item of an index.
_Item: TypeAlias = SupportsIndex | slice | EllipsisType
Index: TypeAlias = _Item | tuple[_Item, ...]

#: The selected indices of one mode: an int, which drops the mode, or a range.
Selector: TypeAlias = int | range


def find_part(x: FlycooTensor, index: Index) -> FlycooTensor | Array:
    """Return ``x[index]``; see `FlycooTensor.__getitem__`."""
    selectors = parse_index(index, x.shape)
    if selectors == [range(size) for size in x.shape]:
        return x
    coords, values = select_nonzeros(x._layout, selectors, x._engine.xp)
    shape = [len(selector) for selector in selectors if isinstance(selector, range)]
    return x._rebuild(coords, values, shape) if shape else values.sum()


def iterate_parts(x: FlycooTensor) -> Iterator[FlycooTensor | Array]:
    """Yield ``x[0]``, ``x[1]``, ..."""
    if x.ndim == 1:
        yield from (x[i] for i in range(len(x)))
        return
    coords, values = x._sorted_nonzeros()
    counts = move(x._engine.xp.bincount(coords[0], minlength=len(x)), np)
    ends = np.cumsum(counts)
    for start, end in zip(ends - counts, ends, strict=True):
        yield x._rebuild(coords[1:, start:end], values[start:end], x.shape[1:])


def parse_index(index: Index, shape: Sequence[int]) -> list[Selector]:
    """Turn an index into one selector per mode: an int from 0 to size - 1, or a range.

    Parameters
    ----------
    index : int, slice, Ellipsis, or tuple of these
    shape : tuple of int

    Returns
    -------
    list of int or range

    Raises
    ------
    IndexError
        If an index has another type or is out of bounds, or there are too many.
    ValueError
        If a slice selects nothing: a FlycooTensor has no mode of size 0.

    Examples
    --------
    >>> parse_index((-1, ..., slice(1, None, 2)), (3, 4, 5))
    [2, range(0, 4), range(1, 5, 2)]
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
    return [_select(item, *mode) for item, mode in zip(indices, enumerate(shape), strict=True)]


def _select(item: _Item, mode: int, size: int) -> Selector:
    if isinstance(item, slice):
        selected = range(size)[item]
        if not selected:
            raise ValueError(f"{item} selects nothing from mode {mode}, which has size {size}")
        return selected
    try:
        if isinstance(item, bool | EllipsisType):
            raise TypeError
        number = operator.index(item)
    except TypeError:
        hint = early_bound_hint()
        error = DensifyError if hint else IndexError
        raise error(f"{_VALID}: got a {type(item).__name__}{hint}") from None
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of bounds for axis {mode} with size {size}")
    return number % size


def select_nonzeros(
    layout: Layout, selectors: Sequence[Selector], xp: ModuleType
) -> tuple[Array, Array]:
    """Find the selected nonzeros in one scan, skipping modes taken whole.

    Returns
    -------
    coords : int64 array (number of ranges, num_selected)
        Positions in the ranges.
    values : array (num_selected,)
    """
    record_format = layout.record_format
    is_kept: Array | None = None
    with layout.hold_records() as records:
        for mode, selector in enumerate(selectors):
            if selector != range(record_format.shape[mode]):
                rows = record_format.rows(records, mode, xp)
                is_in = _is_in(rows, selector)
                is_kept = is_in if is_kept is None else is_kept & is_in
        records = records.copy() if is_kept is None else records[is_kept]
    coords = record_format.coords(records, xp)
    ranges = {mode: item for mode, item in enumerate(selectors) if isinstance(item, range)}
    for mode, selected in ranges.items():
        coords[mode] = (coords[mode] - selected.start) // selected.step
    return coords[list(ranges)], record_format.values(records)


def _is_in(rows: Array, selector: Selector) -> Array:
    if isinstance(selector, int):
        return rows == selector
    low, high = sorted((selector[0], selector[-1]))
    is_in = (rows >= low) & (rows <= high)
    return is_in if abs(selector.step) == 1 else is_in & ((rows - low) % abs(selector.step) == 0)
