"""Replicability, compared with a loop over tlviz's score on the dense tensor."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from tlviz import factor_tools

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    best_of,
    cp_fit,
    decomposition,
    replicability,
)

pytestmark = pytest.mark.usefixtures("flycoo_backend")


@pytest.mark.parametrize(("mode", "n_folds"), [(0, 2), (1, 3), (2, 4)])
def test_it_equals_a_dense_loop_scored_by_tlviz(x, mode, n_folds):
    options = {"n_iter_max": 200, "tol": 1e-12, "linesearch": False}
    found = replicability(x, 2, mode, n_folds, 2, random_state=0, keep_all=True, **options)
    dense, random = x.to_coo().todense(), np.random.RandomState(0)
    folds = np.array_split(random.permutation(x.shape[mode]), n_folds)
    models = []
    with tl.backend_context("numpy"):
        for fold, rows in zip(folds, found.rows, strict=True):
            assert sorted([*fold, *rows]) == list(range(x.shape[mode]))
            subset = np.delete(dense, fold, axis=mode)
            arguments = (tl.decomposition.parafac, subset, 2, 2, random)
            models.append(best_of(*arguments, **options).best)
    arguments = {"consider_weights": False, "skip_mode": mode}
    pairs = [(one, other) for n, one in enumerate(models) for other in models[n + 1 :]]
    expected = [factor_tools.factor_match_score(*pair, **arguments) for pair in pairs]
    np.testing.assert_allclose(found.scores, expected, atol=1e-6)


def test_planted_components_are_found_again_and_others_are_not(x):
    planted = replicability(x, 3, 2, random_state=0)
    assert planted.scores.shape == (10,)
    assert planted.scores.min() > 0.95
    assert repr(planted).startswith("<Replicability of rank 3: 5 folds, match 1.000, at least 0.99")
    assert replicability(x, 5, 2, random_state=0).scores.min() < 0.7


def test_the_models_are_those_of_the_subsets(x):
    found = replicability(x, 3, 1, 2, 3, random_state=1)
    assert len(found.models) == 2
    for model, rows in zip(found.models, found.rows, strict=True):
        assert cp_fit(x[:, rows], model).relative_error < 0.15


@pytest.mark.parametrize("broadcasts", [True, False], ids=["broadcast", "whole"])
@pytest.mark.parametrize("kind", [np.asarray, lambda mask: sparse.COO(mask, fill_value=1)])
@pytest.mark.parametrize("mode", [0, 1])
def test_each_subset_has_its_rows_of_the_mask(x, mode, kind, broadcasts):
    shape = (x.shape[0], 1, x.shape[2]) if broadcasts else x.shape
    mask = kind((np.random.default_rng(0).random(shape) < 0.9).astype(float))
    found = replicability(x, 2, mode, 2, 2, random_state=0, mask=mask, n_iter_max=20)
    random, function = np.random.RandomState(0), decomposition.parafac
    random.permutation(x.shape[mode])
    for model, rows in zip(found.models, found.rows, strict=True):
        places = (slice(None),) * mode + (rows,)
        own = mask if mask.shape[mode] == 1 else mask[places]
        expected = best_of(function, x[places], 2, 2, random, mask=own, n_iter_max=20).best
        np.testing.assert_array_equal(model.factors[2], expected.factors[2])


def test_the_same_random_state_gives_the_same_result(x):
    inputs = (x, x.to_coo(), x)
    states = (3, 3, np.random.RandomState(3))
    results = [
        replicability(tensor, 2, 0, 3, 2, random_state=state, n_iter_max=10)
        for tensor, state in zip(inputs, states, strict=True)
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result.scores, results[0].scores)
    other = replicability(x, 2, 0, 3, 2, random_state=4, n_iter_max=10)
    assert (other.scores != results[0].scores).any()


@pytest.mark.parametrize(
    "method",
    ["non_negative_parafac_hals", "generalized_parafac", decomposition.observed_parafac],
)
def test_other_methods(x, method):
    counts = FlycooTensor(x.nonzeros()[0], np.arange(x.nnz) % 5 + 1, x.shape)
    found = replicability(counts, 2, 0, 2, 2, method, random_state=0, n_iter_max=5)
    assert 0 <= found.scores[0] <= 1
    assert found.models[0].factors[0].shape == (10, 2)


def test_labels_stay(x):
    labels = {"user": [f"u{n}" for n in range(20)], "item": np.arange(30), "day": np.arange(40)}
    labelled = LabelledTensor(x, labels)
    found = replicability(labelled, 2, 0, 3, 2, random_state=0, n_iter_max=10)
    plain = replicability(x, 2, 0, 3, 2, random_state=0, n_iter_max=10)
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-12)
    for model, rows in zip(found.models, found.rows, strict=True):
        assert isinstance(model, LabelledCP)
        assert model.labels["user"].tolist() == [f"u{n}" for n in rows]
        assert model.ordered == ("item", "day")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": np.ones((5, 6))}, TypeError, "expected a FlycooTensor"),
        ({"x": FlycooTensor([[1]], [2.0], (5,))}, ValueError, "expected two modes or more"),
        ({"mode": 3}, ValueError, "mode is 3, expected 0 to 2"),
        ({"n_folds": 1}, ValueError, "n_folds is 1, expected at least 2"),
        ({"n_folds": 21}, ValueError, "n_folds is 21, expected at most 20, the size of mode 0"),
        ({"n_starts": 0}, ValueError, "n_starts is 0"),
        ({"method": "tucker"}, ValueError, "method is 'tucker', expected one of"),
        (
            {"method": decomposition.tucker, "rank": [2, 2, 2]},
            TypeError,
            "tucker returns no CP model, expected a CP decomposition",
        ),
        ({"x": FlycooTensor([[0], [2], [1]], [2.0], (20, 3, 4))}, ValueError, "no nonzeros"),
    ],
)
def test_errors(x, changes, error, message):
    with pytest.raises(error, match=message):
        replicability(**{"x": x, "rank": 2, "mode": 0, "n_folds": 2, "n_starts": 2, **changes})
