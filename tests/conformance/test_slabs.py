"""Tensors in slabs: results, memory, what is refused and what a hub row does."""

import copy
import itertools
import logging
import operator
import pickle
import threading
import tracemalloc

import numpy as np
import pytest
import reference
import tensorly as tl
from numpy_devices import NumpyDevices
from problems import make_problem
from tensorly.decomposition import parafac, tucker

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, estimate_memory, mttkrp, open_slabs, save, save_slabs
from tensorly_flycoo.engines.cpu import engine as cpu

LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])

SHAPE = (30, 70, 10)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(cpu, "TILE_SIZE", 32)
    monkeypatch.setattr(cpu, "BUCKET_SIZE", 64)


def compute(x, problem):
    return [mttkrp(x, problem.factors, mode).tobytes() for mode in range(x.ndim)]


@LAYOUTS
@DTYPES
@pytest.mark.parametrize("num_slabs", [1, 2, 3, 5, 8, 200])
def test_every_mode_in_memory_full_of_nan(num_slabs, layout, dtype):
    problem = make_problem(SHAPE, 900, dtype=dtype, skew=2)
    x = problem.tensor(layout=layout, slabs=num_slabs)
    assert x.slabs == num_slabs
    problem.check_tensor(x, (0, 1, 2, 0, 2, 1))


@LAYOUTS
@pytest.mark.parametrize(
    "rank", [2, 7, *[pytest.param(n, marks=pytest.mark.slow) for n in (1, 33)]]
)
def test_ranks(rank, layout):
    problem = make_problem((20, 3, 25), 300, rank=rank)
    x = problem.tensor(layout=layout, slabs=4)
    for mode in range(3):
        problem.check(mttkrp(x, problem.factors, mode), mode, x)


@LAYOUTS
def test_weights_scale_columns(layout):
    """Powers of two and zero do so exactly."""
    problem = make_problem(SHAPE, 900)
    x, weights = problem.tensor(layout=layout, slabs=5), np.array([0.5, -4.0, 0.0])
    for mode in range(3):
        expected = mttkrp(x, problem.factors, mode) * weights
        found = mttkrp(x, problem.factors, mode, weights=weights)
        np.testing.assert_array_equal(found, expected)


@LAYOUTS
def test_out_may_be_the_factor_of_the_mode(layout):
    problem = make_problem(SHAPE, 900)
    x = problem.tensor(layout=layout, slabs=3)
    for mode in range(3):
        factors = [factor.copy() for factor in problem.factors]
        problem.check(mttkrp(x, factors, mode, out=factors[mode]), mode, x)


@pytest.mark.usual_limits(
    "groups", "prefixes", "slabs"
)  # results of a group are added before they contract
@LAYOUTS
def test_bits_of_each_layout_are_those_of_slabs_added_by_hand(layout):
    """The tree, with tensors of their own: ((0 + 1) + 2)."""
    problem = make_problem(SHAPE, 900)
    x = problem.tensor(layout=layout, slabs=3)
    edges = [slab.rows.start for slab in x._layout.slabs] + [SHAPE[1]]
    coords, values = x.nonzeros()
    parts = []
    for start, stop in itertools.pairwise(edges):
        is_in = (coords[1] >= start) & (coords[1] < stop)
        own = coords[:, is_in] - np.array([[0], [start], [0]])
        part = FlycooTensor(own, values[is_in], (30, stop - start, 10))
        factors = [problem.factors[0], problem.factors[1][start:stop], problem.factors[2]]
        parts.append([mttkrp(part, factors, mode) for mode in range(3)])
    for mode in (0, 2):
        expected = (parts[0][mode] + parts[1][mode]) + parts[2][mode]
        assert mttkrp(x, problem.factors, mode).tobytes() == expected.tobytes()
    expected = np.concatenate([part[1] for part in parts])
    assert mttkrp(x, problem.factors, 1).tobytes() == expected.tobytes()


@LAYOUTS
@pytest.mark.parametrize("nnz", [0, 1])
def test_no_nonzero_or_one(nnz, layout):
    problem = make_problem(SHAPE, nnz)
    x = problem.tensor(layout=layout, slabs=4)
    assert (x.nnz, len(x._layout.slabs)) == (nnz, 1)
    for mode in range(3):
        problem.check(mttkrp(x, problem.factors, mode), mode, x)


@LAYOUTS
def test_one_mode(layout):
    problem = make_problem((50,), 60)
    x = problem.tensor(layout=layout, slabs=4)
    assert len(x._layout.slabs) == 4
    problem.check(mttkrp(x, problem.factors, 0), 0, x)


def test_a_hub_row_is_not_split_and_warns(caplog):
    problem = make_problem(SHAPE, 900)
    problem.coords[1, :700] = 40
    with caplog.at_level(logging.WARNING, logger="tensorly_flycoo"):
        x = problem.tensor(slabs=6)
    (record,) = caplog.records
    assert "a row of mode 1, which is not split" in record.getMessage()
    assert 1 < len(x._layout.slabs) < 6
    for mode in range(3):
        problem.check(mttkrp(x, problem.factors, mode), mode, x)


def test_even_slabs_do_not_warn(caplog):
    with caplog.at_level(logging.WARNING, logger="tensorly_flycoo"):
        make_problem(SHAPE, 900).tensor(slabs=6)
        FlycooTensor([[1]], [2.0], (5,), slabs=6)
    assert not caplog.records


def test_bits_do_not_depend_on_threads_or_runs():
    import numba

    problem = make_problem(SHAPE, 2000, skew=2)
    expected, num_threads = None, numba.get_num_threads()
    try:
        for count in (1, 2, num_threads):
            numba.set_num_threads(min(count, num_threads))
            found = compute(problem.tensor(slabs=5), problem)
            assert expected in (None, found)
            expected = found
    finally:
        numba.set_num_threads(num_threads)


def test_two_threads_use_one_tensor():
    problem = make_problem(SHAPE, 2000)
    x = problem.tensor(slabs=5)
    expected, wrong = compute(x, problem), []

    def work(mode):
        results = (mttkrp(x, problem.factors, mode).tobytes() for _ in range(20))
        wrong.extend(mode for result in results if result != expected[mode])

    threads = [threading.Thread(target=work, args=(mode,)) for mode in (0, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_slabs_are_chosen_above_the_largest_number_of_nonzeros(monkeypatch):
    monkeypatch.setattr("tensorly_flycoo.spread.memory.MAX_SLAB_NNZ", 300)
    problem = make_problem(SHAPE, 900)
    x = problem.tensor()
    assert x.slabs == 3
    assert compute(x, problem) == compute(problem.tensor(slabs=3), problem)
    assert estimate_memory(SHAPE, 900) == estimate_memory(SHAPE, 900, slabs=3)


@pytest.mark.parametrize(
    ("slabs", "error", "text"),
    [
        (0, ValueError, "slabs is 0, expected at least 1"),
        (1.5, TypeError, "slabs is 1.5, expected an integer"),
        (True, TypeError, "slabs is True, expected an integer"),
    ],
)
def test_wrong_numbers_of_slabs(slabs, error, text):
    with pytest.raises(error, match=text):
        FlycooTensor([[1]], [2.0], (5,), slabs=slabs)
    with pytest.raises(error, match=text):
        estimate_memory((5,), 1, slabs=slabs)


@pytest.mark.usual_limits("slabs")
def test_copies_have_as_many_slabs():
    problem = make_problem(SHAPE, 900)
    x = problem.tensor(layout="indexed", slabs=5)
    expected = compute(x, problem)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), operator.neg(-x), 0.5 * (2 * x)):
        assert (other.slabs, other.layout) == (5, "indexed")
        assert compute(other, problem) == expected
    assert "slabs=5" in repr(x)
    assert "slabs" not in repr(problem.tensor())


@pytest.mark.usual_limits("slabs")
def test_elements_and_sums_are_those_of_one_piece():
    problem = make_problem(SHAPE, 900)
    problem.values[:] = np.rint(8 * problem.values)  # sums are exact
    x, y = problem.tensor(), problem.tensor(slabs=4)
    assert (y.sum(), y.max(), y.norm()) == (x.sum(), x.max(), x.norm())
    np.testing.assert_array_equal(y.sum(axis=(0, 1)), x.sum(axis=(0, 1)))
    for index in (3, (slice(None), slice(5, 60, 7)), (Ellipsis, [1, 4, 4])):
        for found, expected in zip(y[index].nonzeros(), x[index].nonzeros(), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert (y - x).nnz == 0
    assert np.sqrt(abs(y)).slabs == 4


def test_saving_is_refused(tmp_path):
    x = make_problem(SHAPE, 900).tensor(slabs=4)
    with pytest.raises(ValueError, match=r"x has 4 slabs, expected .*: call save_slabs"):
        save(tmp_path / "x.npz", x)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:overflow")
def test_sums_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="would hold values that are not finite: values"):
        FlycooTensor([[1, 1, 3]], [1e308, 1e308, 1.0], (5,), slabs=2)


@LAYOUTS
@DTYPES
def test_memory_is_predicted(layout, dtype):
    """With as many nonzeros in each slab, and no empty rows, to the byte."""
    shape = (40, 5, 4)
    coords = np.indices(shape).reshape(3, -1)
    x = FlycooTensor(coords, np.ones(800), shape, dtype=dtype, layout=layout, slabs=4)
    estimate = estimate_memory(shape, 800, dtype=dtype, layout=layout, slabs=4)
    assert x.nbytes == estimate.nbytes < estimate.peak_nbytes


@pytest.mark.usual_limits("prefixes")  # as many as nonzeros, beside which they take memory
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("shape", [(300, 200, 100), (3, 300_000, 2, 200_000, 1), (500_000,)])
def test_the_bound_on_the_peak_is_tight(shape, layout):
    nnz, slabs, rng = 100_000, 5, np.random.default_rng(0)

    def build(count):
        coords = np.stack([rng.integers(0, size, count) for size in shape])
        values = rng.random(count)
        tracemalloc.start()
        try:
            FlycooTensor(coords, values, shape, layout=layout, device="cpu", slabs=slabs)
            return tracemalloc.get_traced_memory()[1] + coords.nbytes + values.nbytes
        finally:
            tracemalloc.stop()

    build(1000)  # what is compiled and cached is not the tensor's
    estimate = estimate_memory(shape, nnz, layout=layout, device="cpu", slabs=slabs)
    assert estimate.peak_nbytes / 2 <= build(nnz) <= estimate.peak_nbytes + 2**15


def test_memory_that_runs_out_is_explained_and_the_tensor_stays_valid(monkeypatch):
    problem = make_problem(SHAPE, 900)
    x = problem.tensor(slabs=4)
    expected, real, calls = compute(x, problem), cpu.CpuEngine.allocate_workspace, []

    def fail_third(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise MemoryError
        return real(*arguments)

    monkeypatch.setattr(cpu.CpuEngine, "allocate_workspace", fail_third)
    with pytest.raises(MemoryError, match="mttkrp of mode 0 and rank 3"):
        mttkrp(x, problem.factors, 0)
    assert compute(x, problem) == expected


@pytest.mark.parametrize("init", ["svd", "random"])
def test_parafac_as_of_one_piece(init):
    problem = make_problem((20, 30, 10), 900)
    problem.values[:] = 1 + np.abs(problem.values)
    options = {"n_iter_max": 5, "tol": 0, "init": init, "random_state": 0, "return_errors": True}
    with tl.backend_context("flycoo"):
        (_, expected), (_, found) = (
            parafac(problem.tensor(slabs=slabs), 3, **options) for slabs in (1, 4)
        )
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_tucker_as_of_one_piece():
    problem = make_problem((20, 30, 10), 900)
    with tl.backend_context("flycoo"):
        x, y = problem.tensor(), problem.tensor(slabs=4)
        expected, found = (tl.norm(tucker(z, [2, 3, 2], n_iter_max=3).core) for z in (x, y))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_oracle_of_partitions_agrees():
    """Slabs, like the paper's partitions, only reorder the sums."""
    problem = make_problem((9, 8, 7), 200)
    expected = reference.mttkrp_all_modes(*problem.arguments(0)[:4], 3)
    x = problem.tensor(slabs=3)
    for mode in range(3):
        limit = reference.mttkrp_error_bound(*problem.arguments(mode), "float64")
        assert (np.abs(mttkrp(x, problem.factors, mode) - expected[mode]) <= limit).all()


def test_the_factors_may_be_larger_than_their_slabs_need():
    """Rows of the cut mode's factor that a slab does not have are not read by it."""
    problem = make_problem(SHAPE, 900)
    strided = [np.asfortranarray(np.repeat(f, 2, axis=0))[::2] for f in problem.factors]
    x = tensorly_flycoo.FlycooTensor(problem.coords, problem.values, SHAPE, slabs=4)
    for mode in range(3):
        assert mttkrp(x, strided, mode).tobytes() == mttkrp(x, problem.factors, mode).tobytes()


@LAYOUTS
def test_slabs_are_chosen_by_the_free_memory(layout, monkeypatch):
    """Before anything is built: the fewest with which the tensor can be, in powers of two."""
    monkeypatch.setattr("tensorly_flycoo.engines.out_of_memory.SURELY_FREE_NBYTES", 0)
    problem = make_problem(SHAPE, 900)
    given = problem.coords.nbytes + problem.values.nbytes
    peaks = {
        num_slabs: estimate_memory(SHAPE, 900, layout=layout, slabs=num_slabs).peak_nbytes - given
        for num_slabs in (1, 2, 4, 8)
    }
    least = tensorly_flycoo.spread.memory.choose_num_slabs(900)
    for free in sorted({10**3, 10**9, *peaks.values(), *(peak - 1 for peak in peaks.values())}):
        monkeypatch.setattr(cpu.CpuEngine, "count_free_nbytes", lambda engine, n=free: n)
        fitting = [n for n in (1, 2, 4, 8) if peaks[n] <= free]
        if least == 1 and fitting:
            assert problem.tensor(layout=layout).slabs == fitting[0]
        elif free == 10**3:
            with pytest.raises(MemoryError, match=r"900 nonzeros.* needs more memory"):
                problem.tensor(layout=layout)


def test_slabs_are_not_chosen_if_the_free_memory_is_unknown(monkeypatch):
    monkeypatch.setattr("tensorly_flycoo.engines.out_of_memory.SURELY_FREE_NBYTES", 0)
    monkeypatch.setattr(cpu.CpuEngine, "count_free_nbytes", lambda engine: None)
    least = tensorly_flycoo.spread.memory.choose_num_slabs(900)
    assert make_problem(SHAPE, 900).tensor().slabs == least


def test_gpus_share_the_memory_of_slabs(monkeypatch):
    """A GPU keeps what the host's arrays make there: its own slabs."""
    monkeypatch.setattr(cpu.CPU, "staging_size", 2**20, raising=False)
    sizes, options = ((3000, 2000, 1000), 10**7), {"slabs": 8}
    one = estimate_memory(*sizes, **options)
    monkeypatch.setattr(cpu.CPU, "devices", NumpyDevices(4))
    four = estimate_memory(*sizes, **options)
    assert four.nbytes == one.nbytes
    assert one.peak_nbytes / 4 < four.peak_nbytes < one.peak_nbytes / 2


@pytest.mark.parametrize("slabs", [10**7, 10**9, 10**30])
def test_more_slabs_than_nonzeros_are_one_for_each_row(slabs, tmp_path):
    problem = make_problem((5, 4), 15, 2, seed=0)
    x = FlycooTensor(problem.coords, problem.values, problem.shape, slabs=slabs)
    assert x.slabs == (x * 2)[:3].slabs == slabs
    assert [slab.rows for slab in x._layout.slabs] == [slice(n, n + 1) for n in range(5)]
    save_slabs(tmp_path / "folder", x, slabs=slabs)
    again = open_slabs(tmp_path / "folder")
    assert (again.slabs, compute(again, problem)) == (slabs, compute(x, problem))
    assert estimate_memory(x.shape, x.nnz, slabs=slabs).nbytes >= x.nbytes
