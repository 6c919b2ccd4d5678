"""Sums, means and extremes of a sparse tensor over all or some modes.

A reduction drops the coordinates of those modes and combines the nonzeros that then have the same
coordinates: it costs as much as building a `FlycooTensor`. If one mode is left, the result is a
dense vector, like a column of a factor; if none is left, a number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..array_modules import Array
from .pieces import Piece, find_extreme, map_pieces, rebuild, sum_all

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from .tensor import FlycooTensor


def sum_modes(x: FlycooTensor, axis: int | Iterable[int] | None = None) -> FlycooTensor | Array:
    """Sum the elements over all or some modes.

    Parameters
    ----------
    axis : int or sequence of int, optional
        The modes to sum over; negative ones count from the last. By default all.

    Returns
    -------
    FlycooTensor, array (I,) or scalar
        A sparse tensor with this one's layout and device if two or more modes are left, a dense
        vector if one is, and a number if none is.

    Raises
    ------
    TypeError, ValueError
        If an axis is not an integer, out of range or repeated.

    Notes
    -----
    A number is summed in float64. The elements of a vector or tensor are summed in the dtype of the
    tensor in a fixed order, with an error of at most ``count * eps`` times the sum of absolute
    values: the result is the same in every run. Costs as much as building the result.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1, 1], [2, 0, 0], [1, 1, 0]], [2.0, 3.0, 4.0], shape=(3, 3, 2))
    >>> x.sum(), x.sum(axis=(1, 2))
    (np.float64(9.0), array([2., 7., 0.]))
    >>> x.sum(axis=2).nonzeros()[1]
    array([2., 7.])
    """
    modes = _list_modes(axis, x.ndim)
    if len(modes) == x.ndim:
        return x._engine.xp.asarray(sum_all(x._layout, x._engine), x.dtype)[()]
    kept = [mode for mode in range(x.ndim) if mode not in modes]
    shape = [x.shape[mode] for mode in kept]
    sums = x._derive(lambda x: rebuild(x._layout, x, _keep_modes, kept, x._engine, shape=shape))
    return _flatten(sums)


def _keep_modes(piece: Piece, kept: Sequence[int], engine: Engine) -> tuple[Array, Array]:
    """Return the other coordinates and the values, in the order of modes 0, 1, ..., ndim - 1."""
    records = piece.sort_records(engine)
    return piece.read_coords(records)[kept], piece.read_values(records).copy()


def average_modes(x: FlycooTensor, axis: int | Iterable[int] | None = None) -> FlycooTensor | Array:
    """Average the elements, including zeros, over all or some modes.

    Parameters, results and errors are those of `FlycooTensor.sum`.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> FlycooTensor([[0, 1], [2, 0]], [2.0, 4.0], shape=(3, 4)).mean()
    np.float64(0.5)
    """
    modes = _list_modes(axis, x.ndim)
    return sum_modes(x, modes) / float(math.prod(x.shape[mode] for mode in modes))


def find_largest(x: FlycooTensor, axis: int | Iterable[int] | None = None) -> FlycooTensor | Array:
    """Find the largest elements, including zeros, over all or some modes.

    Parameters, results and errors are those of `FlycooTensor.sum`.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1, 1], [0, 0, 1]], [2.0, -3.0, -4.0], shape=(3, 2))
    >>> x.max(), x.max(axis=1), x[1:2].max()
    (np.float64(2.0), array([ 2., -3.,  0.]), np.float64(-3.0))
    """
    return _find_extremes(x, axis, "max")


def find_smallest(x: FlycooTensor, axis: int | Iterable[int] | None = None) -> FlycooTensor | Array:
    """Find the smallest elements, including zeros, over all or some modes.

    Parameters, results and errors are those of `FlycooTensor.sum`.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> FlycooTensor([[0, 1], [2, 0]], [2.0, -4.0], shape=(3, 4)).min(axis=0)
    array([-4.,  0.,  0.,  0.])
    """
    return _find_extremes(x, axis, "min")


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


def collect(
    x: FlycooTensor, coords: Array, values: Array, gone: Sequence[int]
) -> FlycooTensor | Array:
    """Sum values (nnz,) at coords (ndim, nnz) over the modes in `gone`."""
    kept = [mode for mode in range(x.ndim) if mode not in gone]
    if not kept:
        return total(values)
    return _arrange(x, coords[kept], values, [x.shape[mode] for mode in kept])


def total(values: Array) -> Any:
    """Sum values in float64; return a scalar of their dtype."""
    return values.sum(dtype=np.float64).astype(values.dtype)


def group_cells(
    coords: Array, values: Array, shape: Sequence[int], engine: Engine
) -> tuple[Array, Array, Array]:
    """Sort entries by their coordinates, and group those with the same ones.

    Parameters
    ----------
    coords : integer array (ndim, count)
        Inside `shape`.
    values : float array (count,)
    shape : sequence of int
    engine : Engine
        On the device of both.

    Returns
    -------
    coords : int64 array (ndim, num_groups)
    values : array (count,)
        Sorted by group, in the given order within each.
    starts : int64 array (num_groups,)
        Where each group starts.

    Examples
    --------
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


def _list_modes(axis: int | Iterable[int] | None, ndim: int) -> list[int]:
    return list(range(ndim)) if axis is None else check_axes(axis, ndim)


def _find_extremes(x: FlycooTensor, axis: int | Iterable[int] | None, name: str) -> Any:
    """Reduce by "max" or "min", whose ufuncs are "maximum" and "minimum"."""
    gone, xp = _list_modes(axis, x.ndim), x._engine.xp
    num_cells = math.prod(x.shape[mode] for mode in gone)
    if len(gone) == x.ndim:
        extreme = find_extreme(x._layout, x._engine, name) if x.nnz else 0.0
        if x.nnz < num_cells:
            extreme = getattr(np, name)([extreme, 0.0])
        return xp.asarray(extreme, x.dtype)[()]
    coords, values = x._sorted_nonzeros()
    kept = [mode for mode in range(x.ndim) if mode not in gone]
    shape = [x.shape[mode] for mode in kept]
    if x.nnz == 0:
        return _arrange(x, coords[kept], values, shape)
    coords, values, starts = group_cells(coords[kept], values, shape, x._engine)
    extremes = find_extremes(values, starts, name, xp)
    has_zero = xp.append(starts[1:], x.nnz) - starts < num_cells
    extremes = xp.where(has_zero, getattr(xp, f"{name}imum")(extremes, 0), extremes)
    return _arrange(x, coords, extremes, shape)


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


def _arrange(
    x: FlycooTensor, coords: Array, values: Array, shape: Sequence[int]
) -> FlycooTensor | Array:
    """Make a tensor of entries, whose duplicates are summed, or a vector if it has one mode."""
    return _flatten(x._rebuild(coords, values, shape))


def _flatten(x: FlycooTensor) -> FlycooTensor | Array:
    """Return a tensor of one mode as a dense vector; return another one as it is."""
    if x.ndim > 1:
        return x
    return x._engine.xp.concatenate(list(map_pieces(_read_rows, x._layout, x._engine)))


def _read_rows(piece: Piece) -> Array:
    """Return a piece of a tensor of one mode as a dense vector."""
    record_format = piece.layout.record_format
    vector = piece.xp.zeros(record_format.shape, record_format.dtype)
    with piece.hold_records() as records:
        vector[record_format.rows(records, 0, piece.xp)] = piece.read_values(records)
    return vector
