"""The algebra of CP models against NumPy's on the dense tensors they represent."""

import numpy as np
import pytest
import tensorly as tl
from sparse_problems import reconstruct
from tensorly.cp_tensor import cp_normalize

from tensorly_flycoo.loop.cp_model import make_cp_tensor, multiply_grams, normalize, residual_square

RNG = np.random.RandomState(0)
FACTORS = [RNG.standard_normal((size, 3)) for size in (4, 5, 6)]
WEIGHTS = np.array([1.0, -2.0, 0.5])
BOTH = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["ones", "weights"])


@BOTH
@pytest.mark.parametrize("skip", [None, 0, 2])
def test_grams(skip, weights):
    scale = np.ones(3) if weights is None else weights
    kept = [factor for n, factor in enumerate(FACTORS) if n != skip]
    expected = np.prod([factor.T @ factor for factor in kept], axis=0)
    found = multiply_grams(weights, FACTORS, skip=skip, ridge=0.5)
    np.testing.assert_allclose(found, np.outer(scale, scale) * (expected + 0.5 * np.eye(3)))


@BOTH
def test_residual(weights):
    x, model = RNG.standard_normal((4, 5, 6)), reconstruct(FACTORS, weights)
    found = residual_square((x * x).sum(), weights, FACTORS, (x * model).sum())
    np.testing.assert_allclose(found, ((x - model) ** 2).sum())


@BOTH
def test_normalize(weights):
    factors = [*FACTORS[:2], FACTORS[2] * np.array([1.0, 0.0, 1.0])]
    with tl.backend_context("numpy"):
        expected = cp_normalize((weights, factors))
    found_weights, found = normalize(weights, factors)
    np.testing.assert_allclose(found_weights, expected.weights)
    for factor, other in zip(found, expected.factors, strict=True):
        np.testing.assert_allclose(factor, other)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes(dtype):
    factors = [factor.astype(dtype) for factor in FACTORS]
    cp_tensor = make_cp_tensor(None, factors)
    np.testing.assert_array_equal(cp_tensor.weights, np.ones(3, dtype), strict=True)
    weights, normalized = normalize(None, factors)
    arrays = [weights, *normalized, multiply_grams(weights, factors, ridge=1)]
    assert {array.dtype for array in arrays} == {np.dtype(dtype)}
