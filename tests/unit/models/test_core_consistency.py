"""Core consistency, compared with tlviz on the dense tensor."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tlviz import model_evaluation

from tensorly_flycoo import FlycooTensor, LabelledTensor, core_consistency
from tensorly_flycoo.testing import planted_tensor, random_tensor

module = importlib.import_module("tensorly_flycoo.models.core_consistency")


def make_model(seed, shape, rank):
    random = np.random.RandomState(seed)
    return random.random_sample(rank) + 0.5, [random.standard_normal((n, rank)) for n in shape]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    shape=st.lists(st.integers(2, 7), min_size=2, max_size=4),
    rank=st.integers(1, 3),  # more columns take other kernels, which compile for seconds
    block_numbers=st.sampled_from([1, 50, 2**25]),
)
@pytest.mark.slow
def test_it_equals_that_of_tlviz(seed, shape, rank, block_numbers):
    x, model = random_tensor(shape, 40, random_state=seed), make_model(seed, shape, rank)
    dense = x.to_coo().todense()
    expected = model_evaluation.core_consistency(model, dense)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_NUMBERS", block_numbers)
        found = core_consistency(x, model)
    # Both divide by the factors' singular values.
    condition = np.prod([np.linalg.cond(factor) for factor in model[1]])
    assert abs(found - expected) <= 1e-10 * max(1, abs(expected)) * max(1, 1e-4 * condition)


def test_the_planted_model_has_100_and_one_with_more_components_does_not():
    x, factors = planted_tensor((20, 30, 40), 3, 300, random_state=0)
    assert core_consistency(x, (None, factors)) == pytest.approx(100, abs=1e-9)
    twice = [np.hstack([factor, factor[:, :1] + 0.1]) for factor in factors]
    assert core_consistency(x, (None, twice)) < 90


def test_a_component_of_zeros_counts_as_none():
    x, factors = planted_tensor((20, 30, 40), 3, 300, random_state=0)
    padded = [np.hstack([factor, np.zeros((len(factor), 1))]) for factor in factors]
    assert core_consistency(x, (None, padded)) == pytest.approx(75, abs=1e-9)


def test_other_inputs():
    x, model = random_tensor((5, 6, 7), 50, random_state=0), make_model(0, (5, 6, 7), 2)
    expected = core_consistency(x, model)
    assert core_consistency(x.to_coo(), model) == expected
    labels = {name: np.arange(size) for name, size in zip("abc", x.shape, strict=True)}
    assert core_consistency(LabelledTensor(x, labels), model) == expected
    single = (model[0].astype("f"), [factor.astype("f") for factor in model[1]])
    assert core_consistency(x.astype("float32"), single) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("x", "shape", "error", "message"),
    [
        (np.ones((5, 6)), (5, 6), TypeError, "expected a FlycooTensor"),
        (FlycooTensor([[1]], [2.0], (5,)), (5,), ValueError, "expected two modes or more"),
        (random_tensor((5, 6), 9), (5, 7), ValueError, r"x has shape \(5, 6\), expected \(5, 7\)"),
        (random_tensor((5, 6), 9, dtype="float32"), (5, 6), TypeError, "expected float32"),
    ],
)
def test_errors(x, shape, error, message):
    with pytest.raises(error, match=message):
        core_consistency(x, make_model(0, shape, 2))


def test_a_zero_model():
    x = random_tensor((4, 5, 6), 30, random_state=0)
    zero = (None, [np.zeros((size, 2)) for size in x.shape])
    assert core_consistency(x, zero) == 0


def test_modes_of_few_combinations_are_merged():
    shape, rank = (2, 2, 2, 40, 40), 4
    x, model = random_tensor(shape, 2000, random_state=0), make_model(0, shape, rank)
    assert module._choose_merged(x, rank) == [0, 1, 2]
    found = core_consistency(x, model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_choose_merged", lambda x, rank: [4])
        expected = core_consistency(x, model)
    condition = np.prod([np.linalg.cond(factor) for factor in model[1]])
    assert abs(found - expected) <= 1e-12 * condition * abs(expected)
