"""Losses by name, sampled gradients and Adam."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import sparse
from scipy.special import gammaln

from tensorly_flycoo import FlycooTensor, Progress, cp_to_entries
from tensorly_flycoo.decomposition import adam, generalized_parafac
from tensorly_flycoo.decomposition.adam import (
    CellSampler,
    Samples,
    compute_gradients,
    measure_loss,
)
from tensorly_flycoo.loop.losses import LOSSES, find_loss
from tensorly_flycoo.loop.masks import ObservedData, find_missing

SHAPE = (6, 5, 4)
HUBER = (
    lambda x, m: np.sqrt(1 + (x - m) ** 2),
    lambda x, m: (m - x) / np.sqrt(1 + (x - m) ** 2),
    None,
)
EVERY_LOSS = pytest.mark.parametrize("loss", [*LOSSES, HUBER], ids=[*LOSSES, "custom"])


def draw_data(loss, seed=0, shape=SHAPE):
    """Draw a tensor with values that the loss takes, and its dense twin."""
    rng = np.random.default_rng(seed)
    dense = rng.poisson(0.6, shape).astype(float)
    if str(loss).startswith("bernoulli"):
        dense = np.minimum(dense, 1)
    coords = np.stack(np.nonzero(dense))
    return FlycooTensor(coords, dense[tuple(coords)], shape), dense


def draw_factors(seed=1, shape=SHAPE, rank=2):
    rng = np.random.default_rng(seed)
    return [0.2 + rng.random((size, rank)) for size in shape]


def list_all(x, dense):
    """Return samples that are each nonzero and each cell, once."""
    coords, values = x.nonzeros()
    cells = np.indices(dense.shape).reshape(dense.ndim, -1)
    return Samples(
        np.concatenate([coords, cells], axis=1),
        np.concatenate([values, np.zeros(dense.size)]),
        values.size,
        np.ones(values.size + dense.size),
    )


def measure_densely(loss, dense, factors):
    model = np.einsum("ir,jr,kr->ijk", *factors)
    return find_loss(loss).value(dense, model)


@EVERY_LOSS
def test_slopes_are_finite_differences(loss):
    chosen, rng = find_loss(loss), np.random.default_rng(0)
    x, m = rng.integers(0, 2, 100).astype(float), 0.1 + rng.random(100)
    difference = (chosen.value(x, m + 1e-6) - chosen.value(x, m - 1e-6)) / 2e-6
    np.testing.assert_allclose(chosen.slope(x, m), difference, rtol=1e-6, atol=1e-7)


@EVERY_LOSS
def test_gradients_are_finite_differences(loss):
    """With each nonzero and each cell as a sample."""
    (x, dense), factors = draw_data(loss), draw_factors()
    gradients = compute_gradients(find_loss(loss), list_all(x, dense), factors, [0, 1, 2])
    for mode, gradient in gradients.items():
        expected = np.empty_like(gradient)
        for place in np.ndindex(gradient.shape):
            losses = []
            for step in (1e-6, -1e-6):
                moved = [factor.copy() for factor in factors]
                moved[mode][place] += step
                losses.append(measure_densely(loss, dense, moved).sum())
            expected[place] = (losses[0] - losses[1]) / 2e-6
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


@EVERY_LOSS
def test_sampled_gradients_are_unbiased(loss):
    (x, dense), factors = draw_data(loss), draw_factors()
    exact = compute_gradients(find_loss(loss), list_all(x, dense), factors, [1])[1]
    sampler, random = CellSampler(ObservedData(x)), np.random.RandomState(0)
    draws = np.stack([
        compute_gradients(find_loss(loss), next(sampler.draw(random, 20, 30)), factors, [1])[1]
        for _ in range(2000)
    ])  # fmt: skip
    errors = np.abs(draws.mean(axis=0) - exact) / (draws.std(axis=0) / len(draws) ** 0.5)
    assert errors.max() < 4.5


@EVERY_LOSS
@pytest.mark.parametrize("has_mask", [False, True])
def test_losses_are_the_dense_formula(loss, has_mask):
    (x, dense), factors = draw_data(loss), draw_factors()
    cells, missing = measure_densely(loss, dense, factors), None
    if has_mask:
        coords = np.stack(np.unravel_index(np.arange(0, 120, 7), SHAPE))
        cells[tuple(coords)] = 0
        mask = sparse.COO(coords, np.zeros(coords.shape[1]), SHAPE, fill_value=1.0)
        missing = find_missing(x, mask)
    sampler = CellSampler(ObservedData(x, missing))
    value = measure_loss(find_loss(loss), sampler, factors)
    assert value == pytest.approx(cells.sum(), rel=1e-8)
    if loss == "poisson_count":
        return
    random, estimates = np.random.RandomState(0), []
    for _ in range(50):
        samples = next(sampler.draw(random, 30, 3000))
        estimates.append(measure_loss(find_loss(loss), sampler, factors, samples))
    standard_error = np.std(estimates) / len(estimates) ** 0.5
    assert abs(np.mean(estimates) - cells.sum()) < 4 * standard_error


def test_samples_beyond_2_to_63_cells():
    rng = np.random.default_rng(0)
    coords = rng.integers(0, 2**13, (6, 500))
    x = FlycooTensor(coords, np.ones(500), (2**13,) * 6)
    sampler = CellSampler(ObservedData(x))
    first, second = (next(sampler.draw(np.random.RandomState(3), 100, 5000)) for _ in range(2))
    assert (first.coords == second.coords).all()
    assert first.weights[:100].tolist() == [x.nnz / 100] * 100
    assert first.weights[100] == 2.0**78 / 5000
    assert np.abs(first.coords[:, 100:].mean(axis=1) / 2**12 - 1).max() < 0.05
    cp, losses = generalized_parafac(
        x, 1, 1, loss="gaussian", random_state=0, samples=(50, 50), return_errors=True
    )
    assert np.isfinite(losses[0])
    assert all(np.isfinite(factor).all() for factor in cp.factors)


@pytest.fixture
def short_epochs(monkeypatch):
    monkeypatch.setattr(adam, "_NUM_STEPS", 100)


@EVERY_LOSS
def test_adam_lowers_every_loss(loss, short_epochs):
    x, dense = draw_data(loss)
    options = {"loss": loss, "method": "adam", "random_state": 0, "samples": (20, 20)}
    cp, losses = generalized_parafac(x, 2, 8, return_errors=True, **options)
    assert (np.diff(losses) <= 0).all()
    assert losses[-1] < losses[0]
    factors = [cp.factors[0] * cp.weights, *cp.factors[1:]]
    assert losses[-1] == pytest.approx(measure_densely(loss, dense, factors).sum(), rel=1e-7)
    again, _ = generalized_parafac(x, 2, 8, return_errors=True, **options)
    assert all((a == b).all() for a, b in zip(cp.factors, again.factors, strict=True))
    assert all((f >= find_loss(loss).lower_bound).all() for f in cp.factors)


@pytest.mark.slow
def test_adam_comes_near_the_multiplicative_updates():
    x, _ = draw_data("poisson_count", shape=(12, 15, 10))
    exact, noisy = (
        generalized_parafac(
            x, 1, n_iter_max, random_state=0, method=method, tol=0, return_errors=True
        )[1][-1]
        for method, n_iter_max in (("mu", 300), ("adam", 5))
    )
    assert exact <= noisy < exact + 1e-3 * abs(exact)


def test_a_truncated_loss_is_the_likelihood_of_counts_above_0():
    loss, (x, m) = LOSSES["zero_truncated_poisson"], np.meshgrid(np.arange(1.0, 9), [0.01, 1, 50])
    log_chances = scipy.stats.poisson.logpmf(x, m) - np.log(scipy.stats.poisson.sf(0, m))
    np.testing.assert_allclose(loss.value(x, m), -log_chances - gammaln(x + 1), atol=1e-7)
    small = np.array([0, 1e-7, 1e-3, 1e3], "float32")
    assert np.isfinite(loss.value(small * 0 + 2, small)).all()
    np.testing.assert_allclose(loss.slope(small * 0 + 1, small), [0.5, 0.5, 0.5, 1], atol=1e-2)


def test_zeros_do_not_count_in_a_truncated_loss():
    (x, dense), factors = draw_data("zero_truncated_poisson"), draw_factors()
    zeros = np.stack(np.nonzero(dense == 0))
    mask = sparse.COO(zeros, np.zeros(zeros.shape[1]), SHAPE, fill_value=1.0)
    values = [
        measure_loss(LOSSES["zero_truncated_poisson"], CellSampler(data), factors)
        for data in (ObservedData(x), ObservedData(x, find_missing(x, mask)))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-14)
    # Nor are they visited: this tensor has 2**78 cells, and the loss is exact.
    coords = np.random.default_rng(0).integers(0, 2**13, (6, 500))
    x = FlycooTensor(coords, 1.0 + np.arange(500) % 3, (2**13,) * 6)
    options = {"random_state": 0, "samples": (50, 1), "return_errors": True}
    cp, losses = generalized_parafac(x, 1, 1, loss="zero_truncated_poisson", **options)
    coords, values = x.nonzeros()
    model = cp_to_entries((cp.weights, cp.factors), coords)
    expected = LOSSES["zero_truncated_poisson"].value(values, model).sum()
    assert losses[-1] == pytest.approx(expected, rel=1e-12)


def test_a_truncated_loss_finds_the_means_behind_false_zeros():
    rng, shape = np.random.default_rng(0), (12, 15, 10)
    factors = [rng.gamma(3.0, 0.5, (size, 1)) for size in shape]
    means = np.einsum("ir,jr,kr->ijk", *factors)
    dense = rng.poisson(means) * (rng.random(shape) < 0.4)
    x, options = FlycooTensor.from_dense(dense), {"random_state": 0, "return_errors": True}
    cp, losses = generalized_parafac(x, 1, 8, loss="zero_truncated_poisson", **options)
    found = np.einsum("r,ir,jr,kr->ijk", cp.weights, *cp.factors)
    assert np.linalg.norm(found - means) < 0.15 * np.linalg.norm(means)
    ends = np.cumsum(shape)

    def measure(numbers):  # by the logarithms of the factors' elements
        parts = np.split(np.exp(numbers)[:, None], ends[:-1])
        return measure_densely("zero_truncated_poisson", dense, parts).sum()

    start = np.log(np.concatenate(factors)[:, 0])
    least = scipy.optimize.minimize(measure, start, method="L-BFGS-B").fun
    assert least - 1e-6 * abs(least) < losses[-1] < least + 1e-3 * abs(least)


def test_a_resumed_run_gives_the_same_bits(short_epochs, tmp_path):
    x, _ = draw_data("bernoulli_odds")

    def run(n_iter_max, name):
        with Progress(n_iter_max, show=None, checkpoint=tmp_path / name, every=1) as progress:
            init = progress.resume(default="random")
            return generalized_parafac(
                x, 2, progress.n_iter_left, init, random_state=0, loss="bernoulli_odds", tol=0,
                callback=progress, samples=(10, 10),
            )  # fmt: skip

    run(2, "parts.npz")
    resumed, whole = run(5, "parts.npz"), run(5, "whole.npz")
    assert all((a == b).all() for a, b in zip(resumed.factors, whole.factors, strict=True))


def test_fixed_modes_and_masks(short_epochs):
    x, _ = draw_data("gaussian")
    factors = draw_factors()
    mask = sparse.COO([[0, 1], [2, 3], [1, 1]], np.zeros(2), SHAPE, fill_value=1.0)
    cp = generalized_parafac(
        x, 2, 3, (None, factors), loss="gaussian", fixed_modes=[1], mask=mask, random_state=0
    )
    assert (cp.factors[1] == factors[1]).all()
    assert (cp.factors[0] != factors[0]).any()


def test_a_loss_of_nan_is_refused():
    x, _ = draw_data("gaussian")
    for value, slope in [(HUBER[0], lambda x, m: m * np.nan), (lambda x, m: m * np.nan, HUBER[1])]:
        with pytest.raises(ValueError, match="loss='custom' is nan"):
            generalized_parafac(x, 2, 3, loss=(value, slope, None), random_state=0)


def test_samples_are_checked():
    x, _ = draw_data("gaussian")
    with pytest.raises(ValueError, match=r"samples is \(0, 3\), expected two positive"):
        generalized_parafac(x, 2, 3, loss="gaussian", samples=(0, 3))
