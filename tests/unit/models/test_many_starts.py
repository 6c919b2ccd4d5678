"""Runs from many starts at once are the same to the bit as runs one by one."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import sparse
import tensorly as tl
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, decomposition
from tensorly_flycoo.engines.entries import PieceEntries
from tensorly_flycoo.loop.masks import MissingEntries
from tensorly_flycoo.models import batch as batch_module
from tensorly_flycoo.models import factor_match_score, many_starts
from tensorly_flycoo.models.batch import Batch
from tensorly_flycoo.models.many_starts import StackedRun, Stopping, run_together
from tensorly_flycoo.testing import planted_tensor, random_tensor

SEEDS = [3, 1, 4, 15]


pytestmark = pytest.mark.usefixtures("flycoo_backend")


def run_alone(x, rank, seed, stopping, **options):
    options |= {"init": "random", "random_state": seed, "return_errors": True}
    return decomposition.parafac(x, rank, **options, **stopping._asdict())


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


# The first mode of the first case is tall enough for kernels of the CPU engine.
CASES = [
    ((3000, 20, 60), 12, "float64"),
    *itertools.product([(30, 40, 50)], [1], ["float32", "float64"]),
    ((30, 40, 50), 9, "float64"),
    ((5, 9, 20, 60), 1, "float64"),
]
SLOW_CASES = [
    ((30, 40, 50), 9, "float32"),
    ((5, 9, 20, 60), 1, "float32"),
    *itertools.product([(5, 9, 20, 60)], [9], ["float32", "float64"]),
    *itertools.product([(30, 40, 50), (5, 9, 20, 60)], [4], ["float32", "float64"]),
]


@pytest.mark.parametrize(
    ("shape", "rank", "dtype"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
def test_each_run_equals_the_lone_run(shape, rank, dtype):
    x, stopping = random_tensor(shape, 3000, random_state=0, dtype=dtype), Stopping(12)
    runs = run_together(x, rank, SEEDS, stopping)
    for seed, run in zip(SEEDS, runs, strict=True):
        assert_same(run, run_alone(x, rank, seed, stopping))


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
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


def test_ill_conditioned_systems():
    # The last two columns of the guesses are nearly the same, and stay so for some iterations.
    x = random_tensor((30, 40, 50), 3000, random_state=0)
    stopping, guesses = Stopping(2, 0), []
    for seed in SEEDS:
        random = np.random.RandomState(seed)
        guess = [random.random_sample((size, 3)) for size in x.shape]
        for factor in guess:
            factor[:, 2] = factor[:, 1] + 1e-5 * factor[:, 2]
        guesses.append(guess)
    batch = Batch(x, [np.stack(factors) for factors in zip(*guesses, strict=True)])
    errors = [batch.iterate() for _ in range(stopping.n_iter_max)]
    for place, guess in enumerate(guesses):
        expected = parafac(x, 3, 2, init=(None, guess), tol=0, return_errors=True)
        run = StackedRun(batch.take(place), [of_all[place] for of_all in errors])
        assert_same(run, expected)


@pytest.mark.parametrize("shape", [(29, 30, 31), (5, 6, 7)], ids=str)
def test_a_singular_system_takes_the_pseudo_inverse(shape):
    x, stopping = FlycooTensor([[0], [2], [1]], [2.0], shape), Stopping(3)  # of rank 1
    for seed, run in zip(SEEDS, run_together(x, 2, SEEDS, stopping), strict=True):
        assert_same(run, run_alone(x, 2, seed, stopping))


def test_runs_that_do_not_fit_together_run_in_batches(monkeypatch):
    x, stopping = random_tensor((30, 40, 50), 3000, random_state=0), Stopping(4)
    expected = run_together(x, 3, SEEDS, stopping)
    monkeypatch.setattr(many_starts, "choose_batch_size", lambda *_: 3)
    for run, other in zip(run_together(x, 3, SEEDS, stopping), expected, strict=True):
        assert_same(run, (other.cp_tensor, other.errors))


def test_runs_are_batched_as_caches_and_memory_allow(monkeypatch):
    small, large = (random_tensor((size, 30, 40), 3000, random_state=0) for size in (50, 2 * 10**5))
    assert many_starts.choose_batch_size(small, 4) >= 20
    assert many_starts.choose_batch_size(large, 4) == 4  # a row of 16 numbers
    assert all(run.is_active for run in run_together(large, 9, SEEDS, Stopping()))
    runs = run_together(large, 9, SEEDS, Stopping(2), keep_all=False)  # one by one
    assert [len(run.errors) for run in runs] == [2] * 4
    monkeypatch.setattr(many_starts, "_SHARE", 1e-9)
    assert many_starts.choose_batch_size(small, 4) == 0
    assert all(run.is_active for run in run_together(small, 4, SEEDS, Stopping(), keep_all=False))


def invert_products(engine, grams, dtype):
    """Do what the CUDA engine does, for NumPy's arrays."""
    return np.linalg.inv(np.prod(grams, axis=0)) if dtype == np.float32 else None


@pytest.mark.parametrize("has_kernel", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_path_for_gpus_gives_the_same_up_to_rounding(dtype, has_kernel, monkeypatch):
    """What is done for CuPy arrays, done with NumPy's."""
    x, stopping = random_tensor((30, 40, 50), 3000, random_state=0, dtype=dtype), Stopping(8, 0)
    expected = run_together(x, 4, SEEDS, stopping)
    monkeypatch.setattr(batch_module, "is_cupy", lambda array: True)
    if has_kernel:
        monkeypatch.setattr(type(x._engine), "invert_products", invert_products)
    bound = 1e-9 if dtype == "float64" else 1e-3  # iterations amplify rounding errors
    for run, other in zip(run_together(x, 4, SEEDS, stopping), expected, strict=True):
        np.testing.assert_allclose(run.errors, other.errors, rtol=bound)
        for factor, array in zip(run.cp_tensor.factors, other.cp_tensor.factors, strict=True):
            assert factor.dtype == array.dtype
            assert np.abs(factor - array).max() <= bound * np.abs(array).max()


def make_grouped(groups, dtype):
    """Return a tensor whose first two indices have few combinations."""
    random = np.random.RandomState(0)
    pairs = random.randint(0, [[300], [250]], (2, 60))[:, random.randint(0, 60, 4000)]
    coords = np.vstack([pairs, random.randint(0, 5, 4000), random.randint(0, 6, 4000)])
    values = random.random_sample(4000).astype(dtype)
    return FlycooTensor(coords, values, (300, 250, 5, 6), groups=groups)


def draw_missing(x):
    coords, _ = x.nonzeros()
    others = np.random.RandomState(1).randint(0, np.array([x.shape]).T, (4, 500))
    return np.unique(np.hstack([coords[:, ::5], others]), axis=1)


@pytest.mark.parametrize(
    "groups", [pytest.param(None, marks=pytest.mark.slow), ((0, 1), (2, 3))], ids=str
)
def test_missing_entries_on_a_gpu_are_those_on_a_cpu(groups, monkeypatch):
    """What is done for CuPy arrays, done with NumPy's; the batch is filled to 8 runs."""
    x, seeds = make_grouped(groups, "float64"), [*SEEDS, 9]
    arguments = (x, 2, seeds, Stopping(5, 0))
    missing = MissingEntries(x, draw_missing(x))
    expected = run_together(*arguments, missing=missing)
    monkeypatch.setattr(batch_module, "is_cupy", lambda array: True)
    monkeypatch.setattr(type(x._engine), "entries", PieceEntries)
    for run, other in zip(run_together(*arguments, missing=missing), expected, strict=True):
        np.testing.assert_allclose(run.errors, other.errors, rtol=1e-11)
        for factor, array in zip(run.cp_tensor.factors, other.cp_tensor.factors, strict=True):
            assert np.abs(factor - array).max() <= 1e-9 * np.abs(array).max()


@pytest.mark.parametrize(
    ("groups", "dtype"),
    [
        (None, "float64"),
        (((0,), (1, 2), (3,)), "float32"),
        (((0, 1), (2, 3)), "float64"),
        pytest.param(None, "float32", marks=pytest.mark.slow),
        pytest.param(((0,), (1, 2), (3,)), "float64", marks=pytest.mark.slow),
        pytest.param(((0, 1), (2, 3)), "float32", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_runs_with_missing_entries_are_near_the_lone_runs(groups, dtype):
    x, stopping = make_grouped(groups, dtype), Stopping(5, 0)
    assert (x._layout.prefixes is not None) == (groups == ((0, 1), (2, 3)))
    cells = draw_missing(x)
    mask = sparse.COO(cells, np.zeros(cells.shape[1]), x.shape, fill_value=1.0)
    runs = run_together(x, 2, SEEDS, stopping, missing=MissingEntries(x, cells))
    bound = 1e-11 if dtype == "float64" else 1e-3  # iterations amplify rounding errors
    for seed, run in zip(SEEDS, runs, strict=True):
        options = {"init": "random", "random_state": seed, "return_errors": True, "mask": mask}
        (_, factors), errors = decomposition.parafac(x, 2, **options, **stopping._asdict())
        np.testing.assert_allclose(run.errors, errors, rtol=bound)
        for found, factor in zip(run.cp_tensor.factors, factors, strict=True):
            assert found.dtype == dtype
            assert np.abs(found - factor).max() <= bound * np.abs(factor).max()


def make_run(error, decrease=0.0, num_errors=20, seed=0):
    """Return a run with random factors of rank 1 whose last error and decrease are given."""
    random = np.random.RandomState(seed)
    model = (np.ones(1), [random.random_sample((size, 1)) for size in (7, 8, 9)])
    return StackedRun(
        tl.cp_tensor.CPTensor(model), [1.0] * (num_errors - 2) + [error + decrease, error]
    )


def find_dropped(*given, ended=()):
    """Return the leaders of the runs that are dropped, by number; the last ones are active."""
    going = [StackedRun(errors=run.errors) for run in given]
    runs = [*ended, *going]
    batch = SimpleNamespace(
        take=lambda place: given[place].cp_tensor, view=lambda place: given[place].cp_tensor.factors
    )
    many_starts._drop(runs, going, batch)
    return {n: run.leader for n, run in enumerate(runs) if run in going and run.is_dropped}


def test_a_run_is_dropped_only_if_it_is_hopeless():
    good, poor = make_run(0.5, seed=1), make_run(0.7, seed=2)
    assert find_dropped(good, poor) == {1: None}
    assert find_dropped(poor, good) == {0: None}
    # After 20 iterations it may fall by 40 times its last decrease.
    assert find_dropped(good, make_run(0.7, 0.0051, seed=2)) == {}
    assert find_dropped(good, make_run(0.7, 0.0049, seed=2)) == {1: None}
    # The best 10 / 20 of all runs go on, however poor.
    assert find_dropped(good, make_run(0.6, seed=3), poor, poor) == {2: None, 3: None}
    few = [make_run(error, num_errors=9, seed=n) for n, error in enumerate([0.5, 0.6, 0.7])]
    assert find_dropped(*few) == {}


def test_a_run_is_dropped_for_a_better_one_that_it_matches():
    first, same = make_run(0.5, seed=1), make_run(0.5001, 1e-4, seed=1)
    other = make_run(0.4965, seed=2)
    assert find_dropped(first, same, other) == {1: 0}
    assert find_dropped(same, other, first) == {0: 2}
    early = [make_run(error, 1, 19, seed=1) for error in (0.5, 0.5001)]
    assert find_dropped(*early) == {}  # they are compared after each 10 iterations
    # A run that was dropped itself is no reason to drop another, one that has ended is.
    assert find_dropped(same, ended=[first]) == {1: 0}
    first.is_dropped = True
    assert find_dropped(same, ended=[first]) == {}


@pytest.mark.parametrize("size", [1, 4, 12])
def test_the_best_run_is_found_with_less_work(size, monkeypatch):
    x, _ = planted_tensor((25, 30, 35), 5, 300, noise=0.5, random_state=0)
    monkeypatch.setattr(many_starts, "choose_batch_size", lambda *_: size)
    arguments = (x, 5, range(12), Stopping())
    runs, again = (run_together(*arguments, keep_all=False) for _ in range(2))
    assert [run.errors for run in runs] == [run.errors for run in again]
    monkeypatch.setattr(many_starts, "choose_batch_size", lambda *_: 12)
    everything = run_together(*arguments)
    best, expected = (min(of, key=lambda run: run.errors[-1]) for of in (runs, everything))
    assert best.errors[-1] == pytest.approx(expected.errors[-1], abs=1e-7)
    assert factor_match_score(best.cp_tensor, expected.cp_tensor) > 0.99
    for run, whole in zip(runs, everything, strict=True):
        assert run.errors == whole.errors[: len(run.errors)]  # until it was dropped
        assert run.is_dropped == (len(run.errors) < len(whole.errors))
    count, most = (sum(len(run.errors) for run in of) for of in (runs, everything))
    assert count < (0.7 if size > 1 else 0.8) * most


@pytest.mark.parametrize("has_mask", [False, True])
def test_a_run_goes_on_as_if_it_had_not_stopped(has_mask):
    x, _ = planted_tensor((12, 15, 18), 3, 400, noise=0.3, random_state=0)
    missing = None
    if has_mask:
        missing = MissingEntries(x, np.argwhere(np.ones((3, 4, 5))).T)
    (whole,) = run_together(x, 3, [7], Stopping(12, 0), missing=missing)
    (first,) = run_together(x, 3, [7], Stopping(5, 0), missing=missing)
    model = first.cp_tensor
    (later,) = run_together(x, 3, [7], Stopping(7, 0), missing=missing, model=model)
    assert [*first.errors, *later.errors] == whole.errors
    for factor, expected in zip(later.cp_tensor.factors, whole.cp_tensor.factors, strict=True):
        np.testing.assert_array_equal(factor, expected)
