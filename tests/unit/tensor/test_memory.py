"""Memory estimates against measurements, and what happens when memory runs out."""

import gc
import itertools
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
import tensorly as tl
from problems import compute_all, make_exact_problem, make_problem

from tensorly_flycoo import FlycooTensor, estimate_memory, mttkrp
from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.format.layout import Cut
from tensorly_flycoo.format.layouts import LAYOUT_CLASSES
from tensorly_flycoo.format.packing import RecordFormat
from tensorly_flycoo.format.primitives import Primitives
from tensorly_flycoo.spread import building
from tensorly_flycoo.tensor import memory

LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])

#: Bytes that Python's own objects may take, including threads.
SMALL_NBYTES = 2**15

#: Names of NumPy's allocating functions.
ALLOCATORS = ("empty", "empty_like", "zeros", "ones", "arange", "require", "concatenate")


# Estimates


@LAYOUTS
@DTYPES
@pytest.mark.parametrize(("shape", "nnz"), [((5,), 5), ((30, 20, 10), 6000), ((8, 7, 6, 5), 1680)])
def test_nbytes_is_exact_if_no_row_is_empty(shape, nnz, dtype, layout):
    x = make_exact_problem(shape, nnz, dtype=dtype).tensor(layout=layout)
    assert estimate_memory(shape, nnz, dtype=dtype, layout=layout).nbytes == x.nbytes


@LAYOUTS
@pytest.mark.parametrize("nnz", [0, 1, 100])
def test_nbytes_is_exact_if_the_fewest_possible_rows_are_empty(nnz, layout):
    """Nonzero k is in row k of each mode."""
    x = FlycooTensor(np.tile(np.arange(nnz), (3, 1)), np.ones(nnz), (500,) * 3, layout=layout)
    assert estimate_memory((500,) * 3, nnz, layout=layout).nbytes == x.nbytes


@pytest.mark.parametrize("unit", ["uint16", "uint32"])
@pytest.mark.parametrize("name", ["remap", "replicated", "indexed"])
def test_nbytes_of_an_engine_with_write_orders(name, unit):
    """Like the engine for GPUs: 32-bit words, buckets of more than 2**16 nonzeros."""

    class Writing(Primitives):
        write_order_dtype = np.dtype(unit)

        def order_writes(self, remap_ids, tile_size):
            return np.zeros(remap_ids.size, unit)

    problem = make_exact_problem((30, 20, 10), 4000)
    record_format = RecordFormat.of(problem.shape, "float64", np.uint32)
    arguments = (Cut(record_format, 256, 2**18), Writing())
    layout = LAYOUT_CLASSES[name].build(problem.coords, problem.values, *arguments)
    assert layout.estimate(4000, *arguments)[0] == layout.nbytes


def measure_peak(shape, nnz, layout, dtype, spread):
    """Measure the peak of allocated bytes, including coords and values."""
    gc.collect()
    tracemalloc.start()
    try:
        rng = np.random.default_rng(0)
        coords, values = np.empty((len(shape), nnz), np.int64), np.empty(nnz, dtype)
        for rows, size in zip(coords, shape, strict=True):
            rows[...] = rng.integers(0, max(1, int(size * spread)), nnz)
        values[...] = rng.standard_normal(nnz)
        tracemalloc.reset_peak()
        FlycooTensor(coords, values, shape, layout=layout, device="cpu")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@LAYOUTS
@DTYPES
@pytest.mark.parametrize(
    ("shape", "spread"),
    [
        pytest.param((300, 200, 100), 1, id="few duplicates"),
        pytest.param((40, 30, 20, 10), 1, id="many duplicates"),
        pytest.param((3, 300_000, 2, 200_000, 1), 1, id="five modes", marks=pytest.mark.slow),
        pytest.param((2_000_000, 3_000_000), 1, id="sorted by comparing"),
        pytest.param((3_000_000, 20), 1e-3, id="most rows empty", marks=pytest.mark.slow),
        pytest.param((500_000,), 1, id="one mode"),
        pytest.param((100,) * 5, 1, id="most bytes while remapping is planned"),
    ],
)
def test_the_bound_on_the_peak_is_tight(shape, spread, dtype, layout):
    nnz = 200_000
    measure_peak(
        shape, 1000, layout, dtype, spread
    )  # what is compiled and cached is not the tensor's
    measured = measure_peak(shape, nnz, layout, dtype, spread)
    estimate = estimate_memory(shape, nnz, dtype=dtype, layout=layout, device="cpu")
    assert estimate.peak_nbytes / 2 <= measured <= estimate.peak_nbytes + SMALL_NBYTES


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (((3, 0), 1), {}, ValueError, r"shape\[1\] is 0"),
        (((3, 4), -1), {}, ValueError, "nnz is -1, expected at least 0"),
        (((3, 4), 1.5), {}, TypeError, "nnz is 1.5, expected an integer"),
        (((3, 4), 1), {"dtype": "complex128"}, TypeError, "dtype is complex128"),
        (((3, 4), 1), {"layout": "csf"}, ValueError, "layout is 'csf'"),
        (((3, 4), 1), {"device": "gpu"}, ValueError, "device is 'gpu'"),
    ],
)
def test_bad_arguments(arguments, options, error, text):
    with pytest.raises(error, match=text):
        estimate_memory(*arguments, **options)


# Out of memory


class Allocations:
    """Count NumPy's allocations, and let one of them fail."""

    def __init__(self, monkeypatch, failing=None):
        self.num, self.failing = 0, failing
        for name in ALLOCATORS:
            monkeypatch.setattr(np, name, self._watch(getattr(np, name)))

    def _watch(self, function):
        def allocate(*arguments, **options):
            self.num += 1
            if self.num - 1 == self.failing:
                raise MemoryError("unable to allocate")
            return function(*arguments, **options)

        return allocate


def for_each_allocation(monkeypatch, task):
    """Call `task` repeatedly with one later allocation failing each time; yield the errors."""
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
@LAYOUTS
def test_building_may_fail_at_any_allocation(monkeypatch, layout):
    problem = make_problem((30, 20, 10), 500)
    check_consistent(make_tensor(problem, layout), problem)  # compiles
    errors = list(for_each_allocation(monkeypatch, lambda: make_tensor(problem, layout)))
    assert len(errors) > 10
    for error in errors:
        assert type(error) is MemoryError
        assert "building a FlycooTensor of 500 nonzeros" in str(error)
        assert f"with layout='{layout}' and dtype='float64' needs 0.0" in str(error)
    check_consistent(make_tensor(problem, layout), problem)


@LAYOUTS
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
@LAYOUTS
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
        assert f"mttkrp of mode {mode} and rank 3 with layout='{layout}'" in str(error)
    check_consistent(x, problem)


@pytest.mark.usual_limits("slabs")
def test_workspace_of_mttkrp_is_exact():
    problem = make_problem((30, 20, 10), 50_000, rank=8)
    x = make_tensor(problem, "remap")
    factors = [problem.factors[0], *map(np.asfortranarray, problem.factors[1:])]
    for mode in range(3):
        inputs = {n: factor for n, factor in enumerate(factors) if n != mode}
        out = np.empty((x.shape[mode], 8))
        arrays, partial_rows = cpu.CPU.allocate_workspace(x._layout, inputs, mode, out)
        pairs = zip(arrays, inputs.values(), strict=True)
        copies = [a for a, f in pairs if not np.shares_memory(a, f)]
        nbytes = partial_rows.nbytes + sum(copy.nbytes for copy in copies)
        assert cpu.CPU.count_workspace_nbytes(x._layout, factors, mode) == nbytes > 0


@pytest.fixture
def fail_to_pack(monkeypatch):
    def pack(*_):
        raise MemoryError

    monkeypatch.setattr(cpu.CPU, "pack", pack)


NNZ = 200_000
SHAPE = (300, 200, 100)


def catch(layout="remap", dtype="float64"):
    coords = np.zeros((3, NNZ), np.int64)
    with pytest.raises(MemoryError) as caught:
        FlycooTensor(coords, np.ones(NNZ), SHAPE, dtype=dtype, layout=layout, device="cpu")
    return str(caught.value)


def get_peak(layout="remap", dtype="float64"):
    return estimate_memory(SHAPE, NNZ, layout=layout, dtype=dtype, device="cpu").peak_nbytes


def test_the_error_says_what_would_fit(monkeypatch, fail_to_pack):
    """What would fit may take the free memory, and that of the given coords and values."""
    given = 32 * NNZ
    room = get_peak("remap", "float32")
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: room - given)
    assert get_peak() > room
    message = catch()
    assert f"needs {get_peak() / 1e6:.3g} MB on 'cpu', of which {given / 1e6:.3g} MB" in message
    assert f"{(room - given) / 1e6:.3g} MB is free" in message
    assert f"layout='remap' and dtype='float32' ({room / 1e6:.3g} MB)" in message
    assert "layout='remap' (" not in message
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: room - given - 1)
    assert "layout='remap' and dtype='float32' (" not in catch()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_error_says_if_nothing_would_fit(monkeypatch, fail_to_pack, dtype):
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: 0)
    assert "No alternative would fit" in catch(dtype=dtype)


def test_the_error_says_if_free_memory_is_unknown(monkeypatch, fail_to_pack):
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: None)
    message = catch()
    assert "an unknown amount is free" in message
    assert (
        f"layout='remap' and dtype='float32' ({get_peak(dtype='float32') / 1e6:.3g} MB)" in message
    )


def test_what_exceeds_the_free_memory_is_refused_before_anything_is_allocated(monkeypatch):
    """Linux would kill the process, so an allocation that fails is no sign."""
    shape, free = (10**8, 3), 10**8
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: free)
    monkeypatch.setattr(building, "build_layout", lambda *_: pytest.fail("was built"))
    with pytest.raises(MemoryError, match=r"100 MB is free\. .* Mode 0 has 100,000,000 indices"):
        FlycooTensor([[0], [0]], [1.0], shape, device="cpu")


def test_factors_that_exceed_the_free_memory_are_refused(monkeypatch):
    x = FlycooTensor([[0], [0]], [1.0], (10**6, 3), device="cpu")
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: 3 * 10**8)
    with tl.backend_context("flycoo"), pytest.raises(MemoryError, match="a random start of rank"):
        tl.decomposition.parafac(x, 50, init="random", n_iter_max=1)


def test_the_error_of_mttkrp_says_what_would_fit(monkeypatch):
    """A smaller layout leaves more room for the workspace; a narrower dtype shrinks both."""

    def run_out(*_, **__):
        raise MemoryError

    shape = (200_000, 20, 10)
    problem = make_problem(shape, 40_000, rank=16)
    x = make_tensor(problem, "remap")
    work_nbytes = shape[0] * 16 * 8 + cpu.CPU.count_workspace_nbytes(x._layout, problem.factors, 0)
    indexed_nbytes = estimate_memory(shape, x.nnz, layout="indexed", device="cpu").nbytes
    needed_nbytes = indexed_nbytes + work_nbytes
    monkeypatch.setattr(cpu.CPU, "mttkrp", run_out)
    for missing, fits in [(0, True), (1, False)]:
        free_nbytes = needed_nbytes - x.nbytes - missing
        monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda n=free_nbytes: n)
        with pytest.raises(MemoryError) as caught:
            mttkrp(x, problem.factors, 0)
        message, total = str(caught.value), (x.nbytes + work_nbytes) / 1e6
        assert f"needs {total:.3g} MB on 'cpu', of which {x.nbytes / 1e6:.3g} MB" in message
        assert (f"layout='indexed' ({needed_nbytes / 1e6:.3g} MB)" in message) == fits
        assert "layout='indexed' and dtype='float32' (" in message
        assert "layout='remap' (" not in message


def test_free_memory_is_less_than_all():
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        assert cpu.CPU.count_free_nbytes() is None
        return
    total = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < cpu.CPU.count_free_nbytes() < 1024 * int(total.split()[1])


def test_an_attempt_that_ctrl_c_cut_off_does_not_silence_later_ones():
    running = memory._Attempt()
    memory._outermost.set(weakref.ref(running))
    del running  # as its frame ends

    def fail():
        raise MemoryError

    with pytest.raises(MemoryError, match="explained"):
        memory.attempt(fail, lambda: "explained")
