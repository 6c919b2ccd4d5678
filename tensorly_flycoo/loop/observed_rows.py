"""Rows of a factor that fit the stored entries only.

Each row has a system of its own, with a ridge or a Gram matrix that all rows share, so that LAPACK
can solve it: an iteration needs speed. Where systems may be singular, and where non-negative rows
are to be exact and not only improved, `row_systems` solves them by eigenvectors.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..base.array_modules import Array, array_module
from ..engines.tall import call_lapack, multiply
from ..ops.cp_entries import choose_block_size
from ..ops.mttkrp import mttkrp_of_ratios
from ..tensor.tensor import FlycooTensor
from .hals import solve_nonnegative

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
        """Group nonzeros by their rows, of which there are `size`.

        >>> plan = RowPlan.of(np.array([2, 0, 2, 2]), 4)
        >>> plan.order.tolist(), plan.starts.tolist(), plan.ends.tolist()
        ([1, 0, 2, 3], [0, 1, 1, 4], [1, 1, 4, 4])
        >>> [(width, rows.tolist()) for width, rows in plan.classes]
        [(1, [0]), (4, [2])]
        """
        xp = array_module(rows)
        counts = xp.bincount(rows, minlength=size)
        classes = []
        for exponent in range(rows.size.bit_length() + 1):
            width = 2**exponent
            members = xp.flatnonzero((counts > width // 2) & (counts <= width))
            if members.size:
                classes.append((width, members))
        ends = xp.cumsum(counts)
        return cls(xp.argsort(rows, kind="stable"), ends - counts, ends, classes)

    def restrict(self, rows: Array | slice) -> Self:
        """Return the plan of some rows alone; all others are without nonzeros in its classes."""
        if isinstance(rows, slice):  # all of them
            return self
        is_kept = array_module(self.starts).zeros(self.starts.size, bool)
        is_kept[rows] = True
        classes = [(width, members[is_kept[members]]) for width, members in self.classes]
        return dataclasses.replace(self, classes=classes)

    def find_empty(self) -> Array:
        """Return the rows without nonzeros."""
        return array_module(self.starts).flatnonzero(self.starts == self.ends)

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


@dataclass(frozen=True)
class ListedCells:
    """Cells that count otherwise than in the systems that all rows share.

    Attributes
    ----------
    rows : int array (count,)
        The row of each cell, in any order.
    designs : callable
        Of an array of places in the list, of any shape, the gradients d of the model at those cells
        (..., R) in float64. They are never formed for all cells at once.
    weights : float64 array (count,) or None
        What each cell adds to the Gram matrix of its row, times ``d d^T``; None for ones. Negative
        ones may take back what the common matrix counts, and no more.
    targets : float64 array (count,)
        What each cell adds to the right-hand side of its row, times ``d``.
    """

    rows: Array
    designs: Callable[[Array], Array]
    weights: Array | None
    targets: Array

    def weigh(self, places: Array, is_own: Array) -> Array:
        """Return the weights of the cells at some places, zeros where they are padding."""
        if self.weights is None:
            return is_own
        return is_own * self.weights[places]


def list_cells(
    coords: Array | Sequence[Array],
    targets: Array,
    factors: Sequence[Array],
    mode: int,
    weights: Array | None = None,
) -> ListedCells:
    """List cells of a CP model without weights, for fitting the rows of one factor."""

    def multiply_rows(places: Array) -> Array:
        # A generator: the gathered rows of one factor exist at a time.
        rows_of_factors = (
            factor[coords[n][places]] for n, factor in enumerate(factors) if n != mode
        )
        return functools.reduce(np.multiply, rows_of_factors)

    return ListedCells(coords[mode], multiply_rows, weights, targets)


def fit_rows(
    cells: ListedCells,
    old: Array,
    plan: RowPlan,
    common: Array,
    *,
    is_free: Array | None = None,
    non_negative: bool = False,
    added: Array | None = None,
) -> Array:
    """Fit each row of one factor, which is `old` (I, R), to its cells; all others are fixed.

    The system of a row has the Gram matrix `common` (R, R) plus that of the row's cells, which
    `plan` groups. Columns that are not in `is_free` (R,) stay as they are. Right-hand sides `added`
    (I, R), if given, are added to those of the cells; then all columns are free. Non-negative rows
    are not solved for but improved.
    """
    xp = array_module(old)
    rank = old.shape[1]
    entries = _RowEntries(cells, plan)
    if is_free is not None:
        fitted = old * ~is_free
        _fit_empty_rows(fitted, plan.find_empty(), common, is_free)
    else:
        fitted = xp.zeros_like(old)
    if added is not None:
        empty = plan.find_empty()
        fitted[empty] = fit_alike(added[empty], common, old[empty], non_negative=non_negative)
    # Without any of these `common` is a multiple of I, and a row with fewer nonzeros than columns
    # has a smaller dual system.
    has_ridge_only = (
        cells.weights is None and is_free is None and added is None and not non_negative
    )

    def fit_block(common: Array, width: int, rows: Array) -> Array:
        """Fit some rows of up to `width` nonzeros: (n, R)."""
        if has_ridge_only and width < rank:
            return _fit_by_dual(entries, common[0, 0], width, rows)
        grams, sums = _add_up_systems(entries, common, added, width, rows)
        if non_negative:
            return _descend(grams, sums[:, :, 0], old[rows])
        if is_free is not None:  # the equations of fixed columns say that they stay
            fixed = fitted[rows][:, :, None]
            sums = xp.where(is_free[:, None], sums - grams @ fixed, fixed)
            grams = xp.where(is_free[:, None] & is_free, grams, xp.eye(rank))
        return np.linalg.solve(grams, sums)[:, :, 0]

    for width, rows in plan.list_blocks(rank):
        fitted[rows] = call_lapack(fit_block, common, width, rows)
    return fitted


@dataclass(frozen=True)
class _RowEntries:
    """The cells of rows, gathered row by row."""

    cells: ListedCells
    plan: RowPlan

    def gather(self, rows: Array, first: int, last: int) -> tuple[Array, Array, Array]:
        """Gather cells `first` to `last` - 1 of each row, padded with some of weight zero.

        Return their targets (n, w), zeros in padding, and the designs there (n, w, R), also times
        the weights.
        """
        places, is_own = self.plan.list_places(rows, first, last)
        designs = self.cells.designs(places)
        weights = self.cells.weigh(places, is_own)
        return is_own * self.cells.targets[places], designs, designs * weights[:, :, None]


def _fit_empty_rows(fitted: Array, empty: Array, common: Array, is_free: Array) -> None:
    """Fit rows without nonzeros in place: their systems are `common` alone, some columns stay."""
    if empty.size == 0:
        return
    free = array_module(fitted).flatnonzero(is_free)
    slopes = (fitted[empty] @ common)[:, free]
    solved = call_lapack(np.linalg.solve, common[free][:, free], slopes.T)
    fitted[empty[:, None], free] -= solved.T


def _fit_by_dual(entries: _RowEntries, ridge: Array, width: int, rows: Array) -> Array:
    """Fit rows of fewer nonzeros than unknowns: solve for their `width` residuals instead."""
    targets, _, products = entries.gather(rows, 0, width)
    transposed = products.swapaxes(1, 2)
    kernels = products @ transposed + ridge * array_module(rows).eye(width)
    return (transposed @ np.linalg.solve(kernels, targets[:, :, None]))[:, :, 0]


def _add_up_systems(
    entries: _RowEntries, common: Array, added: Array | None, width: int, rows: Array
) -> tuple[Array, Array]:
    """Return the Gram matrices (n, R, R) and right-hand sides (n, R, 1) of rows.

    All rows have up to `width` nonzeros. They are added in steps, so that the designs of a step,
    which are gathered, fit in a block.
    """
    rank = common.shape[0]
    grams = common
    sums = array_module(rows).zeros((1, rank, 1))
    if added is not None:
        sums = added[rows][:, :, None]
    step = max(rank, choose_block_size(entries.cells.targets, rank))
    for first in range(0, width, step):
        targets, products, weighted = entries.gather(rows, first, min(first + step, width))
        transposed = products.swapaxes(1, 2)
        grams = grams + transposed @ weighted
        sums = sums + transposed @ targets[:, :, None]
    return grams, sums


def fit_alike(targets: Array, gram: Array, rows: Array, *, non_negative: bool = False) -> Array:
    """Fit rows (I, R) whose systems have one Gram matrix, with right-hand sides `targets`.

    Non-negative rows are not solved for but improved.
    """
    if non_negative:
        return solve_nonnegative(targets, gram, rows.clip(0), _SWEEPS, tolerance=0)
    return call_lapack(np.linalg.solve, gram, targets.T).T


def _descend(grams: Array, targets: Array, rows: Array) -> Array:
    """Improve non-negative rows (n, R) element by element, each row with its own Gram matrix."""
    improved = np.maximum(rows, 0)
    for _ in range(_SWEEPS):
        for r in range(improved.shape[1]):
            slopes = targets[:, r] - (grams[:, r] * improved).sum(axis=1)
            curves = grams[:, r, r]
            steps = slopes / np.where(curves > 0, curves, 1)  # 0 / 1 for a component of zeros
            improved[:, r] = np.maximum(improved[:, r] + steps, 0)
    return improved


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
        """Multiply each row by the matrix of its system."""
        model = [*factors]
        model[mode] = rows
        product, _ = mttkrp_of_ratios(weights, model, mode, None, stays=stays)
        return product + multiply(rows, common)

    def divide(a: Array, b: Array) -> Array:
        """Divide by positive numbers; 0 where `b` is 0, of a row that has converged."""
        return xp.where(b > 0, a / xp.where(b > 0, b, 1), 0)

    # Textbook conjugate gradients, of all rows side by side.
    rows = factors[mode]
    directions = 0
    squares = xp.zeros((targets.shape[0], 1), targets.dtype)
    residuals = targets - apply(rows, stays=True)
    for number in range(num_steps):
        slopes = residuals
        if is_free is not None:
            slopes = residuals * is_free
        old_squares = squares
        squares = (slopes**2).sum(axis=1, keepdims=True)
        directions = slopes + divide(squares, old_squares) * directions
        changes = apply(directions, stays=number < num_steps - 1)
        lengths = divide(squares, (directions * changes).sum(axis=1, keepdims=True))
        rows = rows + lengths * directions
        residuals = residuals - lengths * changes
    return rows, residuals
