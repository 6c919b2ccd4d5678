"""Whole calls on the CPU: the stages add up, tools reach the same fit, the table and the figure."""

import json

import benchmark_als
import numpy as np
import pytest
import sparse
import whole_calls
from benchmark_gpu.stages import STAGES
from matplotlib import image


@pytest.fixture(scope="module")
def coo():
    random = np.random.RandomState(0)
    coords = np.stack([random.randint(0, size, 3000) for size in (40, 30, 20)])
    return sparse.COO(coords, random.random_sample(3000), (40, 30, 20))


@pytest.fixture(scope="module")
def call(coo):
    return whole_calls.time_call("COO, random", coo, 3)


def test_the_stages_add_up(call):
    assert sum(call[f"{stage}_s"] for stage in STAGES) == pytest.approx(call["total_s"])
    assert all(call[f"{stage}_s"] > 0 for stage in STAGES)
    assert call["iteration_s"] == pytest.approx(call["iterations_s"] / 3)
    assert call["fits"] == sorted(call["fits"])
    assert len(call["fits"]) == 3


@pytest.mark.parametrize("way", ["pyttb", "pygenten"])
def test_others_start_from_the_same_guess(coo, call, way):
    pytest.importorskip(way)
    theirs = whole_calls.time_call(way, coo, 3)
    assert theirs["fit"] == pytest.approx(call["fit"], abs=1e-9)
    assert theirs["total_s"] > 0


def test_the_program_measures_prints_and_draws(tmp_path, capsys, monkeypatch):
    """The ways are one of ours and one that is not installed."""
    monkeypatch.setitem(benchmark_als.RANDOM, "cube", ((30, 20, 10), 500))
    monkeypatch.setitem(whole_calls.compare.NEEDS, "pyttb", "no_such_package")
    monkeypatch.setattr(whole_calls, "WAYS", {"COO, svd": ("COO", "svd"), "pyttb": None})
    paths = tmp_path / "calls.json", tmp_path / "calls.png"
    options = ["--iterations", "2", "--json", str(paths[0]), "--figure", str(paths[1])]
    ours, other = benchmark_als.main(["--whole", "--tensors", "cube", "--rounds", "1", *options])
    assert (ours["tensor"], ours["way"]) == ("cube", "COO, svd")
    assert 400 < ours["nnz"] <= 500
    assert ours["to_fit_s"] <= ours["total_s"]
    assert 1e7 < ours["peak_nbytes"] < 1e10
    page = capsys.readouterr().out
    assert f"| cube | {ours['nnz']} | COO, svd | {ours['build_s']:.3g} |" in page
    assert f"cube, pyttb: {other['failure']}" in page
    assert json.loads(paths[0].read_text()) == [ours, other]
    assert np.ptp(image.imread(paths[1])[..., :3]) > 0.5
