"""The base class of engines: the log of calls, and the engine of an array."""

import logging

import numpy as np
import pytest

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.base.checks import LAYOUTS
from tensorly_flycoo.engines import engine_of, protocol, select_engine
from tensorly_flycoo.engines.cpu.engine import BUCKET_SIZE, CPU, TILE_SIZE
from tensorly_flycoo.format.primitives import TTMC


def test_one_engine_a_device():
    assert select_engine("cpu") is engine_of(np.ones(3)) is CPU
    assert (CPU.name, CPU.xp, CPU.array_type) == ("cpu", np, np.ndarray)


def make_tensor(layout="remap"):
    return FlycooTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3), layout=layout, device="cpu")


@pytest.mark.usual_limits("slabs", "tiles")
@pytest.mark.parametrize(
    "layout", ["indexed", *(pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS[:2])]
)
def test_calls_are_logged_at_debug(caplog, layout):
    """One line per call names the engine, the layout and the kernel."""
    with caplog.at_level(logging.DEBUG, "tensorly_flycoo"):
        x = make_tensor(layout)
        mttkrp(x, [np.ones((3, 3))] * 2, 1)
        x._layout.apply(TTMC, CPU, {1: np.ones((3, 2))}, 0, np.empty((3, 2)))
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    lines = [line for line in lines if not line.startswith("compiled")]
    used = f"engine='cpu', layout='{layout}'"
    assert lines == [
        f"build: {used}, shape=(3, 3), nnz=2, tile_size={TILE_SIZE}, bucket_size={BUCKET_SIZE}",
        f"mttkrp: {used}, mode=1, kernel='mttkrp_tiles', num_lanes=2",
        f"ttmc: {used}, mode=0, kernel='ttmc_tiles', num_lanes=2",
    ]


def test_nothing_is_logged_by_default(caplog):
    x = make_tensor()
    mttkrp(x, [np.ones((3, 3))] * 2, 1)
    assert [r for r in caplog.records if r.levelno < logging.WARNING] == []


class Subclass(np.random.RandomState):
    """A generator with numbers of its own."""

    def random_sample(self, size=None):
        return 1 - super().random_sample(size)


RANDOMS = {
    "MT19937": lambda: np.random.RandomState(3),
    "PCG64": lambda: np.random.RandomState(np.random.PCG64(3)),
    "subclass": lambda: Subclass(3),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 3), (41, 100)])
@pytest.mark.parametrize("make_random", RANDOMS.values(), ids=RANDOMS)
def test_uniform_numbers_are_numpys(make_random, shape, dtype, monkeypatch):
    """Also between blocks; the generator is then in NumPy's state."""
    monkeypatch.setattr(protocol, "_DRAW_BLOCK", 1000)
    random, other = make_random(), make_random()
    for generator in (random, other):
        generator.normal(size=3)  # half of a pair is left over
    numbers = CPU.draw_uniform(random, shape, np.dtype(dtype))
    assert (numbers.shape, numbers.dtype) == (shape, dtype)
    np.testing.assert_array_equal(numbers, other.random_sample(shape).astype(dtype))
    np.testing.assert_array_equal(random.normal(size=5), other.normal(size=5))
