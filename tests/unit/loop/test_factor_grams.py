"""Gram matrices of a run's factors on a GPU, with stand-ins for its kernels: each computed once."""

import numpy as np
import pytest
import tensorly as tl
from gram_kernels import draw, list_launches, stand_in_kernels
from sparse_problems import community_coo

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.decomposition import (
    constrained_parafac,
    non_negative_parafac,
    non_negative_parafac_hals,
)
from tensorly_flycoo.loop.cp_model import multiply_grams
from tensorly_flycoo.loop.factor_grams import FactorGrams


@pytest.fixture
def kernels(monkeypatch):
    with stand_in_kernels(monkeypatch) as kernels:
        yield kernels


def draw_factors(dtype=np.float32):
    return [draw((size, 4), dtype, seed) for seed, size in enumerate((9, 8, 7))]


@pytest.mark.parametrize("weights", [None, draw(4)])
@pytest.mark.parametrize("skip", [None, 1])
def test_a_product_is_one_launch_in_float64(kernels, skip, weights):
    factors, grams = draw_factors(), FactorGrams()
    product = grams.multiply(weights, factors, skip)
    exact = [factor.astype(float) for factor in factors]
    assert product.dtype == np.float64
    np.testing.assert_allclose(product, multiply_grams(weights, exact, skip), rtol=1e-6)
    num_factors = 3 if skip is None else 2
    assert (kernels.num_products, kernels.num_grams) == (1, num_factors)


def test_each_gram_matrix_is_computed_once(kernels):
    factors, grams = draw_factors(), FactorGrams()
    for skip in range(3):
        grams.multiply(None, factors, skip)
    assert kernels.num_grams == 3
    factors[1] = draw((8, 4), seed=7)
    found = grams.multiply(None, factors)
    assert kernels.num_grams == 4
    np.testing.assert_allclose(found, multiply_grams(None, factors), rtol=1e-5)
    factors[1][...] = 2
    grams.forget()
    found = grams.multiply(None, factors)
    assert kernels.num_grams == 7
    np.testing.assert_allclose(found, multiply_grams(None, factors), rtol=1e-5)


def test_writing_to_a_product_changes_none_that_is_kept():
    """Of two modes it is one Gram matrix."""
    factors, grams = draw_factors(np.float64)[:2], FactorGrams()
    grams.multiply(None, factors, skip=0)[...] = 0
    found = grams.multiply(None, factors, skip=0)
    np.testing.assert_array_equal(found, multiply_grams(None, factors, skip=0))


def test_factors_that_no_kernel_suits_and_products_of_too_many(kernels):
    exact = draw_factors(np.float64)
    found = FactorGrams().multiply(None, exact)
    np.testing.assert_array_equal(found, multiply_grams(None, exact))
    many = [*draw_factors(), draw((5, 4))]
    found = FactorGrams().multiply(None, many)
    np.testing.assert_allclose(found, multiply_grams(None, many), rtol=1e-5)
    assert kernels.num_products == 0


def test_the_residual(kernels):
    factors, waits = draw_factors(), []
    mttkrp = draw((7, 4), seed=5)
    grams = FactorGrams()
    found = grams.compute_residual(3.0, None, factors, mttkrp, lambda: waits.append(1))
    square = 9 + multiply_grams(None, factors).sum() - 2 * (mttkrp * factors[-1]).sum()
    assert found == pytest.approx(abs(square) ** 0.5, rel=1e-5)
    assert waits == [1]
    assert grams.compute_residual(3.0, None, draw_factors(float), mttkrp, list) is None


METHODS = {
    "mu": (non_negative_parafac, {"tol": -1}),
    "mu, normalised": (non_negative_parafac, {"tol": -1, "normalize_factors": True}),
    "hals": (non_negative_parafac_hals, {"tol": -1}),
    "hals, one mode": (non_negative_parafac_hals, {"tol": -1, "nn_modes": [0]}),
    "admm": (constrained_parafac, {"tol_outer": -1, "non_negative": True}),
    "admm, momentum": (
        constrained_parafac,
        {"tol_outer": -1, "non_negative": True, "linesearch": "nesterov"},
    ),
}


def decompose(name):
    function, options = METHODS[name]
    x = FlycooTensor.from_coo(community_coo((12, 10, 8), seed=1).astype("float32"), device="cpu")
    with tl.backend_context("flycoo"):
        return function(
            x, 3, init="random", random_state=0, n_iter_max=4, return_errors=True, **options
        )


@pytest.mark.parametrize("name", METHODS)
def test_decompositions_have_the_same_errors_and_go_on_while_the_host_waits(
    name, request, monkeypatch
):
    expected, expected_errors = decompose(name)
    kernels = request.getfixturevalue("kernels")
    listed = list_launches(kernels, monkeypatch)
    found, errors = decompose(name)
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-4)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, other, rtol=0, atol=1e-3 * abs(other).max())
    if "normalised" in name or "momentum" in name:
        assert listed == [0, 1, 2, "wait"] * 4
    else:
        assert listed == [0, 1, 2, 0, "wait", *[1, 2, 0, "wait"] * 2, 1, 2, "wait"]
