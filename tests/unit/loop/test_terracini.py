"""The tangents of components, compared with Terracini's dense matrix and its pseudo-inverse."""

import numpy as np
import pytest
from dense_tangents import make_terracini, multiply_out
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorly_flycoo.loop.terracini import Projections, Tangents, count_tangents

EPS = np.finfo(float).eps


def draw_units(seed, shape, rank, likeness):
    """Draw factors whose columns have norm 1; the more `likeness`, the more they are alike."""
    random = np.random.RandomState(seed)
    factors = []
    for size in shape:
        common = likeness * random.standard_normal((size, 1))
        factor = random.standard_normal((size, rank)) + common
        factors.append(factor / np.linalg.norm(factor, axis=0))
    return factors


def project(units, change):
    """Return the products of a dense change of the data with the units of each mode."""
    projections = []
    for n, factor in enumerate(units):
        others = [other for m, other in enumerate(units) if m != n]
        unfolded = np.moveaxis(change, n, 0).reshape(len(factor), -1)
        pairs = zip(*(other.T for other in others), strict=True)
        design = np.stack([multiply_out(columns) for columns in pairs], axis=1)
        product = unfolded @ design
        projections.append(Projections(factor.T @ product, product.T @ product))
    return projections


def make_tangents(units):
    cosines = np.stack([factor.T @ factor for factor in units])
    return Tangents(cosines, [len(factor) for factor in units])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    shape=st.lists(st.integers(2, 7), min_size=2, max_size=4),
    rank=st.integers(1, 3),
    likeness=st.sampled_from([0, 1, 3]),
)
def test_conditions_and_changes_are_those_of_the_dense_matrix(seed, shape, rank, likeness):
    units = draw_units(seed, shape, rank, likeness)
    check(units, np.random.RandomState(seed).standard_normal(shape))


def test_more_tangents_than_have_all_their_eigenvalues_computed():
    units = draw_units(0, (12, 11, 10), 9, 0.5)
    assert count_tangents((12, 11, 10), 9) > 200
    check(units, np.random.RandomState(0).standard_normal((12, 11, 10)))


def test_factors_with_fewer_rows_than_columns():
    shape = (3, 4, 5)
    check(draw_units(1, shape, 4, 0), np.random.RandomState(1).standard_normal(shape))


def check(units, change):
    """Compare with the dense matrix, up to the rounding of its Gram matrix."""
    terracini = make_terracini(units)
    num_tangents = terracini.shape[1]
    rank = units[0].shape[1]
    singular = np.linalg.svd(terracini, compute_uv=False)
    is_determined = num_tangents <= len(terracini) and singular[-1] > 1e-5
    found = make_tangents(units)
    if not is_determined:
        assert found.condition > 1e4
        return
    inverse = np.linalg.pinv(terracini)
    condition = 1 / singular[-1]
    # The diagonal of a Gram matrix of n tangents is raised by 10 n eps, and it has n roundings.
    relative = 20 * num_tangents * EPS * condition**2
    assert abs(found.condition - condition) <= (relative + 1e-6) * condition  # Lanczos' tolerance
    blocks = np.split(inverse, rank)
    expected = [np.linalg.norm(block, 2) for block in blocks]
    np.testing.assert_allclose(found.conditions, expected, rtol=0, atol=relative * condition)
    changes = [np.linalg.norm(block @ change.ravel()) for block in blocks]
    bound = relative * condition * np.linalg.norm(change)
    of_change = found.find_changes(project(units, change))
    np.testing.assert_allclose(of_change, changes, rtol=0, atol=bound)


def test_components_that_are_not_determined():
    # A matrix has many decompositions of rank 2, but one of rank 1.
    assert np.isinf(make_tangents(draw_units(0, (6, 5), 2, 0)).condition)
    assert make_tangents(draw_units(0, (6, 5), 1, 0)).condition == pytest.approx(1)
    # Two equal components are one; the third is itself.
    units = [factor[:, [0, 0, 1]] for factor in draw_units(0, (6, 5, 4), 2, 0)]
    found = make_tangents(units)
    assert np.isinf(found.condition)
    assert np.isinf(found.conditions).tolist() == [True, True, False]
