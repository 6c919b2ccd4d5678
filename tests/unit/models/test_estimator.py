"""FlycooCP as scikit-learn uses it."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from tensorly_flycoo import FlycooCP, LabelledCP, LabelledTensor, cp_fit
from tensorly_flycoo.decomposition import non_negative_parafac_hals, parafac
from tensorly_flycoo.testing import planted_tensor


@pytest.fixture(autouse=True)
def backend():
    with tl.backend_context("flycoo"):
        yield


@pytest.fixture
def x():
    return planted_tensor((20, 20, 20), 2, 300, random_state=0)[0]


def test_it_is_the_decomposition(x):
    estimator = FlycooCP(2, random_state=0, n_iter_max=5)
    assert estimator.fit(x) is estimator
    cp, errors = parafac(x, 2, 5, "random", random_state=0, return_errors=True)
    assert all(map(np.array_equal, estimator.cp_tensor_.factors, cp.factors))
    assert estimator.errors_ == errors
    assert estimator.score(x) == cp_fit(x, cp).fit
    assert np.array_equal(estimator.fit_transform(x).factors[0], cp.factors[0])


def test_other_decompositions_and_options(x):
    options = {"nn_modes": [0]}
    names = {"a": 20, "b": 20, "c": 20}
    labelled = LabelledTensor(x, {name: np.arange(size) for name, size in names.items()})
    estimator = FlycooCP(2, method="non_negative_parafac_hals", n_iter_max=3, random_state=0,
                         options=options)  # fmt: skip
    cp = estimator.fit_transform(labelled)
    assert isinstance(cp, LabelledCP)
    plain = non_negative_parafac_hals(labelled, 2, 3, "random", tol=1e-8, random_state=0, **options)
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


@pytest.mark.parametrize("convert", [lambda x: x, lambda x: x.to_coo()], ids=["ours", "raw"])
def test_a_search_for_the_rank_by_held_out_entries(x, convert):
    held_out = x.nonzeros()[0][:, ::10]
    mask = sparse.COO(held_out, np.zeros(held_out.shape[1]), x.shape, fill_value=1.0)
    estimator = FlycooCP(1, mask=mask, random_state=0)
    search = GridSearchCV(estimator, {"rank": [1, 2]}, cv=[([0], [0])]).fit([convert(x)])
    assert search.best_params_ == {"rank": 2}
    assert search.best_score_ == search.best_estimator_.score(x) > 0.9
