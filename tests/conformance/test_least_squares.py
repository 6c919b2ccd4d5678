"""`linesearch="gauss-newton"` ends where SciPy's least_squares, of all entries, does."""

import numpy as np
import pytest
import tensorly as tl
from scipy.optimize import least_squares
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.decomposition import parafac

SHAPE, RANK = (5, 6, 7), 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", ["gauss-newton", "auto"])
@pytest.mark.usefixtures("flycoo_backend")
def test_the_error_of_a_dense_levenberg_marquardt(seed, way):
    rng = np.random.default_rng(seed)
    truth = [rng.standard_normal((size, RANK)) for size in SHAPE]
    dense = tl.cp_to_tensor((None, truth)) + 0.3 * rng.standard_normal(SHAPE)
    dense[rng.random(SHAPE) < 0.2] = 0
    start = [factor + 0.1 * rng.standard_normal(factor.shape) for factor in truth]
    edges = np.cumsum([factor.size for factor in start])[:-1]

    def find_residual(numbers):
        parts = zip(np.split(numbers, edges), SHAPE, strict=True)
        return (tl.cp_to_tensor((None, [p.reshape(n, RANK) for p, n in parts])) - dense).ravel()

    numbers = np.concatenate([factor.ravel() for factor in start])
    limits = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    expected = least_squares(find_residual, numbers, method="lm", **limits)
    options = {"n_iter_max": 100, "tol": 0, "return_errors": True, "linesearch": way}
    init = CPTensor((np.ones(RANK), start))
    _, errors = parafac(FlycooTensor.from_dense(dense), RANK, init=init, **options)
    norm = np.linalg.norm(dense)
    np.testing.assert_allclose(errors[-1], np.linalg.norm(expected.fun) / norm, rtol=1e-8)
