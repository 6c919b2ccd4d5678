"""Choosing a rank."""

import sys

import numpy as np
import pytest
import tensorly as tl

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    best_of,
    core_consistency,
    decomposition,
    select_rank,
)
from tensorly_flycoo.models import select_rank as _function
from tensorly_flycoo.testing import planted_tensor

module = sys.modules[_function.__module__]


@pytest.fixture(autouse=True)
def _backend():
    with tl.backend_context("flycoo"):
        yield


@pytest.fixture(scope="module")
def x():
    return planted_tensor((20, 30, 40), 2, 300, noise=0.1, random_state=0)[0]


@pytest.mark.parametrize("seed", range(2))
def test_a_planted_rank_is_found(seed):
    x, _ = planted_tensor((30, 40, 50), 3, 300, noise=0.2, random_state=seed)
    selection = select_rank(x, range(1, 6), n_runs=4, random_state=seed)
    assert selection.rank == 3
    assert selection.best.rank == 3


def test_the_scores(x):
    selection = select_rank(x, [3, 1, 2, 2], n_runs=3, random_state=5, n_iter_max=30)
    assert [score.rank for score in selection.scores] == [1, 2, 3]
    seed = select_rank_seed(5)
    for score, errors, model in zip(
        selection.scores, selection.errors, selection.models, strict=True
    ):
        starts = best_of(tl.decomposition.parafac, x, score.rank, 3, seed, n_iter_max=30)
        np.testing.assert_array_equal(errors, starts.final_errors)
        np.testing.assert_array_equal(model.factors[0], starts.best.factors[0])
        assert score.error == errors.min()
        assert score.match == starts.match
        assert score.core_consistency == core_consistency(x, model)
        assert 0 < score.heldout_loss < 1


def select_rank_seed(random_state):
    return np.random.RandomState(random_state).randint(2**31 - 1)


def test_held_out_entries_are_nonzeros_and_zeros():
    shape = (2**22, 2**22, 2**22)  # more cells than 64 bits count
    coords = np.random.RandomState(0).randint(2**22, size=(3, 200))
    x = FlycooTensor(coords, np.ones(200), shape)
    mask = module._hold_out(x, 0.1, np.random.RandomState(0))
    assert mask.shape == shape
    assert mask.fill_value == 1
    assert not mask.data.any()
    stored = {tuple(cell) for cell in x.nonzeros()[0].T.tolist()}
    cells = {tuple(cell) for cell in mask.coords.T.tolist()}
    assert len(cells & stored) == 20
    assert len(cells - stored) == 20
    for rows, known in zip(mask.coords, x.nonzeros()[0], strict=True):
        assert np.isin(rows, known).all()


@pytest.mark.parametrize("method", ["non_negative_parafac", decomposition.parafac])
def test_methods(x, method):
    selection = select_rank(x, [1, 2], 2, method, random_state=0, n_iter_max=20)
    assert selection.rank == 2


def test_nothing_held_out_suggests_nothing(x):
    options = {"n_iter_max": 3, "random_state": 0}
    selection = select_rank(x, [2], 2, "non_negative_parafac_hals", holdout=0, **options)
    assert selection.rank is None
    assert np.isnan(selection.scores[0].heldout_loss)
    with pytest.raises(ValueError, match=r"choose from \.models"):
        selection.best  # noqa: B018


def test_the_table(x, monkeypatch):
    selection = select_rank(x, [1, 2], 2, random_state=0, n_iter_max=20)
    table = selection.table
    assert list(table.index) == [1, 2]
    assert list(table.columns) == ["error", "heldout_loss", "core_consistency", "match"]
    assert repr(selection).splitlines()[2].endswith("<- suggested")
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert selection.table == [score._asdict() for score in selection.scores]


def test_the_picture(x, monkeypatch):
    selection = select_rank(x, [1, 2, 3], 2, random_state=0, n_iter_max=20)
    figure = selection.plot()
    assert len(figure.axes) == 4
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_xdata(), [1, 2, 3])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        selection.plot()


def test_labels_stay(x):
    labels = {name: np.arange(size) for name, size in zip("abc", x.shape, strict=True)}
    options = {"n_runs": 2, "random_state": 0, "n_iter_max": 20}
    selection = select_rank(LabelledTensor(x, labels), [1, 2], **options)
    assert isinstance(selection.best, LabelledCP)
    assert selection.scores == select_rank(x, [1, 2], **options).scores


def test_core_consistency_is_left_out_where_it_costs_too_much(x, monkeypatch):
    monkeypatch.setattr(module, "_MAX_CORE_OPERATIONS", x.nnz)
    scores = select_rank(x, [1, 2], 2, random_state=0, n_iter_max=5).scores
    assert [np.isnan(score.core_consistency) for score in scores] == [False, True]


def test_errors_are_not_returned_twice(x):
    options = {"n_runs": 2, "random_state": 0, "n_iter_max": 3}
    selection = select_rank(x, [1], return_errors=True, **options)
    assert selection.scores[0].heldout_loss == select_rank(x, [1], **options).scores[0].heldout_loss


def _return_no_cp(x, rank, init="random", random_state=None, return_errors=False):
    return (x, rank), [0.5]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"ranks": []}, ValueError, "ranks is empty"),
        ({"ranks": [1, 0]}, ValueError, "rank"),
        ({"ranks": [2.5]}, TypeError, "rank"),
        ({"holdout": 1}, ValueError, "holdout is 1, expected a number from 0 to below 1"),
        ({"holdout": "some"}, TypeError, "holdout is 'some'"),
        ({"method": "parafax"}, ValueError, "method is 'parafax', expected one of .*'parafac'"),
        ({"method": "non_negative_parafac_hals"}, ValueError, "has no mask.* pass holdout=0"),
        ({"x": np.ones((2, 3))}, TypeError, "expected a FlycooTensor"),
        ({"x": FlycooTensor([[], []], [], (2, 3))}, ValueError, "x has no nonzeros"),
        ({"n_runs": 0}, ValueError, "n_runs is 0"),
        ({"ranks": 3}, TypeError, r"ranks is 3, expected several integers, such as range\(1, 11"),
        ({"method": "tucker"}, ValueError, "method is 'tucker', expected one of .*'parafac'"),
        (
            {"method": _return_no_cp, "holdout": 0},
            TypeError,
            "_return_no_cp returns a tuple, expected a CP decomposition",
        ),
        ({"mask": "any"}, ValueError, "mask is given, but .* pass holdout=0"),
    ],
)
def test_errors(x, changes, error, message):
    arguments = {"x": x, "ranks": [1, 2], "n_runs": 2, **changes}
    with pytest.raises(error, match=message):
        select_rank(**arguments)
