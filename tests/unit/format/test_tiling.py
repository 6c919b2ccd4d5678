"""Tiles of equal nnz: rows that cross their edges, and empty rows."""

import numpy as np
import pytest
from numpy_primitives import NumpyPrimitives, pack

from tensorly_flycoo.format.layout import tile_rows
from tensorly_flycoo.format.packing import RecordFormat
from tensorly_flycoo.format.primitives import NO_ROW, ModeRows


def tile(rows, num_rows, tile_size):
    """Tile nonzeros whose sorted rows are `rows`, in a tensor with another mode in front."""
    record_format = RecordFormat.of((9, num_rows), "float64", "uint64")
    rows = np.array(rows, np.int64)
    records = pack(record_format, np.stack([rows * 0 + 3, rows]), np.ones(rows.size))
    return tile_rows(ModeRows(records, record_format, 1, None), tile_size, NumpyPrimitives())


@pytest.mark.parametrize(
    ("rows", "carry_rows", "empty_rows"),
    [
        pytest.param([], [], [0, 1, 2, 3, 4], id="no nonzeros"),
        pytest.param([4], [NO_ROW], [0, 1, 2, 3], id="one nonzero"),
        pytest.param([0, 0, 0], [NO_ROW], [1, 2, 3, 4], id="one tile, one row"),
        pytest.param([0, 0, 0, 1], [NO_ROW, NO_ROW], [2, 3, 4], id="row ends at the edge"),
        pytest.param([0, 0, 2, 2], [NO_ROW, 2], [1, 3, 4], id="row crosses an edge"),
        pytest.param([3] * 10, [NO_ROW, 3, 3, 3], [0, 1, 2, 4], id="row over all tiles"),
        pytest.param(
            [0, 1, 1, 1, 1, 1, 1, 4, 4], [NO_ROW, 1, 1], [2, 3], id="row fills a tile, next begins"
        ),
        pytest.param([0, 1, 2, 3, 4], [NO_ROW, NO_ROW], [], id="a row each"),
        pytest.param([4, 4, 4, 4], [NO_ROW, 4], [0, 1, 2, 3], id="last row wraps to no first tile"),
    ],
)
def test_known_tiles(rows, carry_rows, empty_rows):
    tiling = tile(rows, 5, tile_size=3)
    assert tiling.carry_rows.tolist() == carry_rows
    assert tiling.empty_rows.tolist() == empty_rows


def test_first_and_last_tile_of_the_same_row():
    """The first tile has no row carried in, even if the last nonzero is in the same row."""
    assert tile([0] * 7, 1, tile_size=3).carry_rows.tolist() == [NO_ROW, 0, 0]


def test_tiles_of_an_order_given_by_places():
    record_format = RecordFormat.of((5,), "float64", "uint64")
    records = pack(record_format, np.array([[4, 2, 0, 2, 2]]), np.ones(5))
    places = np.array([2, 1, 3, 4, 0], np.uint32)
    tiling = tile_rows(ModeRows(records, record_format, 0, places), 2, NumpyPrimitives())
    assert tiling.carry_rows.tolist() == [NO_ROW, 2, NO_ROW]
    assert tiling.empty_rows.tolist() == [1, 3]


def test_types_and_nbytes():
    tiling = tile([0, 0, 2, 2], 5, tile_size=3)
    assert tiling.carry_rows.dtype == np.int64
    assert tiling.empty_rows.dtype == np.uint32
    assert tiling.nbytes == tiling.carry_rows.nbytes + tiling.empty_rows.nbytes == 2 * 8 + 3 * 4


def test_rows_beyond_32_bit_signed(monkeypatch):
    """The last rows of the largest mode do not become negative, like NO_ROW."""
    primitives = NumpyPrimitives()
    monkeypatch.setattr(primitives, "find_empty_rows", lambda *_: None)  # it takes gigabytes
    record_format = RecordFormat.of((2**32,), "float64", "uint64")
    rows = np.array([[2**31, 2**32 - 2, 2**32 - 1, 2**32 - 1]])
    records = pack(record_format, rows, np.ones(4))
    tiling = tile_rows(ModeRows(records, record_format, 0, None), 3, primitives)
    assert tiling.carry_rows.tolist() == [NO_ROW, 2**32 - 1]
