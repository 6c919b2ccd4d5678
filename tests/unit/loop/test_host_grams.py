"""What parafac remembers of NumPy factors between the calls of TensorLy's loop."""

import tracemalloc

import numpy as np
import pytest

from tensorly_flycoo import decomposition
from tensorly_flycoo.engines import tall
from tensorly_flycoo.loop import host_grams
from tensorly_flycoo.loop.host_grams import HostGrams
from tensorly_flycoo.testing import planted_tensor, random_tensor

pytestmark = pytest.mark.usefixtures("flycoo_backend")

#: Its first mode is tall enough for kernels of the CPU engine at rank 16, the others are not.
SHAPE, RANK = (2000, 30, 40), 16


def draw(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def decompose(x, **options):
    options = {"n_iter_max": 4, "tol": 1e-300, "init": "random", "random_state": 0} | options
    return decomposition.parafac(x, RANK, return_errors=True, **options)


@pytest.fixture
def products(monkeypatch):
    """List the shapes of factors whose Gram matrices take passes of their own."""
    made, multiply = [], host_grams.multiply
    note = lambda a, b: made.append(b.shape) or multiply(a, b)  # noqa: E731
    monkeypatch.setattr(host_grams, "multiply", note)
    return made


def test_a_tall_factor_takes_one_pass_an_iteration(products):
    decompose(random_tensor(SHAPE, 5000, random_state=0))
    assert sorted(set(products)) == [(30, RANK), (40, RANK)]  # that of the start is not read
    assert len(products) == 2 + 2 * 4  # for the start and for each update of a short one


def test_a_callback_may_change_factors_in_place(monkeypatch):
    def double(cp_tensor, error):
        for factor in cp_tensor.factors:
            factor *= 2

    x = random_tensor(SHAPE, 5000, random_state=0)
    (_, found), errors = decompose(x, callback=double)
    monkeypatch.setattr(host_grams, "find_whole", lambda view: None)  # nothing is remembered
    (_, expected), expected_errors = decompose(x, callback=double)
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-12)
    for factor, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(factor, other, rtol=1e-9, atol=1e-12)


def test_only_whole_factors_that_live_are_known(products):
    grams, wide, factor, other = HostGrams(), draw(50, 8), draw(50, 4), draw(50, 4, seed=1)
    assert grams.find_gram(wide[:, :4].T, wide[:, :4]) is None
    assert grams.find_gram(factor.T, other) is None
    gram = grams.find_gram(factor.T, factor)
    np.testing.assert_array_equal(gram, factor.T @ factor)
    assert grams.find_gram(factor.T.T.T, factor[:]) is gram
    assert products == [(50, 4)]
    for seed in range(100):
        other = draw(50, 4, seed=seed)  # often where the one before has been
        np.testing.assert_array_equal(grams.find_gram(other.T, other), other.T @ other)
    assert len(grams._cached) <= host_grams._MOST_CACHED


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_rows", [3, 100, 5000])
def test_solutions_and_fits(num_rows, dtype):
    factor, mttkrp = draw(20, 4, dtype=dtype), draw(num_rows, 4, dtype=dtype, seed=1)
    grams = HostGrams()
    matrix = grams.find_gram(factor.T, factor)
    y, _ = grams.solve_factor(matrix, mttkrp)
    exact = np.linalg.solve(matrix.astype("f8"), mttkrp.T.astype("f8")).T
    eps, weights = float(np.finfo(dtype).eps), draw(4, dtype=dtype, seed=2)
    assert np.abs(y - exact).max() <= 100 * eps * np.abs(exact).max()
    model = (weights[:, None] * weights * (factor.T @ factor) * (y.T @ y)).sum(dtype=float)
    inner = (mttkrp.astype("f8") * y).sum()
    fit = grams.compute_fit(9.0, weights, [factor, y], mttkrp)
    assert fit**2 == pytest.approx(abs(81 + model - 2 * inner), rel=100 * eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_near_an_exact_fit(dtype):
    """Their squares are as exact as MTTKRPs in the tensor's precision allow."""
    x, factors = planted_tensor((60, 30, 20), 3, 400, random_state=0, device="cpu", dtype=dtype)
    start = [(f * (1 + draw(*f.shape) / 1000)).astype(dtype) for f in factors]
    coords, values = x.nonzeros()
    dense, errors = np.zeros(x.shape), []
    dense[tuple(coords)] = values

    def compare(cp_tensor, error):
        model = np.einsum("ir,jr,kr->ijk", *(factor.astype(float) for factor in cp_tensor.factors))
        exact = np.linalg.norm(model - dense) / np.linalg.norm(dense)
        assert abs(error**2 - exact**2) <= 4 * np.finfo(dtype).eps
        errors.append(exact)

    ones = np.ones(3, dtype)
    decomposition.parafac(x, 3, n_iter_max=4, tol=0, init=(ones, start), callback=compare)
    assert errors[-1] < 1e-4 < errors[0]


@pytest.mark.parametrize("num_rows", [100, 5000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ill_conditioned_and_singular_systems(num_rows, dtype):
    basis, eps = np.linalg.qr(draw(8, 8))[0], np.finfo(dtype).eps
    for smallest in (eps**0.5 / 10, 0):  # the first is refined
        matrix = (basis * [1, 1, 1, 1, 1, 1, 1, smallest]) @ basis.T
        matrix = ((matrix + matrix.T) / 2).astype(dtype)
        rows = (draw(num_rows, 8) @ matrix).astype(dtype)
        y, _ = tall.solve_rows(matrix, rows)
        assert np.abs(y.astype("f8") @ matrix - rows).max() <= 1000 * eps * np.abs(y).max()


def test_no_temporary_is_as_large_as_a_factor():
    """In an iteration a mode takes its MTTKRP and its factor, beside the factors before."""
    x = random_tensor((100_000, 30, 40), 5000, random_state=0)
    factor_nbytes = 100_000 * RANK * 8
    decompose(x)  # compiles
    tracemalloc.start()
    decompose(x, init=(None, [np.ones((size, RANK)) + draw(size, RANK) for size in x.shape]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4.5 * factor_nbytes  # the given start, its copy, the MTTKRP and the new factor
