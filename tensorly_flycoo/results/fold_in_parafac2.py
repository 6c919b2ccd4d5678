r"""Rows of a PARAFAC2 model for new slices, or for new columns of its slices.

.. math:: X_k \approx P_k B \, \mathrm{diag}(a_k) \, C^T, \quad P_k^T P_k = I

A new slice gets a projection :math:`P_k` and a row :math:`a_k`, with B and C fixed. With the polar
factor of :math:`X_k C \, \mathrm{diag}(a) B^T` as projection, its error is, but for a constant,

.. math:: f(a) = a^T (B^T B * C^T C) a - 2 |X_k C \, \mathrm{diag}(a) B^T|_*

with the nuclear norm, so the slice itself is needed only for :math:`S_k = (X_k C)^T X_k C`. As in
`parafac2`, a projection and the least-squares row are found in turn. f is the same for a and -a,
and has other minima, whose elements mostly differ in their signs: so they are tried.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.array_modules import Array, array_module, invert_positive
from ..base.checks import check_matrix, warn
from ..engines.tall import eigh, multiply, transposed_product
from ..loop.cp_model import multiply_grams
from ..loop.masks import MissingEntries, find_missing
from ..loop.observed_rows import ListedCells
from ..loop.projected_slices import ProjectedSlices, absorb
from ..loop.row_systems import solve_row_systems
from ..ops.contraction import multiply_matricized
from ..ops.cp_entries import choose_block_size
from ..ops.ragged import RaggedTensor

#: Rows have settled when an update changes no element by more, relative to the largest.
_TOLERANCE = 1e-10

_MAX_UPDATES = 1000

#: Updates of a row from the start, before signs are tried, and of one with another sign.
_FIRST_UPDATES = 50
_TRIED_UPDATES = 10

#: By how much, relative to itself, f must fall for another sign.
_GAIN = 1e-8

#: How far SQUAREM may extrapolate, in updates: finite numbers stay finite.
_MAX_LENGTH = 1e4


class _State(NamedTuple):
    """A model as the search with missing entries sees it."""

    rows: Array  # (K, R), of all slices
    values: Array  # (count,), at the missing entries


class FoldedIn(NamedTuple):
    """The rows of new slices or columns, and the projections (I_k, R) of the slices."""

    rows: Array
    projections: Sequence[Array]


def fold_in_parafac2(
    model: Any,
    x: RaggedTensor,
    mode: int,
    *,
    mask: Any = None,
    non_negative: bool = False,
) -> FoldedIn:
    r"""Compute the rows of new slices (mode 0) or new columns (mode 2) of a PARAFAC2 model.

    Parameters
    ----------
    model : Parafac2Tensor or (weights, factors, projections)
        Weights (R,) or None, factors A (K, R), B (R, R) and C (J, R), and a projection for each
        slice, in the dtype and on the device of `x`.
    x : RaggedTensor
        In mode 0 new slices with the model's columns. In mode 2 the model's slices, with the same
        rows, and new columns.
    mode : {0, 2}
    mask : sequence of sparse.COO or array, optional
        As for `parafac2`: one for each slice of `x`.
    non_negative : bool
        Whether the rows are non-negative.

    Returns
    -------
    rows : array (K_new, R) or (J_new, R)
        Rows of A or C that go with the model's weights, in the dtype of `x`; zeros for a slice or
        column without nonzeros or known entries.
    projections : sequence of array (I_k, R)
        Those of the new slices; in mode 2 those of the model.

    Raises
    ------
    TypeError
        If a factor is not an array on the device of `x`, or has another dtype.
    ValueError
        If `mode` is 1 or unknown, or the columns of `x`, or in mode 2 its rows, are not the
        model's.

    Warns
    -----
    UserWarning
        If the rows of some slices still change after 1000 updates.

    Notes
    -----
    Mode 2 takes one product of all slices, as one sparse matrix, and one system of R equations; a
    column with missing entries has a system of its own (`solve_row_systems`).

    Mode 0 takes one such product, and about 100 updates of all rows, an eigendecomposition of size
    R each, in blocks of slices. Each row begins as the mean size of the model's. Without
    `non_negative`, an element at a time then changes its sign, as long as that leads to a smaller
    error. The result is mostly, not always, the best of all local minima; the sign of a whole row,
    which changes with that of its projection, is that of its product with the sum of the model's
    rows. So rows of slices that the model was fitted to may differ from the model's, with a
    smaller error. The rows that a slice lacks for R of them count as zeros, as in `parafac2`.

    With missing entries, which begin as the mean of their slice, all slices are imputed by the
    model before each update, a product each. SQUAREM extrapolates three updates where that lowers
    the error of a slice. Trying signs takes about ``30 * R`` products.
    Results have the same bits in every run.

    References
    ----------
    Kiers, ten Berge and Bro, "PARAFAC2 - Part I. A direct fitting algorithm for the PARAFAC2
    model", Journal of Chemometrics 13, 1999. Varadhan and Roland, "Simple and Globally Convergent
    Methods for Accelerating the Convergence of Any EM Algorithm", Scandinavian Journal of
    Statistics 35, 2008.

    Examples
    --------
    A model of one component, and a slice that is twice the outer product of its columns with
    (0.6, 0.8).

    >>> import scipy.sparse
    >>> model = None, [np.ones((1, 1)), np.eye(1), np.array([[1.0], [0.0], [3.0]])], [np.eye(1)]
    >>> x = RaggedTensor([scipy.sparse.csr_array([[1.2, 0.0, 3.6], [1.6, 0.0, 4.8]])])
    >>> rows, projections = fold_in_parafac2(model, x, mode=0)
    >>> rows.round(9), projections[0].round(9)
    (array([[2.]]), array([[0.6],
           [0.8]]))
    """
    weights, factors, projections = model
    factors = _check(factors, x, mode)
    factors = absorb(weights, factors)
    if mode == 0:
        return _fold_in_slices(factors, x, mask, non_negative)
    rows = _fold_in_columns(factors, projections, x, mask, non_negative)
    return FoldedIn(rows, projections)


def _check(factors: Sequence[Array], x: RaggedTensor, mode: int) -> list[Array]:
    """Refuse a mode without rows to find, and factors that do not match."""
    if mode == 1:
        raise ValueError(
            "mode is 1, expected 0 or 2: the rows of PARAFAC2's slices have projections, not a "
            "factor; new rows of a slice make it another slice: fold it in whole, in mode 0"
        )
    if mode not in (0, 2):
        raise ValueError(f"mode is {mode!r}, expected 0 (slices) or 2 (columns)")
    a, b, c = factors
    rank = b.shape[1]
    sizes = {0: a.shape[0], 1: rank, 2: c.shape[0]}
    if mode == 0:
        fixed_mode = 2
        noun = "columns"
    else:
        fixed_mode = 0
        noun = "slices"
    size = x.shape[fixed_mode]
    if size != sizes[fixed_mode]:
        raise ValueError(f"x has {size} {noun}, expected {sizes[fixed_mode]}, as the model")
    for n, factor in enumerate(factors):
        name = f"factors[{n}]"
        check_matrix(factor, name, sizes[n], x.dtype, x.matrix._engine.array_type)
        if factor.shape[1] != rank:
            raise ValueError(f"{name} has shape {factor.shape}, expected ({sizes[n]}, {rank})")
    return [a, b, c]


def _fold_in_columns(
    factors: Sequence[Array],
    projections: Sequence[Array],
    x: RaggedTensor,
    mask: Any,
    non_negative: bool,
) -> Array:
    """Compute rows of C: least squares with the model's rows of all slices."""
    designs = _stack_model(factors, projections, x)
    exact = designs.astype(np.float64, copy=False)
    matrix = x.matrix
    cells = None
    missing = find_missing(x, mask)
    if missing is not None:
        matrix = missing.observed
        numbers_of_rows, columns = missing.coords
        zeros = x.matrix._engine.xp.zeros(missing.count)
        cells = ListedCells(
            columns,
            lambda places: exact[numbers_of_rows[places]],
            weights=zeros - 1,
            targets=zeros,
        )
    products = multiply_matricized(matrix, 1, (0,), designs).astype(np.float64, copy=False)
    common = transposed_product(exact, exact)
    rows = solve_row_systems(products, common, cells, non_negative=non_negative)
    return rows.astype(x.dtype)


def _stack_model(factors: Sequence[Array], projections: Sequence[Array], x: RaggedTensor) -> Array:
    """Compute P_k B diag(a_k) for all slices, as the rows of the matrix of `x`: (rows, R)."""
    a, b, _ = factors
    xp = x.matrix._engine.xp
    for k, (projection, count) in enumerate(zip(projections, x.row_counts, strict=True)):
        if projection.shape != (count, b.shape[0]):
            raise ValueError(
                f"slice {k} of x has {count} rows, and its projection has shape "
                f"{projection.shape}, expected ({count}, {b.shape[0]}): pass the rows of the model"
            )
    slice_numbers = np.repeat(np.arange(len(x.row_counts)), x.row_counts)
    # Row i of the stacked projections is row `places[i]` of the matrix, which has padding.
    first_rows = np.cumsum(x.row_counts) - x.row_counts
    places = np.arange(slice_numbers.size) + (x.starts - first_rows)[slice_numbers]
    model_rows = multiply(xp.concatenate(projections), b) * a[xp.asarray(slice_numbers)]
    rows = xp.zeros((x.matrix.shape[0], b.shape[1]), x.dtype)
    rows[xp.asarray(places)] = model_rows
    return rows


def _fold_in_slices(
    factors: Sequence[Array], x: RaggedTensor, mask: Any, non_negative: bool
) -> FoldedIn:
    """Compute rows of A, and projections of the slices."""
    a, b, c = factors
    data = ProjectedSlices(x, b.shape[1], center=False, mask=mask)
    search = _Search(b, c, non_negative)
    # A row begins as the mean size of the model's: of 1 in a component that has none.
    sizes = abs(a).mean(axis=0, dtype=np.float64)
    first_row = array_module(a).where(sizes > 0, sizes, 1)
    rows, changes = search.find(data.cross_columns(c), first_row)
    if data.missing is not None:
        rows, changes = _Imputation(data, data.missing, search, x, b, c).find(rows)
    # The sign of a whole row is open, since its projection takes it up: like the model's rows.
    model_sum = a.sum(axis=0, dtype=np.float64)
    signs = np.where(rows @ model_sum < 0, -1, 1)
    rows = rows * signs[:, None]
    data.project([rows, b, c])
    num_moving = int((changes > 0).sum())
    if num_moving:
        warn(
            f"the rows of {num_moving} of {len(rows)} slices still change by up to "
            f"{float(changes.max()):.1g} of their largest element after {_MAX_UPDATES} updates, "
            "and are so much less precise than others"
        )
    bounds = zip(x.starts.tolist(), x.row_counts.tolist(), strict=True)
    projections = [data.projections[start : start + count] for start, count in bounds]
    return FoldedIn(rows.astype(x.dtype), projections)


class _Imputation:
    """The search for rows of slices whose missing entries are imputed by the model."""

    def __init__(
        self,
        data: ProjectedSlices,
        missing: MissingEntries,
        search: "_Search",
        x: RaggedTensor,
        b: Array,
        c: Array,
    ) -> None:
        self._data = data
        self._search = search
        self._b = b
        self._c = c
        self._tolerance = max(_TOLERANCE, 10 * float(np.finfo(data.dtype).eps))
        slices_of_rows = data.xp.asarray(np.repeat(x.order, x.heights[x.order]))
        self._slices = slices_of_rows[missing.coords[0]]  # of each missing entry

    def find(self, rows: Array) -> tuple[Array, Array]:
        """Find the rows of slices; return also their last changes, 0 if they have settled."""
        state, _ = self._update(_State(rows, self._data.values))
        if not self._search.non_negative:
            state, _ = self._advance(state, _FIRST_UPDATES)
            state = self._flip_signs(state)
        state, changes = self._advance(state, _MAX_UPDATES)
        self._data.fill(state.values)
        return state.rows, changes * (changes > self._tolerance)

    def _update(self, state: _State) -> tuple[_State, Array]:
        """Update the model once, and impute by it; return also the changes of the rows."""
        data = self._data
        data.fill(state.values)
        rows, changes = self._search.update(data.cross_columns(self._c), state.rows, 1)
        data.project([rows, self._b, self._c])
        data.impute([rows, self._b, self._c])
        return _State(rows, data.values), changes

    def _advance(self, state: _State, num_updates: int) -> tuple[_State, Array]:
        """Update the model, extrapolated by SQUAREM where that leads lower; return last changes."""
        for _ in range(0, num_updates, 3):
            first, _ = self._update(state)
            second, changes = self._update(first)
            if not (changes > self._tolerance).any():
                return second, changes
            further, _ = self._update(self._extrapolate(state, first, second))
            is_lower = self._measure(further) <= self._measure(second)
            state = self._choose(is_lower, further, second)
        return state, changes

    def _extrapolate(self, state: _State, first: _State, second: _State) -> _State:
        """Extrapolate three states, each slice by itself: SQUAREM's step S3.

        With the change v and the change of changes w, it goes to ``x + 2 * length * v + length**2 *
        w``, with ``length = |v| / |w|``, both at the missing entries; length 1 is the third state.
        """
        xp = self._data.xp
        data = self._data
        row_changes = first.rows - state.rows
        row_bends = (second.rows - first.rows) - row_changes
        value_changes = first.values - state.values
        value_bends = (second.values - first.values) - value_changes

        change_squares = data.sum_imputed(value_changes**2)
        bend_squares = data.sum_imputed(value_bends**2)
        is_bent = bend_squares > 0
        lengths = np.sqrt(change_squares / xp.where(is_bent, bend_squares, 1))
        lengths = xp.where(is_bent, lengths.clip(1, _MAX_LENGTH), 1)
        row_lengths = lengths[:, None]
        value_lengths = lengths[self._slices].astype(data.dtype)
        rows = state.rows + 2 * row_lengths * row_changes + row_lengths**2 * row_bends
        values = state.values + 2 * value_lengths * value_changes + value_lengths**2 * value_bends
        return _State(rows, values)

    def _measure(self, state: _State) -> Array:
        """Compute the squared error of each slice at its known entries, but for a constant."""
        self._data.fill(state.values)
        crosses = self._data.cross_columns(self._c)
        imputed_squares = self._data.sum_imputed(state.values**2)
        return imputed_squares + self._search.measure(crosses, state.rows)

    def _choose(self, is_first: Array, first: _State, second: _State) -> _State:
        """Choose one of two states for each slice."""
        xp = self._data.xp
        return _State(
            xp.where(is_first[:, None], first.rows, second.rows),
            xp.where(is_first[self._slices], first.values, second.values),
        )

    def _flip_signs(self, state: _State) -> _State:
        """Change the sign of one element of each row after another while that leads lower."""
        xp = self._data.xp
        rank = state.rows.shape[1]
        losses = self._measure(state)
        for _ in range(rank):
            start = state
            start_losses = losses
            for r in range(rank):
                flipped = start.rows * xp.where(xp.arange(rank) == r, -1, 1)
                trial, _ = self._advance(_State(flipped, start.values), _TRIED_UPDATES)
                trial_losses = self._measure(trial)
                is_lower = trial_losses < losses - _GAIN * abs(losses)
                losses = xp.where(is_lower, trial_losses, losses)
                state = self._choose(is_lower, trial, state)
            if not (losses < start_losses).any():
                break
        return state


class _Search:
    """The search for the rows of slices, given B and C, from S_k = (X_k C)^T X_k C alone."""

    def __init__(self, b: Array, c: Array, non_negative: bool) -> None:
        self._b = b.astype(np.float64, copy=False)
        self.non_negative = non_negative
        self._gram = multiply_grams(None, [self._b, c.astype(np.float64, copy=False)])
        self._lengths = np.sqrt(self._gram.diagonal())

    def find(self, crosses: Array, start: Array) -> tuple[Array, Array]:
        """Find the rows (K, R) of slices, all from one start.

        Return also their last changes, 0 if they have settled.
        """
        xp = array_module(crosses)
        rows = xp.empty(crosses.shape[:2])
        changes = xp.empty(len(rows))
        for block in _split(crosses):
            part = crosses[block]
            improved = xp.tile(start, (len(part), 1))
            if not self.non_negative:
                improved, _ = self.update(part, improved, _FIRST_UPDATES)
                improved = self._flip_signs(part, improved)
            rows[block], changes[block] = self.update(part, improved, _MAX_UPDATES)
        return rows, changes * (changes > _TOLERANCE)

    def update(self, crosses: Array, rows: Array, num_updates: int) -> tuple[Array, Array]:
        """Update rows until they settle; return also their last changes, relative to the largest.

        The elements of a row are compared in units that make the model's columns equally long.
        """
        xp = array_module(rows)
        rows = rows.copy()
        changes = xp.zeros(len(rows))
        for block in _split(crosses):
            places = xp.arange(len(rows))[block]
            for _ in range(num_updates):
                old_rows = rows[places]
                new_rows = self._update_once(crosses[places], old_rows)
                sizes = abs(new_rows * self._lengths).max(axis=1)
                moved = abs((new_rows - old_rows) * self._lengths).max(axis=1)
                rows[places] = new_rows
                changes[places] = moved * invert_positive(sizes, 0)
                places = places[changes[places] > _TOLERANCE]
                if places.size == 0:
                    break
        return rows, changes

    def _update_once(self, crosses: Array, rows: Array) -> Array:
        """Find the projections of slices for their rows, and the rows for these."""
        scaled = rows[:, :, None] * self._b.T
        values, vectors = self._find_eigenvalues(crosses, scaled)
        roots = vectors * invert_positive(np.sqrt(values), 0)[:, None, :]
        # P_k^T X_k C, of which the rows take the diagonals of B^T P_k^T X_k C.
        projected = roots @ (vectors.swapaxes(1, 2) @ scaled.swapaxes(1, 2) @ crosses)
        products = (self._b * projected).sum(axis=1)
        return solve_row_systems(products, self._gram, non_negative=self.non_negative)

    def _find_eigenvalues(self, crosses: Array, scaled: Array) -> tuple[Array, Array]:
        """Decompose the Gram matrices of X_k C diag(a_k) B^T; values that may be errors are 0."""
        values, vectors = eigh(scaled.swapaxes(1, 2) @ crosses @ scaled)
        least = values.shape[1] * 2.0**-48 * values[:, -1:]
        return values * (values > least), vectors

    def measure(self, crosses: Array, rows: Array) -> Array:
        """Compute f for each row."""
        values, _ = self._find_eigenvalues(crosses, rows[:, :, None] * self._b.T)
        return (rows @ self._gram * rows).sum(axis=1) - 2 * np.sqrt(values).sum(axis=1)

    def _flip_signs(self, crosses: Array, rows: Array) -> Array:
        """Change the sign of one element of each row after another while that leads lower."""
        xp = array_module(rows)
        rank = rows.shape[1]
        rows = rows.copy()
        places = xp.arange(len(rows))  # of the rows that may still gain
        losses = self.measure(crosses, rows)
        for _ in range(rank):
            best_rows = rows[places]
            best_losses = losses[places]
            for r in range(rank):
                flipped = rows[places] * xp.where(xp.arange(rank) == r, -1, 1)
                trial_rows, _ = self.update(crosses[places], flipped, _TRIED_UPDATES)
                trial_losses = self.measure(crosses[places], trial_rows)
                is_lower = trial_losses < best_losses - _GAIN * abs(best_losses)
                best_rows = xp.where(is_lower[:, None], trial_rows, best_rows)
                best_losses = xp.where(is_lower, trial_losses, best_losses)
            has_gained = best_losses < losses[places]
            rows[places] = best_rows
            losses[places] = best_losses
            places = places[has_gained]  # the next round tries these rows only
            if places.size == 0:
                break
        return rows


def _split(crosses: Array) -> Iterator[slice]:
    """Yield slices of the matrices (K, R, R) to work on together."""
    size = choose_block_size(crosses, crosses.shape[1] ** 2)
    for start in range(0, len(crosses), size):
        yield slice(start, start + size)
