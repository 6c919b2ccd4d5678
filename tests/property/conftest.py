"""Fixtures of the laws on the CPU engine."""

import numba
import pytest

from tensorly_flycoo.engines.cpu import engine as cpu


@pytest.fixture
def small_tiles(monkeypatch):
    """Rows span many tiles."""
    monkeypatch.setattr(cpu, "TILE_SIZE", 4)
    monkeypatch.setattr(cpu, "BUCKET_SIZE", 8)


@pytest.fixture
def one_thread():
    """Use one thread, to save time in thousands of tiny calls; unit tests use more."""
    num_threads = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(num_threads)
