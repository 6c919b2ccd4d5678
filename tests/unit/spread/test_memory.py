"""Memory estimates against measurements, and what happens when memory runs out."""

import gc
import itertools
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
import tensorly as tl
from numpy_primitives import NumpyPrimitives
from problems import compute_all, make_exact_problem, make_problem
from slow_cases import thin_out

from tensorly_flycoo import FlycooTensor, decomposition, estimate_memory, mttkrp
from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.engines.out_of_memory import format_nbytes
from tensorly_flycoo.format.layouts import LAYOUT_CLASSES
from tensorly_flycoo.format.packing import Cut, RecordFormat
from tensorly_flycoo.spread import whole_layout
from tensorly_flycoo.spread.memory import estimate_piece

LAYOUTS, DTYPES = ("remap", "replicated", "indexed"), ("float32", "float64")
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)

#: Bytes that Python's own objects may take, including threads.
SMALL_NBYTES = 2**15

#: Names of NumPy's allocating functions.
ALLOCATORS = ("empty", "empty_like", "zeros", "ones", "arange", "require", "concatenate")


# Estimates


@each_layout
@each_dtype
@pytest.mark.parametrize(("shape", "nnz"), [((5,), 5), ((30, 20, 10), 6000), ((8, 7, 6, 5), 1680)])
def test_nbytes_is_exact_if_no_row_is_empty(shape, nnz, dtype, layout):
    x = make_exact_problem(shape, nnz, dtype=dtype).tensor(layout=layout)
    assert estimate_memory(shape, nnz, dtype=dtype, layout=layout).nbytes == x.nbytes


@pytest.mark.usual_limits(
    "groups", "prefixes"
)  # which are as many as nonzeros, else at most an eighth
@each_layout
@pytest.mark.parametrize("nnz", [0, 1, 100])
def test_nbytes_is_exact_if_the_fewest_possible_rows_are_empty(nnz, layout):
    """Nonzero k is in row k of each mode."""
    x = FlycooTensor(np.tile(np.arange(nnz), (3, 1)), np.ones(nnz), (500,) * 3, layout=layout)
    assert estimate_memory((500,) * 3, nnz, layout=layout).nbytes == x.nbytes


@pytest.mark.parametrize("unit", ["uint16", "uint32"])
@pytest.mark.parametrize("name", ["remap", "replicated", "indexed"])
def test_nbytes_of_an_engine_with_write_orders(name, unit):
    """Like the engine for GPUs: 32-bit words, buckets of more than 2**16 nonzeros."""

    class Writing(NumpyPrimitives):
        write_order_dtype = np.dtype(unit)

        def compact_push(self, remap_ids, cut):
            return remap_ids, np.zeros(remap_ids.size, unit)

    problem = make_exact_problem((30, 20, 10), 4000)
    record_format = RecordFormat.of(problem.shape, "float64", np.uint32)
    arguments = (Cut(record_format, 256, 2**18), Writing())
    layout = LAYOUT_CLASSES[name].build(problem.coords, problem.values, *arguments)
    assert estimate_piece(type(layout), 4000, *arguments).nbytes == layout.nbytes


def build(shape, nnz, layout, dtype, spread):
    """Draw nonzeros and build a tensor; return the peak of traced bytes, with coords and values."""
    rng = np.random.default_rng(0)
    coords, values = np.empty((len(shape), nnz), np.int64), np.empty(nnz, dtype)
    for rows, size in zip(coords, shape, strict=True):
        rows[...] = rng.integers(0, max(1, int(size * spread)), nnz)
    values[...] = rng.standard_normal(nnz)
    if tracemalloc.is_tracing():
        tracemalloc.reset_peak()
    FlycooTensor(coords, values, shape, layout=layout, device="cpu")
    return tracemalloc.get_traced_memory()[1]


def measure_peak(shape, nnz, *options):
    """Measure the peak of allocated bytes, including coords and values."""
    build(shape, 1000, *options)  # compiles, which takes far longer while memory is traced
    gc.collect()
    tracemalloc.start()
    try:
        return build(shape, nnz, *options)
    finally:
        tracemalloc.stop()


#: Shapes, and how far their nonzeros spread over the rows.
SPREADS = {
    "few duplicates": ((300, 200, 100), 1),
    "many duplicates": ((40, 30, 20, 10), 1),
    "sorted by comparing": ((2_000_000, 3_000_000), 1),
    "one mode": ((500_000,), 1),
    "most bytes while remapping is planned": ((100,) * 5, 1),
    "five modes": ((3, 300_000, 2, 200_000, 1), 1),
    "most rows empty": ((3_000_000, 20), 1e-3),
}
RARE = ["five modes", "most rows empty"]


@pytest.mark.usual_limits("prefixes")
@pytest.mark.parametrize(
    ("name", "dtype", "layout"),
    [
        *thin_out(itertools.product([*SPREADS][:5], DTYPES, LAYOUTS), 7),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in itertools.product(RARE, DTYPES, LAYOUTS)
        ),
    ],
)
def test_the_bound_on_the_peak_is_tight(name, dtype, layout):
    (shape, spread), nnz = SPREADS[name], 200_000
    measured = measure_peak(shape, nnz, layout, dtype, spread)
    estimate = estimate_memory(shape, nnz, dtype=dtype, layout=layout, device="cpu")
    assert estimate.peak_nbytes / 2 <= measured <= estimate.peak_nbytes + SMALL_NBYTES


@pytest.mark.usual_limits("record")  # where numbers make records longer, so none are chosen
@each_layout
@each_dtype
def test_the_bound_holds_with_numbered_prefixes(dtype, layout):
    shape, nnz = (12_000, 28_000, 9_000), 200_000
    problem = make_problem(shape, nnz, dtype=dtype)
    pairs = np.random.default_rng(0).integers(0, nnz // 10, nnz)
    problem.coords[:2] = problem.coords[:2, pairs]
    problem.tensor(layout=layout)  # compiles
    tracemalloc.start()
    try:
        x = problem.tensor(layout=layout)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert x.groups == ((0, 1), (2,))
    estimate = estimate_memory(shape, nnz, dtype=dtype, layout=layout, device="cpu")
    given = problem.coords.nbytes + problem.values.nbytes
    assert given + measured <= estimate.peak_nbytes + SMALL_NBYTES


@pytest.mark.usual_limits("record", "slabs")
@each_layout
@pytest.mark.parametrize("slabs", [1, 2])
@pytest.mark.parametrize("groups", [[(0, 1), (2, 3)], [(0,), (1, 2, 3)], None])
def test_nbytes_is_exact_for_given_groups(groups, slabs, layout):
    """Rows that stand for no indices are empty, and are counted."""
    shape = (8, 7, 6, 5)
    options = {"layout": layout, "groups": groups, "slabs": slabs}
    x = make_exact_problem(shape, 1680).tensor(**options)
    assert x.groups == (tuple(groups) if groups else ((0,), (1,), (2,), (3,)))
    assert estimate_memory(shape, 1680, **options).nbytes == x.nbytes


@pytest.mark.usual_limits("groups", "slabs")
@each_layout
@each_dtype
@pytest.mark.parametrize(
    ("shape", "nnz", "num_pairs"),
    [
        ((1200, 900, 700), 50_000, 40_000),
        ((1200, 900, 700), 50_000, 20),
        ((2, 4000, 40), 50_000, 1800),
    ],
)
def test_estimates_bound_given_groups_that_are_numbered(shape, nnz, num_pairs, dtype, layout):
    problem, groups = make_problem(shape, nnz, dtype=dtype), [(0, 1), (2,)]
    pairs = np.random.default_rng(0).integers(0, num_pairs, nnz)
    problem.coords[:2] = problem.coords[:2, pairs]
    problem.tensor(layout=layout, groups=groups)  # compiles
    tracemalloc.start()
    try:
        x = problem.tensor(layout=layout, groups=groups)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert x._layout.record_format.num_prefixes > 0
    options = {"dtype": dtype, "layout": layout, "device": "cpu", "groups": groups}
    estimate = estimate_memory(shape, nnz, **options)
    assert x.nbytes <= estimate.nbytes
    given = problem.coords.nbytes + problem.values.nbytes
    assert given + measured <= estimate.peak_nbytes + SMALL_NBYTES


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (((3, 0), 1), {}, ValueError, r"shape\[1\] is 0"),
        (((3, 4), -1), {}, ValueError, "nnz is -1, expected at least 0"),
        (((3, 4), 1.5), {}, TypeError, "nnz is 1.5, expected an integer"),
        (((3, 4), 1), {"dtype": "complex128"}, TypeError, "dtype is complex128"),
        (((3, 4), 1), {"layout": "csf"}, ValueError, "layout is 'csf'"),
        (((3, 4), 1), {"device": "gpu"}, ValueError, "device is 'gpu'"),
        (((3, 4), 1), {"groups": [(1,), (0,)]}, ValueError, "groups is .* in order"),
    ],
)
def test_bad_arguments(arguments, options, error, text):
    with pytest.raises(error, match=text):
        estimate_memory(*arguments, **options)


# Out of memory


class Allocations:
    """Count NumPy's allocations, and let all fail from one of them on."""

    def __init__(self, monkeypatch, failing):
        self.num, self.failing = 0, failing
        for name in ALLOCATORS:
            monkeypatch.setattr(np, name, self._watch(getattr(np, name)))

    def _watch(self, function):
        def allocate(*arguments, **options):
            self.num += 1
            if self.num > self.failing:
                raise MemoryError("unable to allocate")
            return function(*arguments, **options)

        return allocate


def for_each_allocation(monkeypatch, task):
    """Call `task` repeatedly, with memory running out later each time; yield the errors."""
    for failing in itertools.count():
        with monkeypatch.context() as patch:
            allocations = Allocations(patch, failing)
            try:
                task()
            except MemoryError as error:
                yield error
        if allocations.num <= failing:
            return


def check_consistent(x, problem):
    """Check that all modes and the nonzeros are right, and that the lock is free."""
    if x.layout == "remap":
        assert not x._layout.lock.locked()
    coords, values = x.nonzeros()
    expected = make_tensor(problem, x.layout).nonzeros()
    np.testing.assert_array_equal(coords, expected[0])
    np.testing.assert_array_equal(values, expected[1])
    problem.check_tensor(x)


def make_tensor(problem, layout):
    return problem.tensor(layout=layout, device="cpu")


@pytest.mark.usual_limits("slabs")
@each_layout
def test_building_may_fail_at_any_allocation(monkeypatch, layout):
    problem = make_problem((30, 20, 10), 500)
    check_consistent(make_tensor(problem, layout), problem)  # compiles
    errors = list(for_each_allocation(monkeypatch, lambda: make_tensor(problem, layout)))
    assert len(errors) > 10
    for error in errors:
        assert type(error) is MemoryError
        assert str(error).startswith("building a FlycooTensor of 500 nonzeros needs more ")
        assert "has: unable to allocate; " in str(error)
        assert " is free. Ways out: layout='indexed', " in str(error)
    check_consistent(make_tensor(problem, layout), problem)


@each_layout
def test_a_failed_build_keeps_nothing(monkeypatch, layout):
    """The error does not keep the packed records alive."""
    problem, packed = make_problem((30, 20, 10), 500), []
    pack = cpu.CPU.pack

    def watch(*arguments):
        records, *flags = pack(*arguments)
        packed.append(weakref.ref(records))
        return records, *flags

    monkeypatch.setattr(cpu.CPU, "pack", watch)
    errors = list(for_each_allocation(monkeypatch, lambda: make_tensor(problem, layout)))
    assert [error.__context__ for error in errors] == [None] * len(errors)
    assert len(packed) > 10
    assert [records() for records in packed] == [None] * len(packed)


@pytest.mark.usual_limits("slabs")
@each_layout
@pytest.mark.parametrize("mode", [0, 2])
def test_mttkrp_may_fail_at_any_allocation(monkeypatch, layout, mode):
    problem = make_problem((30, 20, 10), 5000)
    x = make_tensor(problem, layout)
    compute_all(x, problem.factors)  # compiles
    factors = [np.asfortranarray(factor) for factor in problem.factors]
    errors = []
    for error in for_each_allocation(monkeypatch, lambda: mttkrp(x, factors, mode)):
        errors.append(error)
        assert layout != "remap" or x._layout.mode == 0
    assert len(errors) >= 4  # the result, two copies, partial rows
    for error in errors:
        assert type(error) is MemoryError
        assert f"mttkrp of mode {mode} and rank 3 needs more memory" in str(error)
    check_consistent(x, problem)


def test_what_exceeds_the_free_memory_is_refused_before_anything_is_allocated(monkeypatch):
    """Linux would kill the process, so an allocation that fails is no sign."""
    shape, free = (10**8, 3), 10**8
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: free)
    monkeypatch.setattr(whole_layout, "build_in_slabs", lambda *_: pytest.fail("was built"))
    with pytest.raises(MemoryError, match=r"about .* GB; 100 MB is free\. .*indices without gaps"):
        FlycooTensor([[0], [0]], [1.0], shape, device="cpu")


def test_the_error_of_building_is_that_of_the_least_need(monkeypatch):
    """Each slab has lists of the rows of the other modes, so more slabs need more here."""
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: 10**8)
    shape = (2**31, 2**31, 2**20)
    with pytest.raises(MemoryError) as caught:
        FlycooTensor([[0], [0], [0]], [1.0], shape, device="cpu")
    need = format_nbytes(estimate_memory(shape, 1, device="cpu").peak_nbytes)
    text = str(caught.value)
    assert f"of 1 nonzeros needs more memory than the host has: about {need}; " in text
    assert "Ways out: indices without gaps (as from_dataframe numbers them), layout=" in text
    assert not [way for way in ("slabs", "init", "rank") if way in text]


def test_the_error_says_if_free_memory_is_unknown(monkeypatch):
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: None)
    monkeypatch.setattr(whole_layout, "build_in_slabs", lambda *_: np.empty(2**60, np.uint8))
    with pytest.raises(MemoryError, match=r"has: .* 1\.00 EiB .*; an unknown amount is free"):
        FlycooTensor([[0], [0]], [1.0], (3, 3), device="cpu")


@pytest.mark.usual_limits("slabs")
@pytest.mark.parametrize("slabs", [None, 1, 2])
def test_what_runs_out_while_it_is_built_is_cut_into_more_slabs(monkeypatch, slabs):
    """But not if the user gave their number."""
    problem = make_problem((30, 20, 10), 500)
    expected, build, counts = problem.tensor(slabs=4), whole_layout.build_in_slabs, []

    def run_out(engine, name, coords, values, shape, groups, num_numbered, count, keep):
        counts.append(count)
        if count < 4:
            raise MemoryError
        return build(engine, name, coords, values, shape, groups, num_numbered, count, keep)

    monkeypatch.setattr(whole_layout, "build_in_slabs", run_out)
    if slabs is None:
        x = problem.tensor()
        assert (x.slabs, counts) == (4, [1, 2, 4])
        for mode in range(3):
            found, other = (mttkrp(z, problem.factors, mode) for z in (x, expected))
            np.testing.assert_array_equal(found, other)
    else:
        with pytest.raises(MemoryError, match="building a FlycooTensor of 500 nonzeros"):
            problem.tensor(slabs=slabs)
        assert counts == [slabs]


def test_factors_that_exceed_the_free_memory_are_refused(monkeypatch):
    x = FlycooTensor([[0], [0]], [1.0], (10**6, 3), device="cpu")
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: 3 * 10**8)
    with tl.backend_context("flycoo"), pytest.raises(MemoryError, match="a random start of rank"):
        tl.decomposition.parafac(x, 50, init="random", n_iter_max=0)


@pytest.mark.parametrize("name", decomposition.__all__)
def test_iterations_that_exceed_the_free_memory_are_refused(name, monkeypatch):
    """Though the factors alone, of 128 MB, would fit; before anything is allocated."""
    size, free, rank = 2 * 10**6, 3 * 10**8, 8
    ranks = rank if "tucker" not in name else (rank, rank, rank)
    x = FlycooTensor(np.arange(24).reshape(3, 8) % 12, np.ones(8), (12, 12, size), device="cpu")
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: free)
    message = rf"^{name} needs more memory .* about 384 MB; 300 MB is free\. .* a smaller rank, "
    data = [(x, ("a", "b", "c"))] if name == "coupled_parafac" else x
    decompose = getattr(decomposition, name)
    options = {"modes": (0, 1)} if name == "shared_parafac" else {}
    tracemalloc.start()
    try:
        with tl.backend_context("flycoo"), pytest.raises(MemoryError, match=message):
            decompose(data, ranks, random_state=0, **options)
        assert tracemalloc.get_traced_memory()[1] < 10**8
    finally:
        tracemalloc.stop()


def test_free_memory_is_less_than_all():
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        assert cpu.CPU.count_free_nbytes() is None
        return
    total = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < cpu.CPU.count_free_nbytes() < 1024 * int(total.split()[1])


def test_formatted_bytes():
    assert format_nbytes(12_345_678_901) == "12.3 GB"
    assert format_nbytes(12_345) == "0.0123 MB"
