"""The seam with the oldest supported TensorLy, which the tests install."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # .ci/oldest runs most of these tests too

ROOT = Path(__file__).parents[2]
OLDEST = re.search(r'"tensorly>=([\d.]+),', (ROOT / "pyproject.toml").read_text())[1]

#: Quick tests: what the seam relies on, and parafac at its edges.
CHOSEN = "test_canary or (edge_cases and svd)"
PATHS = [f"tests/conformance/test_{name}.py" for name in ("canary", "refusals")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return an environment in which processes import the oldest TensorLy."""
    folder = str(tmp_path_factory.mktemp("tensorly"))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
    if subprocess.run([*command, f"tensorly=={OLDEST}.*"], capture_output=True).returncode != 0:
        pytest.skip(f"pip cannot install TensorLy {OLDEST}")
    return {**os.environ, "PYTHONPATH": folder}


def run(environment, *arguments):
    """Run Python and return its output; fail on a nonzero exit status."""
    command = [sys.executable, *arguments]
    options = {"env": environment, "cwd": ROOT, "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=250, **options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return done.stdout


def test_it_is_the_oldest(environment):
    version = run(environment, "-c", "import tensorly; print(tensorly.__version__)")
    assert version.startswith(f"{OLDEST}.")


def test_the_seam(environment):
    options = ["-n", "0", "-p", "no:cacheprovider", "-k", CHOSEN]
    output = run(environment, "-m", "pytest", *options, *PATHS)
    assert "[100%]" in output
