"""Zeros of factors that multiplicative updates cannot leave."""

import numpy as np

from tensorly_flycoo.loop.poisson import lift_zeros


def test_zeros_become_a_hundredth_of_the_mean_or_less():
    factor = np.array([[0.0], [2.0], [0.0], [2.0]])
    np.testing.assert_allclose(lift_zeros(factor).ravel(), [0.01, 2, 0.01, 2], rtol=1e-15)
    lifted = lift_zeros(factor, np.array([[0.9], [1.0], [1.5], [1.0]]))
    np.testing.assert_allclose(lifted.ravel(), [0, 2, 0.005, 2], rtol=1e-15)


def test_a_factor_without_zeros_stays():
    factor = np.ones((3, 2))
    assert lift_zeros(factor) is factor
