"""Laws of momentum: errors never rise, and what an update leaves unchanged stays as it is."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from momentum_runs import begin
from strategies import quick

sizes = st.shared(st.integers(1, 6))
numbers = arrays(float, sizes, elements=st.floats(-100, 100, width=32))
rates = arrays(float, sizes, elements=st.floats(0, 1, width=32))


def iterate(update, start, num_iterations):
    sweep, momentum = begin(update, start)
    errors = [momentum.step(iteration) for iteration in range(num_iterations)]
    return sweep.model.factors, errors


@quick
@given(numbers, rates, st.integers(1, 30))
def test_errors_never_rise(start, rates, num_iterations):
    """The update multiplies each number by at most 1: its own errors do not, even rounded."""

    def shrink(factors):
        factors = [factor * rates for factor in factors]
        return factors, float(np.sum(np.abs(factors[0])))

    _, errors = iterate(shrink, [start], num_iterations)
    assert len(errors) == num_iterations
    assert all(after <= before for before, after in itertools.pairwise(errors))


@quick
@given(numbers, st.integers(1, 10))
def test_a_fixed_point_stays(start, num_iterations):
    def keep(factors):
        return list(factors), 1.0

    factors, _ = iterate(keep, [start, 2 * start], num_iterations)
    np.testing.assert_array_equal(factors[0], start)
    np.testing.assert_array_equal(factors[1], 2 * start)


@quick
@given(numbers, rates)
def test_it_converges_to_the_point_of_the_update(target, rates):
    """Linear maps with rates of at most 0.9 have one fixed point."""
    rates = np.minimum(rates, 0.9)

    def approach(factors):
        factors = [target + (factors[0] - target) * rates]
        return factors, float(np.linalg.norm(factors[0] - target))

    (found,), _ = iterate(approach, [np.zeros_like(target)], 200)
    # 0.9**200 is 7e-10.
    assert np.abs(found - target).max() <= 1e-9 * np.linalg.norm(target)
