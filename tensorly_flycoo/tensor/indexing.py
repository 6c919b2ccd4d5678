"""Read parts of a sparse tensor: `x[3]`, `x[:, 1:5]`, `x[..., 0]`, `for part in x`."""

import operator

import numpy as np

from ..array_modules import move

_VALID = "only integers, slices (`:`) and ellipsis (`...`) are valid indices of a sparse tensor"


class Sliceable:
    """Give `FlycooTensor` its parts: by index, and one after the other."""

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        """Return the part at integers, slices and `...`: a tensor, or a number if no mode is left.

        One scan of the nonzeros, and what building a tensor of those found costs; ``x[...]`` is
        `x`. Negative indices, steps and what is out of bounds mean what they mean to NumPy.

        Examples
        --------
        >>> from tensorly_flycoo import FlycooTensor
        >>> x = FlycooTensor([[1, 0, 1], [0, 2, 2]], [4.0, 3.0, 5.0], (3, 3))
        >>> x[1].nonzeros(), x[-2, ::2].shape, x[0, 2], x[2, 2]
        ((array([[0, 2]]), array([4., 5.])), (2,), np.float64(3.0), np.float64(0.0))
        """
        selectors = parse_index(index, self.shape)
        if selectors == [range(size) for size in self.shape]:
            return self
        coords, values = select_nonzeros(self._layout, selectors, self._engine.xp)
        shape = [len(selector) for selector in selectors if isinstance(selector, range)]
        return self._make_part(coords, values, shape) if shape else values.sum()

    def __iter__(self):
        """Yield ``x[0]``, ``x[1]``, ...; one sort, if any, for all of them."""
        if self.ndim == 1:
            yield from (self[i] for i in range(len(self)))
            return
        coords, values = self._sorted_nonzeros()
        counts = self._engine.xp.bincount(coords[0], minlength=len(self))
        ends = np.cumsum(move(counts, np))
        for start, end in zip(ends - move(counts, np), ends, strict=True):
            yield self._make_part(coords[1:, start:end], values[start:end], self.shape[1:])

    def _make_part(self, coords, values, shape):
        return type(self)(coords, values, shape, layout=self.layout, device=self.device)


def parse_index(index, shape):
    """Turn an index into one selector a mode: an int from 0 to size - 1, or a range.

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
        If an index is of another kind or out of bounds, or there are too many.
    ValueError
        If a slice selects nothing: a FlycooTensor has no mode of size 0.

    Examples
    --------
    >>> parse_index((-1, ..., slice(1, None, 2)), (3, 4, 5))
    [2, range(0, 4), range(1, 5, 2)]
    """
    indices = list(index) if isinstance(index, tuple) else [index]
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


def _select(item, mode, size):
    if isinstance(item, slice):
        selected = range(size)[item]
        if not selected:
            raise ValueError(f"{item} selects nothing of mode {mode}, which has size {size}")
        return selected
    try:
        number = None if isinstance(item, bool) else operator.index(item)
    except TypeError:
        number = None
    if number is None:
        raise IndexError(f"{_VALID}: got a {type(item).__name__}")
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of bounds for axis {mode} with size {size}")
    return number % size


def select_nonzeros(layout, selectors, xp):
    """Find the nonzeros that selectors take, in one scan of the coordinates that they look at.

    Returns
    -------
    coords : int64 array (number of modes that stay, nnz')
        Counted from the start of each slice, in its steps.
    values : array (nnz',)
    """
    record_format, is_kept = layout.record_format, None
    with hold_records(layout) as records:
        for mode, selector in enumerate(selectors):
            if selector != range(record_format.shape[mode]):
                rows = record_format.rows(records, mode, xp)
                is_in = _is_in(rows, selector)
                is_kept = is_in if is_kept is None else is_kept & is_in
        records = records.copy() if is_kept is None else records[is_kept]
    coords = record_format.coords(records, xp)
    kept = [mode for mode, selector in enumerate(selectors) if isinstance(selector, range)]
    for mode in kept:
        coords[mode] = (coords[mode] - selectors[mode].start) // selectors[mode].step
    return coords[kept], record_format.values(records)


def _is_in(rows, selector):
    if isinstance(selector, int):
        return rows == selector
    low, high = sorted((selector[0], selector[-1]))
    is_in = (rows >= low) & (rows <= high)
    return is_in if abs(selector.step) == 1 else is_in & ((rows - low) % abs(selector.step) == 0)
