"""Pages for developers name modules, tests and functions that exist."""

import re
import tokenize
from pathlib import Path

import pytest
import tensorly as tl
import tensorly.decomposition
import tensorly.tenalg

ROOT = Path(__file__).parent.parent
PAGES = ["CONTRIBUTING.md", "docs/architecture.md", "docs/reading.md"]

#: A path may begin here, or in any folder of the package, which the pages call a room.
FOLDERS = [ROOT, ROOT / "tensorly_flycoo", ROOT / "tests", ROOT / "docs", ROOT / "examples"]
FOLDERS += [path for path in (ROOT / "tensorly_flycoo").rglob("*") if path.is_dir()]
SUFFIXES = (".py", ".md", ".cu", ".cuh", ".toml", ".cff", ".json", ".yaml", ".yml")

#: Stands for any name in a recipe.
PLACEHOLDER = re.compile(r"NAME|ROOM|X\.Y\.Z")


def list_code(page, with_blocks=False):
    """List the code between backticks of a page, and maybe in its blocks, but not recipes'."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```.*?^```$", text, flags=re.M | re.S) if with_blocks else []
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    spans = {" ".join(span.split()) for span in re.findall(r"`+([^`]+)`+", text)}
    return blocks + sorted(span for span in spans if not PLACEHOLDER.search(span))


def is_path(code):
    return re.fullmatch(r"[\w./-]+", code) and ("/" in code or code.endswith(SUFFIXES))


def find_path(code):
    return any((folder / code).exists() for folder in FOLDERS)


def read_name(code):
    """Return the parts of a dotted name, of what is called if it is a call; None of other code."""
    match = re.fullmatch(r"([A-Za-z_][\w.]*)(\(.*)?", code)
    return match and match[1].split(".")


@pytest.fixture(scope="module")
def known_names():
    """Return all names of our code and settings, and TensorLy's public ones."""
    names = {*dir(tl), *dir(tl.decomposition), *dir(tl.tenalg)}
    for folder in ("tensorly_flycoo", "tests", "examples", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            names.add(path.stem)
            with tokenize.open(path) as file:
                tokens = tokenize.generate_tokens(file.readline)
                names |= {token.string for token in tokens if token.type == tokenize.NAME}
    for path in ("pyproject.toml", "CITATION.cff"):
        names.update(re.findall(r"\w+", (ROOT / path).read_text()))
    return names


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page):
    paths = [code for code in list_code(page) if is_path(code)]
    assert paths
    assert [path for path in paths if not find_path(path)] == []


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(page, known_names):
    parts = {code: read_name(code) for code in list_code(page) if not is_path(code)}
    unknown = [code for code, names in parts.items() if names and not known_names.issuperset(names)]
    assert unknown == []


def test_what_does_not_exist_is_found(known_names):
    assert not find_path("ops/no_such_file.py")
    assert read_name("launch.get_kernel(1, 2)") == ["launch", "get_kernel"]
    assert read_name("pip install x") is None
    assert "_".join(["no", "such", "name"]) not in known_names


@pytest.mark.parametrize("page", [*PAGES, "tests/README.md", "README.md", "docs/compatibility.md"])
def test_commands_name_tests_that_exist(page):
    code = " ".join(list_code(page, with_blocks=True))
    paths = set(re.findall(r"(?<![\w/])tests/[\w./]+", code))
    assert [path for path in paths if not (ROOT / path).exists()] == []
