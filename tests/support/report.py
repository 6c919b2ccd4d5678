"""Counts that show how the house changes; no test fails for one of them.

    python tests/support/report.py

prints them, and so does pytest at the end of a run of all tests.
"""

import ast
import io
import tokenize
from pathlib import Path

import grimp
from walks import (
    MOST_OF_RECEPTION,
    MOST_OF_ROAD,
    RECEPTION_END,
    ROAD_END,
    WALKS,
    count_walk,
    list_calls_until,
    list_walks_of,
    make_tensor,
)

from tensorly_flycoo.backend.replacements import TABLE

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tensorly_flycoo"


def list_imports():
    """Return the modules of the package that each of its modules imports."""
    graph = grimp.build_graph("tensorly_flycoo", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def find_room(module):
    """Return the folder of a module, or the file beside the folders."""
    return module.split(".")[1] if "." in module else module


def list_arrows(imports):
    """Return the pairs of rooms of which the first imports from the second."""
    rooms = {
        (find_room(module), find_room(imported))
        for module, others in imports.items()
        for imported in others
    }
    return {(room, other) for room, other in rooms if room != other}


def count_lines(path):
    return len((ROOT / path).read_text().splitlines())


def read_code_lines(path):
    """Return the lines of a module that are neither blank, comments nor docstrings, stripped."""
    text = path.read_text()
    docstrings = [
        range(node.lineno, node.end_lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    in_docstrings = {number for lines in docstrings for number in lines}
    lines = [line.strip() for line in text.splitlines()]
    code = [line for number, line in enumerate(lines, 1) if number not in in_docstrings]
    return [line for line in code if line and not line.startswith("#")]


def count_comments(path):
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def describe_code():
    """Describe the package's Python: its size, width of lines, comments and branches in lines."""
    paths = sorted(PACKAGE.rglob("*.py"))
    code = [line for path in paths for line in read_code_lines(path)]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    num_conditional = sum(isinstance(node, ast.IfExp) for node in nodes)
    per_thousand = 1000 / len(code)
    return (
        f"{len(code)} lines of code in {len(paths)} files, {sum(map(len, code)) / len(code):.1f} "
        f"characters a line without indentation; in 1,000 lines "
        f"{per_thousand * sum(map(count_comments, paths)):.0f} comments and "
        f"{per_thousand * num_conditional:.0f} conditional expressions"
    )


def list_modules_without_tests():
    """List the modules that neither have a test file of their own nor are named in CONTRIBUTING."""
    modules = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return [
        str(module)
        for module in modules
        if not module.name.startswith("__") and module.parts[:2] != ("engines", "cuda")
        if not (ROOT / "tests/unit" / module.parent / f"test_{module.name}").exists()
        if f"`{module.as_posix()}`" not in text
    ]


def make_report():
    """Yield the lines of the report."""
    yield f"code: {describe_code()}"
    yield f"arrows between rooms: {len(list_arrows(list_imports()))}"
    for name, walk in WALKS.items():
        counts = [count_walk(calls) for calls in list_walks_of(name)]
        num_files, num_calls = (max(of_mode) for of_mode in zip(*counts, strict=True))
        most = f"at most {walk.most_files} and {walk.most_calls}"
        yield f"one MTTKRP, {name}: {num_files} files, {num_calls} calls ({most})"
    coo = make_tensor().to_coo()
    for part, end, (most_files, most_calls) in (
        ("to the algorithm", RECEPTION_END, MOST_OF_RECEPTION),
        ("to its first MTTKRP", ROAD_END, MOST_OF_ROAD),
    ):
        num_files, num_calls = count_walk(list_calls_until(end, coo))
        most = f"at most {most_files} and {most_calls}"
        yield f"parafac of a COO, {part}: {num_files} files, {num_calls} calls ({most})"
    yield f"rows of the table of replaced names: {len(TABLE)}"
    untested = ", ".join(list_modules_without_tests()) or "none"
    yield f"modules without a test file of their own, or a row in CONTRIBUTING: {untested}"
    for path in ("README.md", "examples/answers.py"):
        yield f"lines of {path}: {count_lines(path)}"


if __name__ == "__main__":
    print(*make_report(), sep="\n")
