"""Laws of TTMc on the CPU engine with small tiles."""

import numpy as np
import pytest
import reference
from error_bounds import bound_ttmc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import nonzeros, quick, seeds

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.ops.mode_product import ModeProduct

fixture_is_for_all_examples = settings(
    quick, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

pytestmark = pytest.mark.usefixtures("small_tiles", "one_thread")


def draw_factors(shape, seed, exact=False):
    random = np.random.default_rng(seed)
    factors = [random.standard_normal((size, random.integers(3, 6))) for size in shape]
    return [np.round(4 * factor) for factor in factors] if exact else factors


def multiply(x, factors, modes):
    return ModeProduct(x, {n: factors[n] for n in modes}).to_array()


@fixture_is_for_all_examples
@given(nonzeros(max_ndim=3), seeds)
def test_the_oracle_agrees(drawn, seed):
    x = FlycooTensor(drawn.coords, drawn.values, drawn.shape)
    factors = draw_factors(drawn.shape, seed)
    for mode in range(x.ndim):
        arguments = (drawn.coords, drawn.values, drawn.shape, factors, mode)
        expected = reference.ttmc(*arguments)
        found = multiply(x, factors, [n for n in range(x.ndim) if n != mode])
        found = np.moveaxis(found, mode, 0).reshape(expected.shape)
        bound = bound_ttmc(x, *arguments)
        assert (np.abs(found - expected) <= bound).all()


@fixture_is_for_all_examples
@given(nonzeros(max_ndim=3, exact=True), seeds)
def test_the_core_does_not_depend_on_which_mode_comes_last(drawn, seed):
    """Cores are equal exactly, because sums of integers are not rounded."""
    x = FlycooTensor(drawn.coords, drawn.values, drawn.shape)
    factors = draw_factors(drawn.shape, seed, exact=True)
    core = multiply(x, factors, range(x.ndim))
    for mode in range(x.ndim):
        partial = multiply(x, factors, [n for n in range(x.ndim) if n != mode])
        expected = np.moveaxis(np.tensordot(factors[mode].T, partial, (1, mode)), 0, mode)
        np.testing.assert_array_equal(core, expected)


@fixture_is_for_all_examples
@given(nonzeros(max_ndim=3), seeds, st.integers(-60, 60))
def test_scaling_by_a_power_of_two_is_exact(drawn, seed, exponent):
    x, scale = FlycooTensor(drawn.coords, drawn.values, drawn.shape), 2.0**exponent
    factors = draw_factors(drawn.shape, seed)
    modes = range(1, x.ndim)
    expected = scale * multiply(x, factors, modes)
    np.testing.assert_array_equal(multiply(scale * x, factors, modes), expected)
