"""Tests that need a GPU: only ``pytest tests/gpu`` collects them, and they never skip."""

import cupy
import pytest
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo.loop.recording import Recorder


@pytest.fixture(autouse=True)
def flycoo_on_a_gpu(monkeypatch):
    """Use the backend "flycoo", with raw COOs on the GPU; fail without a GPU.

    What a test leaves in CuPy's pool goes back, since other processes' tests share the card.
    """
    assert cupy.cuda.runtime.getDeviceCount() > 0
    monkeypatch.setattr(tensorly_flycoo.engines, "_chosen_device", "cuda")
    with tl.backend_context("flycoo"):
        yield
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.fixture
def launches(monkeypatch):
    """List what recordings are launched, each time."""
    found = []
    original = Recorder.launch

    def launch(self, recorded):
        is_launched = original(self, recorded)
        if is_launched:
            found.append(recorded)
        return is_launched

    monkeypatch.setattr(Recorder, "launch", launch)
    return found
