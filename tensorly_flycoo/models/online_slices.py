"""Slices of a sparse tensor along one mode, which come one after the other."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, as_array, is_cupy
from ..base.checks import (
    check_coords,
    check_dtype,
    check_fill_value,
    check_finite,
    check_inside,
    check_place,
    check_shape,
    check_values,
)
from ..tensor.coo_cache import not_sparse_error
from ..tensor.labelled import LabelledTensor
from ..tensor.tensor import FlycooTensor


class Slices:
    """Checked slices, one after the other along `mode`; `coords` and `shape` are of all modes."""

    def __init__(self, coords: Array, values: Array, shape: Sequence[int], mode: int) -> None:
        self.coords, self.values, self.shape, self.mode = coords, values, tuple(shape), mode

    def __len__(self) -> int:
        return self.shape[self.mode]

    def iterate(self, shape: Sequence[int]) -> Iterator[FlycooTensor]:
        """Yield one slice after the other, with the given sizes of the other modes."""
        device = "cuda" if is_cupy(self.values) else "cpu"
        times, xp = self.coords[self.mode], array_module(self.values)
        others = [row for n, row in enumerate(self.coords) if n != self.mode]
        order = xp.argsort(times, kind="stable")
        coords, values = xp.stack(others)[:, order], self.values[order]
        ends = xp.cumsum(xp.bincount(times, minlength=len(self))).tolist()
        for start, end in itertools.pairwise([0, *ends]):
            yield FlycooTensor(coords[:, start:end], values[start:end], shape, device=device)


def read_slices(x: Any, mode: int, dtype: np.dtype | None, known: Sequence[int] | None) -> Slices:
    """Check slices, given as a tensor, (coords, values, shape) or (coords, values).

    They stay on their device. `known` are the sizes of other modes, if `x` comes without a shape.
    """
    coords, values, shape = _take_apart(x, mode, known)
    if not -len(shape) <= mode < len(shape):
        raise ValueError(f"mode is {mode}, expected {-len(shape)} to {len(shape) - 1}")
    coords = check_coords(coords, shape)
    values = as_array(values)
    check_place(values, "values", is_cupy(coords), "coords")
    check_inside(coords, shape)
    values = check_values(values, coords.shape[1], check_dtype(dtype or values.dtype))
    check_finite(values)
    if isinstance(x, tuple) and values.size:
        ordered = coords[:, array_module(coords).lexsort(coords)]
        if (ordered[:, 1:] == ordered[:, :-1]).all(axis=0).any():
            device = "cuda" if is_cupy(coords) else "cpu"
            coords, values = FlycooTensor(coords, values, shape, device=device)._sorted_nonzeros()
    return Slices(coords.astype(np.int64, copy=False), values, shape, mode % len(shape))


def _take_apart(
    x: Any, mode: int, known: Sequence[int] | None
) -> tuple[Array, Array, tuple[int, ...]]:
    if isinstance(x, FlycooTensor):
        return *x._sorted_nonzeros(), x.shape
    if isinstance(x, LabelledTensor):
        raise TypeError("slices is a LabelledTensor, expected one without labels: pass x.tensor")
    if hasattr(x, "coords") and hasattr(x, "data") and hasattr(x, "fill_value"):
        check_fill_value(x.fill_value)
        return x.coords, x.data, x.shape
    if not isinstance(x, tuple) or len(x) not in (2, 3):
        raise not_sparse_error(x)
    if len(x) == 3:
        return x[0], x[1], check_shape(x[2])
    if known is None:
        raise ValueError("the first slices are (coords, values), expected (coords, values, shape)")
    shape, coords = list(known), as_array(x[0])
    place = mode % (len(shape) + 1)
    is_known = coords.ndim == 2 and coords.shape[0] == len(shape) + 1 and coords.size
    shape.insert(place, int(coords[place].max()) + 1 if is_known else 1)
    return coords, x[1], tuple(max(size, 1) for size in shape)
