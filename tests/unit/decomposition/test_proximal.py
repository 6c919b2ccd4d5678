import numpy as np
import pytest
import tensorly as tl
from tensorly.tenalg.proximal import monotonicity_prox, smoothness_prox

from tensorly_flycoo.decomposition.proximal import fit_monotone
from tensorly_flycoo.loop.smoothness import smooth

_SIZES = pytest.mark.parametrize("size", [1, 2, 3, 40])
_DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def _columns(size, dtype, shift=0.0):
    return (np.random.RandomState(0).standard_normal((size, 3)) + shift).astype(dtype)


@pytest.fixture(autouse=True)
def _numpy():
    with tl.backend_context("numpy"):
        yield


@_SIZES
@_DTYPES
@pytest.mark.parametrize("decreasing", [False, True])
@pytest.mark.parametrize("shift", [-2.0, 0.0, 2.0])
def test_fit_monotone_is_tensorlys_operator(shift, decreasing, dtype, size):
    columns = _columns(size, dtype, shift)
    before = columns.copy()
    fitted = fit_monotone(columns, decreasing)
    np.testing.assert_array_equal(columns, before)
    assert fitted.dtype == dtype
    # TensorLy computes means from differences of sums over whole columns.
    bound = 4 * size * np.finfo(dtype).eps * (1 + np.abs(columns).sum(axis=0).max())
    assert np.abs(fitted - monotonicity_prox(columns, decreasing)).max() <= bound
    rising = fitted[::-1] if decreasing else fitted
    assert (np.diff(rising, axis=0) >= 0).all()


def test_monotone_columns_keep_every_bit():
    columns = np.sort(np.abs(_columns(40, np.float64)), axis=0)
    np.testing.assert_array_equal(fit_monotone(columns), columns)
    np.testing.assert_array_equal(fit_monotone(columns[::-1], decreasing=True), columns[::-1])


@_SIZES
@_DTYPES
@pytest.mark.parametrize("strength", [0.0, 0.01, 10.0])
def test_smooth_is_tensorlys_operator(strength, dtype, size):
    columns = _columns(size, dtype)
    smoothed = smooth(columns, strength, free_ends=False)
    assert smoothed.dtype == dtype
    condition = 1 + 4 * strength
    bound = 8 * condition * np.finfo(dtype).eps * np.abs(columns).max()
    assert np.abs(smoothed - smoothness_prox(columns, strength)).max() <= bound
