"""The memory of whole calls of parafac: estimates against measurements."""

import gc
import tracemalloc

import numpy as np
import pytest
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, MemoryEstimate, estimate_memory

#: Shape, nonzeros and rank of tensors whose nonzeros are spread evenly.
PROBLEMS = {
    "hypersparse": ((30_000, 20_000, 250_000), 300_000, 16),
    "as long as its modes": ((60_000, 40_000, 50_000), 100_000, 8),
    "four modes": ((1000, 1000, 1000, 1000), 300_000, 16),
    "shared columns": ((3000, 2000, 1000), 500_000, 16),
    "many coupled rows": ((20_000, 3000, 500), 300_000, 8),
}
EACH_PROBLEM = pytest.mark.parametrize("name", PROBLEMS)


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
@EACH_PROBLEM
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_peak_of_a_call_is_within_15_percent(name, init, dtype):
    shape, nnz, rank = PROBLEMS[name]
    x = make_tensor(shape, nnz, dtype)
    peak = measure_peak(lambda: parafac(x, rank, n_iter_max=2, init=init, random_state=0))
    estimate = estimate_memory(
        shape, nnz, dtype=dtype, device="cpu", rank=rank, init=init
    ).call_nbytes
    assert estimate == pytest.approx(x.nbytes + peak, rel=0.15)


def test_without_a_rank_there_is_no_call():
    shape, nnz = (30, 20, 10), 1000
    estimate = estimate_memory(shape, nnz)
    assert estimate.call_nbytes is None
    with_rank = estimate_memory(shape, nnz, rank=4)
    assert (estimate.nbytes, estimate.peak_nbytes) == (with_rank.nbytes, with_rank.peak_nbytes)
    assert with_rank.call_nbytes > with_rank.nbytes


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_a_layout_changes_only_the_bytes_of_the_tensor(layout):
    estimate = estimate_memory((300, 200, 100), 10_000, layout=layout, rank=8)
    other = estimate_memory((300, 200, 100), 10_000, rank=8)
    assert estimate.call_nbytes - estimate.nbytes == other.call_nbytes - other.nbytes


def test_an_estimate_shows_its_sizes():
    estimate = MemoryEstimate(48_011_736, 2_345_678_900, None)
    assert str(estimate) == repr(estimate) == "MemoryEstimate(nbytes=48 MB, peak_nbytes=2.35 GB)"
    assert estimate.nbytes == 48_011_736


@pytest.mark.parametrize("shape", [(1,), (5,), (1, 1, 1), (2**31, 3, 2), (2**32, 2**32)])
@pytest.mark.parametrize("nnz", [0, 1, 5])
def test_odd_sizes(shape, nnz):
    for init in ("svd", "random"):
        estimate = estimate_memory(shape, nnz, rank=3, init=init)
        assert estimate.call_nbytes >= estimate.nbytes + sum(shape) * 3 * 8


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rank": 0}, ValueError, "rank is 0"),
        ({"rank": 1.5}, TypeError, "rank is 1.5"),
        ({"rank": 2, "init": "nndsvd"}, ValueError, "init is 'nndsvd', expected 'svd' or 'random'"),
    ],
)
def test_bad_arguments(options, error, text):
    with pytest.raises(error, match=text):
        estimate_memory((3, 4), 2, **options)
