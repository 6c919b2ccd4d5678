"""The memory of iterations of parafac: estimates against measurements."""

import gc
import tracemalloc

import numpy as np
import pytest
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, MemoryEstimate, estimate_memory
from tensorly_flycoo.format import groups as groups_module
from tensorly_flycoo.spread.memory import count_iteration_nbytes

#: Shape, nonzeros and rank of tensors whose nonzeros are spread evenly.
PROBLEMS = {
    "hypersparse": ((30_000, 20_000, 250_000), 300_000, 16),
    "as long as its modes": ((60_000, 40_000, 50_000), 100_000, 8),
    "four modes": ((1000, 1000, 1000, 1000), 300_000, 16),
    "shared columns": ((3000, 2000, 1000), 500_000, 16),
    "many coupled rows": ((20_000, 3000, 500), 300_000, 8),
}


pytestmark = pytest.mark.usefixtures("flycoo_backend")


def make_tensor(shape, nnz, dtype="float64"):
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, nnz) for size in shape])
    values = rng.standard_normal(nnz).astype(dtype)
    # Without these, singular vectors of two modes may have no nonzero in common.
    coords[:, :16], values[:16] = np.arange(16), 100 + np.arange(16)
    return FlycooTensor(coords, values, shape)


def measure_peak(function):
    """Measure the most bytes allocated at a time; the first call compiles."""
    function()
    gc.collect()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.usual_limits("prefixes")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "four modes")) for name in PROBLEMS],
)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_peak_of_a_call_is_within_15_percent(name, dtype):
    shape, nnz, rank = PROBLEMS[name]
    x = make_tensor(shape, nnz, dtype)
    peak = measure_peak(lambda: parafac(x, rank, n_iter_max=2, init="random", random_state=0))
    estimate = count_iteration_nbytes(x._engine, x._layout, rank)
    assert x.nbytes + estimate == pytest.approx(x.nbytes + peak, rel=0.15)


@pytest.mark.usual_limits("groups")  # where products of indices are few enough
def test_each_slab_has_a_row_for_each_of_its_prefixes(monkeypatch):
    monkeypatch.setattr(groups_module, "_LEAST_NNZ", 0)
    rng = np.random.default_rng(0)
    pairs = np.stack([rng.integers(0, size, 40) for size in (60, 50)])
    coords = np.vstack([pairs[:, rng.integers(0, 40, 3000)], rng.integers(0, 300, 3000)])
    x, plain = (
        FlycooTensor(coords, np.ones(3000), (60, 50, 300), slabs=3, groups=groups)
        for groups in ("auto", None)
    )
    num_rows = sum(slab.layout.record_format.num_prefixes for slab in x._layout.slabs)
    assert num_rows == pytest.approx(3 * 40, abs=3)
    added = count_iteration_nbytes(x._engine, x._layout, 4)
    added -= count_iteration_nbytes(plain._engine, plain._layout, 4)
    assert added == 2 * num_rows * 4 * 8


def test_an_estimate_shows_its_sizes():
    estimate = MemoryEstimate(48_011_736, 2_345_678_900)
    assert str(estimate) == repr(estimate) == "MemoryEstimate(nbytes=48 MB, peak_nbytes=2.35 GB)"
    assert estimate.nbytes == 48_011_736


@pytest.mark.parametrize("shape", [(1,), (5,), (1, 1, 1), (2**31, 3, 2), (2**32, 2**32)])
@pytest.mark.parametrize("nnz", [0, 1, 5])
def test_odd_sizes(shape, nnz):
    assert estimate_memory(shape, nnz).nbytes >= 0
