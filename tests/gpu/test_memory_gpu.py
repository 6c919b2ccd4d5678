"""Memory estimates compared with CuPy's pool, and what happens when memory runs out.

Every test has its own pool; a limited pool simulates a GPU with less memory.
"""

import gc
import math

import cupy
import numpy as np
import pytest
from tensorly.decomposition import parafac
from test_mttkrp_gpu import LAYOUTS, check, compute, make_problem

from tensorly_flycoo import FlycooTensor, estimate_memory, mttkrp
from tensorly_flycoo.engines.cuda import engine as cuda

#: CuPy's pool allocates whole blocks of this many bytes.
BLOCK_NBYTES = 512


class PeakHook(cupy.cuda.MemoryHook):
    """A hook on CuPy's allocator that counts the bytes in use and their peak."""

    name = "PeakHook"

    def __init__(self):
        self.used = self.peak = 0

    def malloc_postprocess(self, **options):
        self.used += options["mem_size"]
        self.peak = max(self.peak, self.used)

    def free_postprocess(self, **options):
        self.used -= options["mem_size"]


@pytest.fixture
def pool():
    gc.collect()
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        yield pool
        cupy.cuda.Device().synchronize()


def make_tensor(problem, layout, slabs=None):
    coords, values, shape, _ = problem
    return FlycooTensor(coords, values, shape, layout=layout, slabs=slabs, device="cuda")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "skew"),
    [
        pytest.param((3000, 2000, 1000), 1.0, id="three modes"),
        pytest.param((3, 300_000, 2, 20_000, 1), 1.0, id="five modes"),
        pytest.param((5_000_000,), 1.0, id="one mode"),
        pytest.param((20_000_000, 20), 3.0, id="most rows empty"),
    ],
)
def test_peak_is_bounded_and_not_by_much(pool, shape, skew, layout, dtype):
    problem = make_problem(shape, 2_000_000, 1, dtype, skew)
    nnz = problem[1].size
    order = np.random.default_rng(1).permutation(nnz)
    shuffled = (problem[0][:, order], problem[1][order], shape, None)
    for coords, values, *rest in (problem, shuffled):
        make_tensor((coords[:, :1000], values[:1000], *rest), layout)  # compiles
    estimate = estimate_memory(shape, nnz, dtype=dtype, layout=layout, device="cuda")
    gc.collect()
    with PeakHook() as hook:
        x = make_tensor(shuffled, layout)
    assert estimate.peak_nbytes / 2 <= hook.peak <= estimate.peak_nbytes
    del x
    gc.collect()
    with PeakHook() as hook:
        x = make_tensor(problem, layout)
    assert hook.peak <= estimate.peak_nbytes
    # Each array of the layout takes at most one block more than its bytes.
    num_arrays = 2 + 6 * len(shape)
    assert x.nbytes <= hook.used <= x.nbytes + num_arrays * BLOCK_NBYTES
    empty_rows = [tiling.empty_rows for tiling in x._layout.tilings]
    # A group's rows that stand for no combination of indices are empty in any tensor.
    most = [min(nnz, math.prod(shape[mode] for mode in group)) for group in x.groups]
    sizes = zip(empty_rows, x._layout.merged.shape, most, strict=True)
    more = [rows.size - (size - used) for rows, size, used in sizes]
    extra = sum(n * r.itemsize for n, r in zip(more, empty_rows, strict=True))
    assert x.nbytes == estimate.nbytes + extra


def test_free_is_what_the_pool_may_still_hand_out(pool):
    before = cuda.CUDA.count_free_nbytes()
    array = cupy.empty(2**26, np.uint8)
    assert cuda.CUDA.count_free_nbytes() <= before - array.nbytes
    pool.set_limit(size=2**27)
    assert cuda.CUDA.count_free_nbytes() == 2**26
    del array
    assert cuda.CUDA.count_free_nbytes() == 2**27


@pytest.mark.parametrize("layout", LAYOUTS)
def test_building_runs_out_anywhere_and_keeps_nothing(pool, layout):
    problem = make_problem((3000, 2000, 1000), 500_000, 8, "float64")
    with PeakHook() as hook:
        make_tensor(problem, layout)
    gc.collect()
    errors = []
    for part in np.linspace(0.02, 0.9, 30):
        pool.free_all_blocks()
        pool.set_limit(size=int(part * hook.peak))
        with pytest.raises(MemoryError, match="building a FlycooTensor of") as caught:
            make_tensor(problem, layout, slabs=1)
        errors.append(caught.value)
        assert type(errors[-1]) is MemoryError
        assert pool.used_bytes() == 0
        pool.free_all_blocks()
        assert pool.total_bytes() == 0
    pool.set_limit(size=int(0.9 * hook.peak))
    in_slabs = make_tensor(problem, layout)
    assert in_slabs.slabs > 1
    pool.set_limit(size=0)
    factors = [cupy.asarray(factor) for factor in problem[3]]
    for x in (in_slabs, make_tensor(problem, layout)):
        for mode in range(3):
            check(mttkrp(x, factors, mode).get(), x, *problem, mode)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", [0, 2])
def test_mttkrp_runs_out_anywhere_and_leaves_the_tensor(pool, layout, mode):
    """Raise the limit until it suffices; the tensor itself has memory outside the pool."""
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
        problem = make_problem((3000, 2000, 1000), 500_000, 64, "float64")
        x = make_tensor(problem, layout)
        factors = [cupy.asarray(factor) for factor in problem[3]]
        strided = [cupy.asfortranarray(factor) for factor in factors]
        mttkrp(x, strided, mode)  # compiles
        with PeakHook() as hook:
            mttkrp(x, strided, mode)
        for each in range(3):
            compute(x, factors, each)
    resident, result, errors = getattr(x._layout, "mode", None), None, []
    while result is None:
        pool.free_all_blocks()
        pool.set_limit(size=len(errors) * hook.peak // 20 + 1)
        try:
            result = mttkrp(x, strided, mode)
        except MemoryError as error:
            errors.append(error)
            assert getattr(x._layout, "mode", None) == resident
            assert pool.used_bytes() == 0
    assert 20 <= len(errors) <= 25  # whole blocks hold a little more than the bytes requested
    for error in errors:
        assert type(error) is MemoryError
        text = (
            f"mttkrp of mode {mode} and rank 64 needs more memory than the GPU has: Out of memory"
        )
        assert str(error).startswith(text)
    check(result.get(), x, *problem, mode)
    pool.set_limit(size=0)
    for each in range(3):
        check(compute(x, factors, each), x, *problem, each)


@pytest.mark.parametrize("read", ["gather", "map_values"])
def test_remapping_waits_for_a_copy_on_another_stream(read):
    """The second remapping after a copy overwrites the records that the copy reads."""
    problem = make_problem((900, 800, 700), 3_000_000, 1, "float32")
    x = make_tensor(problem, "remap")
    factors = [cupy.asarray(factor) for factor in problem[3]]

    def copy_records():
        if read == "map_values":
            return x._layout.map_values(cupy.negative, 1.0).records
        with x._layout.hold_first_order(cuda.CUDA) as (records, places):
            return cuda.CUDA.gather(records, places)

    def sort(records):
        words = records.get()
        return words[np.lexsort(words.T)]

    expected = sort(copy_records())
    for mode in range(3):
        mttkrp(x, factors, mode)
    cupy.cuda.Device().synchronize()
    reading, moving = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    copies = []
    for step in range(12):
        with reading:
            copies += [copy_records() for _ in range(3)]
        with moving:
            for mode in (step, step + 1):
                mttkrp(x, factors, mode % 3)
        reading.synchronize(), moving.synchronize()
    for copied in copies:
        np.testing.assert_array_equal(sort(copied), expected)


# Whole calls of parafac


def make_even_tensor(shape, nnz, dtype, layout="remap"):
    """Make a tensor of nonzeros that are spread evenly."""
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, nnz) for size in shape])
    values = rng.standard_normal(nnz).astype(dtype)
    # Without these, singular vectors of two modes may have no nonzero in common.
    coords[:, :40], values[:40] = np.arange(40), 100 + np.arange(40)
    return FlycooTensor(coords, values, shape, layout=layout, device="cuda")


@pytest.mark.parametrize("init", ["svd", "random"])
def test_parafac_runs_out_anywhere_and_leaves_the_tensor(pool, init):
    """The tensor itself has memory outside the pool."""
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
        x = make_even_tensor((30_000, 2000, 5000), 1_000_000, "float32")
    options = {"n_iter_max": 2, "init": init, "random_state": 0}
    expected = [factor.get() for factor in parafac(x, 16, **options).factors]
    gc.collect()
    with PeakHook() as hook:
        parafac(x, 16, **options)
    gc.collect()
    before = pool.used_bytes()  # what is kept for later calls
    for part in np.linspace(0.05, 0.9, 18):
        pool.free_all_blocks()
        pool.set_limit(size=before + int(part * hook.peak))
        with pytest.raises(MemoryError, match="needs more memory than the GPU has: ") as caught:
            parafac(x, 16, **options)
        assert type(caught.value) is MemoryError
        assert pool.used_bytes() <= before
    pool.set_limit(size=0)
    for factor, other in zip(parafac(x, 16, **options).factors, expected, strict=True):
        np.testing.assert_array_equal(factor.get(), other)


def test_the_svd_start_gives_its_memory_back(pool):
    """At the first callback there are the factors, and the last mode's MTTKRP."""
    shape, rank = (200_000, 3000, 5000), 16
    x = make_even_tensor(shape, 5_000_000, "float32")
    parafac(x, rank, n_iter_max=1)  # compiles
    gc.collect()
    before, used = pool.used_bytes(), []
    gc.disable()
    try:
        parafac(x, rank, n_iter_max=1, callback=lambda *_: used.append(pool.used_bytes()))
    finally:
        gc.enable()
    row_nbytes = rank * 4
    assert used[0] <= before + 1.1 * (sum(shape) + shape[-1]) * row_nbytes
