"""What `FlycooTensor` reduces its modes with: checked axes, and entries grouped by cells."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.array_modules import Array

if TYPE_CHECKING:
    from ..engines.protocol import Engine


def check_axes(axis: int | Iterable[int], ndim: int) -> list[int]:
    """Return `axis`, one integer or several, as a list of different modes from 0 to ndim - 1."""
    try:
        axes = [operator.index(n) for n in (axis if isinstance(axis, Iterable) else [axis])]
    except TypeError:
        raise TypeError(f"axis is {axis!r}, expected integers") from None
    for n in axes:
        if not -ndim <= n < ndim:
            raise ValueError(f"axis {n} is out of bounds for array of dimension {ndim}")
    modes = [n % ndim for n in axes]
    if len(set(modes)) < len(modes):
        raise ValueError(f"axis is {axis!r}, expected each mode once")
    return modes


def check_order(axes: int | Sequence[int] | None, ndim: int) -> list[int]:
    """Return `axes`, by default reversed, as a list of all modes from 0 to ndim - 1."""
    if axes is None:
        return list(reversed(range(ndim)))
    order = check_axes(axes, ndim)
    if len(order) != ndim:
        raise ValueError(f"axes is {tuple(order)}, expected each of the {ndim} axes once")
    return order


def total(values: Array) -> Any:
    """Sum values in float64; return a scalar of their dtype."""
    return values.sum(dtype=np.float64).astype(values.dtype)


def group_cells(
    coords: Array, values: Array, shape: Sequence[int], engine: Engine
) -> tuple[Array, Array, Array]:
    """Sort entries by their coordinates (ndim, count) in `shape`; group those with the same ones.

    Return the coordinates of each group, the values (count,) sorted by group, in the given order
    within each, and where each group starts. All are on the device of `engine`.

    >>> from tensorly_flycoo.engines import select_engine
    >>> coords = np.array([[1, 0, 1], [2, 2, 2]])
    >>> group_cells(coords, np.array([3.0, 4.0, 5.0]), (2, 3), select_engine("cpu"))
    (array([[0, 1],
           [2, 2]]), array([4., 3., 5.]), array([0, 1]))
    """
    xp = engine.xp
    record_format = engine.choose_cut(shape, values.dtype).record_format
    records = record_format.pack(coords, values, xp, engine.block_size)
    places = engine.sort_places(records, record_format, reversed(range(len(shape))))
    records = engine.gather(records, places)
    is_first = xp.ones(values.shape[0], bool)
    is_first[1:] = ~engine.find_duplicates(records, record_format)
    starts = xp.flatnonzero(is_first)
    return record_format.coords(records[starts], xp), record_format.values(records).copy(), starts


def find_extremes(values: Array, starts: Array, name: str, xp: ModuleType) -> Array:
    """Find the "max" or "min" of the values from each of the `starts` to the next."""
    if xp is np:
        return getattr(np, f"{name}imum").reduceat(values, starts)
    # Sort: CuPy has no `reduceat`, and its `maximum.at` rounds to float32.
    numbers = xp.zeros(values.shape[0], np.int64)
    numbers[starts[1:]] = 1
    order = xp.lexsort(xp.stack([values, xp.cumsum(numbers)]).astype(np.float64, copy=False))
    ends = xp.append(starts[1:], values.shape[0])
    return values[order[starts if name == "min" else ends - 1]]
