"""Uncertainty: equal to dense resampling, and intervals that hold planted numbers."""

from importlib import import_module

import numpy as np
import pytest
import sparse
import tensorly as tl
import uncertainty_study
from scipy.optimize import nnls
from scipy.stats import binom
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, LabelledCP, LabelledTensor, observed_parafac, uncertainty
from tensorly_flycoo.base.fit_record import attach
from tensorly_flycoo.decomposition import (
    constrained_parafac,
    coupled_parafac,
    generalized_parafac,
    non_negative_parafac,
    non_negative_parafac_hals,
    parafac,
    tucker,
)
from tensorly_flycoo.loop.observed_rows import scale_ridge
from tensorly_flycoo.models import Uncertainty, resampled_runs
from tensorly_flycoo.models.match import align
from tensorly_flycoo.models.resampled_runs import run_resampled

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
    monkeypatch.setattr(resampled_runs, "_RESAMPLED_COLUMNS", 6)  # three runs at once
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


def refit_densely(dense, weights, factors, mode, *, ridges, bias_modes=(), signs=(), sweeps=60):
    """Fit a model row by row to the cells with weights, by an independent solver.

    Rows of `mode` are not weighted; columns that are others' biases stay.
    """
    factors = [factor.copy() for factor in factors]
    free = np.array(bias_modes or (-1,) * factors[0].shape[1])
    for _ in range(sweeps):
        for n in range(3):
            others = [factors[m] for m in range(3) if m != n]
            design = np.einsum("ir,jr->ijr", *others).reshape(-1, factors[0].shape[1])
            data, counted = (np.moveaxis(of, n, 0) for of in (dense, weights))
            is_own = (free == -1) | (free == n)
            for row, (values, own) in enumerate(zip(data, counted, strict=True)):
                roots = np.sqrt(own.ravel() > 0 if n == mode else own.ravel())
                rest = values.ravel() - design[:, ~is_own] @ factors[n][row, ~is_own]
                left = np.concatenate([roots[:, None] * design, np.diag(np.sqrt(ridges))])[
                    :, is_own
                ]
                right = np.concatenate([roots * rest, np.zeros(len(ridges))])
                solver = nnls if n in signs else np.linalg.lstsq
                factors[n][row, is_own] = solver(left, right)[0]
    return factors


def check_fits(found, references, mode, part=0.02):
    """Compare the samples with models of the same weights: to a part of how far samples move."""
    reference = LabelledCP._from_parts(*found.cp_tensor, found.cp_tensor.labels)
    attach(reference, found.cp_tensor.flycoo)
    expected = [of[1:] for of in align([(None, own) for own in references], reference)]
    for n, own in enumerate(found.samples):
        if n != mode:
            spread = np.std([factors[n] for factors in expected], axis=0).max()
            np.testing.assert_allclose(
                own, [factors[n] for factors in expected], atol=part * spread
            )


def draw_again(size, n, seed=0, mode=0):
    draw = import_module("tensorly_flycoo.models.uncertainty")._draw_weights
    return [*draw(size, n, "bootstrap", np.random.RandomState(seed))]


MASKS = {"cells": SHAPE, "blocks": (14, 9, 1), "other blocks": (1, 9, 11)}


@pytest.mark.parametrize(
    ("kind", "non_negative"),
    [
        ("cells", True),
        ("blocks", False),
        ("other blocks", False),
        (None, True),
        pytest.param("cells", False, marks=pytest.mark.slow),
        pytest.param("blocks", True, marks=pytest.mark.slow),
        pytest.param("other blocks", True, marks=pytest.mark.slow),
        pytest.param(None, False, marks=pytest.mark.slow),
    ],
)
def test_fits_of_masked_models_leave_missing_cells_out(kind, non_negative):
    """Rows of mode 0 are drawn: its cells may be listed, or all alike."""
    random, shape = np.random.RandomState(1), MASKS.get(kind, (1, 1, 1))
    mask = (random.random_sample(shape) > 0.3).astype(float) if kind else np.ones(shape)
    dense, planted = make_noisy()
    if non_negative:
        planted = CPTensor((None, [random.gamma(1.0, 1.0, (size, 2)) for size in SHAPE]))
        dense = tl.cp_to_tensor(planted) * random.uniform(0.5, 1.5, SHAPE)
    x = FlycooTensor.from_dense(dense * mask)
    options = {"mask": np.broadcast_to(mask, shape)} if kind else {}
    decompose = non_negative_parafac if non_negative else parafac
    cp = decompose(x, 2, 1000, planted, tol=1e-11, **options)
    found = uncertainty(x, cp, 0, 4, random_state=0, n_iter_max=60)
    weights = draw_again(14, 4)
    signs = range(3) if non_negative else ()
    fits = []
    for own in weights:
        counted = np.ones(SHAPE) * mask * own[:, None, None]
        fits.append(refit_densely(dense, counted, cp.factors, 0, ridges=[0, 0], signs=signs))
        fits[-1][0] *= np.sqrt(own)[:, None]
    check_fits(found, fits, 0)
    ends = [lower[~np.isnan(lower)] for lower, _ in found.cp_tensor.intervals]
    assert min(lower.min(initial=1) for lower in ends) >= 0 or not non_negative


@pytest.mark.parametrize(
    ("mode", "biases"),
    [
        (None, True),
        (1, False),
        pytest.param(None, False, marks=pytest.mark.slow),
        pytest.param(1, True, marks=pytest.mark.slow),
    ],
)
def test_fits_of_observed_models_see_entries_alone(mode, biases):
    dense, planted = make_noisy(1)
    random = np.random.RandomState(1)
    if biases:
        dense += 3 + random.standard_normal((14, 1, 1)) + random.standard_normal((9, 1))
    is_known = random.random_sample(SHAPE) < 0.4
    coords = np.stack(is_known.nonzero())
    x = FlycooTensor(coords, dense[is_known], SHAPE)
    options = {"l2_reg": 1.0, "biases": biases, "tol": 1e-12, "n_iter_max": 1000}
    cp = observed_parafac(x, 2, init=planted, **options)
    found = uncertainty(x, cp, mode, 3, random_state=0, n_iter_max=200)
    ridges = [scale_ridge(1.0, cp.flycoo.scale, 3)] * 2 + [1.0] * 4 * biases
    modes, fits = list(cp.flycoo.bias_modes or (-1, -1)), []
    # A LabelledCP sorts components.
    order = [*np.argsort(modes, kind="stable")]
    order = [order.pop([modes[r] for r in order].index(of)) for of in
             found.cp_tensor.flycoo.bias_modes or (-1, -1)]  # fmt: skip
    for own in draw_again(x.nnz if mode is None else SHAPE[mode], 3):
        weights = np.zeros(SHAPE)
        weights[tuple(coords)] = own if mode is None else own[coords[mode]]
        factors = [factor.copy() for factor in cp.factors]
        if biases:
            factors[-1][:, -1] = np.average(dense, weights=weights)
        factors = refit_densely(
            dense, weights, factors, mode, ridges=ridges, bias_modes=cp.flycoo.bias_modes,
            sweeps=200,
        )  # fmt: skip
        if mode is not None:
            factors[mode] *= np.sqrt(own)[:, None]
        fits.append([factor[:, order] for factor in factors])
    check_fits(found, fits, mode)


@pytest.mark.parametrize("kind", ["l2_reg", "smoothness", "counts"])
def test_fits_equal_those_of_a_tensor_of_the_rows_drawn(kind):
    dense, planted = make_noisy()
    decompose, options = (
        parafac,
        {"l2_reg": {"l2_reg": 3.0}, "smoothness": {"smoothness": {2: 2.0}}},
    )
    options = options.get(kind, {}) | {"tol": 1e-13, "n_iter_max": 2000}
    if kind == "counts":
        x, planted = make_counts(shape=SHAPE)
        dense, decompose = x.to_coo().todense(), generalized_parafac
    cp = decompose(FlycooTensor.from_dense(dense), 2, init=planted, **options)
    found = uncertainty(FlycooTensor.from_dense(dense), cp, 0, 4, random_state=0, n_iter_max=300)
    fits = []
    for own in draw_again(14, 4):
        rows = np.repeat(np.arange(14), own.astype(int))
        start = CPTensor((None, [cp.factors[0][rows], *cp.factors[1:]]))
        fit = decompose(FlycooTensor.from_dense(dense[rows]), 2, init=start, **options)
        whole = np.zeros((14, 2))
        whole[rows] = fit.factors[0]
        fits.append([whole * np.sqrt(own)[:, None], *fit.factors[1:]])
    # Updates of counts stop when F changes by 1e-6.
    check_fits(found, fits, 0, part=0.1 if kind == "counts" else 0.02)


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
    monkeypatch.setattr(resampled_runs, "_find_limits", lambda path: path[-1])
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
        weights = np.stack([*module._draw_weights(14, n, "jackknife", random)])
        np.testing.assert_array_equal((weights == 0).sum(axis=0), 1)
        assert weights.shape == (num_groups, 14)
        np.testing.assert_allclose(weights.mean(axis=1), 1)
    drawn = np.stack([*module._draw_weights(14, 50, "bootstrap", random)])
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
        ({"mode": None}, ValueError, "mode is None, expected the mode whose .* model of parafac"),
        (
            {"mode": None, "cp_tensor": (None, [np.ones((size, 1)) for size in SHAPE])},
            ValueError,
            "x has values that are no counts of events: pass a mode",
        ),
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


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("mask of cells", marks=pytest.mark.slow),
        pytest.param("mask of blocks", marks=pytest.mark.slow),
        pytest.param("observed, entries", marks=pytest.mark.slow),
        "biases, entries",
    ],
)
def test_intervals_are_as_wide_as_of_another_bootstrap_and_hold_planted_numbers(kind, monkeypatch):
    """A small version of tests/support/uncertainty_study.py."""
    monkeypatch.setitem(uncertainty_study.LONG, "tol", 1e-8)
    tried = [uncertainty_study.try_kind(kind, seed, 20, seed == 0) for seed in range(4)]
    ratios, held = tried[0][0], np.concatenate([elements for _, elements, _ in tried])
    assert min(ratios) > 1 / 1.5
    assert max(ratios) < 1.5
    count = len(held) // 4  # as above
    assert binom.cdf(np.mean(held) * count, count, 0.85) > 1e-3
    assert binom.sf(np.mean(held) * count, count, 0.95) > 1e-3


def make_masked(**options):
    dense, planted = make_noisy()
    mask = sparse.COO([[0, 3], [1, 5], [0, 0]], [0.0, 0.0], (14, 9, 1), fill_value=1.0)
    x = FlycooTensor.from_dense(dense * mask.todense())
    return x, parafac(x, 2, 200, planted, mask=mask, **options)


def test_the_model_keeps_its_record():
    x, cp = make_masked(l2_reg=0.1)
    record = uncertainty(x, cp, 0, 5, random_state=0).cp_tensor.flycoo
    assert (record.method, record.l2_reg, len(record.intervals)) == ("parafac", 0.1, 3)
    np.testing.assert_array_equal(record.mask.todense(), cp.flycoo.mask.todense())


def test_unknown_cells_of_the_data_come_before_those_of_the_record(monkeypatch):
    x, cp = make_masked()
    labelled = LabelledTensor(x, [range(size) for size in SHAPE])
    pair = cp.weights, cp.factors
    options = {"mode": 0, "n": 5, "random_state": 0}
    expected = uncertainty(x, cp, **options).samples[1]
    assert (uncertainty(labelled, pair, **options).samples[1] != expected).any()
    monkeypatch.setattr(LabelledTensor, "unknown", cp.flycoo.mask, raising=False)
    np.testing.assert_array_equal(uncertainty(labelled, pair, **options).samples[1], expected)
    monkeypatch.setattr(LabelledTensor, "unknown", "all")
    drawn = uncertainty(labelled, pair, n=5, random_state=0)
    assert not np.isnan(drawn.samples[0]).any()


@pytest.mark.parametrize("shape", [SHAPE, (14, 9, 1), (14, 1, 1)])
def test_rows_of_which_nothing_is_known_have_no_intervals(shape):
    dense, planted = make_noisy()
    mask = np.ones(shape)
    mask[5] = 0
    cp = parafac(FlycooTensor.from_dense(dense * mask), 2, 100, planted, mask=mask)
    found = uncertainty(FlycooTensor.from_dense(dense * mask), cp, 1, 5, random_state=0)
    observed = observed_parafac(FlycooTensor.from_dense(dense * mask), 2, 20, l2_reg=0.1)
    again = uncertainty(FlycooTensor.from_dense(dense * mask), observed, n=3, random_state=0)
    for of in (found, again):
        is_nan = np.isnan(of.cp_tensor.intervals[0]).all(axis=(0, 2))
        assert np.flatnonzero(is_nan).tolist() == [5]
        assert not np.isnan(of.cp_tensor.intervals[2]).any()


def test_a_jackknife_of_entries():
    x, cp = make_masked()
    y = FlycooTensor(*(of[..., ::3] for of in x.nonzeros()), SHAPE)
    cp = observed_parafac(y, 2, init=cp, l2_reg=0.1)
    jackknife, drawn = (uncertainty(y, cp, n=40, method=way, random_state=0)
                        for way in ("jackknife", "bootstrap"))  # fmt: skip
    widths = [np.median(upper - lower) for of in (jackknife, drawn)
              for lower, upper in of.cp_tensor.intervals]  # fmt: skip
    np.testing.assert_allclose(widths[:3], widths[3:], rtol=0.3)


def test_a_sample_without_events():
    x = FlycooTensor([[0], [1], [2]], [1.0], (2, 2, 3))
    cp = generalized_parafac(x, 1, random_state=0)
    for mode in (None, 0):
        found = uncertainty(x, cp, mode, 10, random_state=0)
        assert 0 <= found.weights[0] < cp.weights < found.weights[1]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda x: parafac(x, 1), {"mode": 0}, "mode is 0, which has 1 row, expected"),
        (lambda x: parafac(x, 1), {"mode": 0, "method": "jackknife"}, "mode is 0, which has 1 row"),
        (
            lambda x: tucker(x, [1, 2, 2]),
            {},
            "is a TuckerTensor, a Tucker model, expected a model of kind CP",
        ),
        (
            lambda x: generalized_parafac(x, 1, 2, loss="bernoulli_odds", random_state=0),
            {},
            r"cp_tensor is a model of generalized_parafac with loss='bernoulli_odds', .*pass \(cp",
        ),
        (
            lambda x: observed_parafac(x, 1, 2, l2_reg=1.0, confidence=2 * x),
            {},
            "cp_tensor is a model of observed_parafac with a confidence",
        ),
        (
            lambda x: constrained_parafac(x, 1, 2, init="random", l1_reg=0.1),
            {},
            "cp_tensor is a model of constrained_parafac with l1_reg in mode 0",
        ),
        (
            lambda x: non_negative_parafac_hals(x, 1, 2, sparsity_coefficients=0.1),
            {},
            "cp_tensor is a model of non_negative_parafac_hals with sparsity in mode 0",
        ),
        (
            lambda x: non_negative_parafac_hals(x, 1, 2, smoothness={2: 1.0}),
            {},
            "with smoothness in mode 2 beside unknown cells or non-negative factors",
        ),
        (lambda x: parafac(x, 1, 2, smoothness={1: 1.0}), {}, "mode is 1, along which cp_tensor"),
        (
            lambda x: coupled_parafac([(x, ("a", "b", "c")), (np.ones((4, 2)), ("b", "d"))], 1),
            {},
            "cp_tensor is a CoupledCP, a coupled model, expected",
        ),
        (
            lambda x: observed_parafac(x, 1, 2, l2_reg=1.0),
            {"mode": None, "x": FlycooTensor([[0], [0], [0]], [1.0], (1, 4, 5))},
            "x has 1 nonzeros, expected two or more",
        ),
    ],
)
def test_models_that_are_not_fitted_again(make, options, message):
    random = np.random.RandomState(0)
    x = FlycooTensor.from_dense((random.random_sample((1, 4, 5)) > 0.3).astype(float))
    with pytest.raises(ValueError, match=message):
        uncertainty(**{"x": x, "cp_tensor": make(x), "mode": 1, **options})
