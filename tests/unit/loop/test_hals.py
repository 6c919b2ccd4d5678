import numba
import numpy as np
import pytest
import tensorly as tl
from scipy.optimize import nnls
from tensorly.solvers.nnls import hals_nnls

from tensorly_flycoo.loop.hals import solve_nonnegative


def _problem(size, rank, dtype=np.float64):
    rng = np.random.RandomState(0)
    left = rng.standard_normal((20, rank))
    right = rng.standard_normal((size, 20))
    gram, targets = left.T @ left, right @ left
    start = rng.random_sample((size, rank))
    return left, right, *(array.astype(dtype) for array in (targets, gram, start))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", [1, 64, 150])
@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("sparsity", [None, 0.3])
def test_same_as_tensorly(sparsity, rank, size, dtype):
    _, _, targets, gram, rows = _problem(size, rank, dtype)
    given = targets.T, gram, rows.T.copy()
    with tl.backend_context("numpy"):
        expected = hals_nnls(*given, n_iter_max=5, sparsity_coefficient=sparsity).T
    rows = solve_nonnegative(targets, gram, rows, 5, 1e-8, sparsity)
    bound = 100 * rank * np.finfo(dtype).eps * np.linalg.cond(gram.astype(np.float64))
    assert np.abs(rows - expected).max() <= bound * np.abs(expected).max()


def test_many_sweeps_solve_exactly():
    left, right, targets, gram, rows = _problem(30, 4)
    rows = solve_nonnegative(targets, gram, rows, 50_000, 1e-16)
    expected = np.array([nnls(left, row)[0] for row in right])
    np.testing.assert_allclose(rows, expected, atol=1e-12)
    assert (rows == 0).any()


def test_it_stops_when_tensorly_does():
    _, _, targets, gram, rows = _problem(30, 2)
    half = rows.copy()
    half = solve_nonnegative(targets, gram, half, 1, 0.0)
    rows = solve_nonnegative(targets, gram, rows, 9, 2.0)  # the first sweep meets this tolerance
    np.testing.assert_array_equal(rows, half)


def test_a_column_with_a_zero_gram_is_left_unchanged():
    _, _, targets, gram, rows = _problem(30, 3)
    gram[1], gram[:, 1] = 0, 0
    before = rows[:, 1].copy()
    rows = solve_nonnegative(targets, gram, rows, 5, 0.0)
    np.testing.assert_array_equal(rows[:, 1], before)


def test_the_same_bits_for_any_number_of_threads():
    _, _, targets, gram, rows = _problem(1000, 5)
    other = rows.copy()
    num_threads = numba.get_num_threads()
    rows = solve_nonnegative(targets, gram, rows, 7, 0.0)
    try:
        numba.set_num_threads(1)
        other = solve_nonnegative(targets, gram, other, 7, 0.0)
    finally:
        numba.set_num_threads(num_threads)
    np.testing.assert_array_equal(rows, other)
