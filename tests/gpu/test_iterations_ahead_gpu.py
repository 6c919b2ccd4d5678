"""Iterations that are launched as graphs have the bits of those that go piece by piece."""

import sys
import threading

import cupy
import numpy as np
import pytest
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac

import tensorly_flycoo
from tensorly_flycoo import Progress, mttkrp
from tensorly_flycoo.engines.cuda.gpus import CudaDevices
from tensorly_flycoo.loop import ahead, recording
from tensorly_flycoo.loop.recording import Recorder
from tensorly_flycoo.testing import random_tensor

NUM_GPUS = cupy.cuda.runtime.getDeviceCount()
LOOP = sys.modules["tensorly_flycoo.decomposition.parafac"]
SHAPES = {"two modes": (40, 50), "three": (30, 200, 50), "four": (20, 30, 40, 50),
          "groups": (16, 3, 105, 365, 20)}  # fmt: skip


def decompose(x, monkeypatch, is_ahead, **options):
    """Run parafac, with errors, on the GPU; whole iterations ahead or not."""
    options = {"n_iter_max": 12, "tol": 0, **options}
    with monkeypatch.context() as context:
        if not is_ahead:
            context.setattr(LOOP, "suits", lambda *_: False)
        with tl.backend_context("flycoo"):
            return parafac(x, 5, init="random", random_state=0, return_errors=True, **options)


def assert_same(found, expected):
    (found_model, found_errors), (model, errors) = found, expected
    assert found_errors == errors
    for a, b in zip(found_model.factors, model.factors, strict=True):
        assert bool((a == b).all())


def bring_to_host(result):
    model, errors = result
    return CPTensor((None, [tl.to_numpy(factor) for factor in model.factors])), errors


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_bits_of_a_loop_without(shape, layout, dtype, monkeypatch, launches):
    x = random_tensor(shape, 1500, random_state=0, dtype=dtype, layout=layout, device="cuda")
    expected = decompose(x, monkeypatch, is_ahead=False)
    assert not launches
    for _ in range(2):  # the second call starts where the first has left the records
        assert_same(decompose(x, monkeypatch, is_ahead=True), expected)
    assert len(launches) == 2 * 10
    model, _ = expected
    fresh = random_tensor(shape, 1500, random_state=0, dtype=dtype, device="cuda")
    for mode in range(len(shape)):
        found = mttkrp(x, model.factors, mode)
        assert bool((found == mttkrp(fresh, model.factors, mode)).all())


@pytest.mark.parametrize(
    "options",
    [{"tol": 1e-4, "n_iter_max": 300}, {"fixed_modes": [0]}, {"fixed_modes": [1]},
     {"n_iter_max": 7}, {"l2_reg": 0.1}, {"normalize_factors": True}, {"linesearch": True},
     {"orthogonalise": 2}, {"orthogonalise": 5}, {"verbose": 0}],
    ids=str,
)  # fmt: skip
def test_options(options, monkeypatch):
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    expected = decompose(x, monkeypatch, is_ahead=False, **options)
    assert_same(decompose(x, monkeypatch, is_ahead=True, **options), expected)


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("gpus", [None, *range(1, NUM_GPUS + 1)])
def test_slabs(gpus, layout, monkeypatch, launches):
    shape = (30, 200, 50)
    expected_launches = 2 * 10
    with tensorly_flycoo.set_device("cuda", gpus=gpus):
        x = random_tensor(shape, 20_000, random_state=0, layout=layout, slabs=3)
        expected = decompose(x, monkeypatch, is_ahead=False)
        for _ in range(2):
            assert_same(decompose(x, monkeypatch, is_ahead=True), expected)
        assert len(launches) == expected_launches
        model, _ = expected
        fresh = random_tensor(shape, 20_000, random_state=0, layout=layout, slabs=3)
        for mode in range(len(shape)):
            found = mttkrp(x, model.factors, mode)
            assert bool((found == mttkrp(fresh, model.factors, mode)).all())


@pytest.mark.parametrize("gpus", [None, *range(1, NUM_GPUS + 1)])
def test_sharded_factors_go_piece_by_piece(gpus, monkeypatch, launches):
    monkeypatch.setattr(CudaDevices, "least_nbytes", 0)
    with tensorly_flycoo.set_device("cuda", gpus=gpus):
        x = random_tensor((30, 200, 50), 20_000, random_state=0, slabs=3)
        expected = decompose(x, monkeypatch, is_ahead=False)
        found = decompose(x, monkeypatch, is_ahead=True)
    assert bool(launches) == (gpus is None)
    to_numpy = [
        CPTensor((None, [tl.to_numpy(f) for f in model.factors])) for model, _ in (found, expected)
    ]
    assert_same(*zip(to_numpy, (found[1], expected[1]), strict=True))


class Keeper:
    """A callback that reads models, as a `Progress` does, and keeps them."""

    def __init__(self):
        self.seen = []

    def __call__(self, model, error):
        self.seen.append((CPTensor((None, list(model.factors))), error))

    __call__.only_reads = True


@pytest.mark.parametrize("fixed_modes", [(), (0,)])
def test_models_that_a_callback_keeps(fixed_modes, monkeypatch, launches):
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    callbacks = Keeper(), Keeper()
    expected, found = [
        decompose(x, monkeypatch, is_ahead, callback=callback, fixed_modes=fixed_modes)
        for is_ahead, callback in zip((False, True), callbacks, strict=True)
    ]
    assert len(launches) == 10
    assert_same(found, expected)
    expected_models, found_models = [callback.seen for callback in callbacks]
    assert len(found_models) == 1 + 12
    for pair in zip(found_models, expected_models, strict=True):
        assert_same(*pair)


def test_a_progress(monkeypatch, launches):
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    expected = decompose(x, monkeypatch, is_ahead=False)
    with Progress(12, show=None) as progress:
        assert_same(decompose(x, monkeypatch, is_ahead=True, callback=progress), expected)
    assert len(launches) == 10
    model, errors = expected
    assert_same((progress.last, errors), (model, errors))


def test_without_errors(monkeypatch, launches):
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    (expected, _) = decompose(x, monkeypatch, is_ahead=False)
    with tl.backend_context("flycoo"):
        found = parafac(x, 5, init="random", random_state=0, n_iter_max=12, tol=0)
    assert len(launches) == 10
    assert_same((found, []), (expected, []))


def test_models_of_earlier_calls_stay_as_they_are(monkeypatch):
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    model, _ = decompose(x, monkeypatch, is_ahead=True)
    copies = [factor.copy() for factor in model.factors]
    for _ in range(3):
        decompose(x, monkeypatch, is_ahead=True, n_iter_max=20)
    assert all(bool((a == b).all()) for a, b in zip(model.factors, copies, strict=True))


def test_a_thread_that_moves_the_records_meanwhile(monkeypatch, launches):
    """The loop then goes on piece by piece."""
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    expected = decompose(x, monkeypatch, is_ahead=False)
    factors = [cupy.ones((size, 5), x.dtype) for size in x.shape]
    original = ahead.IterationsAhead._begin

    def begin(self, loop_factors):
        if self._num_begun == 6:
            thread = threading.Thread(target=mttkrp, args=(x, factors, 0))
            thread.start()
            thread.join()
        original(self, loop_factors)

    monkeypatch.setattr(ahead.IterationsAhead, "_begin", begin)
    assert_same(decompose(x, monkeypatch, is_ahead=True), expected)


@pytest.mark.parametrize("number", [0, 1])
def test_a_recording_that_fails(number, monkeypatch, launches):
    from tensorly_flycoo.engines.cuda import graphs

    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    expected = decompose(x, monkeypatch, is_ahead=False)
    original, made = graphs.record, []

    def record(*arguments):
        made.append(arguments)
        if len(made) <= number:
            return original(*arguments)
        raise cupy.cuda.memory.OutOfMemoryError(1, 2)

    monkeypatch.setattr(graphs, "record", record)
    assert_same(decompose(x, monkeypatch, is_ahead=True), expected)
    assert not launches


def test_a_launch_that_fails_leaves_the_tensor_as_it_was(monkeypatch):
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    factors = [cupy.asarray(np.random.RandomState(0).rand(size, 5), x.dtype) for size in x.shape]
    expected = [mttkrp(x, factors, mode) for mode in range(3)]
    original, calls = Recorder.launch, []

    def launch(self, recorded):
        calls.append(recorded)
        if len(calls) == 3:
            recorded.graph.launch = fail
        return original(self, recorded)

    def fail():
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "launch", launch)
    with pytest.raises(KeyboardInterrupt):
        decompose(x, monkeypatch, is_ahead=True)
    for mode in range(3):
        assert bool((mttkrp(x, factors, mode) == expected[mode]).all())


def test_large_tensors_are_launched_piece_by_piece():
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    assert recording.suits(x, 5)
    tall = random_tensor((10_000_000, 200, 50), 1500, random_state=0, device="cuda")
    assert not recording.suits(tall, 5)
