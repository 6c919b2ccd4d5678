"""Rows of a factor that fit the stored entries only."""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Self

import numpy as np

from ..base.array_modules import Array, array_module
from ..ops.cp_entries import choose_block_size

#: The ridge of `observed_parafac` by default.
L2_REG = 1e-6


def check_ridge(l2_reg: Any) -> None:
    """Refuse a ridge that is not a finite number above 0."""
    if not isinstance(l2_reg, Real):
        raise TypeError(f"l2_reg is {l2_reg!r}, expected a number above 0")
    if not 0 < float(l2_reg) < np.inf:
        raise ValueError(f"l2_reg is {l2_reg}, expected a number above 0")


def measure_scale(values: Array) -> float:
    """Return the root mean square of some values."""
    return float(np.linalg.norm(values)) / values.size**0.5


def scale_ridge(l2_reg: float, scale: float, ndim: int) -> float:
    """Return the ridge that gives values times `scale` the factors times its `ndim`-th root."""
    return l2_reg * scale ** (2 - 2 / ndim)


@dataclass(frozen=True)
class RowPlan:
    """The nonzeros grouped by their row of one mode, and the rows by their number of nonzeros."""

    order: Array  # (nnz,): the positions of the nonzeros, row by row
    starts: Array  # (I,): where in `order` the nonzeros of each row begin
    ends: Array
    # Of a width, a power of two, and the rows with at most so many nonzeros and over half as many.
    classes: list[tuple[int, Array]]

    @classmethod
    def of(cls, rows: Array, size: int) -> Self:
        xp = array_module(rows)
        counts = xp.bincount(rows, minlength=size)
        widths = 2 ** np.arange(rows.size.bit_length() + 1)
        numbers = xp.searchsorted(xp.asarray(widths), counts)
        members = [xp.flatnonzero((numbers == n) & (counts > 0)) for n in range(widths.size)]
        classes = [(int(w), ids) for w, ids in zip(widths, members, strict=True) if ids.size]
        ends = xp.cumsum(counts)
        return cls(xp.argsort(rows, kind="stable"), ends - counts, ends, classes)

    def list_blocks(self, rank: int) -> Iterator[tuple[int, Array]]:
        """Yield each width with blocks of its rows, limited in size."""
        for width, rows in self.classes:
            block_size = choose_block_size(rows, width * rank)
            for start in range(0, rows.size, block_size):
                yield width, rows[start : start + block_size]


def fit_rows(
    coords: Array, values: Array, factors: list[Array], mode: int, plan: RowPlan, ridge: float
) -> Array:
    """Fit each row of one factor to its nonzeros, with the other factors fixed."""
    xp, rank = array_module(values), factors[mode].shape[1]
    fitted = xp.zeros_like(factors[mode])

    def gather(rows: Array, first: int, last: int) -> tuple[Array, Array]:
        """Gather nonzeros `first` to `last` - 1 of each row, padded with zeros.

        Return their values (n, w), and the products of the other factors' rows there (n, w, R).
        """
        places = plan.starts[rows][:, None] + xp.arange(first, last)
        is_own = places < plan.ends[rows][:, None]
        places = plan.order[xp.where(is_own, places, 0)]
        products = is_own[:, :, None].astype(np.float64)
        for n, factor in enumerate(factors):
            if n != mode:
                products = products * factor[coords[n][places]]
        return xp.where(is_own, values[places], 0.0), products

    for width, rows in plan.list_blocks(rank):
        if width < rank:  # fewer equations than unknowns: the dual form
            targets, products = gather(rows, 0, width)
            transposed = products.swapaxes(1, 2)
            gram = products @ transposed + ridge * xp.eye(width)
            fitted[rows] = (transposed @ np.linalg.solve(gram, targets[:, :, None]))[:, :, 0]
            continue
        gram, target = ridge * xp.eye(rank), 0.0
        step = max(rank, choose_block_size(values, rank))
        for first in range(0, width, step):
            part, products = gather(rows, first, min(first + step, width))
            transposed = products.swapaxes(1, 2)
            gram, target = gram + transposed @ products, target + transposed @ part[:, :, None]
        fitted[rows] = np.linalg.solve(gram, target)[:, :, 0]
    return fitted
