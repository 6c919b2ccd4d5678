"""Rows with known cells of their own, against dense solvers of one row at a time."""

import numpy as np
import pytest
from scipy.optimize import nnls

from tensorly_flycoo.loop import observed_rows, row_systems
from tensorly_flycoo.loop.observed_rows import ListedCells
from tensorly_flycoo.loop.row_systems import solve_row_systems

EPS = np.finfo(np.float64).eps

NUM_ROWS, NUM_CELLS, RANK = 40, 60, 4


def make_problem(seed=0, share=0.3):
    """Return designs (cells, R), values (rows, cells), and which of them are known."""
    rng = np.random.default_rng(seed)
    designs = rng.standard_normal((NUM_CELLS, RANK))
    values = rng.standard_normal((NUM_ROWS, NUM_CELLS))
    is_known = rng.random((NUM_ROWS, NUM_CELLS)) < share * rng.random((NUM_ROWS, 1)) * 2
    is_known[::7] = True
    return designs, values, is_known


def list_cells(is_listed, designs, weights, targets):
    """List cells of a table, in an order that is not that of rows."""
    rows, columns = np.nonzero(is_listed)
    order = np.random.default_rng(1).permutation(rows.size)
    rows, columns = rows[order], columns[order]
    return ListedCells(
        rows,
        lambda places: designs[columns[places]],
        weights[rows, columns],
        targets[rows, columns],
    )


def list_missing(is_known, designs):
    return list_cells(~is_known, designs, -np.ones(is_known.shape), np.zeros(is_known.shape))


def list_known(is_known, designs, values):
    return list_cells(is_known, designs, np.ones(is_known.shape), values)


def solve_densely(designs, values, is_known, lengths, solver):
    """Solve each row by itself, with columns in units of their lengths."""
    scaled = designs / lengths
    rows = [solver(scaled[known], row[known]) for row, known in zip(values, is_known, strict=True)]
    return np.array(rows) / lengths


def solve_least_squares(designs, values):
    return np.linalg.lstsq(designs, values, rcond=1e-10)[0]


def solve_nnls(designs, values):
    return nnls(designs, values)[0] if len(values) else np.zeros(designs.shape[1])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["missing", "known"])
def test_rows_are_those_of_least_squares(form, seed):
    """Also those with fewer known cells than components, of which the least is taken."""
    designs, values, is_known = make_problem(seed)
    common = designs.T @ designs
    lengths = np.sqrt(common.diagonal())
    if form == "missing":
        missing = list_missing(is_known, designs)
        found = solve_row_systems((values * is_known) @ designs, common, missing)
    else:
        known = list_known(is_known, designs, values)
        zeros = np.zeros((NUM_ROWS, RANK))
        found = solve_row_systems(zeros, np.zeros((RANK, RANK)), known, lengths=lengths)
    expected = solve_densely(designs, values, is_known, lengths, solve_least_squares)
    assert (is_known.sum(axis=1) < RANK).any()
    # Each number has an error of at most one rounding for each cell, relative to the length of
    # all designs; a system magnifies it by the inverse of its least eigenvalue.
    size = np.sqrt(np.trace(common))
    for row, wanted, own, known in zip(found, expected, values, is_known, strict=True):
        roots = np.linalg.svd(designs[known], compute_uv=False)
        least = roots[roots > 1e-10 * size].min(initial=size)
        error = NUM_CELLS * EPS * size * (np.linalg.norm(own) + size * np.linalg.norm(wanted))
        assert np.linalg.norm(row - wanted) <= error / least**2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["missing", "known"])
def test_non_negative_rows_are_those_of_nnls(form, seed):
    designs, values, is_known = make_problem(seed, share=0.9)
    is_known[:, : 3 * RANK] = True  # rows that are unique
    designs = np.abs(designs)
    values = values + 0.5
    common = designs.T @ designs
    expected = solve_densely(designs, values, is_known, np.ones(RANK), solve_nnls)
    if form == "missing":
        missing = list_missing(is_known, designs)
        products = (values * is_known) @ designs
        found = solve_row_systems(products, common, missing, non_negative=True)
    else:
        known = list_known(is_known, designs, values)
        zeros = np.zeros((NUM_ROWS, RANK))
        found = solve_row_systems(zeros, 0 * common, known, non_negative=True)
    assert (found >= 0).all()
    assert (found == 0).any()
    assert np.abs(found - expected).max() <= 1e-10 * expected.max()


@pytest.mark.parametrize("seed", range(3))
def test_few_known_cells_leave_no_non_negative_row_unsolved(seed):
    """Where there are many solutions, one of them is found: the residual is that of NNLS."""
    designs, values, is_known = make_problem(seed, share=0.05)
    values = np.abs(values)
    designs = np.abs(designs)
    missing = list_missing(is_known, designs)
    products = (values * is_known) @ designs
    found = solve_row_systems(products, designs.T @ designs, missing, non_negative=True)
    expected = solve_densely(designs, values, is_known, np.ones(RANK), solve_nnls)
    assert (found >= 0).all()
    for row, wanted, own, known in zip(found, expected, values, is_known, strict=True):
        best = np.linalg.norm(own[known] - designs[known] @ wanted)
        assert np.linalg.norm(own[known] - designs[known] @ row) <= best + 1e-12


def test_missing_and_known_cells_say_the_same():
    """Also of rows that many solutions fit, and with columns of very unlike lengths."""
    designs, values, is_known = make_problem(5, share=0.1)
    designs = designs * [1e-6, 1.0, 1e4, 1e9]
    common = designs.T @ designs
    missing, known = list_missing(is_known, designs), list_known(is_known, designs, values)
    found = solve_row_systems((values * is_known) @ designs, common, missing)
    lengths = np.sqrt(common.diagonal())
    same = solve_row_systems(np.zeros((NUM_ROWS, RANK)), 0 * common, known, lengths=lengths)
    assert np.abs((found - same) * lengths).max() <= 1e-8 * np.abs(same * lengths).max()


@pytest.mark.parametrize("non_negative", [False, True])
def test_rows_without_known_cells_are_zeros(non_negative):
    """What rounding leaves of the cancelled Gram matrix is no signal, nor of collinear columns."""
    for seed in range(20):
        designs, values, is_known = make_problem(seed)
        designs[:, 1] = designs[:, 0] * 0.1
        is_known[::3] = False
        missing = list_missing(is_known, designs)
        products = (values * is_known) @ designs + 1e-12 * ~is_known.any(axis=1)[:, None]
        found = solve_row_systems(products, designs.T @ designs, missing, non_negative=non_negative)
        assert (found[::3] == 0).all()
        lengths = np.sqrt((designs**2).sum(axis=0))
        if not non_negative:
            expected = solve_densely(designs, values, is_known, lengths, solve_least_squares)
            assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("non_negative", [False, True])
def test_rows_without_listed_cells_share_a_system(non_negative):
    designs, values, _ = make_problem()
    common = designs.T @ designs
    solver = solve_nnls if non_negative else solve_least_squares
    is_known = np.ones(values.shape, bool)
    expected = solve_densely(designs, values, is_known, np.ones(RANK), solver)
    none = list_missing(is_known, designs)
    for cells in (None, none):
        found = solve_row_systems(values @ designs, common, cells, non_negative=non_negative)
        assert np.abs(found - expected).max() <= 1e-10 * np.abs(expected).max()
    assert solve_row_systems(np.zeros((0, RANK)), common).shape == (0, RANK)


def test_cells_may_have_any_weights():
    """As of counts seen in part: a weight of 3, and of 1 - 0.25 in place of 1."""
    designs, values, _ = make_problem()
    weights = np.random.default_rng(3).choice([0.25, 1.0, 3.0], values.shape)
    targets = (weights - 1) * values
    cells = list_cells(weights != 1, designs, weights - 1, targets)
    found = solve_row_systems(values @ designs, designs.T @ designs, cells)
    for row, own, weight in zip(found, values, weights, strict=True):
        root = np.sqrt(weight)
        expected = np.linalg.lstsq(designs * root[:, None], own * root, rcond=None)[0]
        assert np.abs(row - expected).max() <= 1e-12


@pytest.mark.parametrize("non_negative", [False, True])
def test_a_row_is_the_same_alone_and_in_small_blocks(non_negative, monkeypatch):
    designs, values, is_known = make_problem(2)
    products, common = (values * is_known) @ designs, designs.T @ designs

    def solve(rows=slice(None)):
        missing = list_missing(is_known[rows], designs)
        return solve_row_systems(products[rows], common, missing, non_negative=non_negative)

    found = solve()
    assert (found == solve()).all()
    for row in range(NUM_ROWS):
        assert np.abs(solve([row]) - found[row]).max() <= 1e-9 * np.abs(found).max()
    sizes = []

    def choose_small(array, row_length):
        sizes.append(row_length)
        return max(1, 32 // row_length)

    for module in (row_systems, observed_rows):
        monkeypatch.setattr(module, "choose_block_size", choose_small)
    assert np.abs(solve() - found).max() <= 1e-9 * np.abs(found).max()
    assert sizes


@pytest.mark.parametrize("num_missing", [0, 1])
def test_collinear_columns_do_not_stop_non_negative_rows(num_missing):
    """Coordinate descent alone would take many thousands of sweeps."""
    rng = np.random.default_rng(0)
    designs = rng.random((NUM_CELLS, 6))
    designs[:, 1:3] = designs[:, :1] + 1e-3 * rng.random((NUM_CELLS, 2))
    values = designs @ rng.random(6) + 0.1 * rng.standard_normal((NUM_ROWS, NUM_CELLS))
    is_known = np.ones(values.shape, bool)
    is_known[:, :num_missing] = False
    products, missing = (values * is_known) @ designs, list_missing(is_known, designs)
    found = solve_row_systems(products, designs.T @ designs, missing, non_negative=True)
    expected = solve_densely(designs, values, is_known, np.ones(6), solve_nnls)
    assert np.abs(found - expected).max() <= 1e-6 * expected.max()
    residual, least = (
        np.linalg.norm((values - f @ designs.T) * is_known) for f in (found, expected)
    )
    assert residual <= least * (1 + 1e-13)
