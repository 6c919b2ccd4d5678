"""The mode to cut, and the edges of slabs."""

import numpy as np
import pytest

from tensorly_flycoo.base.devices import assign_homes
from tensorly_flycoo.format.groups import find_longest_mode
from tensorly_flycoo.spread import building
from tensorly_flycoo.spread.building import count_rows, find_edges, list_rows


def test_the_first_of_the_longest_modes_is_cut():
    shapes = [(5,), (2, 2), (1, 3, 3), (9, 3, 8)]
    assert [find_longest_mode(shape) for shape in shapes] == [0, 0, 1, 0]


@pytest.mark.parametrize("num_slabs", [1, 2, 3, 4, 12])
def test_equal_rows_give_equal_slabs(num_slabs):
    rows = np.repeat(np.arange(12), 5)
    edges = find_edges(count_rows(rows[::-1], 12), num_slabs)
    assert edges == tuple(range(0, 13, 12 // num_slabs))


def test_a_hub_row_is_a_slab_and_the_others_share_the_rest():
    rows = np.array([0, 1, *[2] * 94, 3, 3, 4, 4])
    edges = find_edges(count_rows(rows, 5), 4)
    assert edges == (0, 2, 3, 3, 5)
    assert list_rows(edges) == [range(0, 2), range(2, 3), range(3, 5)]


@pytest.mark.parametrize(
    ("rows", "size", "num_slabs", "expected"),
    [
        ([], 5, 3, (0, 5)),
        ([4], 9, 1, (0, 9)),
        ([4], 9, 3, (0, 9)),
        ([0, 8], 9, 2, (0, 1, 9)),
        ([3] * 10, 9, 4, (0, 0, 0, 9, 9)),
        ([0, 1, 2], 3, 10**30, (0, 1, 2, 3)),
        ([1, 1, 1, 3], 5, 3, (0, 0, 2, 5)),
    ],
)
def test_known_edges(rows, size, num_slabs, expected):
    assert find_edges(count_rows(np.array(rows, np.uint32), size), num_slabs) == expected


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint64"])
def test_rows_are_counted_in_blocks(dtype, monkeypatch):
    monkeypatch.setattr(building, "_COUNT_BLOCK", 7)
    rows = np.random.default_rng(0).integers(0, 30, 1000).astype(dtype)
    np.testing.assert_array_equal(count_rows(rows, 40), np.bincount(rows, minlength=40))


def test_the_longest_mode_is_cut():
    assert building.find_slab_shape((3, 7, 7), 2) == (3, 2, 7)
    assert assign_homes(5, 2) == (0, 0, 0, 1, 1)
