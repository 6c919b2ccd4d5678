"""Checkpoints that cannot be written: an error at once, or a warning; factors are never lost."""

import errno
import os
import re
import signal
import types

import numpy as np
import pytest
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac

from tensorly_flycoo import Progress
from tensorly_flycoo.io.checkpoint import load_checkpoint, save_checkpoint
from tensorly_flycoo.models import progress

CP = CPTensor((None, [np.ones((3, 2)), np.ones((4, 2))]))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.npz"


def call(progress, errors):
    for error in errors:
        progress(CP, error)


@pytest.mark.parametrize("name", ["missing/run.npz", "file/run.npz", ""])
def test_a_path_that_cannot_be_written_is_an_error_at_once(tmp_path, name):
    (tmp_path / "file").write_text("a file is no folder")
    path, before = tmp_path / name, signal.getsignal(signal.SIGINT)
    text = rf"checkpoint is '{re.escape(str(path))}', where nothing can be written .*: make its fo"
    with pytest.raises(OSError, match=text), Progress(5, show=None, checkpoint=path):
        pytest.fail("the block must not begin")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_full_disk_is_an_error_at_once(path, monkeypatch):
    def fail(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left") as caught, Progress(5, checkpoint=path):
        pass
    assert caught.value.errno == errno.ENOSPC
    assert list(path.parent.iterdir()) == []


def test_entering_the_block_keeps_the_file(path):
    path.write_text("what is there")
    with Progress(5, show=None, checkpoint=path):
        assert list(path.parent.iterdir()) == [path]
    assert path.read_text() == "what is there"


@pytest.fixture
def broken_disk(monkeypatch):
    """A disk that fails while ``broken_disk.is_full``."""
    disk = types.SimpleNamespace(is_full=False)

    def save(*args):
        if disk.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save_checkpoint(*args)

    monkeypatch.setattr(progress, "save_checkpoint", save)
    return disk


def test_a_write_that_fails_later_warns_and_says_so_at_the_end(path, broken_disk, caplog):
    with Progress(100, show=None, checkpoint=path, every=2) as shown:
        call(shown, [1.0, 0.9, 0.8])
        broken_disk.is_full = True
        call(shown, [0.7, 0.6, 0.5])
        assert load_checkpoint(path).iteration == 2
    first, last = [record.message for record in caplog.records]
    assert "could not be written after iteration 4: [Errno 28] No space left" in first
    assert "is older than iteration 5, the last: a write failed" in last
    assert shown.iteration == 5
    assert shown.last.factors[0] is CP.factors[0]


def test_a_later_write_makes_good_for_one_that_failed(path, broken_disk, caplog):
    with Progress(100, show=None, checkpoint=path, every=2) as shown:
        broken_disk.is_full = True
        call(shown, [1.0, 0.9, 0.8])
        broken_disk.is_full = False
        call(shown, [0.7, 0.6])
    assert load_checkpoint(path).iteration == 4
    assert len(caplog.records) == 1


def test_a_failed_write_waits_for_the_next_interval(path, broken_disk, caplog, monkeypatch):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    broken_disk.is_full = True
    with Progress(100, show=None, checkpoint=path, every_minutes=5) as shown:
        for error in np.linspace(1, 0.3, 8):
            shown(CP, error)
            clock.now += 120
    assert len([r for r in caplog.records if "after iteration" in r.message]) == 2


def test_parafac_returns_its_factors_although_no_write_succeeds(path, broken_disk):
    with Progress(5, show=None, checkpoint=path, every=1) as shown:
        broken_disk.is_full = True
        x = np.random.default_rng(0).random((4, 5, 6))
        with tl.backend_context("numpy"):
            result = parafac(x, 2, n_iter_max=5, init="random", random_state=0, callback=shown)
    for a, b in zip(result.factors, shown.last.factors, strict=True):
        np.testing.assert_array_equal(a, b)
