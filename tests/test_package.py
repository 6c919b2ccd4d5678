"""Security and packaging: no code from data files is run, wheels hold just the package."""

import ast
import hashlib
import re
import runpy
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import tensorly_flycoo

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tensorly_flycoo"

#: Modules that run code from data, or programs.
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "subprocess", "pty", "code", "runpy"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
#: The first letters of functions of `os`.
ATTRIBUTES = re.compile(r"(system|popen|exec[lv]|spawn[lv]|posix_spawn)")


def list_dangers(source):
    """List the names in a source that could run code from data, each with its line."""
    dangers = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").partition(".")[0]} & MODULES if not node.level else set()
        elif isinstance(node, ast.Call):
            names = set(_list_dangers_of_call(node))
        else:
            names = set()
        dangers += [f"line {node.lineno}: {name}" for name in sorted(names)]
    return dangers


def _list_dangers_of_call(call):
    function, options = call.func, {keyword.arg: keyword.value for keyword in call.keywords}
    if isinstance(function, ast.Name) and function.id in BUILTINS:
        yield function.id
    name = function.attr if isinstance(function, ast.Attribute) else ""
    if ATTRIBUTES.match(name):
        yield name
    module = ast.unparse(function.value) if name else ""
    if module == "importlib" and isinstance(call.args[0], ast.Constant):
        yield from {call.args[0].value} & MODULES
    loads = (module in ("np", "numpy") and name == "load") or name == "read_array"
    for option, is_needed in (("allow_pickle", loads), ("shell", False)):
        value = options.get(option)
        if (value is None and is_needed) or (value is not None and ast.unparse(value) != "False"):
            yield option


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import importlib; importlib.import_module('pickle')",
        "import subprocess",
        "eval('1')",
        "exec('1')",
        "compile('1', '', 'eval')",
        "import os; os.system('ls')",
        "import os; os.popen('ls')",
        "import os; os.execvp('ls', [])",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=is_trusted)",
        "np.lib.format.read_array(file)",
        "run('ls', shell=True)",
    ],
)
def test_dangers_are_found(source):
    assert len(list_dangers(source)) == 1


def test_no_module_can_run_code_from_data():
    sources = sorted(PACKAGE.rglob("*.py"))
    assert len(sources) > 60
    found = {str(path.relative_to(ROOT)): list_dangers(path.read_text()) for path in sources}
    found = {path: [d.partition(": ")[2] for d in dangers] for path, dangers in found.items()}
    # The command `run` runs the script that its user names; Dask's workers run what clients send.
    allowed = {
        "tensorly_flycoo/command_line/environment.py": ["runpy"],
        "tensorly_flycoo/dask/messages.py": ["pickle"],
    }
    assert {path: dangers for path, dangers in found.items() if dangers} == allowed


def test_dependencies_are_pinned_by_range():
    """Only those of users; the next major release of one may break the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"]]
    for extra in ("cuda12x", "cuda13x", "zstd", "progress", "tables"):
        required += extras[extra]
    for requirement in required:
        version = requirement.partition(";")[0]
        assert re.search(r">=\d", version), requirement
        assert re.search(r",<\d", version), requirement


def test_all_files_have_one_version():
    found = {
        re.search(pattern, (ROOT / path).read_text())[1]
        for path, pattern in {
            "tensorly_flycoo/__init__.py": r'__version__ = "(.*)"',
            "CITATION.cff": r"\nversion: (.*)",
            ".zenodo.json": r'"version": "(.*)"',
            "docs/conda/recipe.yaml": r'version: "(.*)"',
        }.items()
    }
    assert len(found) == 1


def test_the_conda_recipe_has_the_same_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "docs" / "conda" / "recipe.yaml").read_text()
    run = recipe.partition("  run:\n")[2].partition("  run_constraints:")[0]
    listed = {line.strip(" -").replace(" ", "") for line in run.splitlines()}
    assert listed == {*project["dependencies"], f"python{project['requires-python']}"}


def test_actions_are_pinned_by_hash():
    """The tag of an action may be moved to other code; dependabot reads the version behind it."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for action in re.findall(r"uses: (.*)", path.read_text()):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_release_notes_are_the_versions_section_of_the_changelog():
    text = "# Changelog\n\n## 0.3.0 / unreleased\n\n## 0.2.0 / 2026-12-01\n\nNew.\n\n### A\n\n## 0"
    extract_notes = runpy.run_path(str(ROOT / ".ci" / "release_notes.py"))["extract_notes"]
    assert extract_notes(text, "0.2.0") == "New.\n\n### A\n"
    for version, why in {"0.3.0": "has the date 'unreleased'", "0.4.0": "no version"}.items():
        with pytest.raises(SystemExit, match=why):
            extract_notes(text, version)
    assert f"## {tensorly_flycoo.__version__} / " in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Return a function that builds the wheel as pip does, but in this process."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")

    def build(folder):
        return next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path / folder)))

    return build


def test_wheels_are_built_reproducibly(build):
    first, second = (Path(build(folder)) for folder in ("first", "second"))
    assert first != second
    hashes = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second)}
    assert len(hashes) == 1


def test_a_wheel_is_the_package_and_nothing_else(build):
    with zipfile.ZipFile(build("wheel")) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    info = {name for name in files if ".dist-info/" in name}
    names = {name.partition("/")[2] for name in info}
    assert names == {"METADATA", "WHEEL", "RECORD", "licenses/LICENSE"}
    sources = [
        path
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".cu", ".cuh", ".cubin", ".md") or path.name == "py.typed"
    ]
    assert sum(path.suffix in (".cu", ".cuh") for path in sources) > 15
    expected = {str(path.relative_to(ROOT)): path.read_bytes() for path in sources}
    assert {name: data for name, data in files.items() if name not in info} == expected
    (licence,) = (files[name] for name in info if name.endswith("LICENSE"))
    assert licence == (ROOT / "LICENSE").read_bytes()
