"""Many starts, and the scores of their models, on the GPU."""

import cupy
import numpy as np
import pytest
from compared_runs import assert_same
from tensorly.decomposition import parafac

from tensorly_flycoo import (
    FlycooTensor,
    best_of,
    core_consistency,
    diagnose,
    select_rank,
    uncertainty,
)
from tensorly_flycoo.engines.cpu.engine import CpuEngine
from tensorly_flycoo.engines.cuda.engine import CudaEngine
from tensorly_flycoo.engines.narrow_rows import NARROW_FORMATS
from tensorly_flycoo.loop import whole_tensor
from tensorly_flycoo.loop.masks import MissingEntries
from tensorly_flycoo.models import factor_match_score, gpu_batch, many_starts
from tensorly_flycoo.models.many_starts import Stopping, run_together
from tensorly_flycoo.models.resampled_runs import run_resampled
from tensorly_flycoo.ops.sampling import find_chances
from tensorly_flycoo.testing import planted_tensor, random_tensor

SEEDS = [3, 1, 4, 15, 9]
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def bound_of(dtype):
    """Return how far a few iterations may amplify rounding errors."""
    return 1e-10 if dtype == "float64" else 1e-3


def assert_near(found, expected, dtype):
    for array, other in zip(found, expected, strict=True):
        assert isinstance(array, cupy.ndarray)
        assert array.dtype == dtype
        assert abs(array - other).max() <= bound_of(dtype) * abs(other).max()


@pytest.fixture(params=[False, True], ids=["arrays", "kernels"])
def solves_by_kernels(request, monkeypatch):
    """Whether kernels solve for factors, or array functions, as where kernels do not suit."""
    if not request.param:
        monkeypatch.setattr(many_starts, "find_kernels", lambda *_: None)
    return request.param


@DTYPES
@pytest.mark.parametrize("rank", [1, 3, 16, 40])
def test_each_run_is_near_the_lone_run(rank, dtype, solves_by_kernels):
    x = random_tensor((30, 40, 50), 3000, random_state=0, dtype=dtype, device="cuda")
    runs = run_together(x, rank, SEEDS, Stopping(6, 0))
    for seed, run in zip(SEEDS, runs, strict=True):
        options = {"init": "random", "random_state": seed, "tol": 0, "return_errors": True}
        (_, factors), errors = parafac(x, rank, 6, **options)
        np.testing.assert_allclose(run.errors, errors, rtol=bound_of(dtype))
        assert_near(run.cp_tensor.factors, factors, dtype)


@DTYPES
def test_momentum_is_near_that_of_the_lone_run(dtype, solves_by_kernels):
    x = random_tensor((30, 40, 50), 3000, random_state=0, dtype=dtype, device="cuda")
    runs = run_together(x, 3, SEEDS, Stopping(6, 0), has_momentum=True)
    for seed, run in zip(SEEDS, runs, strict=True):
        options = {"init": "random", "random_state": seed, "tol": 0, "return_errors": True}
        _, errors = parafac(x, 3, 6, linesearch="nesterov", **options)
        np.testing.assert_allclose(run.errors, errors, rtol=bound_of(dtype))


@DTYPES
@pytest.mark.parametrize("has_momentum", [False, True])
def test_runs_are_the_same_in_each_call(has_momentum, dtype):
    x = random_tensor((300, 400, 500), 30_000, random_state=0, dtype=dtype, device="cuda")
    first, second = (run_together(x, 4, SEEDS, Stopping(12, 0), has_momentum) for _ in range(2))
    assert_same(first, second)


def bound_change(x, run):
    """Bound by how much one rounding of all factors changes a relative error (docs/accuracy.md)."""
    factors = [factor.get().astype(float) for factor in run.cp_tensor.factors]
    norms = [np.linalg.norm(factor, axis=0) for factor in factors]
    changes = 0
    for mode, factor in enumerate(factors):
        others = np.prod([norm for n, norm in enumerate(norms) if n != mode], axis=0)
        largest = abs(factor).max(axis=0)
        changes += (largest * np.sqrt(len(factor)) * others).sum()
    return NARROW_FORMATS[x.dtype].rounding * changes / float(x.norm())


@DTYPES
@pytest.mark.parametrize("rank", [3, 16])
def test_a_search_that_rounds_is_that_of_the_cpu(rank, dtype, solves_by_kernels, monkeypatch):
    """Where products differ in their last bits, a factor may be rounded otherwise."""
    for engine in (CpuEngine, CudaEngine):
        monkeypatch.setattr(engine, "narrow_pays", lambda *arguments: True)
    narrow, multiply = [], gpu_batch.multiply

    def multiply_and_list(*arguments, **options):
        narrow.append(options["narrow"] is not None)
        return multiply(*arguments, **options)

    for module in (gpu_batch, whole_tensor):
        monkeypatch.setattr(module, "multiply", multiply_and_list)
    num_iterations, found = 6, []
    for device in ("cpu", "cuda"):
        narrow.clear()
        options = {"random_state": 0, "dtype": dtype, "device": device, "groups": None}
        x = random_tensor((30, 40, 50), 3000, **options)
        found.append(run_together(x, rank, SEEDS, Stopping(num_iterations, 0), keep_all=False))
    assert narrow == [True] * 3 * (num_iterations - 1) + [False] * 3
    for run, other in zip(*found, strict=True):
        atol = num_iterations * bound_change(x, other)
        np.testing.assert_allclose(run.errors, other.errors, rtol=0, atol=atol)


def test_the_host_waits_once_for_each_iteration(monkeypatch):
    x = random_tensor((30, 40, 50), 3000, random_state=0, device="cuda")
    counts, original = [], gpu_batch.move
    monkeypatch.setattr(gpu_batch, "move", lambda *a: counts.append(1) or original(*a))
    run_together(x, 4, SEEDS, Stopping(6, 0))
    assert len(counts) == 6


def test_singular_systems_take_pseudo_inverses():
    x = FlycooTensor([[0], [2], [1]], [2.0], (29, 30, 31), device="cuda")
    for own, rank in ((x, 2), (x.astype("float32"), 2), (x, 129)):
        runs = run_together(own, rank, SEEDS, Stopping())
        assert all(float(run.errors[-1]) < 1e-3 for run in runs)
    starts = best_of(parafac, x, 2, 3, random_state=0, n_iter_max=5)
    assert all(np.isfinite(starts.final_errors))


@DTYPES
@pytest.mark.parametrize("groups", ["auto", ((0, 1), (2,))], ids=str)
def test_masked_runs_are_those_of_the_cpu(groups, dtype):
    """In one batch on each device; runs leave it, and other runs fill its places."""
    on_host = random_tensor((30, 40, 50), 3000, random_state=0, dtype=dtype, device="cpu")
    coords, values = on_host.nonzeros()
    others = np.random.RandomState(1).randint(0, np.array([on_host.shape]).T, (3, 300))
    cells, results = np.unique(np.hstack([coords[:, ::5], others]), axis=1), []
    for device, xp in (("cuda", cupy), ("cpu", np)):
        x = FlycooTensor(coords, values, on_host.shape, device=device, groups=groups)
        missing = MissingEntries(x, xp.asarray(cells))
        results.append(run_together(x, 3, SEEDS, Stopping(6, 0), missing=missing))
        again = run_together(x, 3, SEEDS, Stopping(6, 0), missing=missing)
        assert [run.errors for run in again] == [run.errors for run in results[-1]]
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found.errors, expected.errors, rtol=bound_of(dtype))
        assert_near(found.cp_tensor.factors, map(cupy.asarray, expected.cp_tensor.factors), dtype)


def test_the_host_waits_once_for_each_iteration_with_missing_entries(monkeypatch):
    x = random_tensor((30, 40, 50), 3000, random_state=0, device="cuda")
    missing = MissingEntries(x, cupy.asarray([[0, 1], [2, 3], [4, 5]]))
    counts, original = [], gpu_batch.move
    monkeypatch.setattr(gpu_batch, "move", lambda *a: counts.append(1) or original(*a))
    run_together(x, 4, SEEDS, Stopping(6, 0), missing=missing)
    assert len(counts) == 6


@DTYPES
def test_runs_that_converge_leave(dtype):
    x = planted_tensor((30, 40, 50), 3, 300, noise=0.2, random_state=0, dtype=dtype,
                       device="cuda")[0]  # fmt: skip
    starts = best_of(parafac, x, 3, 10, random_state=0, tol=1e-3, keep_all=True)
    assert len({len(errors) for errors in starts.errors}) > 1
    for seed, errors in zip(starts.seeds, starts.errors, strict=True):
        options = {"init": "random", "random_state": seed, "tol": 1e-3, "return_errors": True}
        _, expected = parafac(x, 3, **options)
        assert abs(float(errors[-1]) - float(expected[-1])) <= 2e-3


@DTYPES
def test_runs_are_dropped(dtype):
    x = planted_tensor((30, 40, 50), 3, 300, noise=0.2, random_state=0, dtype=dtype,
                       device="cuda")[0]  # fmt: skip
    starts, again = (best_of(parafac, x, 3, 12, random_state=0) for _ in range(2))
    everything = best_of(parafac, x, 3, 12, random_state=0, keep_all=True)
    assert starts.dropped
    assert (starts.dropped, starts.errors) == (again.dropped, again.errors)
    assert everything.dropped == []
    assert starts.final_errors.min() == pytest.approx(everything.final_errors.min(), rel=1e-4)
    assert factor_match_score(starts.best, everything.best) > 0.99


def test_scores_are_those_of_the_cpu():
    x, factors = planted_tensor((20, 30, 40), 3, 300, noise=0.2, random_state=0, device="cpu")
    random = np.random.RandomState(0)
    models = [(random.random_sample(3), [f + random.random_sample(f.shape) for f in factors])
              for _ in range(2)]  # fmt: skip
    moved = [(cupy.asarray(w), [cupy.asarray(f) for f in fs]) for w, fs in models]
    on_gpu = FlycooTensor(*x.nonzeros(), x.shape, device="cuda")
    expected = core_consistency(x, models[0])
    assert core_consistency(on_gpu, moved[0]) == pytest.approx(expected, rel=1e-9)
    diagnosis = diagnose(x, models[0])
    on_device = diagnose(on_gpu, moved[0])
    assert on_device.error == pytest.approx(diagnosis.error, rel=1e-12)
    assert on_device.gradient == pytest.approx(diagnosis.gradient, rel=1e-9)
    np.testing.assert_allclose(on_device.noise, diagnosis.noise, rtol=1e-9)
    for consider_weights in (True, False):
        scores = [
            factor_match_score(*pair, consider_weights=consider_weights) for pair in (models, moved)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-12)


def test_the_rank_of_sparse_counts_is_found():
    """Held-out entries weigh the same as on the CPU."""
    random = np.random.default_rng(0)
    means = np.einsum("ir,jr,kr->ijk", *(random.gamma(0.5, 1, (n, 3)) for n in (60, 50, 40)))
    counts = random.poisson(means * (0.03 / means.mean())).astype(float)
    x = FlycooTensor.from_dense(counts, device="cuda")
    selection = select_rank(x, range(1, 5), 4, "generalized_parafac", random_state=0)
    assert selection.rank == 3
    cells = np.stack(np.unravel_index(np.arange(500), counts.shape))
    chances = [
        find_chances(FlycooTensor.from_dense(counts, device=device), xp.asarray(cells))
        for device, xp in (("cpu", np), ("cuda", cupy))
    ]
    np.testing.assert_array_equal(*chances)


def test_a_planted_rank_is_found():
    x, _ = planted_tensor((30, 40, 50), 3, 300, noise=0.2, random_state=0, device="cuda")
    selection = select_rank(x, range(1, 5), n_runs=5, random_state=0)
    assert selection.rank == 3
    assert isinstance(selection.best.factors[0], cupy.ndarray)


@DTYPES
@pytest.mark.parametrize("mode", [0, 2])
def test_resampled_runs_are_near_those_of_the_host(mode, dtype):
    """Seven runs: the stack on the GPU has eight. They are not compared once extrapolated."""
    x = random_tensor((30, 40, 50), 3000, random_state=0, dtype=dtype, device="cpu")
    start = [np.random.RandomState(n).rand(size, 3).astype(dtype) for n, size in enumerate(x.shape)]
    size = x.shape[mode]
    weights = np.random.RandomState(0).multinomial(size, [1 / size] * size, 7).astype(float)
    expected = run_resampled(x, start, mode, weights, 1)
    on_gpu = FlycooTensor(*x.nonzeros(), x.shape, device="cuda")
    found = run_resampled(on_gpu, [cupy.asarray(factor) for factor in start], mode, weights, 1)
    for cp, other in zip(found, expected, strict=True):
        for array, factor in zip(cp.factors, other.factors, strict=True):
            assert abs(array - factor).max() <= bound_of(dtype) * abs(factor).max()


def test_intervals_are_near_those_of_the_host():
    options = {"noise": 0.3, "random_state": 0, "device": "cpu"}
    x, _ = planted_tensor((20, 30, 40), 3, nnz_per_component=900, **options)
    cp = parafac(x, 3, init="random", random_state=0)
    expected = uncertainty(x, cp, 0, random_state=0)
    on_gpu = FlycooTensor(*x.nonzeros(), x.shape, device="cuda")
    found = uncertainty(on_gpu, cp, 0, random_state=0)
    for ends, others in zip(
        found.cp_tensor.intervals[1:], expected.cp_tensor.intervals[1:], strict=True
    ):
        np.testing.assert_allclose(ends, others, atol=1e-6)
    again = uncertainty(on_gpu, cp, 0, random_state=0)
    np.testing.assert_array_equal(again.samples[1], found.samples[1])
    assert [*found.cp_tensor.to_tidy()][-2:] == ["lower", "upper"]
    found.cp_tensor.plot(top=3)
