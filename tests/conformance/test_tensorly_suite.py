"""TensorLy's own tests pass under "flycoo".

By default without five modules that take half of the time; `--slow` runs them too. With the einsum
tensor algebra, only the packages with hooks are tested; under numpy with the plugin imported, only
the algebra, because test_backend_seam.py compares decompositions bit by bit.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fixed_seed
import pytest
import tensorly as tl

#: Packages with hooks.
_ALGEBRA = ("tensorly.tenalg", "tensorly.contrib")
_HOOKED = ("tensorly.decomposition", *_ALGEBRA)

#: Modules with half of the time.
_LONG = "test_parafac2 or test_tr_als or test_preprocessing or test_cp_plsr or test_cp_regression"

#: The minimum number of tests of TensorLy 0.9 and 0.10, to notice tests that pytest does not find.
_LEAST = {"quick": (360, 600), "core": (480, 700), "einsum": (280, 500), "algebra": (55, 250)}
_IS_NEW = not tl.__version__.startswith("0.9.")

_ENVIRONMENTS = [
    pytest.param("flycoo", "core", ("tensorly",), "quick", id="flycoo-quick"),
    pytest.param("flycoo", "core", ("tensorly",), "core", id="flycoo-core", marks=pytest.mark.slow),
    pytest.param("flycoo", "einsum", _HOOKED, "einsum", id="flycoo-einsum", marks=pytest.mark.slow),
    pytest.param("numpy", "core", _ALGEBRA, "algebra", id="numpy-core", marks=pytest.mark.slow),
]


def _run_suite(backend, tenalg, packages, directory, *more):
    """Run the wheel's tests outside this repository and its configuration."""
    settings = {"TENSORLY_BACKEND": backend, "TENSORLY_TENALG_BACKEND": tenalg}
    config = directory / "pytest.ini"
    config.write_text("[pytest]\n")
    shutil.copy(Path(fixed_seed.__file__), directory)  # so that pytest finds the plugin
    options = ["-c", config, "--rootdir", directory, "-p", "no:cacheprovider", "-q"]
    options += ["-p", "fixed_seed", "-p", "tensorly_flycoo"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", *packages, *options, *more],
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
@pytest.mark.parametrize(("backend", "tenalg", "packages", "least"), _ENVIRONMENTS)
def test_tensorlys_own_tests_pass(backend, tenalg, packages, least, tmp_path):
    more = ["-k", f"not ({_LONG})"] if least == "quick" else []
    finished = _run_suite(backend, tenalg, packages, tmp_path, *more)
    report = finished.stdout[-4000:] + finished.stderr[-1000:]
    assert finished.returncode == 0, report
    counts = _closing_counts(finished.stdout)
    assert counts["passed"] >= _LEAST[least][_IS_NEW], report
    assert not {"failed", "error", "errors"} & set(counts), report
    assert ("deselected" in counts) == (least == "quick"), report
