"""Starts, ranks, estimators and labelled models of counts."""

import numpy as np
import pandas as pd
import pytest
import sparse

from tensorly_flycoo import FlycooCP, LabelledCP, best_of, cp_fit, fold_in, select_rank
from tensorly_flycoo.decomposition import generalized_parafac


def planted_counts(rank, seed=0, shape=(12, 14, 16), scale=6000):
    random = np.random.RandomState(seed)
    factors = [random.gamma(0.2, 1.0, (size, rank)) for size in shape]
    means = np.einsum("ar,br,cr->abc", *(f / f.sum(axis=0) for f in factors)) * scale
    return sparse.COO(random.poisson(means).astype(float))


def test_best_of_has_the_least_loss():
    x = planted_counts(3)
    starts = best_of(generalized_parafac, x, 3, 4, random_state=0, loss="poisson_count")
    losses = [cp_fit(x, run, loss="poisson_count").loss for run in starts.runs]
    assert starts.best_number == int(np.argmin(losses))
    np.testing.assert_allclose(starts.final_errors, losses, rtol=1e-9)


@pytest.mark.parametrize(
    ("rank", "ranks"),  # each rank compiles kernels
    [(3, (2, 3, 4)), *[pytest.param(n, range(1, 6), marks=pytest.mark.slow) for n in (2, 3)]],
)
def test_the_rank_of_counts_is_found(rank, ranks):
    x = planted_counts(rank)
    options = {"n_iter_max": 100, "random_state": 0}
    selection = select_rank(x, ranks, 3, "generalized_parafac", 0.1, **options)
    assert selection.rank == rank
    losses = [score.heldout_loss for score in selection.scores]
    assert all(0 < loss < 1 for loss in losses)
    fit = cp_fit(x, selection.best, loss="poisson_count")
    assert selection.scores[ranks.index(rank)].error == pytest.approx(fit.loss)


def test_losses_that_have_no_measure_are_refused_early():
    x = planted_counts(2)
    with pytest.raises(ValueError, match=r"loss is 'gamma', expected one of .* pass holdout=0"):
        select_rank(x, [1], 1, "generalized_parafac", loss="gamma")
    estimator = FlycooCP(2, method="generalized_parafac", options={"loss": "gamma"})
    with pytest.raises(ValueError, match="loss is 'gamma', which has no score"):
        estimator.score(x)


def test_the_estimator_scores_by_deviance():
    x = planted_counts(3)
    estimator = FlycooCP(3, method="generalized_parafac", random_state=0).fit(x)
    expected = cp_fit(x, estimator.cp_tensor_, loss="poisson_count").explained
    assert estimator.score(x) == expected > 0.5


def test_a_labelled_model_transforms_counts():
    factors = [np.array([[1.0, 0.2], [0.5, 2.0]]), np.array([[3.0, 0.0], [1.0, 2.0], [0.0, 1.0]])]
    cp = LabelledCP((None, factors), {"user": ["ann", "bob"], "item": ["tea", "milk", "rum"]})
    new = pd.DataFrame({"user": ["cy"] * 3, "item": ["tea", "milk", "rum"], "n": [6, 4, 1]})
    rows = cp.transform(new, "user", "n", loss="poisson_count")
    x = sparse.COO([[0, 0, 0], [0, 1, 2]], [6.0, 4.0, 1.0], (1, 3))
    np.testing.assert_array_equal(rows, fold_in(cp, x, 0, loss="poisson_count"))
    assert (rows.to_numpy() > 0).all()
