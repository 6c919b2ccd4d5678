"""The base class of engines: the log of calls, and the engine of an array."""

import logging

import numpy as np
import pytest

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.checks import LAYOUTS
from tensorly_flycoo.engines import engine_of, select_engine
from tensorly_flycoo.engines.cpu.engine import BUCKET_SIZE, CPU, TILE_SIZE


def test_one_engine_a_device():
    assert select_engine("cpu") is engine_of(np.ones(3)) is CPU
    assert (CPU.name, CPU.xp, CPU.array_type) == ("cpu", np, np.ndarray)


def make_tensor(layout="remap"):
    return FlycooTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3), layout=layout, device="cpu")


@pytest.mark.usual_limits("tiles")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_are_logged_at_debug(caplog, layout):
    """One line per call names the engine, the layout and the kernel."""
    with caplog.at_level(logging.DEBUG, "tensorly_flycoo"):
        x = make_tensor(layout)
        mttkrp(x, [np.ones((3, 4))] * 2, 1)
        CPU.ttmc(x._layout, 0, {1: np.ones((3, 2))}, np.empty((3, 2)))
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    used = f"engine='cpu', layout='{layout}'"
    assert lines == [
        f"build: {used}, shape=(3, 3), nnz=2, tile_size={TILE_SIZE}, bucket_size={BUCKET_SIZE}",
        f"mttkrp: {used}, mode=1, kernel='mttkrp_tiles', num_lanes=4",
        f"ttmc: {used}, mode=0, kernel='ttmc_tiles', num_lanes=2",
    ]


def test_nothing_is_logged_by_default(caplog):
    x = make_tensor()
    mttkrp(x, [np.ones((3, 4))] * 2, 1)
    assert [r for r in caplog.records if r.levelno < logging.WARNING] == []
