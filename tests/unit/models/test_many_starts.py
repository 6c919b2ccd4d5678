"""Runs from many starts at once are the same to the bit as runs one by one."""

import numpy as np
import pytest
import tensorly as tl
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.models import many_starts
from tensorly_flycoo.models.many_starts import Stopping, run_together
from tensorly_flycoo.testing import planted_tensor, random_tensor

SEEDS = [3, 1, 4, 15]


@pytest.fixture(autouse=True)
def _backend():
    with tl.backend_context("flycoo"):
        yield


def run_alone(x, rank, seed, stopping, **options):
    options |= {"init": "random", "random_state": seed, "return_errors": True}
    return parafac(x, rank, **options, **stopping._asdict())


def assert_same(run, expected):
    (weights, factors), errors = run.cp_tensor, run.errors
    (expected_weights, expected_factors), expected_errors = expected
    assert [float(e) for e in errors] == [float(e) for e in expected_errors]
    assert errors[0].dtype == expected_errors[0].dtype
    for found, array in zip(
        [weights, *factors], [expected_weights, *expected_factors], strict=True
    ):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 9, pytest.param(4, marks=pytest.mark.slow)])
# Modes of at most 4 * rank rows are solved for without the inverse.
@pytest.mark.parametrize("shape", [(30, 40, 50), (5, 9, 20, 60)], ids=str)
def test_each_run_equals_the_lone_run(shape, rank, dtype):
    x, stopping = random_tensor(shape, 3000, random_state=0, dtype=dtype), Stopping(12)
    runs = run_together(x, rank, SEEDS, stopping)
    for seed, run in zip(SEEDS, runs, strict=True):
        assert_same(run, run_alone(x, rank, seed, stopping))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_momentum_equals_that_of_the_lone_run(dtype):
    """Some steps are taken back, at other iterations in each run."""
    x, _ = planted_tensor((12, 15, 18), 3, 400, noise=0.3, random_state=0, dtype=dtype)
    stopping, seeds = Stopping(30, 1e-7), range(6)
    runs = run_together(x, 3, seeds, stopping, has_momentum=True)
    for seed, run in zip(seeds, runs, strict=True):
        assert_same(run, run_alone(x, 3, seed, stopping, linesearch="nesterov"))
    assert len({len(run.errors) for run in runs}) > 1


@pytest.mark.parametrize("criterion", ["abs_rec_error", "rec_error"])
def test_runs_end_when_they_have_converged(criterion):
    x, stopping = random_tensor((30, 40, 50), 3000, random_state=0), Stopping(40, 1e-4, criterion)
    seeds = range(12)
    runs = run_together(x, 4, seeds, stopping)
    for seed, run in zip(seeds, runs, strict=True):
        assert_same(run, run_alone(x, 4, seed, stopping))
    assert len({len(run.errors) for run in runs}) > 1


def test_ill_conditioned_systems_are_refined():
    # The last two columns of the guesses are nearly the same, and stay so for some iterations.
    x = random_tensor((30, 40, 50), 3000, random_state=0)
    stopping, guesses = Stopping(2, 0), []
    for seed in SEEDS:
        random = np.random.RandomState(seed)
        guess = [random.random_sample((size, 3)) for size in x.shape]
        for factor in guess:
            factor[:, 2] = factor[:, 1] + 1e-5 * factor[:, 2]
        guesses.append(guess)
    batch = many_starts._Batch(x, [np.stack(factors) for factors in zip(*guesses, strict=True)])
    errors = [batch.iterate() for _ in range(stopping.n_iter_max)]
    assert batch.refines
    for place, guess in enumerate(guesses):
        expected = parafac(x, 3, 2, init=(None, guess), tol=0, return_errors=True)
        run = many_starts.Run(batch.take(place), [of_all[place] for of_all in errors])
        assert_same(run, expected)


@pytest.mark.parametrize("shape", [(29, 30, 31), (5, 6, 7)], ids=str)
def test_a_singular_system_ends_a_run(shape):
    # Squares of its factors underflow to 0, so the systems are singular with every BLAS.
    x = FlycooTensor([[0], [2], [1]], [1e-200], shape)
    assert run_together(x, 2, SEEDS, Stopping()) == [None] * 4


def test_a_singular_matrix_does_not_spoil_the_others():
    stack = np.array([np.eye(2), np.ones((2, 2)), 2 * np.eye(2)])
    inverses, conditions = many_starts._invert(stack)
    np.testing.assert_array_equal(np.isfinite(conditions), [True, False, True])
    np.testing.assert_array_equal(inverses[[0, 2]], [np.eye(2), np.eye(2) / 2])


def test_runs_that_do_not_fit_together_run_in_batches(monkeypatch):
    x, stopping = random_tensor((30, 40, 50), 3000, random_state=0), Stopping(4)
    expected = run_together(x, 3, SEEDS, stopping)
    monkeypatch.setattr(many_starts, "_choose_batch_size", lambda x, rank: 3)
    for run, other in zip(run_together(x, 3, SEEDS, stopping), expected, strict=True):
        assert_same(run, other)


def test_runs_are_batched_as_caches_and_memory_allow(monkeypatch):
    small, large = (random_tensor((size, 30, 40), 3000, random_state=0) for size in (50, 2 * 10**5))
    assert many_starts._choose_batch_size(small, 4) >= 20
    assert many_starts._choose_batch_size(large, 4) == 4  # a row of 16 numbers
    assert run_together(large, 9, SEEDS, Stopping()) == [None] * 4
    monkeypatch.setattr(many_starts, "_SHARE", 1e-6)
    assert many_starts._choose_batch_size(small, 4) == 1


def invert_products(engine, grams, dtype):
    """Do what the CUDA engine does, for NumPy's arrays."""
    return np.linalg.inv(np.prod(grams, axis=0)) if dtype == np.float32 else None


@pytest.mark.parametrize("has_kernel", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_path_for_gpus_gives_the_same_up_to_rounding(dtype, has_kernel, monkeypatch):
    """What is done for CuPy arrays, done with NumPy's."""
    x, stopping = random_tensor((30, 40, 50), 3000, random_state=0, dtype=dtype), Stopping(8, 0)
    expected = run_together(x, 4, SEEDS, stopping)
    monkeypatch.setattr(many_starts, "is_cupy", lambda array: True)
    if has_kernel:
        monkeypatch.setattr(type(x._engine), "invert_products", invert_products)
    bound = 1e-9 if dtype == "float64" else 1e-3  # iterations amplify rounding errors
    for run, other in zip(run_together(x, 4, SEEDS, stopping), expected, strict=True):
        np.testing.assert_allclose(run.errors, other.errors, rtol=bound)
        for factor, array in zip(run.cp_tensor.factors, other.cp_tensor.factors, strict=True):
            assert factor.dtype == array.dtype
            assert np.abs(factor - array).max() <= bound * np.abs(array).max()
