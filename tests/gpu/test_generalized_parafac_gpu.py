"""Poisson CP on a GPU: the MTTKRP of ratios against its specification, and whole runs."""

import itertools

import cupy
import numpy as np
import pytest
import reference_ratios as reference
import sparse
from error_bounds import bound_ratios, count_additions

from tensorly_flycoo import FlycooTensor, Progress
from tensorly_flycoo.decomposition import generalized_parafac
from tensorly_flycoo.engines.cuda import engine as cuda
from tensorly_flycoo.format.primitives import MTTKRP_OF_RATIOS

LAYOUTS = ("remap", "replicated", "indexed")
SHAPES = (
    (3000,),
    (2, 9000),
    (70, 1, 5000),
    (2, 300, 3, 40),
    (100, 89, 2, 7, 11),
    (3, 3, 3, 3, 3, 3, 3),
    (2**20, 2, 3, 2**20, 2, 3, 2, 2**20),
)


def make_counts(shape, nnz, rank, dtype, skew=2.0, seed=0):
    """Draw distinct cells with counts, and a positive model."""
    rng = np.random.default_rng(seed)
    sizes = np.array(shape)[:, None]
    coords = np.unique((sizes * rng.random((len(shape), nnz)) ** skew).astype(np.int64), axis=1)
    values = (1.0 + rng.poisson(2, coords.shape[1])).astype(dtype)
    factors = [(0.1 + rng.random((size, rank))).astype(dtype) for size in shape]
    return coords, values, shape, factors


def compute(x, factors, mode, wants_logs=True, stays=False, smallest=1e-30):
    out = cupy.full((x.shape[mode], factors[0].shape[1]), np.nan, x.dtype)
    arguments = (MTTKRP_OF_RATIOS, cuda.CUDA, dict(enumerate(factors)), mode, out)
    options = {"smallest": smallest, "wants_sum": wants_logs, "stays": stays}
    log_sum = x._layout.apply(*arguments, **options)
    assert (log_sum is not None) == wants_logs
    return out.get(), None if log_sum is None else float(log_sum)


def check(x, problem, mode, out, log_sum):
    coords, values, shape, factors = problem
    arguments = (coords, values, shape, factors, mode, 1e-30)
    expected, expected_sum = reference.mttkrp_of_ratios(*arguments)
    bound, sum_bound = bound_ratios(x, coords, values, factors, mode, 1e-30)
    assert (np.abs(out - expected) <= bound).all()
    assert log_sum is None or abs(log_sum - expected_sum) <= sum_bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 7, 16, 25, 32, 50, 100, 200])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{len(shape)} modes")
def test_every_rank_and_number_of_modes(shape, rank, dtype):
    """All layouts, with the same bits; with and without logarithms too."""
    problem = make_counts(shape, 20000, rank, dtype)
    factors = [cupy.asarray(factor) for factor in problem[3]]
    tensors = [FlycooTensor(*problem[:3], layout=name, device="cuda") for name in LAYOUTS]
    for mode in range(len(shape)):
        results = [compute(x, factors, mode) for x in tensors]
        check(tensors[0], problem, mode, *results[0])
        assert len({(out.tobytes(), log_sum) for out, log_sum in results}) == 1
    again, _ = compute(tensors[1], factors, 0, wants_logs=False)
    check(tensors[1], problem, 0, again, None)


@pytest.mark.parametrize("nnz", [1, 2, 255, 256, 4095, 4096, 4097, 100000])
def test_every_number_of_nonzeros(nnz):
    problem = make_counts((500, 30000, 400), nnz, 16, "float32", skew=4.0)
    x = FlycooTensor(*problem[:3], device="cuda")
    factors = [cupy.asarray(factor) for factor in problem[3]]
    for mode in (0, 1, 2, 2, 0):
        check(x, problem, mode, *compute(x, factors, mode))


@pytest.mark.parametrize("rank", [7, 25, 50])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_do_not_depend_on_alignment(rank, dtype):
    problem = make_counts((50, 60, 70), 3000, rank, dtype)
    x = FlycooTensor(*problem[:3], layout="replicated", device="cuda")
    results = []
    for pitch in (rank, rank + 1, -(-rank // 4) * 4):
        wide = [cupy.full((f.shape[0], pitch), np.nan, dtype) for f in problem[3]]
        for target, factor in zip(wide, problem[3], strict=True):
            target[:, :rank] = cupy.asarray(factor)
        results.append(compute(x, [target[:, :rank] for target in wide], 1))
    assert len({(out.tobytes(), log_sum) for out, log_sum in results}) == 1


def test_one_row_over_all_tiles():
    problem = make_counts((1, 100000, 3), 150000, 32, "float32")
    x = FlycooTensor(*problem[:3], device="cuda")
    check(x, problem, 0, *compute(x, [cupy.asarray(f) for f in problem[3]], 0))


def test_a_mode_may_stay():
    problem = make_counts((40, 30, 50), 5000, 3, "float64")
    x = FlycooTensor(*problem[:3], device="cuda")
    for mode in (1, 1, 0, 2):
        factors = [cupy.asarray(f) for f in problem[3]]
        check(x, problem, mode, *compute(x, factors, mode, stays=True))
        assert x._layout.mode == mode


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 7, 32, 50, 200])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{len(shape)} modes")
def test_values_times_a_model_of_both_signs(shape, rank, dtype):
    """The same kernel multiplies if there is no smallest number to divide by."""
    coords, values, shape, factors = make_counts(shape, 20000, rank, dtype)
    factors = [factor - np.dtype(dtype).type(0.6) for factor in factors]
    on_gpu = [cupy.asarray(factor) for factor in factors]
    tensors = [FlycooTensor(coords, values, shape, layout=name, device="cuda") for name in LAYOUTS]
    for mode in range(len(shape)):
        results = [compute(x, on_gpu, mode, wants_logs=False, smallest=None)[0] for x in tensors]
        additions = count_additions(tensors[0], coords, mode, rank)
        arguments = (coords, values, shape, factors, mode, dtype)
        expected, bound = reference.mttkrp_of_products(*arguments, additions=additions)
        assert (np.abs(results[0] - expected) <= bound).all()
        assert len({out.tobytes() for out in results}) == 1


def test_a_model_of_zero_divides_as_the_smallest_number():
    coords, values, shape, factors = make_counts((6, 5, 4), 60, 3, "float32")
    factors[1][:] = 0
    x = FlycooTensor(coords, values, shape, device="cuda")
    out, log_sum = compute(x, [cupy.asarray(f) for f in factors], 1, smallest=1e-3)
    expected, _ = reference.mttkrp_of_ratios(coords, values, shape, factors, 1, 1e-3)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    assert log_sum == -np.inf


def draw_counts(seed=0):
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(0.7, 1.0, (size, 3)) for size in (30, 25, 20)]
    dense = rng.poisson(np.einsum("ir,jr,kr->ijk", *factors))
    coords = np.stack(np.nonzero(dense))
    return coords, dense[tuple(coords)].astype("float64"), dense.shape


@pytest.mark.parametrize("has_mask", [False, True])
def test_a_run_is_that_of_the_cpu(has_mask):
    """Few sweeps: later, rounding errors grow."""
    nonzeros, mask = draw_counts(), None
    if has_mask:
        coords = np.unique(np.random.default_rng(1).integers(0, 20, (3, 100)), axis=1)
        mask = sparse.COO(coords, np.zeros(coords.shape[1]), nonzeros[2], fill_value=1.0)
    runs = [
        generalized_parafac(
            FlycooTensor(*nonzeros, device=device), 3, 5, random_state=0, mask=mask,
            return_errors=True,
        )
        for device in ("cpu", "cuda")
    ]  # fmt: skip
    np.testing.assert_allclose(runs[1][1], runs[0][1], rtol=1e-10)
    for ours, theirs in zip(runs[1][0].factors, runs[0][0].factors, strict=True):
        assert isinstance(ours, cupy.ndarray)
        np.testing.assert_allclose(ours.get(), theirs, rtol=1e-6, atol=1e-9)


def test_runs_have_the_same_bits_and_resume(tmp_path):
    x = FlycooTensor(*draw_counts(), device="cuda")

    def run(n_iter_max, name):
        with Progress(n_iter_max, show=None, checkpoint=tmp_path / name, every=1) as progress:
            init = progress.resume(default="random")
            cp = generalized_parafac(
                x, 3, progress.n_iter_left, init, random_state=0, tol=0,
                callback=progress,
            )  # fmt: skip
            return [factor.get() for factor in cp.factors]

    run(3, "parts.npz")
    results = [run(8, name) for name in ("parts.npz", "a.npz", "b.npz")]
    for first, second in itertools.combinations(results, 2):
        assert all((a == b).all() for a, b in zip(first, second, strict=True))


def test_mu_never_increases_the_loss():
    x = FlycooTensor(*draw_counts(), device="cuda")
    _, losses = generalized_parafac(x, 3, 100, random_state=0, tol=0, return_errors=True)
    assert (np.diff(losses) <= 1e-14 * np.abs(losses[1:])).all()


@pytest.mark.parametrize(
    "loss",
    [
        "poisson_log",
        "bernoulli_odds",
        "bernoulli_logit",
        "gaussian",
        "gamma",
        "rayleigh",
        "zero_truncated_poisson",
    ],
)
def test_an_epoch_of_adam_is_that_of_the_cpu(loss):
    """And two on a GPU have the same bits."""
    coords, values, shape = draw_counts()
    if loss.startswith("bernoulli"):
        values = np.ones_like(values)
    runs = [
        generalized_parafac(
            FlycooTensor(coords, values, shape, device=device), 3, 1, random_state=0, loss=loss,
            tol=0, return_errors=True,
        )
        for device in ("cpu", "cuda", "cuda")
    ]  # fmt: skip
    np.testing.assert_allclose(runs[1][1], runs[0][1], rtol=1e-6)
    for ours, again in zip(runs[1][0].factors, runs[2][0].factors, strict=True):
        assert ours.tobytes() == again.tobytes()
