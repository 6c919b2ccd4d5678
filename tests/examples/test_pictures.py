"""The pictures with small settings; without tensorly-viz, what to install."""

import importlib
import sys

import numpy as np
import pandas as pd
import pytest
import tensorly as tl
from matplotlib import image

from tensorly_flycoo import from_dataframe

MODULES = ("pictures", "flights", "showing", "benchmark_gpu", "benchmark_gpu.balance")


@pytest.fixture
def forgotten(monkeypatch):
    """Forget the examples' modules after a test: they hold data."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def build_small(**options):
    random = np.random.RandomState(0)
    sizes = {"carrier": 16, "origin": 3, "destination": 105, "day": 365, "hour": 20}
    table = pd.DataFrame({mode: random.randint(0, size, 9000) for mode, size in sizes.items()})
    return from_dataframe(table.astype({"carrier": str}), list(sizes), **options)


@pytest.mark.slow
def test_pictures(forgotten, tmp_path, monkeypatch, capsys):
    pictures = importlib.import_module("pictures")
    monkeypatch.setattr(pictures, "build_tensor", build_small)
    arguments = ["--ranks", "1", "2", "--starts", "2", "--iterations", "3"]
    with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
        result = pictures.main([*arguments, "--output", str(tmp_path)])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["components.png", "ranks.png", "rows.png", "starts.png"]
    for name in names:
        pixels = image.imread(tmp_path / name)
        assert pixels.shape[1] > 700
        assert np.ptp(pixels[..., :3]) > 0.5
    scores = result["selection"].scores
    assert [score.rank for score in scores] == [1, 2]
    assert scores[0].core_consistency == pytest.approx(100, abs=1)
    assert all(1 < len(errors) <= 3 for errors in result["starts"].errors)
    assert result["starts"].best.rank == result["selection"].rank
    assert f"Wrote {tmp_path / 'ranks.png'}" in capsys.readouterr().out
    # Three origins occupy 3 of 132 workers: the busiest has at least 44 times its share.
    assert result["loads"]["origin"] >= 44
    assert result["tiles"] == pytest.approx(2048 * 132 / 9000, rel=0.01)


def test_without_tensorly_viz_it_says_what_to_install(forgotten, monkeypatch):
    monkeypatch.setitem(sys.modules, "tlviz.visualisation", None)  # makes the import fail
    with pytest.raises(SystemExit, match=r'pip install -e "\.\[examples,pictures\]"'):
        importlib.import_module("pictures")
