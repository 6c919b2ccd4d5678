"""Time whole calls of parafac on the GPU, and follow the peak of CuPy's memory."""

import functools
from operator import itemgetter

import cupy
import sparse
import tensorly as tl
from cupy.cuda import memory_hook
from report import RANK
from stages import time_stages
from tensors import free_memory
from timing import synchronize

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.tensor.coo_cache import as_flycoo

#: What parafac gets, and its start.
WAYS = (("COO", "random"), ("COO", "svd"), ("FlycooTensor", "random"))

NUM_ITERATIONS, NUM_ROUNDS = 50, 5


class PeakHook(memory_hook.MemoryHook):
    """The most bytes of CuPy's memory pool that were in use at a time."""

    name = "peak"

    def __init__(self):
        self.nbytes = 0

    def malloc_postprocess(self, **_):
        """Note the bytes in use after an allocation."""
        self.nbytes = max(self.nbytes, cupy.get_default_memory_pool().used_bytes())


def prepare_call(coords, values, shape, kind, init):
    """Compile; return a function that times a call from a COO, or nonzeros, to factors in NumPy."""
    make = functools.partial(FlycooTensor, coords, values, shape, device="cuda")
    if kind == "COO":  # not sorted: the conversion sorts in any case
        options = {"sorted": True, "has_duplicates": False}
        make = functools.partial(sparse.COO, coords, values, shape, **options)
    with tl.backend_context("flycoo"):
        memory = _measure_memory(make, init)

    def measure():
        free_memory()
        with tl.backend_context("flycoo"):
            call = time_stages(make, RANK, NUM_ITERATIONS, init, synchronize)
        return {"way": f"{kind}, {init}", **call, **memory}

    return measure


def measure_calls(measures):
    """Let the calls take turns; return the median of each by its total."""
    rounds = [[measure() for measure in measures] for _ in range(NUM_ROUNDS)]
    sorted_calls = [sorted(calls, key=itemgetter("total_s")) for calls in zip(*rounds, strict=True)]
    return [calls[NUM_ROUNDS // 2] for calls in sorted_calls]


def _measure_memory(make, init):
    """Return the bytes of the tensor and the factors, and the peaks of building and of parafac."""
    memory = {}

    def make_and_note():
        given = make()
        x = as_flycoo(given)
        factors_nbytes = x.dtype.itemsize * RANK * sum(x.shape)
        memory.update(nnz=x.nnz, tensor_nbytes=x.nbytes, factors_nbytes=factors_nbytes)
        memory["build_peak_nbytes"], hook.nbytes = hook.nbytes, 0
        return given

    with PeakHook() as hook:
        time_stages(make_and_note, RANK, 2, init, synchronize)
    return memory | {"peak_nbytes": hook.nbytes}
