"""Examples and the pages' code on a GPU, by the tests that run them on a CPU, and two more."""

import os
import subprocess
import sys
from pathlib import Path

import answers
import large
import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
FILES = [TESTS / "test_pages.py", *sorted((TESTS / "examples").glob("test_*.py"))]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_passes_on_a_cpu_passes_here(path):
    """All of its tests, in a process whose default device is the GPU."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "--slow", "-p", "no:cacheprovider", path]
    environment = os.environ | {"TENSORLY_FLYCOO_DEVICE": "cuda"}
    process = subprocess.run(
        command, env=environment, cwd=TESTS.parent, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_tutorial_finds_the_habits(tmp_path):
    result = answers.main(tmp_path)
    assert result["x"].device == "cuda"
    cp = result["starts"].best
    assert isinstance(cp.factors[0], np.ndarray)  # as the table is
    found = {frozenset(component) for component in cp.top("item", 4)}
    assert found == {frozenset(items) for items, _ in answers.HABITS.values()}
    assert result["rows"].shape == (2, 4)


def test_large_finds_all_components():
    result = large.main(["--scale", "0.001", "--rank", "4", "--iterations", "10"])
    assert result["x"].device == "cuda"
    assert result["found"] == 4
