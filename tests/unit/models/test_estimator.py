"""FlycooCP as scikit-learn uses it."""

import numpy as np
import pytest
import scipy.sparse
import sparse
import tensorly as tl
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from tensorly_flycoo import (
    FlycooCP,
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    best_of,
    cp_fit,
    fold_in,
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


def label(x):
    return LabelledTensor(x, {name: np.arange(n) for name, n in zip("abc", x.shape, strict=True)})


# Indexing a COO compiles for five seconds.
CONVERTERS = [lambda x: x, label, pytest.param(lambda x: x.to_coo(), marks=pytest.mark.slow)]


@pytest.mark.parametrize("convert", CONVERTERS)
def test_a_search_divides_the_first_mode(convert):
    x, _ = planted_tensor((30, 30, 30), 3, 300, noise=0.1, random_state=1)
    estimator = FlycooCP(n_starts=3, random_state=0)
    search = GridSearchCV(estimator, {"rank": [*range(1, 6)]}).fit(convert(x))
    assert search.best_params_ == {"rank": 3}
    assert search.best_score_ > 0.85
    alone = FlycooCP(3, n_starts=3, random_state=0).fit(x)
    assert search.score(convert(x)) == alone.score(x)  # fitted to all entries


def test_new_rows_are_scored_by_entries_that_they_are_not_found_from(x):
    estimator = FlycooCP(2, random_state=0).fit(x[:15])
    new = x[15:]
    score = estimator.score(new)
    is_held_out = estimator._find_mask(new, 0.2).todense() == 0
    dense = new.to_coo().todense()
    known = FlycooTensor.from_dense(np.where(is_held_out, 0, dense))
    rows = fold_in(estimator.cp_tensor_, known, 0, mask=~is_held_out)
    weights, factors = estimator.cp_tensor_
    predicted = tl.cp_to_tensor((weights, [rows, *factors[1:]]))
    error = np.linalg.norm((dense - predicted)[is_held_out]) / np.linalg.norm(dense[is_held_out])
    assert score == pytest.approx(1 - error)
    assert (dense[is_held_out] != 0).sum() >= round(0.2 * new.nnz)
    # With other values there, the same rows predict something else.
    other = FlycooTensor.from_dense(np.where(is_held_out, -dense, dense))
    assert estimator.score(other) < 0 < score


@pytest.mark.parametrize("missing", ["known", "all"])
def test_scores_of_new_ratings(missing):
    """Those of users whose rows a fifth less of their ratings gives: biases predict them."""
    rng = np.random.default_rng(0)
    cells = np.unique(np.stack([rng.integers(0, size, 900) for size in (30, 20, 5)]), axis=1)
    values = 3.5 + rng.normal(0, 0.5, 20)[cells[1]] + rng.normal(0, 0.1, cells.shape[1])
    x = FlycooTensor(cells, values, (30, 20, 5))
    x = label(x) if missing == "known" else label(x)._replace(unknown="all")
    options = {"biases": True, "l2_reg": 1.0}
    estimator = FlycooCP(
        1, method="observed_parafac", n_starts=1, n_iter_max=20, random_state=0, options=options
    )
    assert cross_val_score(estimator, x, cv=2).min() > 0.95


def test_models_whose_fit_holds_nothing_out_are_searched_by_rows(x):
    estimator = FlycooCP(method="non_negative_parafac_hals", n_iter_max=30, random_state=0)
    assert GridSearchCV(estimator, {"rank": [1, 2]}, cv=2).fit(x).best_params_ == {"rank": 2}


def test_factor_rows_are_features_of_a_classifier():
    """Folds of rows are right for what is not scored itself."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 2, 60)
    dense = rng.random((60, 20, 20)) < np.where(classes, 0.02, 0.3)[:, None, None]
    x = FlycooTensor.from_dense(dense.astype(float))
    scores = cross_val_score(
        make_pipeline(FlycooCP(1, random_state=0), LogisticRegression(C=100)), x, classes, cv=3
    )
    assert scores.min() > 0.9


@pytest.mark.parametrize("convert", [lambda x: x, lambda x: x.to_coo(), label])
def test_of_a_tensor_in_a_list_entries_are_held_out(convert):
    x, _ = planted_tensor((30, 30, 30), 3, 300, noise=0.1, random_state=1)
    estimator = FlycooCP(n_starts=3, random_state=0)
    search = GridSearchCV(estimator, {"rank": [*range(1, 9)]}, cv=[([0], [0])])
    best = search.fit([convert(x)]).best_estimator_
    assert search.best_params_ == {"rank": 3}
    mask = best._find_mask(x, 0.2).todense() == 0
    drawn = x.to_coo().todense()[mask]
    assert (drawn != 0).sum() >= round(0.2 * x.nnz)
    assert 0.8 * mask.sum() <= 2 * round(0.2 * x.nnz)  # a cell may be drawn twice
    predicted = tl.cp_to_tensor(best.cp_tensor_)[mask]
    error = np.linalg.norm(drawn - predicted) / np.linalg.norm(drawn)
    assert search.best_score_ == pytest.approx(1 - error)
    assert best.score(x) == search.best_score_  # it does not know them
    same = FlycooCP(3, n_starts=3, random_state=0, holdout=0.2).fit(x)
    assert same.score(x) == search.best_score_


def test_held_out_nonzeros_are_unknown_to_the_fit():
    """Their values are zeros to it at most: nothing of a diagonal tensor can be predicted."""
    x = FlycooTensor([np.arange(20)] * 3, np.linspace(10, 5, 20), (20, 20, 20))
    assert FlycooCP(16, holdout=0.2, random_state=0).fit(x).score(x) <= 1e-12


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "rank is None, expected an integer"),
        ({"rank": 2, "holdout": 1.0}, ValueError, "holdout is 1.0, expected a number between"),
        ({"rank": 2, "holdout": 0}, ValueError, "holdout is 0, expected a number between"),
        ({"rank": 2, "holdout": "0.2"}, TypeError, "holdout is '0.2', expected a number"),
        ({"rank": 2, "holdout": 0.2, "mask": 1}, ValueError, "holdout comes with a mask"),
        (
            {"rank": 2, "holdout": 0.2, "method": "non_negative_parafac_hals"},
            ValueError,
            r"method is 'non_negative_parafac_hals', expected one of \['parafac', .* to hold out",
        ),
    ],
)
def test_parameters_that_are_refused(x, options, error, message):
    with pytest.raises(error, match=message):
        FlycooCP(**options).fit(x)


def test_a_list_needs_a_method_that_can_hold_out(x):
    estimator = FlycooCP(2, method="non_negative_parafac_hals")
    with pytest.raises(ValueError, match=r"as for \[x\]; a search of x itself divides its first"):
        estimator.fit([x])


def test_pipelines_choose_the_output_before_a_fit(x):
    estimator = FlycooCP(2, n_iter_max=5, random_state=0)
    expected = clone(estimator).fit_transform(x)
    pipeline = clone(make_pipeline(estimator).set_output(transform="pandas"))
    names = ["flycoocp0", "flycoocp1"]
    labels = {"a": [f"row {n}" for n in range(20)], "b": range(20), "c": range(20)}
    for given, index in ((x, [*range(20)]), (LabelledTensor(x, labels), labels["a"])):
        table = pipeline.fit_transform(given)
        assert [*table.columns] == names == [*pipeline.get_feature_names_out()]
        assert [*table.index] == index
    plain = pipeline.fit_transform(x)
    np.testing.assert_array_equal(plain.to_numpy(), expected)
    table = pipeline.set_output(transform="polars").transform(x)
    assert table.columns == names
    np.testing.assert_array_equal(table.to_numpy(), expected)
    pipeline.set_output(transform=None)
    assert type(pipeline.set_output(transform="default").transform(x)) is np.ndarray
    with pytest.raises(ValueError, match="transform is 'arrow', expected one of"):
        FlycooCP(2).set_output(transform="arrow")


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


@pytest.mark.parametrize(
    "call",
    [
        lambda estimator, x: estimator.score(x),
        lambda estimator, x: estimator.transform(x),
        lambda estimator, x: estimator.get_feature_names_out(),
        lambda estimator, x: make_pipeline(estimator).get_feature_names_out(),
    ],
)
def test_what_needs_a_fit_says_so(call, x):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        call(FlycooCP(2), x)


class OfTables(FlycooCP):
    """A FlycooCP of tables, tensors of two modes, with which scikit-learn checks estimators."""

    def fit(self, x, y=None):
        return super().fit(as_tensor(x))

    def transform(self, x):
        return super().transform(as_tensor(x))

    def score(self, x, y=None):
        return super().score(as_tensor(x))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = tags.input_tags.sparse = True
        return tags


def as_tensor(table):
    if isinstance(table, FlycooTensor):
        return table
    if scipy.sparse.issparse(table):
        table = table.toarray()
    return FlycooTensor.from_dense(np.asarray(table))


def test_it_passes_the_checks_of_scikit_learn():
    """All of them, by tables: `FlycooCP` itself takes none, so that they would not run."""
    results = check_estimator(OfTables(1, n_starts=1, n_iter_max=2, random_state=0), on_skip=None)
    passed = {result["check_name"] for result in results if result["status"] == "passed"}
    skipped = {result["check_name"] for result in results} - passed
    assert len(passed) > 30
    assert skipped <= {"check_array_api_input"}  # which needs another setting


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
