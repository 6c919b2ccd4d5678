"""Slabs that are built at the same time have the bits of those that are built one by one."""

import threading
import tracemalloc
import weakref

import numba
import numpy as np
import pytest
from problems import make_problem

from tensorly_flycoo import estimate_memory
from tensorly_flycoo.engines.cpu.builders import SlabThreads
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.spread import building

pytestmark = pytest.mark.usual_limits("slabs")


#: Bytes that Python's own objects may take, including threads.
SMALL_NBYTES = 2**15


@pytest.fixture(params=[1, 3])
def num_threads(request):
    """Give numba so many threads, or all that it has."""
    count = min(request.param, numba.config.NUMBA_NUM_THREADS)
    before = numba.get_num_threads()
    numba.set_num_threads(count)
    yield count
    numba.set_num_threads(before)


def list_bits(x):
    return [
        (slab.rows, [(name, array.tobytes()) for name, array in slab.layout.iterate_arrays()])
        for slab in x._layout.slabs
    ]


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_slabs_do_not_depend_on_the_threads(layout, num_threads):
    problem = make_problem((30, 200, 10), 3000, skew=2)
    problem.coords[:, 1000:2000] = problem.coords[:, :1000]
    options = {"layout": layout, "slabs": 12, "device": "cpu"}
    found = list_bits(problem.tensor(**options))
    numba.set_num_threads(1)
    assert found == list_bits(problem.tensor(**options))


def test_calls_are_made_at_the_same_time(num_threads):
    """As many as there are threads, if there are slabs enough; each has its share of threads."""
    builders = SlabThreads(12)
    assert builders.num_at_once == num_threads
    assert SlabThreads(7).num_at_once == 1
    barrier = threading.Barrier(num_threads, timeout=60)

    def call(home, number):
        barrier.wait()
        return number, numba.get_num_threads()

    numbers = range(2 * num_threads)
    found = builders.map(call, [0] * len(numbers), numbers)
    assert found == [(number, 1) for number in numbers]
    assert numba.get_num_threads() == num_threads


def test_memory_that_runs_out_in_a_thread(num_threads, monkeypatch):
    """The error is that of a tensor in one piece, and keeps nothing."""
    problem = make_problem((30, 200, 10), 3000)
    packed = []
    pack = CPU.pack

    def watch(*arguments):
        records, *flags = pack(*arguments)
        packed.append(weakref.ref(records))
        return records, *flags

    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr(CPU, "pack", watch)
    monkeypatch.setattr(building, "sort_records", fail)
    with pytest.raises(MemoryError, match="building a FlycooTensor of 3,000 nonzeros in 8 slabs"):
        problem.tensor(layout="replicated", slabs=8, device="cpu")
    assert packed
    assert [records() for records in packed] == [None] * len(packed)


@pytest.mark.usual_limits("groups", "slabs")
@pytest.mark.parametrize("layout", ["remap", "replicated"])
def test_estimates_bound_what_is_built_at_the_same_time(layout, num_threads):
    shape, nnz = (1200, 900, 700), 100_000
    problem = make_problem(shape, nnz, dtype="float32")
    options = {"layout": layout, "slabs": 12, "device": "cpu"}
    problem.tensor(**options)  # compiles
    tracemalloc.start()
    try:
        problem.tensor(**options)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    estimate = estimate_memory(shape, nnz, dtype=np.float32, **options)
    given = problem.coords.nbytes + problem.values.nbytes
    assert given + measured <= estimate.peak_nbytes + SMALL_NBYTES
