"""Laws of tensors with groups of modes: any division, shape, layout and number of slabs."""

from itertools import pairwise

import numpy as np
import pytest
import reference
import reference_ratios
from error_bounds import bound_mttkrp, bound_ratios
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import dtypes, nonzeros, quick

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.base.checks import LAYOUTS
from tensorly_flycoo.format.groups import find_groups
from tensorly_flycoo.loop.whole_tensor import WholeTensor
from tensorly_flycoo.ops.mttkrp import mttkrp_of_ratios, mttkrps

slabs = st.integers(1, 5)
pytestmark = pytest.mark.usefixtures("small_tiles", "one_thread")

for_all = settings(quick, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def divided(draw, **options):
    """Draw nonzeros, and a division of their modes into groups."""
    drawn = draw(nonzeros(**options))
    ndim = len(drawn.shape)
    edges = [*sorted({0, *draw(st.sets(st.integers(0, ndim - 1)))}), ndim]
    return drawn, tuple(tuple(range(a, b)) for a, b in pairwise(edges))


@for_all
@given(divided(max_ndim=4), st.sampled_from(LAYOUTS), slabs, st.data())
def test_the_oracle_agrees(given_, layout, num_slabs, data):
    """Modes may be computed in any order, and in one sweep after the other."""
    check_products(given_, layout, num_slabs, "float64", data)


@pytest.mark.slow  # each number of modes compiles kernels in each dtype
@for_all
@given(divided(max_ndim=6), st.sampled_from(LAYOUTS), slabs, dtypes, st.data())
def test_the_oracle_agrees_for_up_to_six_modes(given_, layout, num_slabs, dtype, data):
    check_products(given_, layout, num_slabs, dtype, data)


def check_products(given_, layout, num_slabs, dtype, data):
    drawn, groups = given_
    values, factors = drawn.values.astype(dtype), [f.astype(dtype) for f in drawn.factors]
    options = {"layout": layout, "slabs": num_slabs, "groups": groups}
    x = FlycooTensor(drawn.coords, values, drawn.shape, **options)
    # Prefixes are numbered only if there are any.
    found, _ = find_groups(groups, x.shape, values.size, num_slabs)
    assert x.groups == (groups if x.nnz > 0 else found)
    whole, modes = WholeTensor(x), range(x.ndim)
    for mode in [*modes, *data.draw(st.lists(st.sampled_from(modes), max_size=6))]:
        arguments = (drawn.coords, values, drawn.shape, factors, mode)
        limit = bound_mttkrp(x, drawn.coords, values, factors, mode)
        found = whole.mttkrp(None, factors, mode)
        assert (np.abs(found - reference.mttkrp(*arguments)) <= limit).all()
        assert found.tobytes() == mttkrp(x, factors, mode).tobytes()
        factors[mode] = data.draw(st.sampled_from([factors[mode], -factors[mode]]))
    single = [mttkrp(x, factors, mode).tobytes() for mode in modes]
    assert [product.tobytes() for product in mttkrps(x, factors)] == single


@for_all
@given(divided(max_ndim=5, unique=True), slabs, st.integers(0, 2**32 - 1))
def test_bits_depend_on_nonzeros_groups_and_slabs_only(given_, num_slabs, seed):
    """Neither the layout nor the order of nonzeros changes a bit."""
    drawn, groups = given_
    order = np.random.default_rng(seed).permutation(drawn.nnz)
    options = {"shape": drawn.shape, "slabs": num_slabs, "groups": groups}
    tensors = [FlycooTensor(drawn.coords, drawn.values, **options)]
    for layout in LAYOUTS:
        coords, values = drawn.coords[:, order], drawn.values[order]
        tensors.append(FlycooTensor(coords, values, layout=layout, **options))
    for mode in range(len(drawn.shape)):
        first, *others = (mttkrp(x, drawn.factors, mode).tobytes() for x in tensors)
        assert others == [first] * len(LAYOUTS)


@for_all
@given(divided(max_ndim=5), st.sampled_from(LAYOUTS), slabs)
def test_nonzeros_orders_and_empty_rows_are_those_without_groups(given_, layout, num_slabs):
    drawn, groups = given_
    options = {"shape": drawn.shape, "layout": layout, "slabs": num_slabs}
    x = FlycooTensor(drawn.coords, drawn.values, groups=groups, **options)
    plain = FlycooTensor(drawn.coords, drawn.values, groups=None, **options)
    assert x.norm() == plain.norm()
    for found, expected in zip(x.nonzeros(), plain.nonzeros(), strict=True):
        np.testing.assert_array_equal(found, expected)
    for mode in range(x.ndim):
        found, expected = (z._layout.find_empty_rows(mode) for z in (x, plain))
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    coords = []
    for z in (x, plain):
        # Slabs have the order of mode 0 alone.
        layout = z._layout
        hold_order = layout.hold_first_order if z.slabs > 1 else layout.hold_last_order
        with hold_order(z._engine) as (records, places):
            records = records if places is None else records[places]
            coords.append(z._layout.record_format.coords(records))
    np.testing.assert_array_equal(*coords)


@for_all
@given(divided(min_ndim=3, max_ndim=3, unique=True), st.sampled_from(LAYOUTS), slabs)
def test_ratios(given_, layout, num_slabs):
    check_ratios(given_, layout, num_slabs, "float64")


@pytest.mark.slow
@for_all
@given(divided(max_ndim=5, unique=True), st.sampled_from(LAYOUTS), slabs, dtypes)
def test_ratios_of_up_to_five_modes(given_, layout, num_slabs, dtype):
    check_ratios(given_, layout, num_slabs, dtype)


def check_ratios(given_, layout, num_slabs, dtype):
    drawn, groups = given_
    values = (1 + np.abs(drawn.values)).astype(dtype)
    factors = [(0.1 + np.abs(factor)).astype(dtype) for factor in drawn.factors]
    options = {"layout": layout, "slabs": num_slabs, "groups": groups}
    x = FlycooTensor(drawn.coords, values, drawn.shape, **options)
    for mode in range(x.ndim):
        arguments = (drawn.coords, values, drawn.shape, factors, mode, 1e-30)
        expected, log_sum = reference_ratios.mttkrp_of_ratios(*arguments)
        bound, sum_bound = bound_ratios(x, drawn.coords, values, factors, mode, 1e-30)
        found, logs = mttkrp_of_ratios(x, factors, mode, 1e-30, wants_logs=True)
        assert (np.abs(found - expected) <= bound).all()
        assert abs(float(logs) - log_sum) <= sum_bound
