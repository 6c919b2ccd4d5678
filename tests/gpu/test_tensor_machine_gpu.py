"""Random sequences of operations on a tensor on a GPU, with several streams."""

import contextlib

import cupy
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule
from tensor_machine import MODES, TensorMachine, nonzeros

from tensorly_flycoo.engines.cuda import launch, tuning


class CudaMachine(TensorMachine):
    device, xp, launcher = "cuda", cupy, launch
    nonzeros = nonzeros(max_size=40, nnzs=[3000, 1000, 257, 128, 5, 1, 0])

    @contextlib.contextmanager
    def failing_allocations(self, failing):
        pool, num = cupy.cuda.MemoryPool(), 0

        def malloc(nbytes):
            nonlocal num
            num += 1
            if num > failing:
                raise cupy.cuda.memory.OutOfMemoryError(nbytes, pool.total_bytes())
            return pool.malloc(nbytes)

        with cupy.cuda.using_allocator(malloc):
            yield pool.used_bytes

    @rule(mode=MODES)
    def use_another_stream(self, mode):
        cupy.cuda.Device().synchronize()
        with cupy.cuda.Stream(non_blocking=True):
            self.compute(mode % self.x.ndim)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(tuning, "choose_tile_size", lambda *_: tuning.BLOCK_SIZE)
    monkeypatch.setattr(tuning, "BUCKET_SIZE", 2 * tuning.BLOCK_SIZE)


TestTensorMachine = CudaMachine.TestCase
TestTensorMachine.settings = settings(
    max_examples=200,
    stateful_step_count=20,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),  # the first examples compile kernels
)
