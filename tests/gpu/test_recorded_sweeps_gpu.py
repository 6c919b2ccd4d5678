"""Iterations of our own loops that are launched at once have the bits of those piece by piece."""

import threading
from functools import partial

import cupy
import numpy as np
import pytest
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo import Progress, mttkrp
from tensorly_flycoo.decomposition import (
    non_negative_parafac,
    non_negative_parafac_hals,
    parafac,
)
from tensorly_flycoo.loop import recorded_sweep
from tensorly_flycoo.testing import random_tensor

NUM_GPUS = cupy.cuda.runtime.getDeviceCount()
SHAPES = {"two modes": (40, 50), "three": (30, 200, 50), "four": (20, 30, 40, 50),
          "groups": (16, 3, 105, 365, 20)}  # fmt: skip
METHODS = {
    "nesterov": partial(parafac, linesearch="nesterov"),
    "auto": partial(parafac, linesearch="auto"),
    "multiply": non_negative_parafac,
    "multiply, nesterov": partial(non_negative_parafac, linesearch="nesterov"),
    "hals": non_negative_parafac_hals,
    "hals, nesterov": partial(non_negative_parafac_hals, linesearch="nesterov"),
}


def decompose(method, x, monkeypatch, is_recorded, **options):
    options = {"n_iter_max": 14, "tol": 0, "return_errors": True, **options}
    with monkeypatch.context() as context:
        if not is_recorded:
            context.setattr(recorded_sweep, "suits", lambda *_: False)
        with tl.backend_context("flycoo"):
            return method(x, 5, init="random", random_state=0, **options)


def assert_same(found, expected):
    (found_model, found_errors), (model, errors) = found, expected
    assert found_errors == errors
    for a, b in zip(found_model.factors, model.factors, strict=True):
        assert bool((a == b).all())


def compare(method, x, monkeypatch, **options):
    expected = decompose(method, x, monkeypatch, is_recorded=False, **options)
    for _ in range(2):  # the second call starts where the first has left the records
        assert_same(decompose(method, x, monkeypatch, is_recorded=True, **options), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_bits_of_pieces(method, shape, layout, dtype, monkeypatch, launches):
    x = random_tensor(shape, 1500, random_state=0, dtype=dtype, layout=layout, device="cuda")
    compare(method, x, monkeypatch)
    assert len(launches) >= 2 * 8


@pytest.mark.parametrize(
    "options",
    [{"tol": 1e-4, "n_iter_max": 300}, {"fixed_modes": [0]}, {"fixed_modes": [1]},
     {"n_iter_max": 7}, {"normalize_factors": True}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_options(method, options, monkeypatch):
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    compare(method, x, monkeypatch, **options)


@pytest.mark.parametrize(
    "options", [{"nn_modes": [0]}, {"exact": True}, {"sparsity_coefficients": 0.1}]
)
def test_updates_of_hals(options, monkeypatch):
    """Those that the host decides go piece by piece."""
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    compare(non_negative_parafac_hals, x, monkeypatch, **options)


@pytest.mark.parametrize("gpus", [None, *range(1, NUM_GPUS + 1)])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_slabs(method, gpus, monkeypatch, launches):
    with tensorly_flycoo.set_device("cuda", gpus=gpus):
        x = random_tensor((30, 200, 50), 20_000, random_state=0, slabs=3)
        compare(method, x, monkeypatch)
    assert launches


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_callbacks(method, monkeypatch, launches):
    """One that keeps models, one that changes factors, and a `Progress`."""
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")

    class Keeper:
        def __init__(self):
            self.seen = []

        def __call__(self, model, error):
            self.seen.append((model, error))

        __call__.only_reads = True

    keepers = Keeper(), Keeper()
    for is_recorded, keeper in zip((False, True), keepers, strict=True):
        decompose(method, x, monkeypatch, is_recorded, callback=keeper)
    for (model, error), (expected, expected_error) in zip(*(k.seen for k in keepers), strict=True):
        assert_same((model, error), (expected, expected_error))

    def double(model, error):
        model.factors[1][...] *= 2

    compare(method, x, monkeypatch, callback=double)
    with Progress(14, show=None) as progress:
        compare(method, x, monkeypatch, callback=progress)
    assert launches


def test_without_errors(monkeypatch, launches):
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    compare(non_negative_parafac_hals, x, monkeypatch, tol=None)
    assert launches


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_thread_that_moves_the_records_meanwhile(method, monkeypatch, launches):
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    expected = decompose(method, x, monkeypatch, is_recorded=False)
    factors = [cupy.ones((size, 5), x.dtype) for size in x.shape]
    original, calls = recorded_sweep.RecordedSweep.iterate, []

    def iterate(self, loop_factors):
        calls.append(loop_factors)
        if len(calls) in (6, 9):
            thread = threading.Thread(target=mttkrp, args=(x, factors, 0))
            thread.start()
            thread.join()
        return original(self, loop_factors)

    monkeypatch.setattr(recorded_sweep.RecordedSweep, "iterate", iterate)
    assert_same(decompose(method, x, monkeypatch, is_recorded=True), expected)
    assert launches


def test_a_recording_that_fails(monkeypatch, launches):
    from tensorly_flycoo.engines.cuda import graphs

    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")

    def record(*arguments):
        raise cupy.cuda.memory.OutOfMemoryError(1, 2)

    monkeypatch.setattr(graphs, "record", record)
    compare(non_negative_parafac_hals, x, monkeypatch)
    assert not launches
    assert np.isfinite(float(x.norm()))
