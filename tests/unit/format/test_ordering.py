"""Canonical records: sorted, each coordinate once, no zeros."""

import numpy as np
import pytest
from numpy_primitives import NumpyPrimitives

from tensorly_flycoo.format import ordering
from tensorly_flycoo.format.ordering import compute_norm, make_canonical_records
from tensorly_flycoo.format.packing import RecordFormat


@pytest.fixture(params=["uint32", "uint64"])
def canonicalise(request):
    """Return a function that maps coords, values and shape to canonical coords and values."""

    def canonicalise(coords, values, shape):
        coords, values = np.array(coords), np.asarray(values)
        record_format = RecordFormat.of(shape, values.dtype, request.param)
        records = make_canonical_records(coords, values, record_format, NumpyPrimitives())
        return record_format.coords(records), record_format.values(records)

    return canonicalise


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("coords", "values", "expected_coords", "expected_values"),
    [
        pytest.param(
            [[2, 0, 0], [0, 4, 1]], [1, 2, 3], [[0, 0, 2], [1, 4, 0]], [3, 2, 1], id="sorted"
        ),
        pytest.param(
            [[0, 0, 2], [1, 4, 0]], [3, 2, 1], [[0, 0, 2], [1, 4, 0]], [3, 2, 1], id="kept"
        ),
        pytest.param([[1, 0, 1], [2, 3, 2]], [1, 2, 4], [[0, 1], [3, 2]], [2, 5], id="duplicates"),
        pytest.param([[1, 1], [2, 2]], [1, 4], [[1], [2]], [5], id="duplicates in order"),
        pytest.param([[0, 1, 2], [0, 0, 0]], [1, 0, 2], [[0, 2], [0, 0]], [1, 2], id="a zero"),
        pytest.param([[0, 1], [0, 0]], [-0.0, 2], [[1], [0]], [2], id="a negative zero"),
        pytest.param([[1, 0, 1], [2, 3, 2]], [1, 2, -1], [[0], [3]], [2], id="sum is zero"),
        pytest.param([[2, 2], [4, 4]], [1, -1], [[], []], [], id="nothing left"),
        pytest.param([[2], [4]], [7], [[2], [4]], [7], id="one"),
    ],
)
def test_known_answers(canonicalise, dtype, coords, values, expected_coords, expected_values):
    found_coords, found_values = canonicalise(coords, np.array(values, dtype), (3, 5))
    np.testing.assert_array_equal(found_coords, expected_coords)
    np.testing.assert_array_equal(found_values, expected_values)
    assert found_values.dtype == dtype


def test_zeros_are_dropped_in_blocks(canonicalise, monkeypatch):
    monkeypatch.setattr(ordering, "_MASK_BLOCK", 2)
    values = np.array([0.0, 1, 2, 0, 0, 3, 0])
    coords, kept = canonicalise([np.arange(7)], values, (7,))
    np.testing.assert_array_equal(coords, [[1, 2, 5]])
    np.testing.assert_array_equal(kept, [1, 2, 3])


@pytest.mark.parametrize(
    ("values", "norm"),
    [
        pytest.param([5e-324], 5e-324, id="the smallest"),
        pytest.param([3 * 5e-324, 4 * 5e-324], 5 * 5e-324, id="subnormal"),
        pytest.param([1.5e308], 1.5e308, id="large"),
        pytest.param([1.3e308, 1.3e308], np.inf, id="too large"),
        pytest.param([3.0, -4.0], 5.0, id="usual"),
        pytest.param([3e-300, 4e300], 4e300, id="of both kinds"),
        pytest.param([], 0.0, id="none"),
    ],
)
@pytest.mark.parametrize("block_size", [1, 2**15])
def test_norms_at_the_ends_of_float64(values, norm, block_size):
    found = compute_norm(np.array(values, float), NumpyPrimitives(block_size=block_size))
    assert found == norm or abs(found - norm) <= 4 * np.spacing(norm)


def test_no_nonzeros(canonicalise):
    coords, values = canonicalise(np.zeros((2, 0), np.int64), np.zeros(0), (3, 5))
    assert coords.shape == (2, 0)
    assert values.shape == (0,)


def test_many_duplicates(canonicalise):
    """Small integers, whose sums are exact in any order."""
    rng = np.random.default_rng(0)
    coords, values = rng.integers(0, 3, (2, 5000)), rng.integers(1, 9, 5000).astype(np.float32)
    found_coords, found_values = canonicalise(coords, values, (3, 3))
    np.testing.assert_array_equal(found_coords, np.indices((3, 3)).reshape(2, 9))
    expected = np.bincount(np.ravel_multi_index(coords, (3, 3)), values)
    np.testing.assert_array_equal(found_values, expected)


def test_more_cells_than_any_integer(canonicalise):
    """Coordinates that differ only in the highest mode or the lowest bit stay distinct."""
    shape, top = (2**32,) * 5, 2**32 - 1
    coords = [[top, 0, top, top], [0] * 4, [top] * 4, [5] * 4, [0, 0, 1, 0]]
    found_coords, values = canonicalise(coords, np.array([1.0, 2.0, 3.0, 4.0]), shape)
    np.testing.assert_array_equal(found_coords[[0, 4]], [[0, top, top], [0, 0, 1]])
    np.testing.assert_array_equal(values, [2, 5, 3])


def test_inputs_are_not_written_to(canonicalise):
    coords, values = np.array([[1, 0, 1], [2, 3, 2]]), np.array([1.0, 2.0, 4.0])
    before = coords.copy(), values.copy()
    canonicalise(coords, values, (3, 5))
    np.testing.assert_array_equal(coords, before[0])
    np.testing.assert_array_equal(values, before[1])


def test_explicit_zeros_do_not_change_how_duplicates_are_added(canonicalise):
    """NumPy adds eight numbers in a different order than nine."""
    values = np.random.default_rng(0).standard_normal(8)
    _, expected = canonicalise(np.zeros((2, 8), int), values, (1, 1))
    _, found = canonicalise(np.zeros((2, 9), int), np.append(0.0, values), (1, 1))
    assert found.tobytes() == expected.tobytes()
