"""The patches proposed in docs/upstream.md apply to what they were written for.

Three are for TensorLy 0.10: with another version conftest.py makes pytest ignore this module. The
fourth is for cell2cell 0.9.0, whose wheel has no tests. The fifth is for a page of TensorLy that no
package has: `test_tensorly_gallery.py` applies it to a clone.
"""

import importlib.metadata
import os
import re
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
    names = {path.name for path in FOLDER.iterdir()}
    assert names == {f"{name}.patch" for name in (*NAMES, "cell2cell_sparse", "sparse_page")}


@pytest.mark.parametrize("name", NAMES)
def test_patch_applies(name, tensorly_copy):
    """The patches touch different files, so they apply one after the other to one copy."""
    apply(name, tensorly_copy)


def test_patch_of_cell2cell_applies(tmp_path):
    try:
        files = importlib.metadata.distribution("cell2cell")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("cell2cell is not installed")
    if files.version != "0.9.0":
        pytest.skip(f"the patch is for cell2cell 0.9.0, installed is {files.version}")
    path = "cell2cell/tensor"
    shutil.copytree(files.locate_file(path), tmp_path / path)
    apply("cell2cell_sparse", tmp_path, "--include=cell2cell/*")


def test_the_example_of_the_page_runs():
    code = re.findall(r"^\+    >>> (.*)$", (FOLDER / "sparse_page.patch").read_text(), re.M)
    namespace = {}
    with tensorly.backend_context(tensorly.get_backend()):
        exec("\n".join(code), namespace)
    assert namespace["cp"].rank == 5


def apply(name, folder, *arguments):
    """Apply a patch to the files in a folder, and compile those that it changes."""
    # If the folder is inside a repository, git would skip files.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    command = ["git", "apply", "--verbose", *arguments, str(FOLDER / f"{name}.patch")]
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    applied = [line.split()[2] for line in lines if line.startswith("Applied patch ")]
    assert applied
    assert arguments or "Skipped" not in done.stderr
    for path in applied:
        compile((folder / path).read_text(), path, "exec")
