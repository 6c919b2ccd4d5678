"""How unlikely counts are under a model of their means."""

import numpy as np
import pytest
import sparse
from scipy.stats import poisson

from tensorly_flycoo import FlycooTensor, LabelledCP, LabelledTensor, anomaly_scores, cp_to_entries
from tensorly_flycoo.testing import random_tensor


@pytest.fixture
def cp():
    random = np.random.RandomState(0)
    return None, [random.gamma(1.0, 2.0, (size, 3)) for size in (5, 6, 7)]


@pytest.fixture
def entries(cp):
    random = np.random.RandomState(1)
    coords = np.stack([random.randint(size, size=200) for size in (5, 6, 7)])
    return coords, random.poisson(cp_to_entries(cp, coords))


def test_scores_are_scipys_in_the_middle(cp, entries):
    means, (_, counts) = cp_to_entries(cp, entries[0]), entries
    scores = anomaly_scores(entries, cp)
    np.testing.assert_allclose(10.0**-scores, poisson.sf(counts - 1, means), rtol=1e-9)


def test_chance_gives_scores_as_it_should(cp, entries):
    scores = anomaly_scores(entries, cp)
    assert (scores >= 0).all()
    assert 0 < (scores > 1).mean() < 0.15


def test_planted_anomalies_have_the_highest_scores(cp, entries):
    coords, counts = entries
    counts = counts.copy()
    counts[[3, 50]] = 50 * counts[[3, 50]] + 1000
    scores = anomaly_scores((coords, counts), cp)
    assert set(np.argsort(scores)[-2:]) == {3, 50}
    assert np.isfinite(scores).all()


def test_nonzeros_of_a_tensor(cp):
    x = random_tensor((5, 6, 7), 50, random_state=0)
    x = FlycooTensor(x.nonzeros()[0], np.ceil(20 * x.nonzeros()[1]), x.shape)
    expected = anomaly_scores(x.nonzeros(), cp)
    np.testing.assert_array_equal(anomaly_scores(x, cp), expected)
    np.testing.assert_array_equal(anomaly_scores(x.to_coo(), cp), expected)


def test_a_table_of_labelled_counts(cp):
    x = random_tensor((5, 6, 7), 50, random_state=0).map(np.ceil)
    labels = {"user": list("edcba"), "page": range(6), "day": np.arange(7).astype("M8[D]")}
    table = anomaly_scores(LabelledTensor(x, labels), cp)
    assert [*table] == ["user", "page", "day", "value", "score"]
    coords, values = x.nonzeros()
    assert table["user"].tolist() == ["edcba"[row] for row in coords[0]]
    np.testing.assert_array_equal(table["value"], values)
    np.testing.assert_array_equal(table["score"], anomaly_scores(x, cp))
    with pytest.raises(ValueError, match="score"):
        anomaly_scores(LabelledTensor(x, {"score": range(5), "b": range(6), "c": range(7)}), cp)


def test_impossible_certain_and_fractional_counts():
    cp = None, [np.array([[0.0], [2.0]])]
    scores = anomaly_scores(([[0, 0, 1, 1]], [1.0, 0.0, 0.0, 2.5]), cp)
    np.testing.assert_allclose(scores, [np.inf, 0, 0, -np.log10(poisson.sf(2, 2.0))])


@pytest.mark.parametrize(
    ("coords", "counts", "text"),
    [
        ([[0, 5]], [1, 2], "is 5"),
        ([[0, 1]], [1, -2], r"values\[1\] is -2.0, expected 0 or more"),
        ([[0, 1]], [1, np.nan], r"values\[1\] is nan"),
        ([[0, 2]], [1, 2], r"the model's values\[1\] is -1.0, expected 0 or more"),
        ([[0, 1]], [1], r"x_new\[1\] has shape \(1,\), expected \(2,\)"),
    ],
)
def test_wrong_entries_are_refused(coords, counts, text):
    with pytest.raises(ValueError, match=text):
        anomaly_scores((coords, counts), (None, [np.array([[1.0], [2.0], [-1.0]])]))


def test_wrong_arguments_are_refused(cp):
    with pytest.raises(TypeError, match="expected a FlycooTensor or a sparse"):
        anomaly_scores(np.ones((5, 6, 7)), cp)
    labelled = LabelledCP((None, [np.ones((2, 1))]), [["a", "b"]])
    x = LabelledTensor(FlycooTensor([[0]], [1.0], (2,)), [["a", "c"]])
    with pytest.raises(ValueError, match="labels"):
        anomaly_scores(x, labelled)
    assert anomaly_scores(sparse.COO([[0]], [1.0], (2,)), labelled).shape == (1,)
