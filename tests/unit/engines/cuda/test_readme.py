"""The README of the kernels: its diagram matches the code, and it names every file."""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy_primitives import NumpyPrimitives

from tensorly_flycoo.engines import cuda
from tensorly_flycoo.format.packing import Cut, RecordFormat
from tensorly_flycoo.format.remap import RemapLayout

FOLDER = Path(cuda.__file__).parent / "kernels"
README = (FOLDER / "README.md").read_text()
# The nonzeros a to h, numbered by their values from 1, in tiles of two and buckets of four.
COORDS = np.array([[0, 1, 2, 3, 4, 5, 6, 7], [1, 5, 0, 4, 6, 3, 1, 2]])

PRIMITIVES = NumpyPrimitives()


@pytest.fixture
def layout():
    record_format, values = RecordFormat.of((8, 7), "float64", "uint64"), np.arange(1.0, 9.0)
    return RemapLayout.build(COORDS, values, Cut(record_format, 2, 4), PRIMITIVES)


def read_lines(name):
    """Read the rows of the diagram that begin with a name."""
    lines = re.findall(rf"^ +{name} +((?:\w|\|| )+?)(?:  +\w\w.*)?$", README, re.MULTILINE)
    return [re.sub(r"[| ]+", " ", line).split() for line in lines]


def read_names(layout, records):
    return ["abcdefgh"[int(value) - 1] for value in layout.record_format.values(records)]


def test_the_diagram_of_remapping(layout):
    storages, slots = [read_lines("storage 0")[0], read_lines("storage 1")[0]], read_lines("slots")
    assert read_lines("storage 0") == [storages[0]] * 2
    assert read_lines("storage 1") == [storages[1]] * 2
    assert slots == [read_lines("order 0")[0], read_lines("order 1")[0]]
    for mode, plan in enumerate(layout.plans):
        assert read_names(layout, layout.records) == storages[mode]
        assert read_lines("pull ids")[mode] == plan.pull_ids.astype(str).tolist()
        assert read_lines("remap ids")[mode] == plan.remap_ids.astype(str).tolist()
        places = np.arange(8) // 4 * 4 + plan.pull_ids.astype(int)
        assert read_names(layout, layout.records[places]) == slots[mode]
        with layout.step(mode, PRIMITIVES) as step:
            PRIMITIVES.remap(step, layout.cut)
    assert layout.tilings[1].carry_rows.tolist() == [-1, 1, -1, -1]


def test_every_file_is_named():
    for path in FOLDER.rglob("*.cu*"):
        assert f"`{path.stem}" in README, path.name
