"""Replicability, compared with a loop over tlviz's score on the dense tensor."""

import numpy as np
import pytest
import scipy.sparse
import sparse
import tensorly as tl
from tlviz import factor_tools

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    RaggedTensor,
    best_of,
    cp_fit,
    decomposition,
    replicability,
)
from tensorly_flycoo.models import LabelledParafac2

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


def make_slices(heights, noise=0.02):
    """Return slices of a PARAFAC2 model of three components, and its C."""
    rng = np.random.default_rng(0)
    a, b = rng.random((len(heights), 3)) + 0.2, rng.standard_normal((3, 3))
    c, slices = rng.standard_normal((12, 3)), []
    for scales, height in zip(a, heights, strict=True):
        projection = np.linalg.qr(rng.standard_normal((height, 3)))[0]
        model = projection @ (b * scales) @ c.T
        slices.append(model + noise * rng.standard_normal(model.shape))
    return slices, c


SLICES, C = make_slices([6, 9, 7, 6, 12, 8, 10, 9, 7])
PARAFAC2 = {"mode": 0, "method": "parafac2", "random_state": 0, "n_iter_max": 20}


def as_csr(slices):
    return [scipy.sparse.csr_array(part) for part in slices]


@pytest.mark.parametrize("n_folds", [2, 3])
@pytest.mark.parametrize("kind", [as_csr, lambda slices: RaggedTensor(as_csr(slices))])
def test_slices_are_left_out_of_parafac2(kind, n_folds):
    """The models are those of the slices that stay, in a loop; tlviz compares their C."""
    found = replicability(kind(SLICES), 3, n_folds=n_folds, n_starts=2, **PARAFAC2)
    random, models = np.random.RandomState(0), []
    folds = np.array_split(random.permutation(len(SLICES)), n_folds)
    for fold, rows in zip(folds, found.rows, strict=True):
        assert sorted([*fold, *rows]) == list(range(len(SLICES)))
        kept = as_csr([SLICES[k] for k in rows])
        models.append(best_of("parafac2", kept, 3, 2, random, n_iter_max=20).best)
    for model, own in zip(models, found.models, strict=True):
        for expected, factor in zip(model.factors, own.factors, strict=True):
            np.testing.assert_allclose(factor, expected, atol=1e-6)
    pairs = [(one, other) for n, one in enumerate(models) for other in models[n + 1 :]]
    columns = [[(None, [model.factors[2]]) for model in pair] for pair in pairs]
    expected = [factor_tools.factor_match_score(*p, consider_weights=False) for p in columns]
    np.testing.assert_allclose(found.scores, expected, atol=1e-6)


@pytest.mark.slow
def test_planted_components_of_slices_are_found_again_and_others_are_not():
    slices = as_csr(make_slices(np.random.default_rng(1).integers(6, 15, 20))[0])
    options = PARAFAC2 | {"n_starts": 4, "n_iter_max": 100}
    scores = [replicability(slices, rank, **options).scores.min() for rank in (3, 5)]
    assert scores[0] > 0.99
    assert scores[1] < 0.9


def test_slices_of_very_many_sizes():
    """Where slices have empty rows in between."""
    slices = as_csr(make_slices(range(16, 60))[0])
    x = RaggedTensor(slices)
    assert (x.heights > x.row_counts).any()
    found = replicability(x, 3, n_folds=2, n_starts=1, **PARAFAC2)
    random = np.random.RandomState(0)
    random.permutation(len(slices))
    for model, rows in zip(found.models, found.rows, strict=True):
        kept = [slices[k] for k in rows]
        assert [len(part) for part in model.projections] == [part.shape[0] for part in kept]
        expected = best_of("parafac2", kept, 3, 1, random, n_iter_max=20).best
        np.testing.assert_allclose(model.factors[2], expected.factors[2], atol=1e-6)


@pytest.mark.parametrize("kind", ["list", "array", "coo"])
def test_each_subset_has_the_masks_of_its_slices(kind):
    slices, _ = make_slices([6] * 8)
    masks = (np.random.default_rng(0).random((8, 6, 12)) < 0.9).astype(float)
    given = {"list": [*masks], "array": masks, "coo": sparse.COO(masks, fill_value=1)}[kind]
    found = replicability(as_csr(slices), 3, n_folds=2, n_starts=1, mask=given, **PARAFAC2)
    random = np.random.RandomState(0)
    random.permutation(len(slices))
    for model, rows in zip(found.models, found.rows, strict=True):
        kept, own = as_csr([slices[k] for k in rows]), [masks[k] for k in rows]
        expected = best_of("parafac2", kept, 3, 1, random, mask=own, n_iter_max=20).best
        np.testing.assert_array_equal(model.factors[2], expected.factors[2])
    with pytest.raises(ValueError, match="mask has 7 slices, expected 8"):
        replicability(as_csr(slices), 3, mask=[*masks[1:]], **PARAFAC2)


@pytest.mark.parametrize("drop_empty", [False, True, None])
def test_labels_of_slices_stay(drop_empty):
    dense = np.stack(make_slices([6] * 8)[0])
    dense[::3, 4:] = 0
    labels = {"patient": [*"abcdefgh"], "visit": range(10, 16), "code": range(100, 112)}
    x = LabelledTensor(FlycooTensor.from_dense(dense), labels)
    ragged = x if drop_empty is None else RaggedTensor(x, drop_empty=drop_empty)
    options = PARAFAC2 | {"mode": "patient", "n_iter_max": 5}
    found = replicability(ragged, 3, n_folds=2, n_starts=1, **options)
    for model, rows in zip(found.models, found.rows, strict=True):
        assert isinstance(model, LabelledParafac2)
        patients = ["abcdefgh"[k] for k in rows]
        assert model.labels["patient"].tolist() == patients
        assert model.labels["code"].tolist() == [*range(100, 112)]
        counts = [4 if drop_empty and k % 3 == 0 else 6 for k in rows]
        visits = [range(10, 10 + count) for count in counts]
        pairs = zip(patients, visits, strict=True)
        assert model.labels["visit"].tolist() == [f"{of}: {n}" for of, own in pairs for n in own]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": 1}, "mode is 1, expected 0 for parafac2: slices can be left out"),
        ({"mode": 3}, "mode is 3, expected 0 to 2"),
        ({"mode": "visit"}, "mode is 1, expected 0 for parafac2"),
        ({"mode": "day"}, r"mode is 'day', expected one of \['slice', 'visit', 'column'\]"),
        ({"n_folds": 10}, "n_folds is 10, expected at most 9, the size of mode 0"),
    ],
)
def test_errors_of_slices(changes, message):
    x = RaggedTensor(as_csr(SLICES))
    x.labels = {"slice": np.arange(9), "visit": np.arange(12), "column": np.arange(12)}
    with pytest.raises(ValueError, match=message):
        replicability(x, 3, **PARAFAC2 | changes)


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
