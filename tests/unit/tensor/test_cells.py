"""Cells in a sorted list."""

import numpy as np
import pytest

from tensorly_flycoo.tensor.cells import find_places


@pytest.mark.parametrize("size", [50, 2**21, 2**32])  # 64 bits do not number the last
def test_places_among_cells(size):
    random = np.random.default_rng(0)
    cells = np.unique(random.integers(size - 50, size, (3, 400)), axis=1)
    others = random.integers(size - 50, size, (3, 3000))
    numbers = {cell: n for n, cell in enumerate(zip(*cells.tolist(), strict=True))}
    coords = np.concatenate([cells, others], axis=1)
    expected = [numbers.get(cell, -1) for cell in zip(*coords.tolist(), strict=True)]
    is_found, places = find_places(cells, coords, np)
    found = np.full(coords.shape[1], -1)
    found[is_found] = places
    np.testing.assert_array_equal(found, expected)


def test_none_are_sought():
    is_found, places = find_places(np.array([[0, 2], [1, 3]]), np.zeros((2, 0), int), np)
    assert is_found.size == places.size == 0
