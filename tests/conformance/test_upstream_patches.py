"""The patches proposed in docs/upstream.md apply to the TensorLy they were written for.

They are for TensorLy 0.10: with another version conftest.py makes pytest ignore this module.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import tensorly

FOLDER = Path(__file__).parents[2] / "docs" / "upstream"
NAMES = ("error_calc", "truncated_svd", "entry_points")


@pytest.fixture(scope="module")
def tensorly_copy(tmp_path_factory):
    """Return a folder with a copy of the installed TensorLy, tests included."""
    folder = tmp_path_factory.mktemp("upstream")
    source = Path(tensorly.__file__).parent
    shutil.copytree(source, folder / "tensorly", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_every_patch_is_tested():
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.patch" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_patch_applies(name, tensorly_copy):
    """The patches touch different files, so they apply one after the other to one copy."""
    # If the folder is inside a repository, git would skip files.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tensorly_copy.parent)}
    command = ["git", "apply", "--verbose", str(FOLDER / f"{name}.patch")]
    options = {"cwd": tensorly_copy, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr
    assert "Skipped" not in done.stderr
    for line in done.stderr.splitlines():
        if line.startswith("Applied patch "):
            path = tensorly_copy / line.split()[2]
            compile(path.read_text(), path, "exec")
