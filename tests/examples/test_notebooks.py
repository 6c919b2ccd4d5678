"""The notebooks run from top to bottom."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorly as tl

from tensorly_flycoo import cp_fit

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


def run(name):
    """Run the code cells of a notebook, without a kernel; return its variables."""
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())["cells"]
    namespace = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            lines = [line for line in cell["source"] if not line.startswith("%")]
            exec(compile("".join(lines), f"{name}, cell {number}", "exec"), namespace)
    return namespace


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    with tl.backend_context(tl.get_backend()):
        yield


def test_answers():
    found = run("answers")
    assert found["ranks"].rank == 4
    assert {next(iter(hours)) for hours in found["cp"].top("hour", 1)} == {8, 13, 16, 21}


def test_flights():
    found = run("flights")
    fit = cp_fit(found["x"], found["cp"], loss="poisson_count")
    assert fit.explained == pytest.approx(0.62, abs=0.02)
    assert found["share"].loc["Saturday"].max() < 1


def test_baby_names():
    found = run("baby_names")
    assert found["cp"].shape == (138, 2, 2000)
    assert all(np.all(factor >= 0) for factor in found["cp"].factors)


def test_no_output_is_committed():
    """Outputs make differences unreadable."""
    for path in NOTEBOOKS.glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") for cell in cells), path.name
