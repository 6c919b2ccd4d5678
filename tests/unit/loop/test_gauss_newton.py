"""`linesearch="gauss-newton"` and "auto": steps of a dense Jacobian, the rule, resumed runs."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from falling_errors import assert_never_rise

from tensorly_flycoo import FlycooTensor, Progress, mttkrps
from tensorly_flycoo.decomposition import non_negative_parafac_hals, parafac
from tensorly_flycoo.loop import acceleration, gauss_newton
from tensorly_flycoo.loop.gauss_newton import find_step
from tensorly_flycoo.testing import planted_tensor, random_tensor

RANK = 3

pytestmark = pytest.mark.usefixtures("flycoo_backend")


def make_jacobian(factors, modes):
    """Return the derivatives of all entries of a model by the factors of `modes`, row by row."""
    columns = []
    for n in modes:
        for index in np.ndindex(factors[n].shape):
            unit = np.zeros_like(factors[n])
            unit[index] = 1
            changed = [unit if m == n else factor for m, factor in enumerate(factors)]
            columns.append(tl.cp_to_tensor((None, changed)).ravel())
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("modes", [[0, 1, 2, 3], [0, 2, 3], [1, 3], [3]], ids=str)
@pytest.mark.parametrize("damping", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("ridge", [0, 5.0])
def test_a_step_is_that_of_a_dense_jacobian(modes, damping, ridge, monkeypatch):
    monkeypatch.setattr(gauss_newton, "_MAX_CG", 500)
    monkeypatch.setattr(gauss_newton, "_SHARE_LEFT", 1e-13)
    x = random_tensor((4, 5, 3, 6), 90, random_state=0)
    rng = np.random.default_rng(1)
    factors = [rng.standard_normal((size, RANK)) for size in x.shape]
    products = mttkrps(x, factors)
    grams = np.stack([factor.T @ factor for factor in factors])
    inner = {n: a.T @ b for n, (a, b) in enumerate(zip(factors, products, strict=True))}
    of_products, of_factors = find_step(grams, inner, modes, damping, ridge)
    found = [products[n] @ of_products[n] + factors[n] @ of_factors[n] - factors[n] for n in modes]
    jacobian = make_jacobian(factors, modes)
    residual = tl.cp_to_tensor((None, factors)) - x.to_coo().todense()
    curvature = jacobian.T @ jacobian + ridge * np.eye(jacobian.shape[1])
    damped = curvature + damping * np.diag(curvature.diagonal())
    slope = jacobian.T @ residual.ravel()
    slope += ridge * np.concatenate([factors[n].ravel() for n in modes])
    step = -np.linalg.solve(damped, slope)
    found = np.concatenate([part.ravel() for part in found])
    np.testing.assert_allclose(found, step, rtol=1e-8, atol=1e-9 * np.abs(step).max())


def test_without_conjugate_gradients_modes_do_not_see_each_other(monkeypatch):
    """The preconditioner alone: a damped iteration of Jacobi's method."""
    monkeypatch.setattr(gauss_newton, "_MAX_CG", 0)
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((size, RANK)) for size in (4, 5, 6)]
    grams = np.stack([factor.T @ factor for factor in factors])
    of_products, of_factors = find_step(grams, {}, range(3), 0.5)
    for n in range(3):
        product = np.delete(grams, n, axis=0).prod(axis=0)
        damping = 0.5 * np.diag(product.diagonal())
        np.testing.assert_allclose(of_products[n] @ (product + damping), np.eye(RANK), atol=1e-10)
        np.testing.assert_allclose(of_factors[n] @ (product + damping), damping, atol=1e-9)


@pytest.mark.filterwarnings("ignore:1 of 3 components is zero")
def test_a_component_that_is_zero_stays_so():
    x = random_tensor((8, 9, 10), 200, random_state=0)
    start = [np.random.default_rng(n).random((size, 3)) for n, size in enumerate(x.shape)]
    for factor in start:
        factor[:, 1] = 0
    options = {"init": (None, start), "n_iter_max": 12, "tol": 0, "return_errors": True}
    (_, factors), errors = parafac(x, 3, linesearch="gauss-newton", **options)
    assert all((factor[:, 1] == 0).all() for factor in factors)
    assert np.all(np.diff(errors) <= 1e-15)
    assert errors[-1] < errors[5]


def make_valley():
    """Components that are alike, for which ALS crawls."""
    rng = np.random.default_rng(0)
    bases = [rng.standard_normal((20, 1)) for _ in range(3)]
    factors = [base + 0.3 * rng.standard_normal((20, 4)) for base in bases]
    dense = np.einsum("ir,jr,kr->ijk", *factors)
    return sparse.COO(dense + 0.01 * dense.std() * rng.standard_normal(dense.shape))


@pytest.mark.parametrize("way", ["gauss-newton", "auto"])
def test_fewer_iterations_where_components_are_alike(way):
    counts = []
    for linesearch in (False, "nesterov", way):
        options = {"init": "random", "random_state": 1, "n_iter_max": 300, "tol": 0}
        _, errors = parafac(make_valley(), 4, linesearch=linesearch, return_errors=True, **options)
        counts.append(int(np.argmax(np.array(errors) < 0.0105)))
    assert 0 < 4 * counts[2] < counts[0] or counts[0] == 0 < counts[2]
    assert counts[2] < counts[1] or counts[1] == 0


OPTIONS = [
    {},
    {"normalize_factors": True},
    {"init": "svd", "fixed_modes": [0]},
    {"fixed_modes": [1]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ["gauss-newton", "auto"])
def test_errors_never_rise(options, seed, way):
    x = random_tensor((9, 40, 100), 2000, random_state=seed)
    settings = {"init": "random", "random_state": seed, "tol": 0, "n_iter_max": 60} | options
    _, errors = parafac(x, 4, linesearch=way, return_errors=True, **settings)
    assert_never_rise(errors, float)
    assert errors[-1] < errors[4]


def test_with_a_ridge_the_penalised_error_never_rises():
    x, ridge, losses = make_valley(), 0.1, {}

    def measure(model, error):
        penalty = ridge * sum((factor**2).sum() for factor in model.factors)
        losses[way].append((error * tl.norm(x)) ** 2 + penalty)

    options = {"init": "random", "random_state": 1, "n_iter_max": 100, "tol": 0}
    for way in ("gauss-newton", "auto", "nesterov"):
        losses[way] = []
        parafac(x, 4, linesearch=way, l2_reg=ridge, callback=measure, **options)
    rises = np.diff(losses["gauss-newton"][6:]) / losses["gauss-newton"][0]
    assert (rises <= 16 * np.finfo(float).eps).all()
    assert losses["gauss-newton"][-1] < losses["nesterov"][-1]
    assert losses["auto"][-1] < losses["nesterov"][-1]


def test_one_free_mode_is_solved_for():
    x = random_tensor((9, 40, 100), 2000, random_state=0)
    start = [np.random.default_rng(n).random((size, 4)) for n, size in enumerate(x.shape)]
    options = {"init": (None, start), "fixed_modes": [0, 1], "n_iter_max": 8, "tol": 0}
    _, factors = parafac(x, 4, linesearch="gauss-newton", **options)
    gram = (start[0].T @ start[0]) * (start[1].T @ start[1])
    expected = np.linalg.solve(gram, mttkrps(x, start)[2].T).T
    for found, fixed in zip(factors[:2], start[:2], strict=True):
        np.testing.assert_array_equal(found, fixed)
    np.testing.assert_allclose(factors[2], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", ["gauss-newton", "auto"])
def test_weights_of_a_start_are_moved_into_its_factors(way, early_turn):
    x, weights = random_tensor((9, 40, 100), 2000, random_state=0), np.array([2.0, 0.5, 4.0, 1.0])
    first, *others = [np.random.default_rng(n).random((size, 4)) for n, size in enumerate(x.shape)]
    ends = []
    for start in ((weights, [first, *others]), (None, [first * weights, *others])):
        model, errors = parafac(x, 4, init=start, linesearch=way, n_iter_max=20, return_errors=True)
        ends.append((errors, tl.cp_to_tensor(model)))
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-9)
    np.testing.assert_allclose(ends[0][1], ends[1][1], atol=1e-6)


@pytest.fixture
def early_turn(monkeypatch):
    """Let momentum yield early, so that few iterations see all that happens."""
    monkeypatch.setattr(acceleration, "_CRAWL", 0.3)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("options", [*OPTIONS, {"l2_reg": 0.1}], ids=str)
@pytest.mark.parametrize("way", ["gauss-newton", "auto"])
@pytest.mark.usefixtures("early_turn")
def test_resumed_is_the_same_to_the_bit(tmp_path, options, dtype, way):
    x = random_tensor((9, 40, 100), 2000, random_state=0, dtype=dtype)
    options = {"init": "random", "random_state": 0, "tol": 1e-300, "linesearch": way} | options

    def go(n_iter_max, progress, **changes):
        return parafac(x, 4, n_iter_max=n_iter_max, callback=progress, **options | changes)

    with Progress(22, show=None) as whole:
        expected = go(22, whole)
    for stop in (3, 8, 13):
        path = tmp_path / f"run{stop}.npz"
        with Progress(stop, show=None, checkpoint=path) as progress:
            go(stop, progress)
        with Progress(22, show=None, checkpoint=path) as progress:
            init = progress.resume()
            found = go(progress.n_iter_left, progress, init=init)
        assert progress.errors == whole.errors
        for a, b in zip(found.factors, expected.factors, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("groups", ["auto", None])
@pytest.mark.usefixtures("early_turn")
def test_the_same_bits_in_all_layouts(groups):
    coo = planted_tensor((9, 12, 150), RANK, 3000, noise=0.3, random_state=0)[0].to_coo()
    results = set()
    for layout in ("remap", "replicated", "indexed"):
        x = FlycooTensor.from_coo(coo, layout=layout, groups=groups)
        options = {"init": "random", "random_state": 0, "n_iter_max": 20, "tol": 0}
        model, errors = parafac(x, RANK, linesearch="auto", return_errors=True, **options)
        results.add((tuple(errors), *(factor.tobytes() for factor in model.factors)))
    assert len(results) == 1


def test_a_step_that_raises_the_error_is_taken_back(monkeypatch):
    """The next trial begins at the same factors, with more damping."""
    dampings = []

    def overshoot(grams, inner, modes, damping, ridge):
        dampings.append(damping)
        of_products, of_factors = find_step(grams, inner, modes, damping, ridge)
        return np.stack([of_products if len(dampings) > 2 else -of_products, of_factors])

    monkeypatch.setattr(acceleration, "find_step", overshoot)
    x = planted_tensor((10, 12, 14), RANK, 300, noise=0.2, random_state=0)[0]
    options = {"init": "random", "random_state": 1, "n_iter_max": 6, "tol": 0}
    _, errors = parafac(x, RANK, linesearch="gauss-newton", return_errors=True, **options)
    np.testing.assert_allclose(dampings, np.array([1, 10, 100]) * dampings[0])
    assert errors[5] < errors[4]


def test_where_nothing_lowers_the_error_the_factors_stay(monkeypatch):
    def fail(grams, *others):
        return np.full((2, *grams.shape), np.nan)

    monkeypatch.setattr(acceleration, "find_step", fail)
    x = planted_tensor((10, 12, 14), RANK, 300, noise=0.2, random_state=0)[0]
    options = {"init": "random", "random_state": 1, "n_iter_max": 8, "tol": 0}
    model, errors = parafac(x, RANK, linesearch="gauss-newton", return_errors=True, **options)
    assert errors[4] == errors[5] == errors[6] == errors[7]
    assert all(np.isfinite(factor).all() for factor in model.factors)


def test_auto_is_momentum_where_a_sweep_costs_little():
    """A rank of 10 needs 12,000 nonzeros."""
    x = random_tensor((20, 30, 40), 3000, random_state=0)
    options = {"init": "random", "random_state": 0, "n_iter_max": 60, "return_errors": True}
    (_, factors), errors = parafac(x, 10, linesearch="auto", **options)
    (_, expected), expected_errors = parafac(x, 10, linesearch="nesterov", **options)
    assert errors == expected_errors
    for a, b in zip(factors, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("way", ["gauss-newton", "auto"])
def test_what_is_refused(way):
    x = random_tensor((5, 6, 7), 50, random_state=0)
    mask = sparse.COO([[0], [2], [4]], [0.0], x.shape, fill_value=1.0)
    for name, value in (("mask", mask), ("orthogonalise", True)):
        message = f"linesearch is '{way}', expected .* together with {name}="
        with pytest.raises(ValueError, match=message):
            parafac(x, 2, linesearch=way, **{name: value})
    with pytest.raises(ValueError, match=f"linesearch is '{way}', expected one of"):
        non_negative_parafac_hals(x, 2, linesearch=way)
