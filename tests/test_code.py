"""The code itself: lint, format, types, floors (imports point down only), and arrows."""

import graphlib
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

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


def find_room(module):
    """Return the folder of a module, or the file beside the folders."""
    return module.split(".")[1] if "." in module else module


def test_imports_make_no_circles_and_few_arrows_between_rooms():
    """A new arrow between two rooms makes both harder to read alone: look for another place."""
    graph = grimp.build_graph("tensorly_flycoo", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    list(graphlib.TopologicalSorter(imported).static_order())  # a CycleError lists the circle
    pairs = [(a, b) for a, others in imported.items() for b in others]
    arrows = {(find_room(a), find_room(b)) for a, b in pairs if find_room(a) != find_room(b)}
    assert len(arrows) <= 91, sorted(arrows)
