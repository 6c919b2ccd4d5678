"""TensorLy's own tests: all pass under "flycoo", and under numpy with the plugin imported."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: TensorLy 0.9 and 0.10 have more than this; far fewer would mean that they were not found.
_MIN_PASSED = 700

_ENVIRONMENTS = [
    pytest.param("flycoo", "core", id="flycoo-core"),
    pytest.param("flycoo", "einsum", id="flycoo-einsum"),
    pytest.param("numpy", "core", id="numpy-core"),
]


def _run_suite(backend, tenalg, directory):
    """Run the tests in the wheel, away from this repository and its configuration."""
    settings = {"TENSORLY_BACKEND": backend, "TENSORLY_TENALG_BACKEND": tenalg}
    config = directory / "pytest.ini"
    config.write_text("[pytest]\n")
    shutil.copy(Path(__file__).with_name("fixed_seed.py"), directory)  # a plugin, found there
    options = ["-c", config, "--rootdir", directory, "-p", "no:cacheprovider", "-q"]
    options += ["-p", "fixed_seed", "-p", "tensorly_flycoo"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "tensorly", *options],
        cwd=directory,
        env={name: text for name, text in os.environ.items() if "PYTEST" not in name} | settings,
        capture_output=True,
        text=True,
    )


def _closing_counts(output):
    """Read pytest's closing line, like ``757 passed, 5 skipped, 9 warnings in 28.01s``."""
    closing = output.rstrip().splitlines()[-1]
    return {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", closing)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "tenalg"), _ENVIRONMENTS)
def test_all_of_tensorlys_tests_pass(backend, tenalg, tmp_path):
    finished = _run_suite(backend, tenalg, tmp_path)
    report = finished.stdout[-4000:] + finished.stderr[-1000:]
    assert finished.returncode == 0, report
    counts = _closing_counts(finished.stdout)
    assert counts["passed"] >= _MIN_PASSED, report
    assert not {"failed", "error", "errors", "deselected"} & set(counts), report
