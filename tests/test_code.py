"""The code itself: lint, format, types, floors (imports point down only), and circles."""

import graphlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from report import count_comments, list_arrows, list_imports, read_code_lines

from tensorly_flycoo import decomposition

ROOT = Path(__file__).parent.parent
COMMANDS = {
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
    "floors": ["lint-imports"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_code(command):
    program = Path(sys.executable).parent / command[0]
    process = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_programs_for_a_gpu_use_attributes_that_exist(tmp_path):
    """Those of `tests/gpu` that no test runs, such as the one for sanitizers."""
    programs = sorted(ROOT.glob("tests/gpu/*_run.py"))
    options = [
        "--config-file=",
        f"--cache-dir={tmp_path}",
        "--ignore-missing-imports",
        "--check-untyped-defs",
        "--scripts-are-modules",
    ]
    mypy = Path(sys.executable).parent / "mypy"
    paths = os.pathsep.join(["tests/support", "examples", "examples/benchmark_gpu"])
    process = subprocess.run(
        [mypy, *options, *programs],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"MYPYPATH": paths},
    )
    assert f" {len(programs)} source files" in process.stdout, process.stdout
    wrong = [line for line in process.stdout.splitlines() if line.endswith("[attr-defined]")]
    assert not wrong


TYPE_CHECKERS = {
    "mypy": ["mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports"],
    "pyright": ["pyright", "--pythonpath", sys.executable],  # with node, so in no extra
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPE_CHECKERS)
def test_users_can_check_types(name, tmp_path):
    """Those of README's blocks, of another script, and the names of decompositions."""
    name, *options = TYPE_CHECKERS[name]
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    program = shutil.which(name, path=os.pathsep.join(places))
    if program is None:
        pytest.skip(f"{name} is not installed")
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    imports = f"from tensorly_flycoo.decomposition import {', '.join(decomposition.__all__)}\n"
    readme = tmp_path / "readme.py"
    readme.write_text("".join([imports, *blocks]))
    script = ROOT / "tests/support/typed_script.py"
    command = [program, *options, readme, script]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_imports_make_no_circles():
    list(graphlib.TopologicalSorter(list_imports()).static_order())  # a CycleError lists the circle


def test_the_report_counts_what_there_is(tmp_path):
    imports = {"a.x.p": {"a.x.q", "a.y"}, "a.x.q": {"a.y.r"}, "a.y.r": set()}
    assert list_arrows(imports) == {("x", "y")}
    path = tmp_path / "module.py"
    path.write_text('"""Two\n\nlines."""\n\n# A comment.\nx = 1  # another\nif x:\n    x = "#"\n')
    assert read_code_lines(path) == ["x = 1  # another", "if x:", 'x = "#"']
    assert count_comments(path) == 2
