"""`linesearch="nesterov"` gives the errors of a plain NumPy model of the method."""

import numpy as np
import pytest
import tensorly as tl

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.decomposition import parafac
from tensorly_flycoo.testing import planted_tensor

SHAPE, RANK, COUNT = (9, 12, 15), 3, 25


def sweep(dense, factors):
    """Do one iteration of alternating least squares; return the factors and the error."""
    factors = list(factors)
    for mode in range(dense.ndim):
        others = [factor for n, factor in enumerate(factors) if n != mode]
        matrix = np.ones((1, RANK))
        for factor in others:
            matrix = (matrix[:, None] * factor).reshape(-1, RANK)
        unfolding = np.moveaxis(dense, mode, 0).reshape(dense.shape[mode], -1)
        factors[mode] = np.linalg.lstsq(matrix, unfolding.T, rcond=None)[0].T
    residual = dense - np.einsum("ir,jr,kr->ijk", *factors)
    return factors, np.linalg.norm(residual) / np.linalg.norm(dense)


def momentum(dense, factors, num_iterations):
    """Return the errors of the method, and how many steps were taken back."""
    errors, t, before, num_back = [], 1.0, None, 0
    for _ in range(num_iterations):
        following = (1 + np.sqrt(1 + 4 * t * t)) / 2
        step = (t - 1) / following
        found = None
        if before is not None and step > 0:
            pairs = zip(factors, before, strict=True)
            found = sweep(dense, [x + step * (x - old) for x, old in pairs])
            if found[1] > errors[-1]:
                found, t, num_back = None, max(1.0, t / 2), num_back + 1
                following = (1 + np.sqrt(1 + 4 * t * t)) / 2
        if before is not None:
            t = following
        before = factors
        factors, error = found or sweep(dense, factors)
        errors.append(error)
    return errors, num_back


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.usefixtures("flycoo_backend")
def test_the_errors_of_a_model_in_numpy(seed, layout):
    x, _ = planted_tensor(SHAPE, RANK, 400, noise=0.3, random_state=seed)
    dense = x.to_coo().todense()
    random = np.random.RandomState(seed)
    expected, num_back = momentum(dense, [random.random_sample((n, RANK)) for n in SHAPE], COUNT)
    assert num_back > 0
    tensor = FlycooTensor.from_coo(x.to_coo(), layout=layout)
    options = {"init": "random", "random_state": seed, "n_iter_max": COUNT, "tol": 0}
    for decompose in (parafac, tl.decomposition.parafac):
        _, errors = decompose(tensor, RANK, linesearch="nesterov", return_errors=True, **options)
        # Rounding in the normal equations decides no step here: errors differ by far more.
        np.testing.assert_allclose(errors, expected, rtol=1e-8)
