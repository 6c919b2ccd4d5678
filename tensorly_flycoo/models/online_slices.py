"""Slices of a sparse tensor along one mode, which come one after the other.

A slice with about a thousand nonzeros is multiplied as it comes: sorting it for MTTKRP would take
longer than the product.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
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
from ..base.reporting import log_compilation
from ..ops.mttkrp import mttkrp, mttkrp_of_ratios
from ..tensor.coo_cache import not_sparse_error
from ..tensor.labelled import LabelledTensor
from ..tensor.tensor import FlycooTensor

#: A slice with more nonzeros becomes a tensor, whose MTTKRP runs on all threads.
_MAX_DIRECT = 2**16


class Slice:
    """The nonzeros with one index of the streaming mode; `coords` and `shape` are of the others."""

    def __init__(self, coords: Array, values: Array, shape: Sequence[int]) -> None:
        self.coords, self.values, self.shape = coords, values, tuple(shape)

    @cached_property
    def _tensor(self) -> FlycooTensor:
        device = "cuda" if is_cupy(self.values) else "cpu"
        return FlycooTensor(self.coords, self.values, self.shape, device=device)

    @property
    def is_direct(self) -> bool:
        """Whether the nonzeros are multiplied as they come."""
        return not is_cupy(self.values) and self.values.size <= _MAX_DIRECT

    def mttkrp(self, factors: Sequence[Array], row: Array, mode: int) -> Array:
        """Compute the MTTKRP of a mode, weighted by `row` (R,): (I_mode, R)."""
        if not self.is_direct:
            return mttkrp(self._tensor, factors, mode, weights=row)
        out = np.zeros((self.shape[mode], row.size), row.dtype)
        _run("add_products", self.coords, self.values, tuple(factors), row, mode, out)
        return out

    def multiply_all(self, factors: Sequence[Array]) -> Array:
        """Multiply the slice by the columns of all factors: (R,)."""
        xp, rank = array_module(factors[0]), factors[0].shape[1]
        ones = xp.ones(rank, factors[0].dtype)
        if not self.is_direct:
            return (self.mttkrp(factors, ones, 0) * factors[0]).sum(axis=0)
        out, ndim = np.zeros((1, rank), ones.dtype), len(self.shape)
        _run("add_products", self.coords, self.values, tuple(factors), ones, ndim, out)
        return out[0]

    def share_row(self, factors: Sequence[Array], row: Array) -> tuple[Array, float]:
        """Divide each count among the components, in proportion to their parts of the model.

        Returns the sum of each component's parts (R,), and of ``x log m``; `row` is of the stream.
        """
        if self.is_direct:
            row_sum, takes_all = np.zeros_like(row), False
            arrays = (self.coords, self.values, tuple(factors), row, tuple(factors), row_sum)
            return row_sum, float(_run("share_counts", *arrays, takes_all))
        weighted = [factors[0] * row, *factors[1:]]
        product, log_sum = mttkrp_of_ratios(self._tensor, weighted, 0, 0.0, wants_logs=True)
        assert log_sum is not None  # it was asked for
        return (product * weighted[0]).sum(axis=0), float(log_sum)

    def share_all(self, factors: Sequence[Array], row: Array, sums: Sequence[Array]) -> None:
        """Divide each count as `share_row`, and add the parts to the rows of `sums` (I_n, R)."""
        if self.is_direct:
            row_sum, takes_all = np.zeros_like(row), True
            arrays = (self.coords, self.values, tuple(factors), row, tuple(sums), row_sum)
            _run("share_counts", *arrays, takes_all)
            return
        weighted = [factors[0] * row, *factors[1:]]
        for n, target in enumerate(sums):
            target += weighted[n] * mttkrp_of_ratios(self._tensor, weighted, n, 0.0)[0]


def _run(name: str, *arguments: Any) -> Any:
    """Run a compiled loop, whose module is imported when it is needed."""
    from ..engines.cpu import slices

    with log_compilation():
        return getattr(slices, name)(*arguments)


class Slices:
    """Checked slices, one after the other along `mode`; `coords` and `shape` are of all modes."""

    def __init__(self, coords: Array, values: Array, shape: Sequence[int], mode: int) -> None:
        self.coords, self.values, self.shape, self.mode = coords, values, tuple(shape), mode

    def __len__(self) -> int:
        return self.shape[self.mode]

    def iterate(self, shape: Sequence[int]) -> Iterator[Slice]:
        """Yield one slice after the other, with the given sizes of the other modes."""
        times, xp = self.coords[self.mode], array_module(self.values)
        others = [row for n, row in enumerate(self.coords) if n != self.mode]
        coords, values, ends = xp.stack(others), self.values, [times.size]
        if len(self) > 1:
            order = xp.argsort(times, kind="stable")
            coords, values = coords[:, order], values[order]
            ends = xp.cumsum(xp.bincount(times, minlength=len(self))).tolist()
        start = 0
        for end in ends:
            yield Slice(_require(coords[:, start:end]), _require(values[start:end]), shape)
            start = end


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


def _require(array: Array) -> Array:
    """Return an array as the loops take it: writable and C-contiguous."""
    if is_cupy(array):
        return array_module(array).ascontiguousarray(array)
    return np.require(array, requirements=("C", "A", "W"))
