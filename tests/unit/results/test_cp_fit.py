"""The fit of a model against the dense residual, and at held-out entries."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from scipy.special import xlogy
from scipy.stats import poisson
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooCP, FlycooTensor, LabelledTensor, core_consistency, cp_fit
from tensorly_flycoo.testing import random_tensor

SHAPE, RANK = (7, 8, 9), 3


def make_model(dtype="float64", seed=0):
    rng = np.random.RandomState(seed)
    factors = [rng.standard_normal((size, RANK)).astype(dtype) for size in SHAPE]
    return rng.standard_normal(RANK).astype(dtype), factors


def make_dense(model):
    weights, (a, b, c) = model
    return np.einsum("r,ir,jr,kr->ijk", 1.0 * weights, a, b, c)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_cells(dtype):
    x, model = random_tensor(SHAPE, 200, random_state=0, dtype=dtype), make_model(dtype)
    dense = x.to_coo().todense().astype(float)
    residual = np.linalg.norm(dense - make_dense(model))
    labelled = LabelledTensor(x, {str(n): np.arange(size) for n, size in enumerate(SHAPE)})
    for same in (x, x.to_coo(), labelled):
        found = cp_fit(same, model)
        bound = 100 * float(np.finfo(dtype).eps)
        assert found.relative_error == pytest.approx(residual / np.linalg.norm(dense), rel=bound)
        assert found.rmse == pytest.approx(residual / np.sqrt(dense.size), rel=bound)
        assert (found.fit, found.num_entries) == (1 - found.relative_error, dense.size)


def test_it_is_the_error_of_parafac():
    x = random_tensor(SHAPE, 200, random_state=0)
    with tl.backend_context("flycoo"):
        cp, errors = parafac(x, 2, n_iter_max=5, init="random", random_state=0, return_errors=True)
    assert cp_fit(x, cp).relative_error == pytest.approx(errors[-1], rel=1e-12)


def test_an_exact_model():
    model = (None, [np.eye(3), np.eye(3)])
    x = FlycooTensor([[0, 1, 2], [0, 1, 2]], [1.0, 1.0, 1.0], (3, 3))
    assert cp_fit(x, model).relative_error <= 1e-7
    values = np.array([1.0, 0.0])
    assert cp_fit(x, model, held_out=([[0, 0], [0, 1]], values)) == (1.0, 0.0, 0.0, 2)


def test_held_out_entries():
    x, model = random_tensor(SHAPE, 200, random_state=0), make_model()
    rng = np.random.RandomState(1)
    coords, values = np.stack([rng.randint(0, size, 40) for size in SHAPE]), rng.random_sample(40)
    residual = values - make_dense(model)[tuple(coords)]
    found = cp_fit(x, model, held_out=(coords, values))
    error = np.linalg.norm(residual) / np.linalg.norm(values)
    assert found == pytest.approx((1 - error, error, np.sqrt(np.mean(residual**2)), 40), rel=1e-12)


def make_mask(x):
    """Mask some stored and some other cells; return the mask and its dense twin."""
    stored = x.nonzeros()[0][:, ::20]
    coords = np.unique(np.concatenate([stored, [[0, 1], [0, 2], [0, 3]]], axis=1), axis=1)
    twin = np.ones(x.shape, bool)
    twin[tuple(coords)] = False
    return sparse.COO(coords, np.zeros(coords.shape[1]), x.shape, fill_value=1.0), twin


@pytest.mark.parametrize("scale", [1.0, 2.0**70])
def test_a_mask_leaves_the_missing_entries_out(scale):
    x, (weights, factors) = random_tensor(SHAPE, 200, random_state=0) * scale, make_model()
    model = scale * weights, factors
    mask, is_known = make_mask(x)
    data, of_model = x.to_coo().todense()[is_known], make_dense(model)[is_known]
    residual = np.linalg.norm(data - of_model)
    for given in (mask, is_known):
        found = cp_fit(x.to_coo(), model, mask=given)
        assert found.relative_error == pytest.approx(residual / np.linalg.norm(data), rel=1e-12)
        assert found.rmse == pytest.approx(residual / is_known.sum() ** 0.5, rel=1e-12)
        assert found.num_entries == is_known.sum()


def test_a_mask_leaves_nonzeros_out_of_a_model_of_observed_entries():
    x = random_tensor(SHAPE, 200, random_state=0)
    cp = FlycooCP(2, method="observed_parafac", n_iter_max=5, random_state=0).fit(x).cp_tensor_
    coords, values = x.nonzeros()
    mask, is_known = make_mask(x)
    own = is_known[tuple(coords)]
    expected = cp_fit(x, tuple(cp), held_out=(coords[:, own], values[own]))
    assert cp_fit(x, cp, mask=mask) == expected
    assert expected.num_entries < x.nnz


def test_a_model_of_observed_entries_is_compared_with_these():
    """By `cp_fit` and `FlycooCP.score`; `core_consistency` needs a model of all cells."""
    x = random_tensor((9, 8, 7), 60, random_state=0)
    estimator = FlycooCP(2, method="observed_parafac", random_state=0).fit(x)
    cp = estimator.cp_tensor_
    expected = cp_fit(x, tuple(cp), held_out=x.nonzeros())
    assert cp_fit(x, cp) == expected
    assert expected.num_entries == x.nnz
    assert estimator.score(x) == expected.fit
    with pytest.raises(ValueError, match="cells without a row are unknown, expected one of all"):
        core_consistency(x, cp)


def test_zeros():
    """Of held-out zeros there is no relative error, but a root mean square."""
    x, model = random_tensor(SHAPE, 200, random_state=0), make_model()
    found = cp_fit(x, model, held_out=([[0], [0], [0]], [0.0]))
    assert found.relative_error == np.inf
    assert found.rmse == pytest.approx(abs(make_dense(model)[0, 0, 0]))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"mask": np.zeros(SHAPE)}, ValueError, "marks all entries as missing"),
        ({"mask": 1, "held_out": 1}, ValueError, "both given"),
        ({"held_out": (np.zeros((3, 0), int), [])}, ValueError, "held_out has no entries"),
        ({"held_out": ([[0], [0], [0]], [1.0, 2.0])}, ValueError, r"shape \(2,\), expected \(1,\)"),
        ({"held_out": ([[0], [0], [9]], [1.0])}, ValueError, "coords"),
        ({"held_out": [[0], [0], [1]]}, ValueError, r"has 3 items, expected \(coords, values\)"),
    ],
)
def test_errors(options, error, match):
    with pytest.raises(error, match=match):
        cp_fit(random_tensor(SHAPE, 9, random_state=0), make_model(), **options)


def test_a_model_of_another_shape():
    x, held_out = random_tensor((7, 8, 8), 9, random_state=0), ([[0], [0], [0]], [1.0])
    with pytest.raises(ValueError, match=r"x has shape \(7, 8, 8\)"):
        cp_fit(x, make_model())
    with pytest.raises(ValueError, match=r"shape \(7, 8, 8\), expected \(7, 8, 9\)"):
        cp_fit(x, make_model(), held_out=held_out)


def count_problem():
    random = np.random.RandomState(0)
    factors = [random.gamma(1.0, 1.0, (size, 2)) for size in (4, 5, 6)]
    weights = np.array([0.5, 2.0])
    means = np.einsum("z,az,bz,cz->abc", weights, *factors)
    return random.poisson(means).astype(float), means, (weights, factors)


def check_counts(found, counts, means):
    assert found.log_likelihood == pytest.approx(poisson.logpmf(counts, means).sum())
    assert found.loss == pytest.approx((means - xlogy(counts, means)).sum())
    full, null = poisson.logpmf(counts, counts), poisson.logpmf(counts, counts.mean())
    deviance = 2 * (full.sum() - found.log_likelihood)
    assert found.deviance == pytest.approx(deviance)
    assert found.explained == pytest.approx(1 - deviance / (2 * (full - null).sum()))
    assert found.num_entries == counts.size


def test_the_fit_of_counts_equals_the_dense_formula():
    counts, means, cp = count_problem()
    x = sparse.COO(counts)
    check_counts(cp_fit(x, cp, loss="poisson_count"), counts, means)
    coords = np.argwhere(np.random.RandomState(1).random_sample(counts.shape) < 0.3).T
    held_out = coords, counts[tuple(coords)]
    found = cp_fit(x, cp, held_out=held_out, loss="poisson_count")
    check_counts(found, held_out[1], means[tuple(coords)])
    mask = np.ones(x.shape)
    mask[tuple(coords)] = 0
    others = np.nonzero(mask)
    check_counts(cp_fit(x, cp, mask=mask, loss="poisson_count"), counts[others], means[others])


def test_the_fit_of_counts_by_impossible_models():
    counts, _, (weights, factors) = count_problem()
    zero = cp_fit(sparse.COO(counts), (weights, [0 * f for f in factors]), loss="poisson_count")
    assert zero.loss == np.inf == -zero.log_likelihood
    with pytest.raises(ValueError, match="expected 0 or more, as of counts"):
        cp_fit(sparse.COO(counts), (-weights, factors), loss="poisson_count")
    with pytest.raises(ValueError, match="expected 0 or more, as of counts"):
        cp_fit(sparse.COO(-counts), (weights, factors), loss="poisson_count")
    with pytest.raises(ValueError, match="loss is 'poison', expected one of"):
        cp_fit(sparse.COO(counts), (weights, factors), loss="poison")


def test_the_fit_of_no_counts():
    empty = FlycooTensor(np.zeros((2, 0), int), [], (3, 4))
    found = cp_fit(empty, (None, [np.ones((3, 1)), np.ones((4, 1))]), loss="poisson_count")
    assert found[:3] == (12, -12, 24)
    assert np.isnan(found.explained)
