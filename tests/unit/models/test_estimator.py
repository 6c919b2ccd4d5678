"""FlycooCP as scikit-learn uses it."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from tensorly_flycoo import (
    FlycooCP,
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    best_of,
    cp_fit,
)
from tensorly_flycoo.decomposition import non_negative_parafac_hals, parafac
from tensorly_flycoo.testing import planted_tensor


@pytest.fixture
def x():
    return planted_tensor((20, 20, 20), 2, 300, random_state=0)[0]


def test_it_is_the_best_of_several_random_starts(x):
    estimator = FlycooCP(2, random_state=0, n_iter_max=5)
    assert estimator.fit(x) is estimator
    with tl.backend_context("flycoo"):
        starts = best_of(parafac, x, 2, 5, random_state=0, n_iter_max=5)
    assert all(map(np.array_equal, estimator.cp_tensor_.factors, starts.best.factors))
    assert estimator.errors_ == starts.errors[starts.best_number]
    assert estimator.score(x) == cp_fit(x, starts.best).fit


@pytest.mark.parametrize("options", [{"n_starts": 1}, {"init": "svd"}])
def test_it_is_the_decomposition(x, options):
    estimator = FlycooCP(2, random_state=0, n_iter_max=5, **options).fit(x)
    init = options.get("init", "random")
    with tl.backend_context("flycoo"):
        options = {"random_state": 0, "return_errors": True, "linesearch": "nesterov"}
        cp, errors = parafac(x, 2, 5, init, **options)
    assert all(map(np.array_equal, estimator.cp_tensor_.factors, cp.factors))
    assert estimator.errors_ == errors


@pytest.mark.parametrize("init", ["svd", "random"])
def test_held_out_values_are_unknown_to_the_fit(init):
    """A diagonal tensor, of which nothing can be predicted."""
    x = FlycooTensor([np.arange(20)] * 3, np.linspace(10, 5, 20), (20, 20, 20))
    mask = sparse.COO([np.arange(0, 20, 5)] * 3, np.zeros(4), x.shape, fill_value=1.0)
    estimator = FlycooCP(16, mask=mask, init=init, random_state=0).fit(x)
    assert estimator.score(x) <= 1e-12
    labelled = LabelledTensor(x, {name: np.arange(20) for name in "abc"})
    assert isinstance(estimator.fit(labelled).cp_tensor_, LabelledCP)
    assert estimator.score(labelled) <= 1e-12
    with pytest.raises(ValueError, match="mask marks no entry as missing"):
        estimator.set_params(mask=np.ones(x.shape)).score(x)


def test_other_tensors_are_not_scored(x):
    estimator = FlycooCP(2, random_state=0).fit(x)
    for other in (x[:10], x * 2, planted_tensor((20, 20, 20), 2, 300, random_state=1)[0]):
        with pytest.raises(ValueError, match=r"expected .* the tensor of fit: folds of"):
            estimator.score(other)
    assert estimator.score(x.to_coo()) == estimator.score(x)


# Indexing a COO compiles for five seconds.
@pytest.mark.parametrize("is_coo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_folds_of_rows_give_a_warning(x, is_coo):
    search = GridSearchCV(FlycooCP(1), {"rank": [1, 2]}, cv=2)
    with pytest.warns(UserWarning, match="folds of rows cannot judge a model of other rows"):
        search.fit(x.to_coo() if is_coo else x)


@pytest.mark.parametrize(
    "method", ["parafac", "non_negative_parafac", "generalized_parafac", non_negative_parafac_hals]
)
def test_new_rows(x, method):
    estimator = FlycooCP(2, method=method, n_iter_max=300, random_state=0).fit(x)
    rows = estimator.transform(x[:7])
    assert rows.shape == (7, 2)
    np.testing.assert_allclose(rows, estimator.cp_tensor_.factors[0][:7], atol=0.05)


def test_other_decompositions_and_options(x):
    options = {"nn_modes": [0]}
    names = {"a": 20, "b": 20, "c": 20}
    labelled = LabelledTensor(x, {name: np.arange(size) for name, size in names.items()})
    estimator = FlycooCP(2, method="non_negative_parafac_hals", n_iter_max=3, random_state=0,
                         options=options)  # fmt: skip
    cp = estimator.set_params(n_starts=1).fit(labelled).cp_tensor_
    assert isinstance(cp, LabelledCP)
    settings = {"tol": 1e-8, "random_state": 0, "linesearch": "nesterov", **options}
    with tl.backend_context("flycoo"):
        plain = non_negative_parafac_hals(labelled, 2, 3, "random", **settings)
    assert all(map(np.array_equal, cp.factors, plain.factors))
    cp = estimator.set_params(method=non_negative_parafac_hals).fit(labelled).cp_tensor_
    assert all(map(np.array_equal, cp.factors, plain.factors))
    for method in ("pca", "tucker"):
        with pytest.raises(ValueError, match=f"method is '{method}', expected one of"):
            FlycooCP(2, method=method).fit(x)


def test_parameters_and_clone(x):
    estimator = FlycooCP(2, tol=1e-3).fit(x)
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params()
    assert not hasattr(copy, "cp_tensor_")
    assert copy.set_params(rank=3).rank == 3
    assert "rank=3" in repr(copy)
    with pytest.raises(ValueError, match="has no parameter 'ranks'"):
        copy.set_params(ranks=3)


USUAL = pytest.mark.usual_limits("groups", "prefixes")  # which new processes have


@pytest.mark.parametrize(
    ("convert", "n_jobs"),
    [
        pytest.param(lambda x: x, None, id="ours"),
        pytest.param(lambda x: x.to_coo(), None, id="raw"),
        pytest.param(lambda x: x, 2, marks=[USUAL, pytest.mark.slow], id="ours, processes"),
        pytest.param(lambda x: x.to_coo(), 2, marks=USUAL, id="raw, processes"),
    ],
)
def test_a_search_for_the_rank_by_held_out_entries(x, convert, n_jobs):
    held_out = x.nonzeros()[0][:, ::10]
    mask = sparse.COO(held_out, np.zeros(held_out.shape[1]), x.shape, fill_value=1.0)
    estimator = FlycooCP(1, mask=mask, random_state=0)
    search = GridSearchCV(estimator, {"rank": [1, 2]}, cv=[([0], [0])], n_jobs=n_jobs)
    search.fit([convert(x)])
    assert search.best_params_ == {"rank": 2}
    assert search.best_score_ == search.best_estimator_.score(x) > 0.9


def test_what_comes_with_a_fit_is_named():
    with pytest.raises(AttributeError, match="no attribute 'cp_tensor_': it comes with the first"):
        _ = FlycooCP(2).cp_tensor_


def test_scores_before_a_fit(x):
    with pytest.raises(AttributeError, match="comes with the first fit"):
        FlycooCP(2).score(x)


def test_a_fit_that_fails_leaves_the_model_as_it_was(x):
    model = FlycooCP(2, n_starts=1, n_iter_max=3, random_state=0).fit(x)
    score = model.score(x)
    with pytest.raises(ValueError, match="method is 'unknown'"):
        model.set_params(method="unknown").fit(x * 2)
    assert model.set_params(method="parafac").score(x) == score


def test_fit_transform(x):
    found = FlycooCP(2, random_state=0).fit_transform(x)
    np.testing.assert_array_equal(found, FlycooCP(2, random_state=0).fit(x).transform(x))


@pytest.mark.parametrize("convert", [lambda x: x, lambda x: x.to_coo()], ids=["ours", "raw"])
def test_a_search_for_the_ridge_of_ratings(convert):
    """The score is the fit at the held-out ratings alone: a mask has other cells too."""
    rng = np.random.default_rng(0)
    cells = np.unique(np.stack([rng.integers(0, size, 900) for size in (30, 20, 5)]), axis=1)
    values = 3.5 + rng.normal(0, 0.5, 30)[cells[0]] + rng.normal(0, 0.5, cells.shape[1])
    x, held_out = FlycooTensor(cells, values, (30, 20, 5)), cells[:, ::7]
    others = np.stack([rng.integers(0, size, 50) for size in x.shape])
    marked = np.unique(np.append(held_out, others, axis=1), axis=1)
    mask = sparse.COO(marked, np.zeros(marked.shape[1]), x.shape, fill_value=1.0)
    options = {"method": "observed_parafac", "mask": mask, "random_state": 0, "n_starts": 2}
    estimator = FlycooCP(2, n_iter_max=10, **options)
    grid = {"options": [{"biases": True, "l2_reg": ridge} for ridge in (1e-6, 3.0, 1e6)]}
    search = GridSearchCV(estimator, grid, cv=[([0], [0])]).fit([convert(x)])
    assert search.best_params_["options"]["l2_reg"] == 3.0
    is_marked = (cells[:, :, None] == marked[:, None]).all(axis=0).any(axis=1)
    predicted = tl.cp_to_tensor(search.best_estimator_.cp_tensor_)[tuple(cells[:, is_marked])]
    error = np.linalg.norm(values[is_marked] - predicted) / np.linalg.norm(values[is_marked])
    assert search.best_score_ == pytest.approx(1 - error)
    assert search.best_estimator_.transform(x).shape == (30, 6)
