"""Systems of smooth factors, against dense ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import nnls
from strategies import quick

from tensorly_flycoo.loop.hals import improve
from tensorly_flycoo.loop.smoothness import (
    add_differences,
    fit_nonnegative,
    read_smoothness,
    smooth,
    weigh,
)

EPS = np.finfo(np.float64).eps


def make_metric(size, strength):
    """Return K, dense."""
    differences = np.diff(np.eye(size), axis=0)
    return np.eye(size) + strength * differences.T @ differences


@pytest.mark.parametrize("size", [1, 2, 3, 40])
@pytest.mark.parametrize("strength", [0.1, 30.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_column_is_smoothed_as_by_the_dense_matrix(size, strength, dtype):
    columns = np.random.default_rng(0).standard_normal((size, 3)).astype(dtype)
    metric, found = make_metric(size, strength), smooth(columns, strength)
    bound = (np.finfo(dtype).eps + 8 * (1 + 4 * strength) * EPS) * np.abs(columns).max()
    assert found.dtype == dtype
    assert np.abs(found - np.linalg.solve(metric, columns)).max() <= bound
    (longer,) = add_differences([columns.astype(float)], [strength])
    np.testing.assert_allclose(longer.T @ longer, columns.T @ metric @ columns, rtol=1e-6)
    np.testing.assert_allclose(weigh(columns[:, 0], strength), metric @ columns[:, 0], rtol=1e-4)


def test_a_constant_stays_and_0_returns_the_columns_themselves():
    columns = np.full((50, 2), 3.0)
    np.testing.assert_allclose(smooth(columns, 1e6), columns, rtol=1e-9)
    assert smooth(columns, 0.0) is columns
    assert add_differences([columns], [0.0])[0] is columns


@quick
@given(arrays(float, st.integers(1, 30), elements=st.floats(-9, 9, width=16)), st.floats(0, 1e4))
def test_non_negative_columns_are_optimal(column, strength):
    """The slope is zero at positive elements, and not negative at the others."""
    found = fit_nonnegative(column, strength)
    slope = weigh(found - column, strength)
    bound = 1e3 * EPS * (1 + 4 * strength) * (1 + np.abs(column).max())
    assert (found >= 0).all()
    assert slope.min() >= -bound
    assert np.abs(slope[found > 0]).max(initial=0) <= bound


@pytest.mark.parametrize("sparsity", [None, 0.2])
def test_exact_hals_solves_for_all_columns(sparsity):
    """Minimise trace(A^T K A G) - 2 trace(A^T (M - sparsity)), a dense problem of all elements."""
    rng, size, rank, strength = np.random.default_rng(0), 12, 3, 5.0
    left = rng.standard_normal((20, rank))
    gram, targets = left.T @ left, 9 * rng.standard_normal((size, rank))
    found = improve(targets, gram, rng.random((size, rank)), sparsity, True, strength)
    root = np.linalg.cholesky(np.kron(make_metric(size, strength), gram))
    given = np.linalg.solve(root, (targets - (sparsity or 0)).ravel())
    np.testing.assert_allclose(found.ravel(), nnls(root.T, given)[0], atol=1e-7)
    assert (found == 0).any()
    assert (found > 0).any()


def test_hals_leaves_a_column_with_a_zero_gram_and_its_arguments_unchanged():
    rng = np.random.default_rng(0)
    gram, targets, start = np.diag([2.0, 0.0]), rng.random((9, 2)), rng.random((9, 2))
    before = start.copy()
    found = improve(targets, gram, start, smoothness=3.0)
    np.testing.assert_array_equal(start, before)
    np.testing.assert_array_equal(found[:, 1], before[:, 1])
    np.testing.assert_allclose(2 * weigh(found[:, 0], 3.0), targets[:, 0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, [0, 0, 0]),
        (2, [2, 2, 2]),
        ([None, 1.5, 0], [0, 1.5, 0]),
        ({2: np.float32(4)}, [0, 0, 4]),
        ({}, [0, 0, 0]),
    ],
)
def test_forms(given, expected):
    assert read_smoothness(given, 3) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (-1, "smoothness is -1, expected a finite number, 0 or more"),
        ({0: math.nan}, r"smoothness\[0\] is nan"),
        (True, "smoothness is True, expected a number"),
        ({2: 1e16}, "smoothness is 1e[+]16, expected at most 1e[+]12"),
        ([1, 2], "smoothness has 2 numbers, expected 3"),
        ({3: 1.0}, "a mode of smoothness is 3, expected 0 to 2"),
        ({"day": 1.0}, "a mode of smoothness is 'day', expected an integer"),
        ("much", "smoothness is 'much', expected a number, or one for each mode"),
    ],
)
def test_refused(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        read_smoothness(given, 3)
