"""Laws of MTTKRP through the public API, on the CPU engine with small tiles and buckets."""

import numpy as np
import pytest
import reference
from error_bounds import bound_mttkrp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import nonzeros, quick, seeds

from tensorly_flycoo import FlycooTensor, mttkrp

layouts = st.sampled_from(["remap", "replicated", "indexed"])
fixture_is_for_all_examples = settings(
    quick, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

pytestmark = pytest.mark.usefixtures("small_tiles", "one_thread")


def build(drawn, layout="remap"):
    return FlycooTensor(drawn.coords, drawn.values, drawn.shape, layout=layout)


def compute(x, factors):
    return [mttkrp(x, factors, mode) for mode in range(x.ndim)]


def bound(drawn, factors, mode):
    arguments = (drawn.coords, drawn.values, drawn.shape, factors, mode)
    return reference.mttkrp_error_bound(*arguments, "float64")


def assert_same_bits(found, expected):
    assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]


@fixture_is_for_all_examples
@given(nonzeros(), layouts, st.lists(st.integers(0, 3), max_size=5))
def test_the_oracle_agrees(drawn, layout, modes):
    """Modes may be computed in any order."""
    x = build(drawn, layout)
    for mode in [n for n in modes if n < x.ndim] + list(range(x.ndim)):
        expected = reference.mttkrp(drawn.coords, drawn.values, drawn.shape, drawn.factors, mode)
        out = np.full(expected.shape, np.nan)
        mttkrp(x, drawn.factors, mode, out=out)
        limit = bound_mttkrp(x, drawn.coords, drawn.values, drawn.factors, mode)
        assert (np.abs(out - expected) <= limit).all()


@fixture_is_for_all_examples
@given(nonzeros(), st.integers(1, 5))
def test_the_papers_algorithm_agrees(drawn, num_partitions):
    """Both results are within the bound of the exact one."""
    expected = reference.mttkrp_all_modes(
        drawn.coords, drawn.values, drawn.shape, drawn.factors, num_partitions
    )
    for mode, found in enumerate(compute(build(drawn), drawn.factors)):
        limit = bound(drawn, drawn.factors, mode)
        assert (np.abs(found - expected[mode]) <= limit).all()


@fixture_is_for_all_examples
@given(nonzeros(unique=True), layouts, seeds)
def test_the_order_of_nonzeros_does_not_matter(drawn, layout, seed):
    """The results are bitwise the same."""
    order = np.random.default_rng(seed).permutation(drawn.nnz)
    shuffled = FlycooTensor(drawn.coords[:, order], drawn.values[order], drawn.shape, layout=layout)
    assert_same_bits(compute(shuffled, drawn.factors), compute(build(drawn), drawn.factors))


@fixture_is_for_all_examples
@given(nonzeros(exact=True, unique=True), seeds)
def test_duplicates_may_be_split(drawn, seed):
    """Splitting each nonzero in two, in any order, gives bitwise the same tensor."""
    random = np.random.default_rng(seed)
    part = drawn.values * random.choice([0.25, 0.5, 1.0, -1.0], drawn.nnz)
    order = random.permutation(2 * drawn.nnz)
    coords = np.concatenate([drawn.coords, drawn.coords], axis=1)[:, order]
    values = np.concatenate([part, drawn.values - part])[order]
    split = FlycooTensor(coords, values, drawn.shape)
    assert split.nnz == drawn.nnz
    assert_same_bits(compute(split, drawn.factors), compute(build(drawn), drawn.factors))


@pytest.mark.usual_limits("prefixes")  # groups of modes depend on the number of values given
@fixture_is_for_all_examples
@given(nonzeros(), layouts)
def test_explicit_zeros_do_not_matter(drawn, layout):
    coords = np.concatenate(
        [drawn.coords, np.indices(drawn.shape).reshape(len(drawn.shape), -1)], 1
    )
    values = np.concatenate([drawn.values, np.zeros(coords.shape[1] - drawn.nnz)])
    padded = FlycooTensor(coords, values, drawn.shape, layout=layout)
    assert padded.nnz == build(drawn).nnz
    assert_same_bits(compute(padded, drawn.factors), compute(build(drawn), drawn.factors))


@fixture_is_for_all_examples
@given(nonzeros(), layouts, st.integers(-60, 60))
def test_scaling_by_a_power_of_two_is_exact(drawn, layout, exponent):
    """Scale the values, the tensor by the operator ``*``, and a factor."""
    scale = 2.0**exponent
    x = build(drawn, layout)
    expected = [scale * array for array in compute(x, drawn.factors)]
    scaled = FlycooTensor(drawn.coords, scale * drawn.values, drawn.shape, layout=layout)
    assert_same_bits(compute(scaled, drawn.factors), expected)
    assert_same_bits(compute(scale * x, drawn.factors), expected)
    for mode in range(x.ndim):
        factors = [scale * f if n == 0 else f for n, f in enumerate(drawn.factors)]
        factor_scale = 1.0 if mode == 0 else scale
        np.testing.assert_array_equal(
            mttkrp(x, factors, mode), factor_scale * mttkrp(x, drawn.factors, mode)
        )


@fixture_is_for_all_examples
@given(nonzeros(exact=True), seeds)
def test_linear_in_the_tensor(drawn, seed):
    """Linearity is exact, because sums of integers are not rounded."""
    random = np.random.default_rng(seed)
    coords = np.stack([random.integers(0, size, 20) for size in drawn.shape])
    other = FlycooTensor(coords, random.integers(-5, 6, 20), drawn.shape)
    x = build(drawn)
    total = 3 * x - other
    for mode in range(x.ndim):
        parts = [mttkrp(tensor, drawn.factors, mode) for tensor in (x, other)]
        np.testing.assert_array_equal(mttkrp(total, drawn.factors, mode), 3 * parts[0] - parts[1])


@fixture_is_for_all_examples
@given(nonzeros(exact=True), seeds)
def test_linear_in_each_factor(drawn, seed):
    """Linearity is exact; the factor of the mode itself is not read."""
    random, x = np.random.default_rng(seed), build(drawn)
    for n, factor in enumerate(drawn.factors):
        other = random.integers(-3, 4, factor.shape).astype(float)
        choices = [factor, other, factor + 2 * other]
        for mode in range(x.ndim):
            first, second, both = (
                mttkrp(x, [*drawn.factors[:n], choice, *drawn.factors[n + 1 :]], mode)
                for choice in choices
            )
            np.testing.assert_array_equal(both, first if mode == n else first + 2 * second)


@fixture_is_for_all_examples
@given(nonzeros(), layouts, st.randoms(use_true_random=False))
def test_modes_may_be_permuted(drawn, layout, random):
    """Both results are within the bound of the exact one, so they agree within twice the bound."""
    permutation = list(range(len(drawn.shape)))
    random.shuffle(permutation)
    permuted = FlycooTensor(
        drawn.coords[permutation],
        drawn.values,
        [drawn.shape[n] for n in permutation],
        layout=layout,
    )
    expected = compute(build(drawn), drawn.factors)
    found = compute(permuted, [drawn.factors[n] for n in permutation])
    for array, mode in zip(found, permutation, strict=True):
        assert (np.abs(array - expected[mode]) <= bound(drawn, drawn.factors, mode)).all()


@fixture_is_for_all_examples
@given(nonzeros(exact=True), seeds)
def test_rows_may_be_permuted(drawn, seed):
    """Renaming the indices of a mode moves the rows of the result."""
    random = np.random.default_rng(seed)
    names = [random.permutation(size) for size in drawn.shape]
    coords = np.stack([name[rows] for name, rows in zip(names, drawn.coords, strict=True)])
    renamed = FlycooTensor(coords, drawn.values, drawn.shape)
    factors = [np.empty_like(factor) for factor in drawn.factors]
    for renamed_factor, factor, name in zip(factors, drawn.factors, names, strict=True):
        renamed_factor[name] = factor
    expected = compute(build(drawn), drawn.factors)
    for found, array, name in zip(compute(renamed, factors), expected, names, strict=True):
        np.testing.assert_array_equal(found[name], array)


@fixture_is_for_all_examples
@given(nonzeros(), layouts)
def test_nonzeros_round_trip(drawn, layout):
    """Building a tensor from its own nonzeros, or from its COO, gives the same tensor."""
    x = build(drawn, layout)
    coords, values = x.nonzeros()
    again = FlycooTensor(coords, values, drawn.shape, layout=layout)
    through_coo = FlycooTensor.from_coo(x.to_coo(), layout=layout)
    for tensor in (again, through_coo):
        np.testing.assert_array_equal(tensor.nonzeros()[0], coords)
        assert tensor.nonzeros()[1].tobytes() == values.tobytes()
        assert tensor.norm() == x.norm()
