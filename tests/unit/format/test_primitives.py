"""The primitives give the same results in NumPy and in the CPU engine."""

import numpy as np
import pytest
from numpy_primitives import NumpyPrimitives, pack

from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.format.packing import RecordFormat
from tensorly_flycoo.format.primitives import Entries, LeadingPairs, ModeRows, index_dtype


@pytest.fixture(params=[NumpyPrimitives(), CPU], ids=["numpy", "cpu"])
def primitives(request):
    return request.param


def make_records(shape, nnz, seed=0, dtype="float64"):
    """Return a format and unsorted records; their values are their numbers."""
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(0, size, nnz) for size in shape])
    record_format = RecordFormat.of(shape, dtype, "uint64")
    return record_format, pack(record_format, coords, np.arange(nnz, dtype=dtype))


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
    np.testing.assert_array_equal(records, pack(record_format, coords, values))
    np.testing.assert_array_equal(record_format.coords(records), coords)
    np.testing.assert_array_equal(record_format.values(records), values)
    assert not is_rising


@pytest.mark.parametrize(
    ("coords", "expected"),
    [
        pytest.param([[0, 0, 1], [1, 2, 0]], True, id="ascending"),
        pytest.param([[0, 0, 1], [1, 1, 0]], False, id="duplicates"),
        pytest.param([[0, 0, 1], [2, 1, 0]], False, id="descends in the second mode"),
        pytest.param([[1, 0, 1], [1, 2, 3]], False, id="descends in the first mode"),
        pytest.param([[4, 4, 4], [0, 1, 0]], False, id="descends at the end"),
        pytest.param([[3], [3]], True, id="one"),
        pytest.param([[], []], True, id="none"),
    ],
)
def test_pack_says_whether_coordinates_ascend(primitives, coords, expected):
    coords = np.array(coords, np.int64)
    record_format = RecordFormat.of((5, 5), "float64", "uint64")
    for ordered in (coords, np.asfortranarray(coords)):
        _, is_rising, _ = primitives.pack(ordered, np.ones(coords.shape[1]), record_format)
        assert is_rising is expected


@pytest.mark.parametrize("position", [0, 1, 2499, 2500, 9997, 9998])
def test_pack_finds_one_descent_anywhere(primitives, position):
    """Also at the edges of threads' parts."""
    rows = np.arange(10000)
    rows[[position, position + 1]] = rows[[position + 1, position]]
    record_format = RecordFormat.of((10000, 1), "float64", "uint64")
    _, is_rising, _ = primitives.pack(np.stack([rows, 0 * rows]), np.ones(10000), record_format)
    assert is_rising is False


def test_pack_finds_zeros(primitives):
    record_format = RecordFormat.of((2000,), "float64", "uint64")
    coords, values = np.arange(2000)[None], np.ones(2000)
    assert primitives.pack(coords, values, record_format)[2] is False
    values[1234] = 0
    assert primitives.pack(coords, values, record_format)[2] is True


@pytest.mark.parametrize("wrong", [-1, 7, 2**40])
@pytest.mark.parametrize("place", [0, 999])
def test_pack_refuses_coordinates_outside(primitives, place, wrong):
    record_format = RecordFormat.of((9, 7), "float64", "uint64")
    coords = np.zeros((2, 1000), np.int64)
    coords[1, place] = wrong
    expected = rf"coords\[1, {place}\] is {wrong} \(nonzero {place}, mode 1\), expected 0 to 6"
    with pytest.raises(ValueError, match=expected):
        primitives.pack(coords, np.ones(1000), record_format)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pack_refuses_values_that_are_not_finite(primitives, dtype, wrong):
    record_format = RecordFormat.of((9,), dtype, "uint64")
    values = np.ones(1000, dtype)
    values[789] = wrong
    with pytest.raises(ValueError, match=rf"values\[789\] is {wrong}, expected finite numbers"):
        primitives.pack(np.zeros((1, 1000), np.int64), values, record_format)


@pytest.fixture(params=[False, True], ids=["in memory order", "in another order"])
def make_places(request):
    """Return a function that makes a permutation of the records, or None."""

    def make(nnz, index_type):
        order = np.random.default_rng(1).permutation(nnz).astype(index_type)
        return order if request.param else None

    return make


def sort_by_argsort(record_format, records, mode, places):
    """Return the places sorted by row, the new position of each, and the empty rows."""
    places = np.arange(records.shape[0]) if places is None else places
    rows = record_format.rows(records[places], mode)
    order = np.argsort(rows, kind="stable")
    positions = np.empty_like(order)
    positions[order] = np.arange(order.size)
    is_empty = np.ones(record_format.shape[mode], bool)
    is_empty[rows] = False
    return places[order], positions, np.flatnonzero(is_empty)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("nnz", [0, 1, 5000])
@pytest.mark.parametrize("shape", [(4, 1, 2**20), (1000, 5000, 3), (2**20, 2**20, 2**22)])
@pytest.mark.parametrize("index_type", ["uint32", "uint64"])
def test_sort_by_row(primitives, make_places, shape, nnz, mode, index_type):
    """The sort is stable, even with too many rows for a counting sort."""
    record_format, records = make_records(shape, nnz)
    before, places = records.copy(), make_places(nnz, index_type)
    target, positions = np.zeros((2, nnz), index_type)
    given = ModeRows(records, record_format, mode, places)
    rows = primitives.sort_by_row(given, target, positions)
    expected = sort_by_argsort(record_format, records, mode, places)
    np.testing.assert_array_equal(target, expected[0])
    np.testing.assert_array_equal(positions, expected[1])
    if rows is not None:
        np.testing.assert_array_equal(rows, expected[2])
        assert rows.dtype == index_dtype(shape[mode])
    np.testing.assert_array_equal(records, before)


def store_by_bucket(positions, bucket_size):
    """Return where items are stored and, for each position, its offset in its bucket."""
    order = np.argsort(positions // bucket_size, kind="stable")
    stored, offsets = np.empty_like(order), np.empty_like(order)
    stored[order] = np.arange(order.size)
    offsets[positions] = stored % bucket_size
    return stored, offsets


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("nnz", [0, 1, 7, 5000])
@pytest.mark.parametrize("bucket_size", [1, 5, 1024])
def test_split_by_bucket(primitives, bucket_size, nnz, in_place):
    positions = np.random.default_rng(0).permutation(nnz).astype(np.uint32)
    stored = positions.copy() if in_place else np.zeros(nnz, np.uint32)
    offsets = np.zeros(nnz, np.uint16)
    given = stored if in_place else positions
    primitives.split_by_bucket(given, bucket_size, stored, offsets)
    expected = store_by_bucket(positions, bucket_size)
    np.testing.assert_array_equal(stored, expected[0])
    np.testing.assert_array_equal(offsets, expected[1])


@pytest.mark.parametrize("num_words", [1, 2, 3])
def test_gather_and_scatter(primitives, num_words):
    records = np.arange(5 * num_words, dtype=np.uint64).reshape(5, num_words)
    places, offsets = np.array([3, 0, 4, 1, 2], np.uint32), np.array([1, 2, 0, 1, 0], np.uint16)
    before, target = records.copy(), np.zeros_like(records)
    np.testing.assert_array_equal(primitives.gather(records, places), records[places])
    primitives.scatter_in_buckets(records, offsets, 3, target)
    np.testing.assert_array_equal(target, records[[2, 0, 1, 4, 3]])
    np.testing.assert_array_equal(records, before)


@pytest.mark.parametrize("nnz", [0, 1, 30, 5000])
def test_find_empty_rows(primitives, nnz):
    record_format, records = make_records((7, 50), nnz)
    empty_rows = primitives.find_empty_rows(records, record_format, 1)
    present = set(record_format.rows(records, 1).tolist())
    assert empty_rows.tolist() == [row for row in range(50) if row not in present]
    assert empty_rows.dtype == index_dtype(50)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(50,), (5, 4, 3), (2**32, 3, 2**31, 4)])
def test_split_columns(primitives, shape, dtype):
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, min(size, 4), 200) for size in shape])
    record_format = RecordFormat.of(shape, dtype, "uint64")
    for mode in range(len(shape)):
        others = np.delete(coords, mode, axis=0)
        grouped = coords[:, np.lexsort([coords[mode], *others])]
        records = pack(record_format, grouped, np.arange(200).astype(dtype))
        others = np.delete(grouped, mode, axis=0)
        expected = np.r_[True, (others[:, 1:] != others[:, :-1]).any(axis=0), True]
        reverse = np.arange(200, dtype=np.uint32)[::-1]
        for places, ordered in ((None, records), (reverse.copy(), records[::-1].copy())):
            found = primitives.split_columns(ModeRows(ordered, record_format, mode, places))
            np.testing.assert_array_equal(found[0], expected)
            np.testing.assert_array_equal(found[1], grouped[mode])
            np.testing.assert_array_equal(found[2], np.arange(200.0))
            assert found[2].dtype == np.float64


def make_entries(num_rows):
    """Return what `split_columns` does for random nonzeros."""
    rng = np.random.default_rng(num_rows)
    is_first = np.append(rng.random(300) < 0.6, True)
    is_first[0] = True
    rows = rng.integers(0, num_rows, 300).astype(np.uint32)
    return Entries(is_first, rows, rng.standard_normal(300))


@pytest.mark.parametrize("num_rows", [1, 40, 10_000])
def test_columns_with_one_nonzero_and_with_more(primitives, num_rows):
    """Together they are the unfolding."""
    is_first, rows, values = entries = make_entries(num_rows)
    columns = np.cumsum(is_first[:-1]) - 1
    is_single = np.bincount(columns)[columns] == 1
    squares = primitives.sum_single_squares(entries, num_rows, 4.0)
    for found, is_chosen in zip(squares, (values > 0, values < 0), strict=True):
        expected = np.zeros(num_rows)
        np.add.at(expected, rows[is_single & is_chosen], (values[is_single & is_chosen] / 4) ** 2)
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    coupled, coords, shared = primitives.list_shared(entries, num_rows, 4.0)
    np.testing.assert_array_equal(coupled, np.unique(rows[~is_single]))
    np.testing.assert_array_equal(coupled[coords[1]], rows[~is_single])
    numbers = np.unique(columns[~is_single], return_inverse=True)[1]
    np.testing.assert_array_equal(coords[0], numbers)
    np.testing.assert_array_equal(shared, values[~is_single] / 4)
    assert coords.dtype == coupled.dtype == np.int64
    sums = primitives.add_signs(squares, coupled)
    np.testing.assert_array_equal(sums, squares[0, coupled] + squares[1, coupled])


def test_no_column_is_shared(primitives):
    entries = Entries(np.ones(4, bool), np.arange(3, dtype=np.uint32), np.ones(3))
    coupled, coords, values = primitives.list_shared(entries, 5, 2.0)
    assert (coupled.size, coords.shape, values.size) == (0, (2, 0), 0)


def test_find_largest_sums(primitives):
    squares = np.array([[0, 2.0, 1, 0, 5, 1, 0], [0, 0, 2, 0, 0, 1, 2]])
    excluded = np.array([4])
    for count, rows in ((1, [2]), (3, [2, 1, 5]), (7, [2, 1, 5, 6])):
        found, sums = primitives.find_largest_sums(squares, excluded, count)
        assert found.tolist() == rows  # equal sums in the order of rows
        assert sums.tolist() == squares.sum(axis=0)[rows].tolist()


def test_place_vectors(primitives):
    vectors = np.arange(6.0).reshape(2, 3)
    sources, signs = np.array([2, ~0, 1]), np.array([-1, 1, 1])
    pairs = LeadingPairs(vectors, np.ones(3), np.array([3, 1]), sources)
    placed = primitives.place_vectors(pairs, signs, (4, 4), np.dtype(np.float32))
    assert placed.tolist() == [[0, 1, 0, 0], [-5, 0, 4, 0], [0, 0, 0, 0], [-2, 0, 1, 0]]
    assert placed.dtype == np.float32


def test_vectors_in_place_are_only_negated(primitives):
    vectors = np.arange(6.0).reshape(2, 3)
    pairs = LeadingPairs(vectors, np.ones(3), None, np.arange(3))
    arguments = (np.array([1, -1, 1]), (2, 3), vectors.dtype)
    assert primitives.place_vectors(pairs, *arguments) is vectors
    assert vectors.tolist() == [[0, -1, 2], [3, -4, 5]]


@pytest.mark.usual_limits("index")
@pytest.mark.parametrize(
    ("count", "smallest", "expected"),
    [
        (0, "uint32", "uint32"),
        (2**16, "uint16", "uint16"),
        (2**16 + 1, "uint16", "uint32"),
        (2**32, "uint32", "uint32"),
        (2**32 + 1, "uint32", "uint64"),
        (2**40, "uint16", "uint64"),
        (2**31, "int32", "int32"),
        (2**31 + 1, "int32", "int64"),
    ],
)
def test_index_dtype_is_the_smallest_that_fits(count, smallest, expected):
    assert index_dtype(count, smallest=smallest) == expected


@pytest.mark.parametrize("word", [np.uint32, np.uint64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(5,), (1, 7), (3, 2**20, 4), (2**31, 2**30, 2, 2**32)])
def test_sort_places_and_find_duplicates(shape, dtype, word):
    """Sort by the last mode first and the first mode last; equal neighbours are duplicates."""
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(max(0, size - 3), size, 500) for size in shape])
    values = rng.standard_normal(500).astype(dtype)
    record_format = RecordFormat.of(shape, dtype, word)
    records = pack(record_format, coords, values)
    places = NumpyPrimitives().sort_places(records, record_format, reversed(range(len(shape))))
    np.testing.assert_array_equal(places, np.lexsort(coords[::-1]))
    ordered = coords[:, places]
    is_equal = NumpyPrimitives().find_duplicates(records[places], record_format)
    np.testing.assert_array_equal(is_equal, (ordered[:, 1:] == ordered[:, :-1]).all(axis=0))
    assert is_equal.any()


def test_sorting_by_no_mode_changes_nothing():
    record_format = RecordFormat.of((5, 5), "float32", np.uint32)
    records = pack(record_format, np.zeros((2, 3), int), np.ones(3, np.float32))
    places = np.array([2, 0, 1])
    assert NumpyPrimitives().sort_places(records, record_format, (), places) is places
