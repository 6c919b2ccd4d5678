"""Random sequences of operations on a tensor on the CPU, with varying numbers of threads."""

import contextlib
import threading
import weakref
from unittest import mock

import numba
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tensor_machine import TensorMachine, nonzeros

from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.engines.cpu import threads

#: NumPy's allocating functions that the engine and the format call by name.
ALLOCATORS = (
    "empty", "empty_like", "zeros", "ones", "arange", "argsort", "flatnonzero", "concatenate",
    "require", "ascontiguousarray", "where",
)  # fmt: skip


class CpuMachine(TensorMachine):
    device, xp, launcher = "cpu", np, threads
    nonzeros = nonzeros(max_size=6, nnzs=[60, 30, 17, 5, 1, 0])

    @contextlib.contextmanager
    def failing_allocations(self, failing):
        arrays = []
        thread = threading.get_ident()

        def watch(function):
            def allocate(*arguments, **options):
                # A client of Dask that other tests share reads its messages in a thread of its own.
                if threading.get_ident() != thread:
                    return function(*arguments, **options)
                if len(arrays) == failing:
                    raise MemoryError("simulated")
                array = function(*arguments, **options)
                if not any(array is argument for argument in arguments):
                    arrays.append(weakref.ref(array))
                return array

            return allocate

        with contextlib.ExitStack() as stack:
            for name in ALLOCATORS:
                stack.enter_context(mock.patch.object(np, name, watch(getattr(np, name))))
            yield lambda: sum(array() is not None for array in arrays)

    @rule(num_threads=st.sampled_from([1, 2]))
    def use_other_threads(self, num_threads):
        numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))


# A tensor built again from its nonzeros may have other groups: their number, without duplicates,
# is another one.
pytestmark = pytest.mark.usual_limits("prefixes")


@pytest.fixture(autouse=True)
def small_tiles_and_threads_as_before(monkeypatch):
    monkeypatch.setattr(cpu, "TILE_SIZE", 4)
    monkeypatch.setattr(cpu, "BUCKET_SIZE", 8)
    num_threads = numba.get_num_threads()
    yield
    numba.set_num_threads(num_threads)


TestTensorMachine = CpuMachine.TestCase
TestTensorMachine.settings = settings(
    max_examples=200, stateful_step_count=20, deadline=None, database=None
)
