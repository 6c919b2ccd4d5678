"""The factor match score, compared with tlviz."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tlviz import factor_tools

from tensorly_flycoo.models import factor_match_score


def make_model(random, shape, rank, has_weights=True):
    weights = random.random_sample(rank) + 0.1 if has_weights else None
    return weights, [random.standard_normal((size, rank)) for size in shape]


@given(
    seed=st.integers(0, 2**16),
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    ranks=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    consider_weights=st.booleans(),
)
def test_the_score_equals_that_of_tlviz(seed, shape, ranks, consider_weights):
    random = np.random.RandomState(seed)
    models = make_model(random, shape, ranks[0]), make_model(random, shape, ranks[1], False)
    expected = factor_tools.factor_match_score(*models, consider_weights=consider_weights)
    assert abs(factor_match_score(*models, consider_weights=consider_weights) - expected) <= 1e-10


def test_the_order_and_the_signs_of_components_do_not_matter():
    weights, factors = make_model(np.random.RandomState(0), (5, 6, 7), 3)
    order, signs = [2, 0, 1], [1, -1, 1]
    other = weights[order], [factor[:, order] * signs for factor in factors]
    assert factor_match_score((weights, factors), other) == pytest.approx(1)


@pytest.mark.parametrize("weights", [([-2.0], [-1.0]), ([1.0], [-2.0]), ([-1.0], [2.0])])
def test_negative_weights(weights):
    factors = [np.ones((4, 1)), np.ones((3, 1))]
    models = [(np.array(own), factors) for own in weights]
    assert factor_match_score(*models) == pytest.approx(0.5)


def test_components_of_zeros():
    weights, factors = make_model(np.random.RandomState(0), (5, 6, 7), 2)
    factors[1][:, 0] = 0
    assert factor_match_score((weights, factors), (weights, factors)) == pytest.approx(0.5)


def test_shapes_must_be_the_same():
    random = np.random.RandomState(0)
    models = make_model(random, (5, 6), 2), make_model(random, (5, 7), 2)
    with pytest.raises(ValueError, match=r"cp_tensor2 has shape \(5, 7\), expected \(5, 6\)"):
        factor_match_score(*models)
