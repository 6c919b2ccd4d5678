"""The factor match score, compared with tlviz."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tlviz import factor_tools

from tensorly_flycoo import LabelledCP, factor_match_score
from tensorly_flycoo.models.match import find_matches


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


LABELS = {
    "user": [*"edcba"],
    "item": range(6),
    "day": np.arange("2024-01-01", "2024-01-08", dtype="M8[D]"),
}


def relabel(weights, factors, labels, orders):
    """Return a model with its rows, and their labels, in another order."""
    factors = [factor[order] for factor, order in zip(factors, orders, strict=True)]
    pairs = zip(labels.items(), orders, strict=True)
    moved = {name: np.array(of)[order] for (name, of), order in pairs}
    return LabelledCP((weights, factors), moved)


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_rows_are_compared_by_label(unit):
    random = np.random.RandomState(0)
    (weights1, factors1), (weights2, factors2) = (make_model(random, (5, 6, 7), 3) for _ in "12")
    orders = [random.permutation(size) for size in (5, 6, 7)]
    first = LabelledCP((weights1, factors1), LABELS)
    own = LABELS | {"day": LABELS["day"].astype(f"M8[{unit}]")}
    second = relabel(weights2, factors2, own, orders)
    expected = factor_tools.factor_match_score((weights1, factors1), (weights2, factors2))
    assert factor_match_score(first, second) == pytest.approx(expected, abs=1e-10)
    mixed = factor_match_score(first, (second.weights, second.factors))
    assert mixed != pytest.approx(expected, abs=1e-3)  # without labels rows are as they are


@pytest.mark.parametrize(
    ("labels", "sizes", "message"),
    [
        (
            {"person": [*"edcba"], "item": range(6), "day": range(7)},
            (5, 6, 7),
            r"cp_tensor2 has the modes \['person', 'item', 'day'\], expected \['user', 'item',",
        ),
        (
            LABELS | {"item": [0, 1, 2, 8, 9, 3]},
            (5, 6, 7),
            "cp_tensor2 lacks the label 4 of mode 'item', which cp_tensor1 has: make both",
        ),
        (
            LABELS | {"item": [*range(5)]},
            (5, 5, 7),
            "cp_tensor2 lacks the label 5 of mode 'item', which cp_tensor1 has: make both",
        ),
        (
            LABELS | {"user": [*"abcdef"]},
            (6, 6, 7),
            "cp_tensor2 has 6 labels in mode 'user', expected the 5 of cp_tensor1",
        ),
    ],
)
def test_other_labels_are_refused(labels, sizes, message):
    random = np.random.RandomState(0)
    first = LabelledCP(make_model(random, (5, 6, 7), 2), LABELS)
    second = LabelledCP(make_model(random, sizes, 2), labels)
    with pytest.raises(ValueError, match=message):
        factor_match_score(first, second)


@pytest.mark.parametrize("least", [0.5, 0.9, 0.95])
def test_matches_of_many_models_are_those_of_pairs(least):
    """Models of few components near each other, or with their norms or components exchanged."""
    random = np.random.RandomState(0)
    _, factors = make_model(random, (5, 6, 7), 3)
    models = [[f + size * random.standard_normal(f.shape) for f in factors]
              for size in (0.01, 0.1, 0.2, 0.3, 0.5, 3)]  # fmt: skip
    models.append([factor[:, ::-1] for factor in factors])
    models.append([1.02 * factor for factor in factors])
    pairs = itertools.product([(None, factors) for factors in models], repeat=2)
    scores = np.reshape([factor_match_score(*pair) for pair in pairs], (len(models), -1))
    matches = find_matches(models, least)
    np.testing.assert_array_equal(matches, scores >= least)
    assert 0 < matches.mean() < 1


def test_models_that_are_nan_match_nothing():
    factors = [np.ones((4, 1)), np.ones((3, 1))]
    matches = find_matches([factors, [factors[0] * np.nan, factors[1]], factors], 0.95)
    assert matches.tolist() == [[True, False, True], [False, False, False], [True, False, True]]
