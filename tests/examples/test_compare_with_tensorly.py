"""The comparison: rows that finish agree; the others give the reason."""

import json
import sys

import compare_with_tensorly as compare
import numpy as np
import pytest
from matplotlib import image

SMALL = ["--shape", "40", "30", "20", "--nnz", "800", "--rank", "2", "--iterations", "2"]


def test_rows_agree(tmp_path, capsys):
    paths = tmp_path / "rows.json", tmp_path / "rows.png"
    options = ["--ways", "TensorLy, dense", "--json", str(paths[0]), "--figure", str(paths[1])]
    rows = compare.main([*SMALL, *options])
    assert [row["way"] for row in rows] == ["flycoo, CPU", "TensorLy, dense"]
    ours, dense = rows
    assert dense["difference"] < 1e-10
    assert dense["fit"] == pytest.approx(ours["fit"], abs=1e-10)
    assert len(ours["fits"]) == 3
    for row in rows:
        assert row["first_s"] > 0
        assert 1e7 < row["peak_nbytes"] < 1e10
        assert row["to_fit_s"] >= row["first_s"]
    page = capsys.readouterr().out
    assert f"{ours['fit']:.6f}" in page
    assert json.loads(paths[0].read_text())["rows"] == rows
    assert np.ptp(image.imread(paths[1])[..., :3]) > 0.5


def test_a_row_that_fails_and_a_slow_one_give_the_reason(tmp_path, capsys):
    """Memory is 10 kB for the dense tensor; the time limit is less than Python's start takes."""
    figure = tmp_path / "rows.png"
    compare.save_problem(tmp_path / "problem.npz", compare.make_tensor(compare.parse(SMALL)), 2, 0)
    rows = [{"way": compare.OURS, "iteration_s": 1.0, "peak_nbytes": 1e9, "fit": 0.5}]
    options = compare.parse([*SMALL, "--memory-gb", "0.00001"])
    rows.append(compare.measure("TensorLy, dense", tmp_path / "problem.npz", options))
    # An array's memory, or what NumPy's OpenBLAS asks for first.
    reasons = ["MemoryError: Unable to allocate", "OpenBLAS error: Memory allocation still failed"]
    assert any(reason in rows[1]["failure"] for reason in reasons)
    options = compare.parse([*SMALL, "--limit-s", "0.2"])
    rows.append(compare.measure("contrib.sparse", tmp_path / "problem.npz", options))
    assert rows[2]["failure"] == "cut off at 0.2 s"
    compare.print_table(rows)
    page = capsys.readouterr().out
    assert any(reason in page for reason in reasons)
    assert "cut off at 0.2 s" in page
    compare.plot(rows, figure, "title")
    assert figure.exists()


def test_reasons_stay_in_their_rows(monkeypatch):
    """Also those of the last rows, which have no bars."""
    figures = []
    monkeypatch.setattr(compare, "save", lambda figure, path: figures.append(figure))
    rows = [{"way": "a", "iteration_s": 1.0, "peak_nbytes": 1e9}]
    rows += [{"way": name, "failure": f"{name} is not installed"} for name in ("b", "c")]
    compare.plot(rows, "unused.png", "title")
    axes = figures[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    reasons = [text for text in axes.texts if "installed" in text.get_text()]
    assert [text.xy[1] for text in reasons] == [1, 2]
    bottom, top = axes.get_ylim()
    assert all(top < text.xy[1] < bottom for text in reasons)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(compare.NEEDS, "pyttb", "no_such_package")
    row = compare.measure("pyttb", tmp_path / "problem.npz", compare.parse(SMALL))
    assert row["failure"] == "no_such_package is not installed"


def test_a_failed_process_gives_its_exit_status():
    command = [sys.executable, "-c", "import sys; sys.exit('out of luck')"]
    assert compare.run_process(command, None, 60) == "exit 1: out of luck"


def test_time_to_fit():
    rows = [
        {"first_s": 1.0, "iteration_s": 0.1, "fit": 0.5, "fits": [0.1, 0.4, 0.5]},
        {"first_s": 2.0, "iteration_s": 0.2, "fit": 0.5},
        {"first_s": 2.0, "iteration_s": 0.2, "fit": 0.3},
        {"first_s": 2.0},
    ]
    assert compare.add_time_to_fit(rows, 0.4) == 0.4
    assert [row.get("to_fit_s") for row in rows] == [1.1, 2.2, None, None]
    assert compare.add_time_to_fit(rows[:1], None) == pytest.approx(0.495)


def test_difference_of_factors_ignores_order_scale_and_sign(tmp_path):
    random = np.random.RandomState(0)
    factors = [random.standard_normal((size, 3)) for size in (6, 5, 4)]
    others = [factor[:, [2, 0, 1]] * [2, -3, 0.5] for factor in factors]
    np.savez(tmp_path / "a.npz", *factors)
    np.savez(tmp_path / "b.npz", *others)
    assert compare.largest_difference(tmp_path / "b.npz", tmp_path / "a.npz") < 1e-12
    others[1][0, 0] += 1
    np.savez(tmp_path / "b.npz", *others)
    assert compare.largest_difference(tmp_path / "b.npz", tmp_path / "a.npz") > 0.01
