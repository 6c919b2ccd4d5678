"""Probabilities far out in the tails of Poisson distributions, against exact sums."""

from decimal import Decimal, localcontext
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from tensorly_flycoo.results.counts import log_upper_tail

#: The relative error of logarithms that are not SciPy's.
FAR = 2e-5


def exact_tail(count, mean):
    """Return the logarithm of P(X >= count), of sums with 60 digits."""
    with localcontext() as context:
        context.prec, context.Emin = 60, -(10**9)
        mean = Decimal(mean)
        own = mean**count / factorial(count)
        upper, term, k = Decimal(0), own, count
        while k < mean or term > own * Decimal(10) ** -70:
            upper, k = upper + term, k + 1
            term *= mean / k
        return float(upper.ln() - mean)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 400), st.floats(1e-9, 500))
def test_tails_equal_exact_sums(count, mean):
    expected = exact_tail(count, mean)
    rel = 1e-11 if expected > np.log(1e-300) else FAR
    found = log_upper_tail(np.array([float(count)]), np.array([mean]))[0]
    assert found == pytest.approx(expected, rel=rel, abs=1e-13)


@pytest.mark.parametrize(
    ("count", "mean"),
    [
        (900, 1e-300),
        (3000, 1e-3),
        (3, 2500.0),
        pytest.param(5000, 1500.0, marks=pytest.mark.slow),
    ],
)
def test_tails_far_beyond_the_smallest_number(count, mean):
    found = log_upper_tail(np.array([float(count)]), np.array([mean]))[0]
    assert found == pytest.approx(exact_tail(count, mean), rel=FAR)


@pytest.mark.parametrize("count", [1e3, 1e6, 1.1e6, 1e9, 1e12])
def test_tails_fall_steadily(count):
    """Also where the formula takes over from SciPy, which is right so far."""
    ratios = 1 + np.geomspace(4.3, 4.3e3, 20000) / count**0.5
    counts = np.full(ratios.size, count)
    tails = log_upper_tail(counts, counts / ratios)
    assert tails[0] > -20
    assert -1e9 < tails[-1] < -1000
    falls = -np.diff(tails)
    assert (falls >= 0).all()
    np.testing.assert_allclose(falls[1:], falls[:-1], rtol=0.01, atol=2e-4)


@pytest.mark.parametrize("sigmas", [10.0, 25.0, 1000.0])
def test_far_tails_of_large_counts_are_those_of_a_normal_distribution(sigmas):
    mean = np.array([1e14])
    # The skewness adds sigmas^3 / (6 sqrt(mean)).
    expected = log_ndtr(-sigmas) + sigmas**3 / 6e7
    assert log_upper_tail(mean + sigmas * 1e7, mean)[0] == pytest.approx(expected, rel=1e-5)


def test_certain_and_impossible_counts():
    counts, means = np.array([0.0, 1.0, 0.0, 2.0]), np.array([0.0, 0.0, 3.0, 1e-320])
    upper = log_upper_tail(counts, means)
    np.testing.assert_array_equal(upper[:3], [0, -np.inf, 0])
    assert -1500 < upper[3] < -1400
