"""Laws of tensors in slabs, through the public API and of the edges, with small tiles."""

from itertools import pairwise

import numpy as np
import pytest
import reference
from error_bounds import bound_mttkrp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import dtypes, nonzeros, quick, seeds

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.format.tree import count_waiting, fold_tree
from tensorly_flycoo.ops.ttmc import find_nonempty_rows, multiply_nonempty_rows
from tensorly_flycoo.spread.building import count_rows, find_edges

layouts = st.sampled_from(["remap", "replicated", "indexed"])
nums_slabs = st.integers(2, 9)
fixture_is_for_all_examples = settings(
    quick, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

pytestmark = pytest.mark.usefixtures("small_tiles", "one_thread")


def compute(x, factors):
    return [mttkrp(x, factors, mode) for mode in range(x.ndim)]


def assert_same_bits(found, expected):
    assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]


def compare_edges(rows, num_slabs, edges):
    """Compare the slabs that have rows with those of a search for each edge."""
    before = [0, *np.cumsum(np.bincount(rows, minlength=8)).tolist()]
    expected = {0, 8}
    for slab in range(1, num_slabs):
        share = slab * len(rows) // num_slabs
        edge = before.index(min(before, key=lambda count: (abs(count - share), count)))
        expected |= {edge} if edge < before.index(len(rows)) else set()
    assert {*edges} == expected


@quick
@given(st.lists(st.integers(0, 7), max_size=60), st.integers(1, 100))
def test_edges_are_nearest_to_equal_shares(rows, num_slabs):
    """Each edge differs from its share of nonzeros by half of a row at most."""
    edges = find_edges(count_rows(np.array(rows, np.uint32), 8), num_slabs)
    compare_edges(rows, num_slabs, edges)
    num_slabs = max(1, min(num_slabs, len(rows)))
    assert (edges[0], edges[-1], len(edges)) == (0, 8, num_slabs + 1)
    assert list(edges) == sorted(edges)
    counts, nnz = np.bincount(rows, minlength=8), len(rows)
    for slab, edge in enumerate(edges[1:-1], start=1):
        share = slab * nnz // num_slabs
        assert abs(counts[:edge].sum() - share) == min(
            abs(counts[:row].sum() - share) for row in range(9)
        )
    if nnz:
        assert all(counts[a:b].sum() > 0 for a, b in pairwise(edges) if a < b)


@quick
@given(st.integers(1, 40))
def test_the_tree_adds_each_part_once_and_in_order(num_parts):
    most = 0

    def make():
        nonlocal waiting, most
        for part in range(num_parts):
            most = max(most, waiting)
            waiting += 1
            yield [part]

    def add(a, b):
        nonlocal waiting
        waiting -= 1
        return a + b

    waiting = 0
    assert fold_tree(make(), add) == list(range(num_parts))
    assert most == count_waiting(num_parts)


@fixture_is_for_all_examples
@given(nonzeros(), layouts, nums_slabs, dtypes, st.lists(st.integers(0, 3), max_size=4))
def test_the_oracle_agrees(drawn, layout, num_slabs, dtype, modes):
    """Modes may be computed in any order."""
    values = drawn.values.astype(dtype)
    factors = [factor.astype(dtype) for factor in drawn.factors]
    x = FlycooTensor(drawn.coords, values, drawn.shape, layout=layout, slabs=num_slabs)
    for mode in [n for n in modes if n < x.ndim] + list(range(x.ndim)):
        arguments = (drawn.coords, values, drawn.shape, factors, mode)
        limit = bound_mttkrp(x, drawn.coords, values, factors, mode)
        found = mttkrp(x, factors, mode)
        assert (np.abs(found - reference.mttkrp(*arguments)) <= limit).all()


@pytest.mark.usual_limits("prefixes")  # groups of modes depend on the number of values given
@fixture_is_for_all_examples
@given(nonzeros(unique=True), layouts, nums_slabs, seeds)
def test_bits_depend_on_nonzeros_and_slabs_only(drawn, layout, num_slabs, seed):
    """Neither layout, nor the order of nonzeros, nor explicit zeros change a bit."""
    order = np.random.default_rng(seed).permutation(drawn.nnz)
    options = {"shape": drawn.shape, "slabs": num_slabs}
    x = FlycooTensor(drawn.coords, drawn.values, **options)
    zeros = np.indices(drawn.shape).reshape(len(drawn.shape), -1)
    coords = np.concatenate([drawn.coords[:, order], zeros], axis=1)
    values = np.concatenate([drawn.values[order], np.zeros(zeros.shape[1])])
    y = FlycooTensor(coords, values, layout=layout, **options)
    assert_same_bits(compute(y, drawn.factors), compute(x, drawn.factors))
    assert y.norm() == x.norm()


@fixture_is_for_all_examples
@given(nonzeros(), layouts, nums_slabs, st.integers(-60, 60))
def test_scaling_by_a_power_of_two_is_exact(drawn, layout, num_slabs, exponent):
    scale = 2.0**exponent
    x = FlycooTensor(drawn.coords, drawn.values, drawn.shape, layout=layout, slabs=num_slabs)
    expected = [scale * array for array in compute(x, drawn.factors)]
    assert_same_bits(compute(scale * x, drawn.factors), expected)


@pytest.mark.usual_limits("prefixes", "slabs")  # records of slabs have none
@fixture_is_for_all_examples
@given(nonzeros(), layouts, nums_slabs)
def test_slabs_hold_the_same_tensor(drawn, layout, num_slabs):
    """Nonzeros, orders and empty rows are those of the tensor in one piece; so is the norm."""
    x = FlycooTensor(drawn.coords, drawn.values, drawn.shape, layout="replicated")
    y = FlycooTensor(drawn.coords, drawn.values, drawn.shape, layout=layout, slabs=num_slabs)
    compute(y, drawn.factors[: y.ndim - 1] + drawn.factors[y.ndim - 1 :])
    assert (y.nnz, y.slabs, y.layout) == (x.nnz, num_slabs, layout)
    for found, expected in zip(y.nonzeros(), x.nonzeros(), strict=True):
        np.testing.assert_array_equal(found, expected)
    with y._layout.hold_first_order(y._engine) as (records, places):
        records = records if places is None else records[places]
    with x._layout.hold_first_order(x._engine) as (expected, places):
        expected = expected if places is None else expected[places]
        np.testing.assert_array_equal(records, expected)
    for mode in range(x.ndim):
        found, expected = (z._layout.find_empty_rows(mode) for z in (y, x))
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    assert abs(y.norm() - x.norm()) <= (x.nnz + 2) * np.finfo(float).eps * x.norm()


@fixture_is_for_all_examples
@given(nonzeros(max_ndim=3, exact=True), layouts, nums_slabs)
def test_ttmc_of_integers_is_exact(drawn, layout, num_slabs):
    x = FlycooTensor(drawn.coords, drawn.values, drawn.shape)
    y = FlycooTensor(drawn.coords, drawn.values, drawn.shape, layout=layout, slabs=num_slabs)
    for mode in range(x.ndim):
        factors = {n: f for n, f in enumerate(drawn.factors) if n != mode}
        expected, numbers = multiply_nonempty_rows(x, mode, factors)
        found, own_numbers = multiply_nonempty_rows(y, mode, factors)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(own_numbers, numbers)
        slots, own_slots = (find_nonempty_rows(z, mode)[1] for z in (x, y))
        assert (slots is None) == (own_slots is None)
