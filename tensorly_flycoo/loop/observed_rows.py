"""Rows of a factor that fit the stored entries only."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..base.array_modules import Array, array_module
from ..engines.tall import call_lapack, multiply
from ..ops.cp_entries import choose_block_size
from ..ops.mttkrp import mttkrp_of_ratios
from ..tensor.tensor import FlycooTensor

#: The ridge for rows of a model that names none.
L2_REG = 1e-6

#: Sweeps over the elements of a row that must not be negative: those of TensorLy's HALS.
_SWEEPS = 5


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
        widths = [2**n for n in range(rows.size.bit_length() + 1)]
        members = [xp.flatnonzero((counts > w // 2) & (counts <= w)) for w in widths]
        classes = [(w, ids) for w, ids in zip(widths, members, strict=True) if ids.size]
        ends = xp.cumsum(counts)
        return cls(xp.argsort(rows, kind="stable"), ends - counts, ends, classes)

    def list_blocks(self, rank: int) -> Iterator[tuple[int, Array]]:
        """Yield each width with blocks of its rows, limited in size."""
        for width, rows in self.classes:
            block_size = choose_block_size(rows, width * rank)
            for start in range(0, rows.size, block_size):
                yield width, rows[start : start + block_size]

    def list_places(self, rows: Array, first: int, last: int) -> tuple[Array, Array]:
        """List the positions (n, w) of nonzeros `first` to `last` - 1 of each row, padded.

        Return also which of them (n, w) are nonzeros of their rows, and no padding.
        """
        xp = array_module(rows)
        places = self.starts[rows][:, None] + xp.arange(first, last)
        is_own = places < self.ends[rows][:, None]
        return self.order[xp.where(is_own, places, 0)], is_own


def fit_rows(
    coords: Array,
    targets: Array,
    factors: list[Array],
    mode: int,
    plan: RowPlan,
    common: Array,
    *,
    weights: Array | None = None,
    is_free: Array | None = None,
    non_negative: bool = False,
    added: Array | None = None,
) -> Array:
    """Fit each row of one factor to its nonzeros, with the other factors fixed.

    The system of a row has the Gram matrix `common` (R, R) plus that of the row's nonzeros, each
    times its weight if there are `weights`. Columns that are not in `is_free` (R,) stay as they
    are. Right-hand sides `added` (I, R), if given, are added to those of the nonzeros; then all
    columns are free. Non-negative rows are not solved for but improved.
    """
    xp = array_module(targets)
    rank = factors[mode].shape[1]
    fitted = xp.zeros_like(factors[mode])
    if is_free is not None:
        fitted = factors[mode] * ~is_free
        free = xp.flatnonzero(is_free)
        empty = xp.flatnonzero(plan.starts == plan.ends)
        if empty.size:
            # Their systems are `common` alone, with the same columns that stay.
            slopes = (fitted[empty] @ common)[:, free]
            solved = call_lapack(np.linalg.solve, common[free][:, free], slopes.T)
            fitted[empty[:, None], free] -= solved.T
    if added is not None:
        empty = xp.flatnonzero(plan.starts == plan.ends)
        old = factors[mode][empty]
        fitted[empty] = fit_alike(added[empty], common, old, non_negative=non_negative)
    # Then `common` is a ridge.
    has_dual = weights is None and is_free is None and added is None and not non_negative

    def gather(rows: Array, first: int, last: int) -> tuple[Array, Array, Array]:
        """Gather nonzeros `first` to `last` - 1 of each row, padded with some of weight zero.

        Return their targets (n, w), zeros in padding, and the products of the other factors' rows
        there (n, w, R), also times the weights.
        """
        places, is_own = plan.list_places(rows, first, last)
        others = (n for n in range(len(factors)) if n != mode)
        products = functools.reduce(np.multiply, (factors[n][coords[n][places]] for n in others))
        own_weights = is_own if weights is None else is_own * weights[places]
        return is_own * targets[places], products, products * own_weights[:, :, None]

    def fit_block(common: Array, width: int, rows: Array) -> Array:
        if width < rank and has_dual:  # fewer equations than unknowns
            part, _, products = gather(rows, 0, width)
            transposed = products.swapaxes(1, 2)
            own = products @ transposed + common[0, 0] * xp.eye(width)
            return (transposed @ np.linalg.solve(own, part[:, :, None]))[:, :, 0]
        own = common
        target = xp.zeros((1, rank, 1))
        if added is not None:
            target = added[rows][:, :, None]
        step = max(rank, choose_block_size(targets, rank))
        for first in range(0, width, step):
            part, products, weighted = gather(rows, first, min(first + step, width))
            transposed = products.swapaxes(1, 2)
            own = own + transposed @ weighted
            target = target + transposed @ part[:, :, None]
        if non_negative:
            return _descend(own, target[:, :, 0], factors[mode][rows])
        if is_free is not None:
            kept = fitted[rows][:, :, None]
            target = xp.where(is_free[:, None], target - own @ kept, kept)
            own = xp.where(is_free[:, None] & is_free, own, xp.eye(rank))
        return np.linalg.solve(own, target)[:, :, 0]

    for width, rows in plan.list_blocks(rank):
        fitted[rows] = call_lapack(fit_block, common, width, rows)
    return fitted


def fit_alike(targets: Array, gram: Array, rows: Array, *, non_negative: bool = False) -> Array:
    """Fit rows (I, R) whose systems have one Gram matrix, with right-hand sides `targets`.

    Non-negative rows are not solved for but improved.
    """
    if non_negative:
        return _descend(gram[None], targets, rows)
    return call_lapack(np.linalg.solve, gram, targets.T).T


def _descend(grams: Array, targets: Array, rows: Array) -> Array:
    """Improve non-negative rows (n, R) element by element, each row with its own Gram matrix."""
    rows = np.maximum(rows, 0)
    for _ in range(_SWEEPS):
        for r in range(rows.shape[1]):
            slopes = targets[:, r] - (grams[:, r] * rows).sum(axis=1)
            curves = grams[:, r, r]
            steps = slopes / np.where(curves > 0, curves, 1)  # 0 / 1 for a component of zeros
            rows[:, r] = np.maximum(rows[:, r] + steps, 0)
    return rows


def improve_rows(
    weights: FlycooTensor,
    targets: Array,
    factors: list[Array],
    mode: int,
    common: Array,
    is_free: Array | None,
    num_steps: int,
) -> tuple[Array, Array]:
    """Improve each row of one factor by conjugate gradients, with the other factors fixed.

    The system of row i has the Gram matrix `common` (R, R) plus that of the row's nonzeros of
    `weights`, and the right-hand side ``targets[i]``. Columns that are not in `is_free` (R,) stay
    as they are. Return the rows, and the residuals of all columns.

    A step is one pass over the nonzeros, for all rows. It forms no Gram matrix.
    """
    xp = array_module(targets)

    def apply(rows: Array, stays: bool) -> Array:
        model = [rows if n == mode else factor for n, factor in enumerate(factors)]
        product, _ = mttkrp_of_ratios(weights, model, mode, None, stays=stays)
        return product + multiply(rows, common)

    def divide(a: Array, b: Array) -> Array:
        return xp.where(b > 0, a / xp.where(b > 0, b, 1), 0)

    rows = factors[mode]
    steps = 0
    squares = xp.zeros((targets.shape[0], 1), targets.dtype)
    residuals = targets - apply(rows, stays=True)
    for number in range(num_steps):
        slopes = residuals if is_free is None else residuals * is_free
        before = squares
        squares = (slopes**2).sum(axis=1, keepdims=True)
        steps = slopes + divide(squares, before) * steps
        changes = apply(steps, stays=number < num_steps - 1)
        lengths = divide(squares, (steps * changes).sum(axis=1, keepdims=True))
        rows = rows + lengths * steps
        residuals = residuals - lengths * changes
    return rows, residuals
