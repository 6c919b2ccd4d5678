"""Cells in a sorted list."""

import numpy as np

from tensorly_flycoo.tensor.cells import find_places


def test_places_among_cells_of_huge_modes():
    size = 2**32
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
