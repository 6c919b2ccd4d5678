r"""Least-squares rows of one factor, each with known cells of its own.

With all other factors fixed, a model is linear in the rows f of one factor: a cell k of row i is
:math:`d_k^T f_i`, where the design :math:`d_k` (R,) is the gradient of the cell. Rows whose cells
are all known share one Gram matrix G, the sum of all :math:`d d^T`. Cells that are missing, or
weigh more or less than the others, change the systems of their rows alone:

.. math:: A_i = G + \sum_{k \in i} w_k d_k d_k^T, \quad b_i = m_i + \sum_{k \in i} t_k d_k

where :math:`m_i` is row i of the products of the data with the designs (an MTTKRP in a CP model).
A missing cell has the weight -1, which takes back what G counts. If only some cells are known, G is
zero (or a ridge), and each of them has the weight 1 and its value as target.

These systems may be singular: the smallest of several solutions is wanted, whatever rounding has
left of what cancelled, and non-negative rows are exact. `observed_rows`, for the iterations of a
decomposition, solves regular ones faster.
"""

from collections.abc import Iterator

import numpy as np

from ..base.array_modules import Array, array_module, has_true, invert_positive
from ..engines.tall import call_lapack
from ..ops.cp_entries import choose_block_size
from .hals import solve_nonnegative
from .observed_rows import ListedCells, RowPlan

#: Roundings, besides one for each cell, in an element of a row's Gram matrix.
_ROUNDINGS = 10

#: Sweeps over the elements of non-negative rows, which soon find most of the zeros.
_NUM_SWEEPS = 10

#: Steps, for each element of a row, after which a row that only rounding moves is left as it is.
_MAX_STEPS = 10


def solve_row_systems(
    products: Array,
    common: Array,
    cells: ListedCells | None = None,
    *,
    lengths: Array | None = None,
    non_negative: bool = False,
    plan: RowPlan | None = None,
) -> Array:
    r"""Solve the least-squares systems of all rows of a factor.

    .. math:: \min_{f_i} f_i^T A_i f_i - 2 f_i^T b_i

    with the matrices :math:`A_i` and right-hand sides :math:`b_i` that the module describes.

    Parameters
    ----------
    products : float64 array (I, R)
        The right-hand sides, without those of `cells`.
    common : float64 array (R, R)
        The Gram matrix that all rows share, zeros if there is none. If `cells` take back from it,
        it must be rounded in float64 only: made in float64, from the same numbers as the designs.
    cells : ListedCells, optional
    lengths : float64 array (R,), optional
        The scales of the designs' columns: those of the elements of a row are their reciprocals. By
        default the roots of the diagonal of `common`; a length of 0 counts as 1.
    non_negative : bool
        Whether all elements of the rows must be non-negative.
    plan : RowPlan, optional
        Groups the cells; if it is restricted, other rows with cells are zeros. By default it is
        made here.

    Returns
    -------
    float64 array (I, R)
        Of several solutions that with the least ``|f_i * lengths|``, zeros for a row without known
        cells; with `non_negative` one of them.

    Notes
    -----
    A row of n cells takes ``n * R**2`` operations and an eigendecomposition of size R; rows without
    cells share one. Rows with about the same number of cells are solved together, in blocks.

    In units of `lengths`, an element :math:`(r, s)` of :math:`A_i` has an error of at most
    :math:`(n + 10) \epsilon \sqrt{M_{rr} M_{ss}}`, where M is the sum of the absolute values that
    were added, and the matrix one of at most :math:`(n + 10) \epsilon \, \mathrm{tr} M`.
    Eigenvalues up to this bound may be no more than what rounding has left, as where missing cells
    cancel `common`, and are taken as zeros.

    Non-negative rows take 10 sweeps of coordinate descent, and from there the steps of Lawson and
    Hanson, an eigendecomposition each, until no slope is left: mostly one or two. Results have the
    same bits in every run.

    References
    ----------
    Lawson and Hanson, "Solving Least Squares Problems", Prentice-Hall, 1974, chapter 23.

    Examples
    --------
    Two rows of three cells, with designs 1, 2 and 3; in the second row, the third is missing.

    >>> import numpy as np
    >>> from tensorly_flycoo.loop.observed_rows import ListedCells
    >>> design = np.array([[1.0], [2.0], [3.0]])
    >>> values = np.array([[2.0, 4.0, 6.0], [3.0, 6.0, 0.0]])
    >>> missing = ListedCells(
    ...     rows=np.array([1]),
    ...     designs=lambda places: design[np.array([2])[places]],
    ...     weights=np.array([-1.0]),
    ...     targets=np.array([0.0]),
    ... )
    >>> solve_row_systems(values @ design, design.T @ design, missing)
    array([[2.],
           [3.]])
    """
    xp = array_module(products)
    if lengths is None:
        lengths = np.sqrt(common.diagonal())
    lengths = xp.where(lengths > 0, lengths, 1)
    products = products / lengths
    common = common / lengths[:, None] / lengths
    if cells is None or cells.rows.size == 0:
        return _solve_alike(products, common, non_negative) / lengths
    plan = plan or RowPlan.of(cells.rows, products.shape[0])
    solved = xp.zeros_like(products)
    is_plain = plan.starts == plan.ends
    if has_true(is_plain):
        solved[is_plain] = _solve_alike(products[is_plain], common, non_negative)

    def solve_block(common: Array, width: int, rows: Array) -> Array:
        grams, sums, sizes = _add_up_systems(products, common, cells, lengths, plan, width, rows)
        num_cells = plan.ends[rows] - plan.starts[rows]
        num_roundings = _ROUNDINGS + num_cells
        errors = num_roundings * np.finfo(np.float64).eps * sizes
        return _solve_each(grams, sums, errors, non_negative)

    for width, rows in _list_blocks(plan, lengths.size):
        solved[rows] = call_lapack(solve_block, common, width, rows)
    return solved / lengths


def _add_up_systems(
    products: Array,
    common: Array,
    cells: ListedCells,
    lengths: Array,
    plan: RowPlan,
    width: int,
    rows: Array,
) -> tuple[Array, Array, Array]:
    """Return the systems of rows with up to `width` cells each, in units of the lengths.

    They are Gram matrices (n, R, R) and right-hand sides (n, R); the third array (n,) is the trace
    of each matrix as it would be if nothing had cancelled.
    """
    grams = common
    sums = products[rows]
    sizes = common.diagonal().sum()
    block_size = choose_block_size(products, rows.size * lengths.size)
    for first, last in _cut(width, block_size):
        places, is_own = plan.list_places(rows, first, last)
        designs = cells.designs(places) / lengths
        weighted = designs * cells.weigh(places, is_own)[:, :, None]
        targets = is_own * cells.targets[places]
        grams = grams + designs.swapaxes(1, 2) @ weighted
        sums = sums + _multiply(targets, designs)
        # Weights may be negative, and cancel: rounding errors are relative to these sums.
        sizes = sizes + abs(designs * weighted).sum(axis=(1, 2))
    return grams, sums, sizes


def _cut(length: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of parts of a length.

    >>> list(_cut(7, 3))
    [(0, 3), (3, 6), (6, 7)]
    """
    for first in range(0, length, step):
        yield first, min(first + step, length)


def _list_blocks(plan: RowPlan, rank: int) -> Iterator[tuple[int, Array]]:
    """Yield widths with blocks of rows, for which designs and Gram matrices fit in a block."""
    for width, rows in plan.list_blocks(rank):
        block_size = choose_block_size(rows, rank**2)
        for first, last in _cut(rows.size, block_size):
            yield width, rows[first:last]


def _solve_alike(products: Array, common: Array, non_negative: bool) -> Array:
    """Solve the systems of rows (n, R) that share a Gram matrix, in units of the lengths."""
    error = _ROUNDINGS * np.finfo(np.float64).eps * common.diagonal().sum()
    if not non_negative:
        values, vectors = call_lapack(_find_eigenvalues, common, error)
        return products @ (vectors * invert_positive(values, 0)) @ vectors.T
    xp = array_module(products)
    start = xp.zeros_like(products, order="C")
    rows = solve_nonnegative(products, common, start, _NUM_SWEEPS, tolerance=0)
    # Rows of zeros are minimal: the sweeps would have moved an element with a slope.
    positive = xp.flatnonzero((rows > 0).any(axis=1))
    block_size = choose_block_size(products, common.size)
    for first, last in _cut(positive.size, block_size):
        places = positive[first:last]
        grams = xp.broadcast_to(common, (places.size, *common.shape))
        errors = error + xp.zeros(places.size)
        rows[places] = call_lapack(_step, grams, products[places], errors, rows[places])
    return rows


def _solve_each(grams: Array, sums: Array, errors: Array, non_negative: bool) -> Array:
    """Solve systems (n, R, R) with right-hand sides (n, R), in units of the lengths."""
    values, vectors = _find_eigenvalues(grams, errors[:, None])
    transposed = vectors.swapaxes(1, 2)
    slopes = _multiply(sums, vectors)
    if not non_negative:
        return _multiply(slopes * invert_positive(values, 0), transposed)
    # Without directions that only rounding leaves, along which rows could grow without end.
    grams = vectors * values[:, None, :] @ transposed
    sums = _multiply(slopes * (values > 0), transposed)
    return _step(grams, sums, errors, _sweep(grams, sums, errors))


def _find_eigenvalues(grams: Array, errors: Array) -> tuple[Array, Array]:
    """Return eigenvalues (..., R), zeros if they may be errors, and eigenvectors (..., R, R)."""
    values, vectors = np.linalg.eigh(grams)
    is_certain = values > errors
    return values * is_certain, vectors


def _sweep(grams: Array, sums: Array, errors: Array) -> Array:
    """Improve non-negative rows (n, R) from zeros: each element is set to its minimiser in turn."""
    rows = array_module(sums).zeros_like(sums)
    scales = invert_positive(_find_diagonals(grams, errors), 0)
    for _ in range(_NUM_SWEEPS):
        for r in range(rows.shape[1]):
            slopes = sums[:, r] - (grams[:, r] * rows).sum(axis=1)
            minimisers = rows[:, r] + slopes * scales[:, r]
            rows[:, r] = minimisers.clip(0)
    return rows


def _step(grams: Array, sums: Array, errors: Array, rows: Array) -> Array:
    """Minimise over non-negative rows (n, R) by the steps of Lawson and Hanson.

    Some elements are free, all others zeros. A step goes towards the minimiser of the free ones,
    and ends where the first of them becomes zero, which leaves. If none does, that with the largest
    slope enters; a row without slopes, but for rounding, is minimal.
    """
    xp = array_module(rows)
    numbers = xp.arange(rows.shape[1])
    can_enter = _find_diagonals(grams, errors) > 0
    is_free = rows > 0
    is_minimal = xp.zeros(len(rows), bool)
    for _ in range(_MAX_STEPS * rows.shape[1]):
        old_rows = rows
        minimisers = _solve_for_free(grams, sums, errors, rows, is_free)

        # Go towards the minimiser, up to where the first element becomes zero; that one leaves.
        is_below = is_free & (minimisers < 0)
        lengths = xp.where(is_below, rows - minimisers, 1)
        shares = xp.where(is_below, rows / lengths, 1)  # of the way, to each element's zero
        share = shares.min(axis=1, keepdims=True)
        is_free &= ~(is_below & (shares == share))
        reached = xp.where(share < 1, rows + share * (minimisers - rows), minimisers)
        rows = xp.where(is_minimal[:, None], old_rows, is_free * reached)

        # At the minimiser, the element with the largest slope enters, if any has one.
        slopes = xp.where(can_enter & ~is_free, sums - _multiply(rows, grams), 0)
        limits = errors * np.sqrt((rows * rows).sum(axis=1))
        has_arrived = ~is_below.any(axis=1)
        is_minimal |= has_arrived & (slopes.max(axis=1) <= limits)
        if is_minimal.all():
            break
        is_entering = has_arrived & ~is_minimal
        steepest = slopes.argmax(axis=1)
        is_free |= is_entering[:, None] & (numbers == steepest[:, None])
    return rows


def _find_diagonals(grams: Array, errors: Array) -> Array:
    """Return the diagonals (n, R) of matrices, zeros where they may be errors."""
    diagonals = array_module(grams).diagonal(grams, axis1=1, axis2=2)
    return diagonals * (diagonals > errors[:, None])


def _solve_for_free(grams: Array, sums: Array, errors: Array, rows: Array, is_free: Array) -> Array:
    """Return the minimiser of the free elements, of many that next to the rows; zeros elsewhere."""
    faces = grams * is_free[:, :, None] * is_free[:, None, :]
    values, vectors = _find_eigenvalues(faces, errors[:, None])
    slopes = is_free * (sums - _multiply(rows, grams))
    along_vectors = _multiply(slopes, vectors) * invert_positive(values, 0)
    changes = _multiply(along_vectors, vectors.swapaxes(1, 2))
    return is_free * (rows + changes)


def _multiply(rows: Array, matrices: Array) -> Array:
    """Multiply each row (n, w) by its own matrix (n, w, R)."""
    return (rows[:, None, :] @ matrices)[:, 0]
