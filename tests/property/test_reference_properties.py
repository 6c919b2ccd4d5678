"""Laws that the executable specification obeys for every small tensor."""

import numpy as np
import reference
from hypothesis import example, given, settings
from hypothesis import strategies as st

EPS = np.finfo(np.float64).eps
few = settings(max_examples=60, deadline=None)
partition_counts = st.integers(1, 6)


@st.composite
def tensors(draw, min_ndim=1):
    """Draw (coords, values, shape, factors, rng): ndim 1 to 6, repeats and empty rows allowed."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=min_ndim, max_size=6)))
    places = st.tuples(*[st.integers(0, size - 1) for size in shape])
    nonzeros = draw(st.lists(places, max_size=16))
    coords = np.array(nonzeros, dtype=np.int64).reshape(-1, len(shape)).T
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.standard_normal(len(nonzeros))
    rank = draw(st.integers(1, 3))
    factors = [rng.standard_normal((size, rank)) for size in shape]
    return coords, values, shape, factors, rng


row_counts = st.lists(st.integers(0, 15), min_size=1, max_size=12)


@few
@given(row_counts, partition_counts)
@example([7, 7, 7], 2)
@example([1, 1, 1], 2)  # the mean, 1.5, is not attainable
def test_partition_load_is_bounded(row_nnz, num_partitions):
    row_nnz = np.array(row_nnz)
    rows = np.repeat(np.arange(len(row_nnz)), row_nnz)
    partition = reference.partition_mode(rows, len(row_nnz), num_partitions)
    assert partition.shape == row_nnz.shape
    assert ((partition >= 0) & (partition < num_partitions)).all()
    sizes = reference.partition_sizes(rows, partition, num_partitions)
    assert sizes.tolist() == [row_nnz[partition == z].sum() for z in range(num_partitions)]
    # Both are lower bounds for any partitioning. Always filling the emptiest partition exceeds the
    # mean by less than the last row of the fullest one.
    assert sizes.max() >= max(sizes.mean(), row_nnz.max())
    last = row_nnz[(partition == sizes.argmax()) & (row_nnz > 0)].min(initial=15)
    assert num_partitions * sizes.max() <= row_nnz.sum() + (num_partitions - 1) * last


@few
@given(tensors(), partition_counts)
def test_remap_ids_permute_and_keep_rows_and_partitions_together(tensor, num_partitions):
    coords, _, shape, _, _ = tensor
    ids = reference.remap_ids(coords, shape, num_partitions)
    nnz = coords.shape[1]
    for rows, num_rows, mode_ids in zip(coords, shape, ids, strict=True):
        assert sorted(mode_ids) == list(range(nnz))
        partition = reference.partition_mode(rows, num_rows, num_partitions)
        ordered = rows[np.argsort(mode_ids)]
        assert (np.diff(partition[ordered]) >= 0).all()
        # Nonzeros of one index are contiguous: the index changes once per index.
        assert np.count_nonzero(np.diff(ordered)) == max(len(set(rows)) - 1, 0)


@few
@given(tensors(), st.data())
def test_a_group_gives_the_mttkrp_of_its_modes(tensor, data):
    coords, values, shape, factors, _ = tensor
    first = data.draw(st.integers(0, len(shape) - 1))
    group = tuple(range(first, data.draw(st.integers(first, len(shape) - 1)) + 1))
    rows = reference.group_mttkrp(coords, values, shape, factors, group)
    assert rows.shape == (*(shape[n] for n in group), factors[0].shape[1])
    for mode in group:
        output = reference.contract_group(rows, factors, group, mode)
        plain = reference.mttkrp(coords, values, shape, factors, mode)
        bound = reference.mttkrp_error_bound(coords, values, shape, factors, mode, np.float64)
        assert (np.abs(output - plain) <= bound).all()


@few
@given(tensors(), partition_counts)
def test_all_modes_equal_the_plain_formula(tensor, num_partitions):
    coords, values, shape, factors, _ = tensor
    swept = reference.mttkrp_all_modes(coords, values, shape, factors, num_partitions)
    for mode, output in enumerate(swept):
        plain = reference.mttkrp(coords, values, shape, factors, mode)
        bound = reference.mttkrp_error_bound(coords, values, shape, factors, mode, np.float64)
        assert output.shape == plain.shape == (shape[mode], factors[0].shape[1])
        assert (np.abs(output - plain) <= bound).all()
        empty = np.setdiff1d(np.arange(shape[mode]), coords[mode])
        assert (output[empty] == 0).all()
        assert (plain[empty] == 0).all()


@few
@given(tensors(), partition_counts)
def test_a_sweep_restores_the_order_of_mode_0(tensor, num_partitions):
    coords, values, shape, factors, _ = tensor
    t_in = reference.make_elements(coords, values, shape, num_partitions)
    before = t_in.copy()
    _, after = reference.sweep_modes(t_in, shape, factors, num_partitions)
    assert np.array_equal(after, before)
    assert np.array_equal(after["alpha"][:, 0], np.arange(len(values)))


@few
@given(tensors(), partition_counts)
def test_order_of_nonzeros_does_not_matter(tensor, num_partitions):
    coords, values, shape, factors, rng = tensor
    shuffle = rng.permutation(len(values))
    shuffled = coords[:, shuffle], values[shuffle], shape, factors
    swept = reference.mttkrp_all_modes(*shuffled, num_partitions)
    for mode in range(len(shape)):
        bound = reference.mttkrp_error_bound(coords, values, shape, factors, mode, np.float64)
        expected = reference.mttkrp(coords, values, shape, factors, mode)
        assert (np.abs(reference.mttkrp(*shuffled, mode) - expected) <= bound).all()
        assert (np.abs(swept[mode] - expected) <= bound).all()


@few
@given(tensors(min_ndim=2))
def test_order_of_modes_does_not_matter(tensor):
    coords, values, shape, factors, rng = tensor
    axes = rng.permutation(len(shape))
    turned = coords[axes], values, tuple(shape[w] for w in axes), [factors[w] for w in axes]
    for mode, axis in enumerate(axes):
        bound = reference.mttkrp_error_bound(coords, values, shape, factors, axis, np.float64)
        expected = reference.mttkrp(coords, values, shape, factors, axis)
        assert (np.abs(reference.mttkrp(*turned, mode) - expected) <= bound).all()


@few
@given(tensors(), st.floats(-8, 8), st.floats(-8, 8))
def test_is_linear_in_the_values(tensor, a, b):
    coords, x, shape, factors, rng = tensor
    y = rng.standard_normal(len(x))
    for mode in range(len(shape)):

        def run(values, mode=mode):
            return reference.mttkrp(coords, values, shape, factors, mode)

        # a x + b y takes two more roundings, and so do the two results before the comparison.
        size = np.abs(a * x) + np.abs(b * y)
        bound = reference.mttkrp_error_bound(coords, size, shape, factors, mode, np.float64)
        slack = 2 * EPS * reference.mttkrp(coords, size, shape, [np.abs(f) for f in factors], mode)
        assert (np.abs(run(a * x + b * y) - (a * run(x) + b * run(y))) <= bound + slack).all()


@few
@given(tensors(min_ndim=2))
def test_is_linear_in_each_input_factor(tensor):
    coords, values, shape, factors, rng = tensor
    mode, w = rng.permutation(len(shape))[:2]
    other = rng.standard_normal(factors[w].shape)

    def replace(factor):
        return [factor if v == w else f for v, f in enumerate(factors)]

    size = replace(np.abs(factors[w]) + np.abs(other))
    bound = reference.mttkrp_error_bound(coords, values, shape, size, mode, np.float64)
    parts = [reference.mttkrp(coords, values, shape, replace(f), mode) for f in (factors[w], other)]
    whole = reference.mttkrp(coords, values, shape, replace(factors[w] + other), mode)
    assert (np.abs(whole - sum(parts)) <= bound).all()


def add_in_parts(places, depths, width):
    """Add the terms of a row that share a part; return the places of the parts, and their depths.

    The depth of a sum is the largest number of additions that one of its terms has gone through.
    """
    parts = {}
    for place, depth in zip(places, depths, strict=True):
        part = place // width
        parts[part] = max(parts[part], depth) + 1 if part in parts else depth
    return list(parts), list(parts.values())


def find_depth(start, num_terms, widths):
    """Add a row whose terms begin at a place as `count_additions` says; return its depth."""
    places, depths = range(start, start + num_terms), [0] * num_terms
    row = None
    for width in widths:
        places, depths = add_in_parts(places, depths, width)
        if depths:
            row = depths[0] if row is None else max(row, depths[0]) + 1
            places, depths = places[1:], depths[1:]
    for depth in depths:
        row = max(row, depth) + 1
    return row


@few
@given(
    st.integers(0, 100), st.integers(1, 300), st.lists(st.integers(1, 40), min_size=1, max_size=4)
)
def test_no_term_goes_through_more_additions(start, num_terms, widths):
    most = reference.count_additions(np.array([num_terms]), tuple(widths))
    assert find_depth(start, num_terms, widths) <= most[0]
