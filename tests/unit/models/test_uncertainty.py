"""Uncertainty: equal to dense resampling, and intervals that hold planted numbers."""

from importlib import import_module

import numpy as np
import pytest
import tensorly as tl
from scipy.stats import binom
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, LabelledTensor, uncertainty
from tensorly_flycoo.decomposition import generalized_parafac, parafac
from tensorly_flycoo.models import Uncertainty, many_starts
from tensorly_flycoo.models.many_starts import run_resampled
from tensorly_flycoo.models.match import align

pytestmark = pytest.mark.usefixtures("flycoo_backend")

SHAPE = (14, 9, 11)


def make_noisy(seed=0, shape=SHAPE, noise=0.3, dtype=np.float64):
    """Make dense data of rank 2 with noise; return them and the planted model."""
    random = np.random.RandomState(seed)
    planted = [random.standard_normal((size, 2)) for size in shape]
    dense = np.einsum("ir,jr,kr->ijk", *planted)
    dense += noise * dense.std() * random.standard_normal(shape)
    return dense.astype(dtype), CPTensor((None, [factor.astype(dtype) for factor in planted]))


def make_counts(seed=0, shape=(12, 10, 8), mean=1.0):
    random = np.random.RandomState(seed)
    planted = [random.gamma(1.0, 1.0, (size, 2)) for size in shape]
    planted[0] *= mean / np.einsum("ir,jr,kr->ijk", *planted).mean()
    counts = random.poisson(np.einsum("ir,jr,kr->ijk", *planted))
    x = FlycooTensor(np.nonzero(counts), counts[np.nonzero(counts)], shape)
    return x, CPTensor((None, planted))


def fit_noisy(**options):
    dense, planted = make_noisy(**options)
    x = FlycooTensor.from_dense(dense)
    return x, parafac(x, 2, 500, planted, tol=1e-12)


@pytest.mark.parametrize("groups", [None, [(0, 1), (2,)]])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_an_iteration_equals_that_of_a_tensor_of_weighted_rows(mode, groups, monkeypatch):
    monkeypatch.setattr(many_starts, "_RESAMPLED_COLUMNS", 6)  # three runs at once
    dense, start = make_noisy()
    x = FlycooTensor(np.nonzero(dense), dense[np.nonzero(dense)], SHAPE, groups=groups)
    weights = np.random.RandomState(1).multinomial(SHAPE[mode], [1 / SHAPE[mode]] * SHAPE[mode], 5)
    found = run_resampled(x, start.factors, mode, weights.astype(float), 1)
    assert (weights == 0).any()
    assert len(found) == 5
    for own, cp in zip(weights, found, strict=True):
        roots = np.sqrt(own).reshape([-1 if n == mode else 1 for n in range(3)])
        factors = list(start.factors)
        factors[mode] = factors[mode] * np.sqrt(own)[:, None]
        y = FlycooTensor.from_dense(dense * roots)
        expected = parafac(y, 2, 1, CPTensor((None, factors)))
        for one, other in zip(cp.factors, expected.factors, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9 * abs(other).max())


def test_the_jackknife_equals_a_dense_loop_that_leaves_rows_out():
    x, cp = fit_noisy()
    found = uncertainty(x, cp, 0, method="jackknife", n_iter_max=12)
    dense = x.to_coo().todense()
    fits = []
    with tl.backend_context("numpy"):
        for row in range(SHAPE[0]):
            kept = np.delete(dense, row, axis=0)
            start = CPTensor((cp.weights, [np.delete(cp.factors[0], row, axis=0), *cp.factors[1:]]))
            fits.append(tl.decomposition.parafac(kept, 2, 2000, start, tol=1e-14))
    reference = CPTensor((None, found.cp_tensor.factors[1:]))
    for mode in (1, 2):
        models = [CPTensor((None, fit.factors[1:])) for fit in fits]
        own = [aligned[mode] for aligned in align(models, reference)]
        n = len(own)
        error = np.sqrt((n - 1) / n * ((own - np.mean(own, axis=0)) ** 2).sum(axis=0))
        lower, upper = found.cp_tensor.intervals[mode]
        np.testing.assert_allclose((upper - lower) / 2, 1.7709 * error, rtol=1e-3)
        np.testing.assert_allclose((upper + lower) / 2, found.cp_tensor.factors[mode], atol=1e-12)


def test_runs_together_are_extrapolated_to_where_they_go(monkeypatch):
    """Components that are alike: iterations alone are far from their limit."""
    random = np.random.RandomState(0)
    planted = [random.standard_normal((size, 1)) + 0.4 * random.standard_normal((size, 3))
               for size in (30, 20, 25)]  # fmt: skip
    dense = np.einsum("ir,jr,kr->ijk", *planted)
    dense += 0.2 * dense.std() * random.standard_normal(dense.shape)
    x = FlycooTensor.from_dense(dense)
    cp = parafac(x, 3, 3000, CPTensor((None, planted)), tol=1e-14, linesearch="nesterov")
    limit, found = (uncertainty(x, cp, 0, random_state=0, n_iter_max=n) for n in (100, 6))
    monkeypatch.setattr(many_starts, "_find_limits", lambda path: path[-1])
    plain = uncertainty(x, cp, 0, random_state=0, n_iter_max=6)
    far, near = (np.linalg.norm(of.samples[1] - limit.samples[1]) for of in (plain, found))
    spread = np.linalg.norm(limit.samples[1] - found.cp_tensor.factors[1])
    assert far > 0.2 * spread
    assert near < 0.4 * far


@pytest.mark.parametrize("kind", ["bootstrap", "jackknife", "counts"])
def test_intervals_hold_planted_numbers(kind):
    held = []
    for seed in range(4):
        if kind == "counts":
            x, planted = make_counts(seed, (20, 18, 16))
            cp, options = generalized_parafac(x, 2, 300, planted), {}
        else:
            dense, planted = make_noisy(seed, (30, 20, 15), noise=1.0)
            x, options = FlycooTensor.from_dense(dense), {"mode": 0, "method": kind}
            cp = parafac(x, 2, 300, planted)
        found = uncertainty(x, cp, random_state=seed, **options)
        (_, *truth), *_ = align([planted], found.cp_tensor)
        for own, (lower, upper) in list(zip(truth, found.cp_tensor.intervals, strict=True))[
            kind != "counts" :
        ]:
            held += [*((lower <= own) & (own <= upper)).flat]
    # Intervals of a tensor are not independent: they count as a quarter as many.
    count = len(held) // 4
    assert binom.cdf(np.mean(held) * count, count, 0.85) > 1e-3
    assert binom.sf(np.mean(held) * count, count, 0.95) > 1e-3


def test_components_are_brought_into_order_and_signs():
    _, cp = fit_noisy()
    other = [cp.factors[0][:, ::-1] * -2, cp.factors[1][:, ::-1] * -3, cp.factors[2][:, ::-1]]
    (weights, *factors), found = align([cp, (None, other)], cp)
    np.testing.assert_allclose(found[0], 6 * weights / cp.weights)
    for one, factor in zip(found[1:], factors, strict=True):
        np.testing.assert_allclose(one, factor, rtol=1e-12)


def test_labels():
    x, cp = fit_noisy()
    labels = {"user": range(14), "item": list("abcdefghi"), "day": range(11)}
    found = uncertainty(LabelledTensor(x, labels), cp, "user", 20, random_state=0)
    assert isinstance(found, Uncertainty)
    assert repr(found) == "<Uncertainty of rank 2: 90% intervals from 20 fits>"
    plain = uncertainty(x.to_coo(), cp, 0, 20, random_state=0)
    for pair, other in zip(found.cp_tensor.intervals, plain.cp_tensor.intervals, strict=True):
        np.testing.assert_array_equal(pair, other)
    assert np.isnan(found.cp_tensor.intervals[0]).all()
    assert (found.weights[0] < found.cp_tensor.weights).all()

    ranks = found.top_ranks("item", 1, 3)
    assert list(ranks) == list(found.cp_tensor.top("item", 3)[1])
    assert all(
        1 <= lower <= rank + 1 <= upper + 1 for rank, (lower, upper) in enumerate(ranks.values())
    )
    with pytest.raises(ValueError, match="mode is 'user', expected another"):
        found.top_ranks("user", 0)

    table = found.cp_tensor.to_tidy()
    assert [*table] == ["mode", "label", "component", "value", "lower", "upper"]
    shown = table[table["mode"] != "user"]
    assert ((shown["lower"] < shown["value"]) & (shown["value"] < shown["upper"])).all()
    assert table[table["mode"] == "user"]["lower"].isna().all()
    figure = found.cp_tensor.plot(4, lines=["user", "day"])
    *_, bars, line = figure.axes
    (whiskers,), (band,) = bars.collections, line.collections
    assert len(whiskers.get_segments()) == 4
    lower, upper = (of[:, 1] for of in found.cp_tensor.intervals[2])
    low, high = band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()
    np.testing.assert_allclose([low, high], [lower.min(), upper.max()])
    assert line.get_ylim()[0] <= low < high <= line.get_ylim()[1]


def test_the_intervals_of_counts_are_not_negative():
    x, planted = make_counts()
    cp = generalized_parafac(x, 2, 200, planted)
    found = uncertainty(x, cp, n=10, random_state=0)
    assert min(lower.min() for lower, _ in found.cp_tensor.intervals) >= 0
    again = uncertainty(x.to_coo(), cp, n=10, random_state=np.random.RandomState(0))
    np.testing.assert_array_equal(again.samples[1], found.samples[1])
    assert (uncertainty(x, cp, n=10, random_state=1).samples[1] != found.samples[1]).any()


def test_the_weights_of_rows_have_means_of_one():
    module, random = import_module("tensorly_flycoo.models.uncertainty"), np.random.RandomState(0)
    for n, num_groups in ((4, 4), (50, 14)):  # no more groups than rows
        weights = module._draw_row_weights(14, n, "jackknife", random)
        np.testing.assert_array_equal((weights == 0).sum(axis=0), 1)
        assert weights.shape == (num_groups, 14)
        np.testing.assert_allclose(weights.mean(axis=1), 1)
    drawn = module._draw_row_weights(14, 50, "bootstrap", random)
    np.testing.assert_array_equal(drawn.sum(axis=1), 14)
    assert set(np.unique(drawn)) >= {0, 1, 2, 3}


def test_float32():
    x, cp = fit_noisy()
    single = CPTensor((None, [factor.astype(np.float32) for factor in cp.factors]))
    found, exact = uncertainty(x.astype(np.float32), single, 0), uncertainty(x, cp, 0)
    assert found.cp_tensor.factors[1].dtype == np.float32
    assert found.samples[1].shape == exact.samples[1].shape


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": np.ones(SHAPE)}, TypeError, "expected a FlycooTensor"),
        ({"mode": 3}, ValueError, "mode is 3, expected 0 to 2"),
        ({"mode": None}, ValueError, "x has values that are no counts of events: pass a mode"),
        ({"mode": None, "method": "jackknife"}, ValueError, "mode is None, expected the mode"),
        ({"method": "bayes"}, ValueError, "method is 'bayes'"),
        ({"n": 1}, ValueError, "n is 1, expected at least 2"),
        ({"level": 1.0}, ValueError, "level is 1.0, expected a number between 0 and 1"),
        ({"n_iter_max": 0}, ValueError, "n_iter_max is 0"),
        ({"cp_tensor": (None, [np.ones((3, 1))] * 3)}, ValueError, "shape"),
    ],
)
def test_errors(changes, error, message):
    x, cp = fit_noisy()
    with pytest.raises(error, match=message):
        uncertainty(**{"x": x, "cp_tensor": cp, "mode": 0, **changes})
