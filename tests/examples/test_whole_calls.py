"""Whole calls on the CPU: the stages add up, tools reach the same fit, the table and the figure."""

import json
from types import SimpleNamespace

import benchmark_als
import numpy as np
import pytest
import sparse
import whole_calls
from benchmark_gpu.stages import COLUMNS, STAGES, draw_panel, make_call, print_calls
from matplotlib import image
from matplotlib.figure import Figure


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


def test_the_fastest_round_counts_and_a_failure_is_not_repeated(coo, tmp_path, monkeypatch):
    seconds, measured = iter((5.0, 3.0, 4.0)), []

    def measure(way, *_):
        measured.append(way)
        if way == "pyttb":
            return {"way": way, "failure": "cut off"}
        return {"way": way, **make_call((next(seconds), 0, 1, 1, 1), [0.1], 1)}

    monkeypatch.setattr(whole_calls, "WAYS", {"init=svd": "svd", "pyttb": None})
    monkeypatch.setattr(whole_calls.compare, "measure", measure)
    whole_calls.compare.save_problem(tmp_path / "problem.npz", coo, 1, 0)
    options = SimpleNamespace(rounds=3)
    ours, theirs = whole_calls.compare_calls("t", tmp_path / "problem.npz", options)
    assert measured == ["init=svd", "pyttb", "init=svd", "init=svd"]
    assert ours["build_s"] == 3
    assert theirs == {"tensor": "t", "nnz": coo.nnz, "way": "pyttb", "failure": "cut off"}


def test_a_table_of_figures(capsys):
    """A column without figures is left out; a call of the GPU gives its workspace in factors."""
    call = {
        "tensor": "t",
        "nnz": 1234,
        "way": "init=svd",
        **make_call((1, 0.5, 2, 10, 3), [0.1], 5),
    }
    print_calls([call])
    page = capsys.readouterr().out
    assert "| t | 1,234 | init=svd | 1 | 0.5 | 2 | 10 | 3 | 16.5 | 1.0 |\n" in page
    assert "peak" not in page
    memory = {"peak_nbytes": 7e9, "tensor_nbytes": 1e9, "factors_nbytes": 2e9, "to_fit_s": 4.0}
    print_calls([call | memory])
    assert "| 16.5 | 1.0 | 4 | 7.00 | 3.00 |\n" in capsys.readouterr().out
    assert len(COLUMNS) == len(STAGES) + 5


def test_a_long_bar_ends_at_the_limit():
    """A call of 4 s and one of 4000 s: the axis ends soon after 16 s, and the label says 4000."""
    figures = {"tensor": "t", "nnz": 5, "peak_nbytes": 1e9}
    calls = [
        {"way": way, **figures, **make_call((s, 0.0, s, s, s), [0.1], 5)}
        for way, s in (("ours", 1.0), ("theirs", 1000.0))
    ]
    axes = Figure().subplots()
    draw_panel(axes, calls)
    assert [bar.get_width() for bar in axes.patches] == [1, 16, 0, 0, 1, 0, 1, 0, 1, 0]
    assert [text.get_text() for text in axes.texts] == [
        " 4 s, peak 1.00 GB",
        " ... 4e+03 s, peak 1.00 GB",
    ]
    assert 16 < axes.get_xlim()[1] < 32


def test_a_call_that_failed_gives_the_reason():
    axes = Figure().subplots()
    draw_panel(axes, [{"tensor": "t", "nnz": 5, "way": "ours", "failure": "cut off at 2 s"}])
    assert [text.get_text() for text in axes.texts] == [" cut off at 2 s"]


def test_random_tensors_have_real_pairs_beside_modes_drawn_apart():
    """Uber has 4.8 nonzeros for each combination of all indices but the last."""
    for name, num_nonzeros, num_prefixes in (
        ("uber", 3_300_000, 2_416_719), ("uber, real pairs", 3_309_490, 692_597)
    ):  # fmt: skip
        coords, values, shape = benchmark_als.make_tensor(name)
        assert values.size == coords.shape[1] == num_nonzeros
        prefixes = np.unique(np.ravel_multi_index(coords[:-1], shape[:-1]))
        assert prefixes.size == pytest.approx(num_prefixes, rel=1e-3)
