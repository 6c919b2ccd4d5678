"""The primitives mean the same in NumPy and in the CPU engine."""

import numpy as np
import pytest

from tensorly_flycoo.engines import cpu
from tensorly_flycoo.format.packing import RecordFormat
from tensorly_flycoo.format.primitives import Primitives, compare_neighbours, index_dtype


@pytest.fixture(params=[Primitives(), cpu.primitives], ids=["numpy", "cpu"])
def primitives(request):
    return request.param


def make_records(shape, nnz, seed=0, dtype="float64"):
    """Return a format and records in no order, whose values number them."""
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(0, size, nnz) for size in shape])
    record_format = RecordFormat.of(shape, dtype, "uint64")
    return record_format, record_format.pack(coords, np.arange(nnz, dtype=dtype))


@pytest.mark.parametrize("order", ["C", "F", "neither"])
@pytest.mark.parametrize("coords_dtype", ["int64", "uint64", "int32", "uint8"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(200,), (7, 200, 3), (2**32, 2, 2**32, 50)])
def test_pack(primitives, shape, dtype, coords_dtype, order):
    rng = np.random.default_rng(0)
    top = np.minimum(shape, 200)[:, None]
    coords = rng.integers(0, top, (len(shape), 500)).astype(coords_dtype)
    coords = np.repeat(coords, 2, axis=1)[:, ::2] if order == "neither" else coords.copy(order)
    values = rng.standard_normal(500).astype(dtype)
    record_format = RecordFormat.of(shape, dtype, "uint64")
    records, is_rising, _ = primitives.pack(coords, values, record_format)
    np.testing.assert_array_equal(records, record_format.pack(coords, values))
    np.testing.assert_array_equal(record_format.coords(records), coords)
    np.testing.assert_array_equal(record_format.values(records), values)
    assert not is_rising


@pytest.mark.parametrize(
    ("coords", "expected"),
    [
        pytest.param([[0, 0, 1], [1, 2, 0]], True, id="rising"),
        pytest.param([[0, 0, 1], [1, 1, 0]], False, id="duplicates"),
        pytest.param([[0, 0, 1], [2, 1, 0]], False, id="falls in the second mode"),
        pytest.param([[1, 0, 1], [1, 2, 3]], False, id="falls in the first mode"),
        pytest.param([[4, 4, 4], [0, 1, 0]], False, id="falls at the end"),
        pytest.param([[3], [3]], True, id="one"),
        pytest.param([[], []], True, id="none"),
    ],
)
def test_pack_says_whether_coordinates_rise(primitives, coords, expected):
    coords = np.array(coords, np.int64)
    record_format = RecordFormat.of((5, 5), "float64", "uint64")
    for ordered in (coords, np.asfortranarray(coords)):
        _, is_rising, _ = primitives.pack(ordered, np.ones(coords.shape[1]), record_format)
        assert is_rising is expected


@pytest.mark.parametrize("position", [0, 1, 2499, 2500, 9997, 9998])
def test_pack_finds_one_fall_anywhere(primitives, position):
    """Also at the edges of what threads get."""
    rows = np.arange(10000)
    rows[[position, position + 1]] = rows[[position + 1, position]]
    record_format = RecordFormat.of((10000, 1), "float64", "uint64")
    _, is_rising, _ = primitives.pack(np.stack([rows, 0 * rows]), np.ones(10000), record_format)
    assert is_rising is False


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("nnz", [0, 1, 5000])
@pytest.mark.parametrize("shape", [(4, 1, 2**20), (1000, 5000, 3), (2**20, 2**20, 2**22)])
@pytest.mark.parametrize("index_type", ["uint32", "uint64"])
def test_sort_by_row(primitives, shape, nnz, mode, index_type):
    """Stable, also where there are too many rows to count."""
    record_format, records = make_records(shape, nnz)
    before, target = records.copy(), np.zeros_like(records)
    positions = np.zeros(nnz, index_type)
    primitives.sort_by_row(records, record_format, mode, target, positions)
    order = np.argsort(record_format.rows(records, mode), kind="stable")
    np.testing.assert_array_equal(target, records[order])
    np.testing.assert_array_equal(positions[order], np.arange(nnz))
    np.testing.assert_array_equal(records, before)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("nnz", [0, 1, 7, 5000])
@pytest.mark.parametrize("bucket_size", [1, 4, 1024])
def test_split_by_bucket(primitives, bucket_size, nnz, in_place):
    positions = np.random.default_rng(0).permutation(nnz).astype(np.uint32)
    stored = positions.copy() if in_place else np.zeros(nnz, np.uint32)
    offsets = np.zeros(nnz, np.uint16)
    given = stored if in_place else positions
    primitives.split_by_bucket(given, bucket_size, stored, offsets)
    order = np.argsort(positions // bucket_size, kind="stable")
    np.testing.assert_array_equal(stored[order], np.arange(nnz))
    np.testing.assert_array_equal(offsets[positions], stored % bucket_size)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(np.arange(5, dtype=np.uint32), id="items, 32 bits"),
        pytest.param(np.arange(5, dtype=np.uint16), id="items, 16 bits"),
        pytest.param(np.arange(10, dtype=np.uint64).reshape(5, 2), id="records of two words"),
        pytest.param(np.arange(5, dtype=np.uint64).reshape(5, 1), id="records of one word"),
    ],
)
def test_scatter(primitives, source):
    before, target = source.copy(), np.zeros_like(source)
    primitives.scatter(source, np.array([3, 0, 4, 1, 2], np.uint32), target)
    np.testing.assert_array_equal(target, source[[1, 3, 4, 0, 2]])
    np.testing.assert_array_equal(source, before)


@pytest.mark.parametrize("nnz", [0, 1, 30, 5000])
def test_find_empty_rows(primitives, nnz):
    record_format, records = make_records((7, 50), nnz)
    empty_rows = primitives.find_empty_rows(records, record_format, 1)
    present = set(record_format.rows(records, 1).tolist())
    assert empty_rows.tolist() == [row for row in range(50) if row not in present]
    assert empty_rows.dtype == np.uint32


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(50,), (5, 4, 3), (2**32, 3, 2**31, 4)])
def test_split_columns(primitives, shape, dtype):
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, min(size, 4), 200) for size in shape])
    record_format = RecordFormat.of(shape, dtype, "uint64")
    for mode in range(len(shape)):
        others = np.delete(coords, mode, axis=0)
        grouped = coords[:, np.lexsort([coords[mode], *others])]
        records = record_format.pack(grouped, np.arange(200).astype(dtype))
        is_new, rows, values = primitives.split_columns(records, record_format, mode)
        np.testing.assert_array_equal(rows, grouped[mode])
        np.testing.assert_array_equal(values, np.arange(200.0))
        others = np.delete(grouped, mode, axis=0)
        expected = np.r_[True, (others[:, 1:] != others[:, :-1]).any(axis=0)]
        np.testing.assert_array_equal(is_new, expected)
        assert values.dtype == np.float64


def test_compare_neighbours():
    is_less, is_equal = compare_neighbours(np.array([[0, 0, 0, 1, 1], [1, 2, 2, 0, 0]]))
    assert is_less.tolist() == [True, False, True, False]
    assert is_equal.tolist() == [False, True, False, True]


@pytest.mark.parametrize("nnz", [0, 1])
def test_no_neighbours(nnz):
    is_less, is_equal = compare_neighbours(np.zeros((2, nnz), np.int64))
    assert is_less.shape == is_equal.shape == (0,)


@pytest.mark.parametrize(
    ("count", "smallest", "expected"),
    [
        (0, "uint32", "uint32"),
        (2**16, "uint16", "uint16"),
        (2**16 + 1, "uint16", "uint32"),
        (2**32, "uint32", "uint32"),
        (2**32 + 1, "uint32", "uint64"),
        (2**40, "uint16", "uint64"),
    ],
)
def test_index_dtype_is_the_smallest_that_fits(count, smallest, expected):
    assert index_dtype(count, smallest=smallest) == expected
