"""Runs that go together have the bits of theirs, whether graphs launch their iterations or not."""

import logging
import threading

import cupy
import numpy as np
import pytest
from compared_runs import assert_same

from tensorly_flycoo import best_of, mttkrp, select_rank
from tensorly_flycoo.loop import recording
from tensorly_flycoo.loop.masks import MissingEntries
from tensorly_flycoo.loop.recording import Recorder
from tensorly_flycoo.models.gpu_batch import GpuBatch
from tensorly_flycoo.models.many_starts import Stopping, run_together
from tensorly_flycoo.testing import planted_tensor, random_tensor

SEEDS = [3, 1, 4, 15, 9]
SHAPES = {"two modes": (40, 50), "three": (30, 200, 50), "four": (20, 30, 40, 50),
          "groups": (16, 3, 105, 365, 20)}  # fmt: skip


def run_piece_by_piece(monkeypatch, *arguments, **options):
    with monkeypatch.context() as context:
        context.setattr(recording, "NUM_FIRST", 1000)
        return run_together(*arguments, **options)


@pytest.mark.parametrize("has_momentum", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_bits_of_runs_piece_by_piece(shape, layout, dtype, has_momentum, monkeypatch, launches):
    x = random_tensor(shape, 1500, random_state=0, dtype=dtype, layout=layout, device="cuda")
    arguments = (x, 5, SEEDS, Stopping(30, 0), has_momentum)
    expected = run_piece_by_piece(monkeypatch, *arguments)
    assert not launches
    for _ in range(2):  # the second call starts where the first has left the records
        assert_same(run_together(*arguments), expected)
    # With momentum, iterations that are taken back come on top.
    assert len(launches) >= 2 * (30 - recording.NUM_FIRST)
    fresh = random_tensor(shape, 1500, random_state=0, dtype=dtype, device="cuda")
    factors = expected[0].cp_tensor.factors
    for mode in range(len(shape)):
        assert bool((mttkrp(x, factors, mode) == mttkrp(fresh, factors, mode)).all())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("has_momentum", [False, True])
def test_runs_that_end_or_are_dropped(has_momentum, dtype, monkeypatch, launches):
    """The batch gets smaller, and is recorded anew."""
    options = {"noise": 0.2, "random_state": 0, "dtype": dtype, "device": "cuda"}
    x, _ = planted_tensor((30, 40, 50), 3, 300, **options)
    arguments = (x, 3, range(24), Stopping(60, 1e-5), has_momentum)
    expected = run_piece_by_piece(monkeypatch, *arguments, keep_all=False)
    runs = run_together(*arguments, keep_all=False)
    assert_same(runs, expected)
    assert any(run.is_dropped for run in runs)
    assert len({len(run.errors) for run in runs}) > 1
    assert len({id(recording) for recording in launches}) > 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("groups", ["auto", None, ((0, 1), (2,))], ids=str)
def test_runs_with_missing_entries(groups, dtype, monkeypatch, launches):
    x = random_tensor((30, 40, 50), 3000, random_state=0, dtype=dtype, device="cuda", groups=groups)
    cells = np.unique(np.random.RandomState(1).randint(0, np.array([x.shape]).T, (3, 300)), axis=1)
    missing = MissingEntries(x, cupy.asarray(cells))
    arguments = (x, 3, SEEDS, Stopping(30, 0))
    expected = run_piece_by_piece(monkeypatch, *arguments, missing=missing)
    assert_same(run_together(*arguments, missing=missing), expected)
    assert len(launches) == 30 - recording.NUM_FIRST


def test_best_of_and_select_rank_launch_graphs(launches, caplog):
    x, _ = planted_tensor((30, 40, 50), 3, 300, noise=0.2, random_state=0, device="cuda")
    with caplog.at_level(logging.DEBUG, "tensorly_flycoo"):
        best_of("parafac", x, 3, 8, random_state=0)
    assert "recorded as a graph" in caplog.text
    launches.clear()
    assert select_rank(x, range(2, 5), n_runs=5, random_state=0).rank == 3
    assert launches


def test_models_of_earlier_calls_stay_as_they_are():
    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    runs = run_together(x, 5, SEEDS, Stopping(30, 0))
    copies = [[factor.copy() for factor in run.cp_tensor.factors] for run in runs]
    for _ in range(3):
        run_together(x, 5, SEEDS[::-1], Stopping(40, 0))
    for run, factors in zip(runs, copies, strict=True):
        for factor, array in zip(run.cp_tensor.factors, factors, strict=True):
            assert bool((factor == array).all())


def test_a_thread_that_moves_the_records_meanwhile(monkeypatch, launches):
    x = random_tensor((30, 200, 50), 1500, random_state=0, layout="remap", device="cuda")
    arguments = (x, 5, SEEDS, Stopping(30, 0), True)
    expected = run_piece_by_piece(monkeypatch, *arguments)
    factors = [cupy.ones((size, 5), x.dtype) for size in x.shape]
    original = GpuBatch.iterate

    def iterate(self, steps=None):
        if self._num_left in (15, 11):
            thread = threading.Thread(target=mttkrp, args=(x, factors, 0))
            thread.start()
            thread.join()
        return original(self, steps)

    monkeypatch.setattr(GpuBatch, "iterate", iterate)
    assert_same(run_together(*arguments), expected)
    assert launches


def test_a_recording_that_fails(monkeypatch, launches):
    from tensorly_flycoo.engines.cuda import graphs

    x = random_tensor((30, 200, 50), 1500, random_state=0, device="cuda")
    arguments = (x, 5, SEEDS, Stopping(30, 0))
    expected = run_piece_by_piece(monkeypatch, *arguments)

    def fail(*_):
        raise cupy.cuda.memory.OutOfMemoryError(1, 2)

    monkeypatch.setattr(graphs, "record", fail)
    assert_same(run_together(*arguments), expected)
    assert not launches


def test_memory_of_graphs_is_small_and_goes_back():
    """What graphs keep for themselves is at most a few times the factors and MTTKRPs."""
    x = random_tensor((300, 200, 500), 200_000, random_state=0, dtype="float32", device="cuda")
    num_columns = 8 * 16
    factor_nbytes = sum(x.shape) * num_columns * 4
    peaks = []
    original = Recorder.launch

    def launch(self, recording):
        peaks.append(self._pool.total_bytes())
        return original(self, recording)

    with pytest.MonkeyPatch.context() as context:
        context.setattr(Recorder, "launch", launch)
        run_together(x, 16, range(8), Stopping(30, 0), True)
    # The driver gives whole pages of 2 MiB.
    assert 0 < max(peaks) <= 4 * factor_nbytes + 2**24
