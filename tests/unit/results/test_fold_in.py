"""Rows of new indices against parafac with fixed modes, and against dense solvers."""

import functools
import sys

import numpy as np
import pytest
import tensorly as tl
from scipy.optimize import nnls
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, LabelledCP, fold_in, observed_parafac
from tensorly_flycoo.decomposition import non_negative_parafac_hals
from tensorly_flycoo.ops.cp_entries import evaluate_model
from tensorly_flycoo.testing import planted_tensor, random_tensor

SHAPE, RANK, NUM_NEW = (9, 8, 10), 3, 15


def make_model(weights=True, dtype="float64", seed=0):
    rng = np.random.RandomState(seed)
    factors = [rng.standard_normal((size, RANK)).astype(dtype) for size in SHAPE]
    return (rng.random_sample(RANK).astype(dtype) + 0.5 if weights else None), factors


def make_new(mode, dtype="float64"):
    shape = [*SHAPE[:mode], NUM_NEW, *SHAPE[mode + 1 :]]
    return random_tensor(shape, 400, random_state=mode, dtype=dtype)


@pytest.mark.parametrize("mode", range(3))
def test_it_is_parafac_with_fixed_modes(mode):
    """TensorLy always updates the last mode, so the new mode is moved there."""
    x, (weights, factors) = make_new(mode), make_model()
    order = [n for n in range(3) if n != mode] + [mode]
    last = FlycooTensor(x.nonzeros()[0][order], x.nonzeros()[1], [x.shape[n] for n in order])
    start = [factors[n] for n in order[:2]] + [np.ones((NUM_NEW, RANK))]
    with tl.backend_context("flycoo"):
        fixed = parafac(last, RANK, n_iter_max=1, init=(None, start), fixed_modes=[0, 1])
    found = fold_in((weights, factors), x, mode) * weights
    expected = fixed.factors[2] * fixed.weights
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weights", [True, False])
def test_it_solves_least_squares(weights, dtype):
    weights, factors = make_model(weights, dtype)
    x = make_new(1, dtype)
    scale = 1 if weights is None else weights
    khatri_rao = np.einsum("ir,kr->ikr", factors[0] * scale, factors[2]).reshape(-1, RANK)
    dense = np.moveaxis(x.to_coo().todense(), 1, 0).reshape(NUM_NEW, -1)
    expected = np.linalg.lstsq(khatri_rao.astype(float), dense.T.astype(float), rcond=None)[0].T
    found = fold_in((weights, factors), x, 1)
    assert found.dtype == dtype
    assert np.abs(found - expected).max() <= 100 * np.finfo(dtype).eps * np.abs(expected).max()


@pytest.mark.parametrize("seed", [3, 8, 32, 50, 72, 86])
def test_proportional_components(seed):
    """The residual is as small as without the second component, which adds nothing."""
    rng = np.random.default_rng(seed)
    rank, noise = int(rng.integers(2, 6)), 1e-9 if seed % 4 > 1 else 0
    factors = [rng.standard_normal((size, rank)) for size in SHAPE]
    for factor in factors:
        factor[:, 1] = rng.random() * factor[:, 0] + noise * rng.standard_normal(len(factor))
    x = random_tensor((NUM_NEW, *SHAPE[1:]), 400, random_state=seed)
    found = fold_in((None, factors), x, 0)
    khatri_rao = np.einsum("jr,kr->jkr", *factors[1:]).reshape(-1, rank)
    dense = x.to_coo().todense().reshape(NUM_NEW, -1)
    others = np.delete(khatri_rao, 1, axis=1)
    least = dense - np.linalg.lstsq(others, dense.T, rcond=None)[0].T @ others.T
    assert np.linalg.norm(dense - found @ khatri_rao.T) <= (1 + 1e-6) * np.linalg.norm(least)


def test_non_negative_rows_solve_non_negative_least_squares():
    weights, factors = make_model()
    x = make_new(0)
    found = fold_in((weights, factors), x, 0, non_negative=True)
    khatri_rao = np.einsum("jr,kr->jkr", factors[1] * weights, factors[2]).reshape(-1, RANK)
    dense = x.to_coo().todense().reshape(NUM_NEW, -1)
    expected = np.array([nnls(khatri_rao, row)[0] for row in dense])
    assert (found >= 0).all()
    assert (found == 0).any()
    assert np.abs(found - expected).max() <= 1e-9 * expected.max()


def test_non_negative_rows_are_those_of_hals_with_fixed_modes():
    rng, x = np.random.RandomState(0), make_new(0)
    factors = [rng.random_sample((size, RANK)) for size in x.shape]
    options = {"n_iter_max": 1, "fixed_modes": [1, 2], "exact": True, "tol": 0}
    fixed = non_negative_parafac_hals(x, RANK, init=(None, factors), **options)
    found = fold_in((None, factors), x, 0, non_negative=True)
    assert np.abs(found - fixed.factors[0]).max() <= 1e-6 * found.max()


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", [0, pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("biases", [False, True], ids=["plain", "biases"])
def test_observed_rows_continue_a_model_of_observed_parafac(biases, mode, dtype):
    """Also those with fewer nonzeros than components, and of the model with other weights."""
    x = random_tensor(SHAPE, 150, random_state=1, dtype=dtype)
    fit = functools.partial(observed_parafac, x, RANK, n_iter_max=1000, tol=0, l2_reg=0.5)
    model = fit(random_state=0, biases=biases)
    kept = np.linalg.norm(model.factors[mode])
    labelled = LabelledCP(model, [np.arange(size) for size in SHAPE])
    options = {"observed": True, "l2_reg": 0.5}
    plain = [] if biases else [(tuple(model), options)]
    for cp_tensor, more in [(model, {}), (labelled, {}), *plain]:
        found = fold_in(cp_tensor, x, mode, **more)
        assert found.dtype == dtype
        _, factors = cp_tensor
        assert np.abs(found - factors[mode]).max() <= 1e-3 * np.abs(factors[mode]).max()
    assert kept == np.linalg.norm(model.factors[mode])
    zeros = fold_in(model, x, mode, observed=False)
    assert np.abs(zeros - model.factors[mode]).max() > 0.1 * np.abs(model.factors[mode]).max()


@pytest.mark.parametrize("shape", [(1, 6, 5), (6, 1, 5), (6, 5, 1), (1, 1, 9)], ids=str)
@pytest.mark.parametrize("biases", [False, True], ids=["plain", "biases"])
def test_modes_of_one_row_are_not_biases(biases, shape, tmp_path):
    """The rows of the data that the model was fitted to are the model's, in each mode."""
    rng = np.random.default_rng(0)
    coords = np.argwhere(rng.random(shape) < 0.8).T
    x = FlycooTensor(coords, 1 + rng.random(coords.shape[1]), shape)
    options = {"n_iter_max": 500, "tol": 0, "l2_reg": 0.2, "random_state": 0}
    model = observed_parafac(x, 1, biases=biases, **options)
    labelled = LabelledCP(model, [np.arange(size) for size in shape])
    labelled.save(tmp_path / "model.npz")
    for form in (model, labelled, LabelledCP.load(tmp_path / "model.npz")):
        weights, factors = form
        for mode, factor in enumerate(factors):
            found = fold_in(form, x, mode)
            assert np.abs(weights * (found - factor)).max() <= 1e-3 * np.abs(weights * factor).max()


def test_constant_columns_are_not_biases():
    """Ratings of a new shop, ten times those of the only one before, in a model without noise."""
    cells = np.indices((1, 3, 2)).reshape(3, -1)
    values = np.outer([1.0, 2.0, 3.0], [1.0, 2.0]).reshape(-1)
    for x in (
        FlycooTensor(cells, values, (1, 3, 2)),
        FlycooTensor(cells, 0 * values + 2, (1, 3, 2)),
    ):
        model = observed_parafac(x, 1, l2_reg=1e-6, random_state=0)
        for mode in range(3):
            found = fold_in(model, x * 10, mode)
            np.testing.assert_allclose(found, 10 * model.factors[mode], rtol=1e-4)


def test_a_grown_tensor_goes_on_from_the_last_model():
    x, _ = planted_tensor((30, 20, 40), 3, 900, noise=0.1, random_state=0)
    options = {"tol": 1e-6, "return_errors": True}
    with tl.backend_context("flycoo"):
        (weights, factors), _ = parafac(x[:, :, :36], 3, init="random", random_state=0, **options)
        rows = fold_in((weights, factors), x[:, :, 36:], 2)
        grown = [*factors[:2], np.concatenate([factors[2], rows])]
        _, errors = parafac(x, 3, init=(weights, grown), **options)
        _, anew = parafac(x, 3, init="random", random_state=0, **options)
    assert 2 * len(errors) < len(anew)
    assert errors[-1] < anew[-1] + 1e-4


def test_rows_do_not_depend_on_the_other_new_rows():
    """The ridge is at the scale of the model's data, not at that of the new ones."""
    x = random_tensor(SHAPE, 150, random_state=1)
    model = observed_parafac(x, RANK, l2_reg=0.5, random_state=0)
    new = make_new(0)
    together = fold_in(model, new, 0)
    coords, values = new.nonzeros()
    for row in range(3):
        own = coords[0] == row
        alone = FlycooTensor(
            np.append([0 * coords[0]], coords[1:], 0)[:, own], values[own], x.shape
        )
        np.testing.assert_allclose(fold_in(model, alone, 0)[0], together[row], rtol=1e-9)


def test_new_indices_without_nonzeros_have_the_other_biases():
    x = random_tensor(SHAPE, 150, random_state=1)
    model = observed_parafac(x, RANK, biases=True, random_state=0)
    none = FlycooTensor(np.zeros((3, 0), int), [], (2, *SHAPE[1:]))
    _, first, second = model.factors
    biases = first[:, None, RANK + 1] + second[:, RANK + 2] + second[:, -1]
    found = tl.cp_to_tensor((None, [fold_in(model, none, 0), first, second]))
    np.testing.assert_allclose(found, np.stack([biases, biases]), rtol=1e-12)


def test_observed_rows_of_exact_data():
    """Unlike least squares over all cells, they find the rows from some of the cells."""
    weights, factors = make_model()
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((NUM_NEW, RANK))
    coords = np.unique(rng.integers(0, [[NUM_NEW], [8], [10]], (3, 500)), axis=1)
    values = evaluate_model(coords, weights, [rows, *factors[1:]])
    x = FlycooTensor(coords, values, (NUM_NEW, 8, 10))
    found = fold_in((weights, factors), x, 0, observed=True, l2_reg=1e-12)
    assert np.abs(found - rows).max() < 1e-8
    none = FlycooTensor(np.zeros((3, 0), int), [], (NUM_NEW, 8, 10))
    assert not fold_in((weights, factors), none, 0, observed=True).any()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss": "poisson_count"}, 'loss="gaussian"'),
        ({"l2_reg": 0}, "l2_reg is 0, expected a number above 0"),
    ],
)
def test_bad_options_of_observed_rows(options, text):
    with pytest.raises(ValueError, match=text):
        fold_in(make_model(), make_new(0), 0, observed=True, **options)


def test_the_model_is_left_as_it_is():
    weights, factors = make_model()
    copies = [factor.copy() for factor in factors]
    fold_in((weights, factors), make_new(2), 2, non_negative=True)
    assert all(map(np.array_equal, factors, copies))


def test_one_mttkrp_whatever_the_number_of_rows(monkeypatch):
    calls, module = [], sys.modules["tensorly_flycoo.results.fold_in"]
    original = module.mttkrp
    monkeypatch.setattr(module, "mttkrp", lambda *a, **o: calls.append(1) or original(*a, **o))
    for non_negative in (False, True):
        fold_in(make_model(), make_new(0), 0, non_negative=non_negative)
    assert len(calls) == 2


def test_a_singular_model_gives_finite_rows():
    weights, factors = make_model()
    factors[0][:, 1] = factors[0][:, 0]
    factors[1][:, 1] = factors[1][:, 0]
    factors[2][:, 1] = 0
    for non_negative in (False, True):
        rows = fold_in((weights, factors), make_new(0), 0, non_negative=non_negative)
        assert np.isfinite(rows).all()


@pytest.mark.parametrize(
    ("x", "mode", "error", "match"),
    [
        (random_tensor((9, 8, 10), 9), 3, ValueError, "mode is 3, expected 0 to 2"),
        (random_tensor((9, 7, 10), 9), 0, ValueError, r"x_new has shape \(9, 7, 10\), expected"),
        (random_tensor((9, 8), 9), 2, ValueError, r"x_new has shape \(9, 8\), expected \(9,"),
        (random_tensor(SHAPE, 9, dtype="float32"), 0, TypeError, "dtype float64, expected float32"),
        (np.ones(SHAPE), 0, TypeError, "x is a ndarray"),
    ],
)
def test_errors(x, mode, error, match):
    with pytest.raises(error, match=match):
        fold_in(make_model(), x, mode)


def test_a_raw_coo():
    x = make_new(0)
    found = fold_in(make_model(), x.to_coo(), 0)
    assert np.array_equal(found, fold_in(make_model(), x, 0))


def count_model(weights, dtype="float64"):
    rng = np.random.RandomState(0)
    factors = [rng.gamma(0.5, 1.0, (size, RANK)).astype(dtype) for size in SHAPE]
    return (np.array([0.5, 2.0, 1.0], dtype) if weights else None), factors


def count_slices(mode, model, dtype="float64"):
    """Return counts whose means have new rows of `mode`, and the design of these rows."""
    weights, factors = model
    rng = np.random.RandomState(1)
    others = [f for n, f in enumerate(factors) if n != mode]
    design = np.einsum("ar,br->abr", *others) * (1 if weights is None else weights)
    rows = rng.gamma(1.0, 5.0, (NUM_NEW, RANK))
    counts = np.moveaxis(rng.poisson(np.einsum("abr,ir->iab", design, rows)), 0, mode)
    counts[(slice(None),) * mode + (3,)] = 0
    x = FlycooTensor(np.nonzero(counts), counts[np.nonzero(counts)].astype(dtype), counts.shape)
    return x, np.moveaxis(counts, mode, 0), design


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("mode", range(3))
def test_rows_of_counts_are_the_likeliest(mode, weights):
    model = count_model(weights)
    x, counts, design = count_slices(mode, model)
    rows = fold_in(model, x, mode, loss="poisson_count")
    means = np.einsum("abr,ir->iab", design, rows)
    ratios = np.divide(counts, means, out=np.zeros_like(means), where=counts > 0)
    sums = design.sum(axis=(0, 1))
    slopes = (sums - np.einsum("iab,abr->ir", ratios, design)) / sums
    assert (rows >= 0).all()
    assert not rows[3].any()
    filled = np.arange(NUM_NEW) != 3
    assert (slopes[filled] > -1e-4).all()  # no element would lower F by growing
    scale = rows.sum(axis=1, keepdims=True)
    assert np.abs(rows * slopes)[filled].max() < 1e-5 * scale.max()


def test_rows_of_counts_in_float32():
    x, _, _ = count_slices(0, count_model(True), "float32")
    found = fold_in(count_model(True, "float32"), x, 0, loss="poisson_count")
    exact = fold_in(count_model(True), x.astype("float64"), 0, loss="poisson_count")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, atol=3e-3 * exact.max())


def test_impossible_counts_are_left_out():
    weights, factors = count_model(True)
    factors[1][2] = 0
    x, _, _ = count_slices(0, (weights, factors))
    coords, values = x.nonzeros()
    unseen = FlycooTensor(
        np.concatenate([coords, [[0, 5], [2, 2], [1, 1]]], axis=1), [*values, 9.0, 9.0], x.shape
    )
    expected = fold_in((weights, factors), x, 0, loss="poisson_count")
    found = fold_in((weights, factors), unseen, 0, loss="poisson_count")
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    only = FlycooTensor([[0], [2], [1]], [9.0], x.shape)
    assert not fold_in((weights, factors), only, 0, loss="poisson_count").any()
    empty = FlycooTensor(np.zeros((3, 0), int), [], x.shape)
    assert not fold_in((weights, factors), empty, 0, loss="poisson_count").any()


def test_errors_of_counts():
    (weights, factors), options = count_model(True), {"loss": "poisson_count"}
    x, _, _ = count_slices(0, (weights, factors))
    with pytest.raises(ValueError, match="loss is 'poison', expected one of"):
        fold_in((weights, factors), x, 0, loss="poison")
    with pytest.raises(
        ValueError, match=r"the weights of the model has the element -2\.0, expected 0"
    ):
        fold_in((-weights, factors), x, 0, **options)
    with pytest.raises(ValueError, match=r"factors\[1\] of the model has the element -"):
        fold_in((weights, [factors[0], -factors[1], factors[2]]), x, 0, **options)
    with pytest.raises(ValueError, match="expected numbers of 0 or more"):
        fold_in((weights, factors), -x, 0, **options)
    with pytest.raises(ValueError, match=r"x_new has shape \(15, 8, 10\), expected \(9, 9, 10\)"):
        fold_in((weights, [factors[0], factors[0], factors[2]]), x, 0, **options)
