"""Entries that are held out."""

import numpy as np
import pytest

from tensorly_flycoo.loop.holding_out import count_share, draw_parts, hold_out
from tensorly_flycoo.testing import random_tensor


def test_parts_are_drawn_without_replacement():
    parts = [*draw_parts(23, 5, np.random.RandomState(0))]
    assert [part.size for part in parts] == [5, 5, 5, 5, 3]
    assert np.sort(np.concatenate(parts)).tolist() == [*range(23)]
    chosen = np.random.RandomState(0).choice(23, 5, replace=False)
    np.testing.assert_array_equal(parts[0], chosen)


@pytest.mark.parametrize("share", [1e-9, 0.5, 0.999])
def test_a_share_leaves_some_of_both(share):
    assert 1 <= count_share(10, share) <= 9


def test_nonzeros_alone():
    x = random_tensor((9, 10, 11), 200, random_state=0)
    cells = hold_out(x, 30, np.random.RandomState(1), with_zeros=False)
    coords, _ = x.nonzeros()
    assert cells.shape == (3, 30)
    stored = {*zip(*coords.tolist(), strict=True)}
    drawn = {*zip(*cells.tolist(), strict=True)}
    assert len(drawn) == 30
    assert drawn <= stored


def test_as_many_other_cells_from_rows_of_nonzeros():
    x = random_tensor((90, 100, 110), 200, random_state=0)
    cells = hold_out(x, 30, np.random.RandomState(1))
    coords, _ = x.nonzeros()
    stored = {*zip(*coords.tolist(), strict=True)}
    assert sum(cell in stored for cell in zip(*cells.tolist(), strict=True)) == 30
    assert cells.shape == (3, 60)
    assert all(np.isin(own, rows).all() for own, rows in zip(cells, coords, strict=True))
    np.testing.assert_array_equal(cells, np.unique(cells, axis=1))
