"""The CUDA engine's primitives of building give what NumPy's do."""

import cupy
import numpy as np
import pytest
from numpy_primitives import NumpyPrimitives, pack

from tensorly_flycoo.engines.cuda import engine
from tensorly_flycoo.engines.cuda.compact_ids import PackedIds
from tensorly_flycoo.engines.cuda.engine import CUDA
from tensorly_flycoo.engines.tall import find_signs
from tensorly_flycoo.format.packing import RecordFormat
from tensorly_flycoo.format.primitives import Entries, LeadingPairs, ModeRows

NUMPY = NumpyPrimitives()
SHAPES = [(4, 20_000), (2**20, 3), (70_000, 50, 7), (2**32, 2, 2**31, 9)]
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES)
EVERY_NNZ = pytest.mark.parametrize("nnz", [0, 1, 7, 100_000])
EVERY_PLACE_DTYPE = pytest.mark.parametrize("place_dtype", [None, "uint32", "uint64"])


def make_records(shape, nnz, dtype="float64"):
    """Return a format, and unsorted records in host memory whose values are their numbers."""
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(max(0, size - 10**6), size, nnz) for size in shape])
    record_format = RecordFormat.of(shape, dtype, "uint32")
    return record_format, pack(record_format, coords, np.arange(nnz, dtype=dtype))


def make_places(nnz, dtype):
    return None if dtype is None else np.random.default_rng(1).permutation(nnz).astype(dtype)


def to_gpu(array):
    return None if array is None else cupy.asarray(array)


def check_equal(found, expected):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.get(), expected)


@EVERY_PLACE_DTYPE
@EVERY_NNZ
@pytest.mark.parametrize(("shape", "mode"), [(s, n) for s in SHAPES[:3] for n in range(len(s))])
def test_sort_by_row(shape, mode, nnz, place_dtype):
    record_format, records = make_records(shape, nnz)
    places = make_places(nnz, place_dtype)
    target, positions = np.empty((2, nnz), place_dtype or "uint32")
    NUMPY.sort_by_row(ModeRows(records, record_format, mode, places), target, positions)
    found, found_positions = cupy.empty((2, nnz), target.dtype)
    given = ModeRows(to_gpu(records), record_format, mode, to_gpu(places))
    empty_rows = CUDA.sort_by_row(given, found, found_positions)
    check_equal(found, target)
    check_equal(found_positions, positions)
    check_equal(empty_rows, NUMPY.find_empty_rows(records, record_format, mode))


@EVERY_NNZ
@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 1_000_000])
def test_find_empty_rows(size, nnz):
    record_format, records = make_records((3, size), nnz)
    found = CUDA.find_empty_rows(to_gpu(records), record_format, 1)
    check_equal(found, NUMPY.find_empty_rows(records, record_format, 1))


@EVERY_PLACE_DTYPE
@EVERY_NNZ
@EVERY_SHAPE
def test_sort_places(shape, nnz, place_dtype):
    record_format, records = make_records(shape, nnz)
    places, modes = make_places(nnz, place_dtype), range(len(shape))
    found = CUDA.sort_places(to_gpu(records), record_format, modes, to_gpu(places))
    expected = NUMPY.sort_places(records, record_format, modes, places)
    np.testing.assert_array_equal(found.get(), expected)


@EVERY_PLACE_DTYPE
@EVERY_NNZ
@EVERY_SHAPE
@pytest.mark.parametrize("tile_size", [1, 128, 1024])
def test_find_carry_rows(tile_size, shape, nnz, place_dtype):
    record_format, records = make_records(shape, nnz)
    mode = len(shape) - 1
    places = NUMPY.sort_places(records, record_format, [mode])
    if place_dtype is None:
        records, places = records[places], None
    else:
        places = places.astype(place_dtype)
    given = ModeRows(records, record_format, mode, places)
    on_gpu = given._replace(records=to_gpu(records), places=to_gpu(places))
    found = CUDA.find_carry_rows(on_gpu, tile_size)
    check_equal(found, NUMPY.find_carry_rows(given, tile_size))


@EVERY_NNZ
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("offset_dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("place_dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("bucket_size", [5, 1024])
def test_buckets(bucket_size, place_dtype, offset_dtype, in_place, nnz):
    positions = make_places(nnz, place_dtype)
    stored, offsets = np.empty_like(positions), np.empty(nnz, offset_dtype)
    NUMPY.split_by_bucket(positions, bucket_size, stored, offsets)
    given, found_offsets = to_gpu(positions), cupy.empty(nnz, offset_dtype)
    found = given if in_place else cupy.empty_like(given)
    CUDA.split_by_bucket(given, bucket_size, found, found_offsets)
    check_equal(found, stored)
    check_equal(found_offsets, offsets)
    packed = PackedIds.split(found_offsets, bucket_size, tile_size=512)
    found = CUDA.position_in_buckets(packed, bucket_size)
    check_equal(found, NUMPY.position_in_buckets(offsets, bucket_size))


@EVERY_NNZ
@pytest.mark.parametrize("num_words", [2, 4, 6])
@pytest.mark.parametrize("bucket_size", [5, 1024])
def test_scatter_in_buckets(bucket_size, num_words, nnz):
    positions, offsets = make_places(nnz, "uint32"), np.empty(nnz, np.uint32)
    NUMPY.split_by_bucket(positions, bucket_size, np.empty_like(positions), offsets)
    records = np.random.default_rng(0).integers(0, 2**32, (nnz, num_words), np.uint32)
    target = np.empty_like(records)
    NUMPY.scatter_in_buckets(records, offsets, bucket_size, target)
    found = cupy.empty_like(target)
    CUDA.scatter_in_buckets(to_gpu(records), to_gpu(offsets), bucket_size, found)
    check_equal(found, target)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nnz", [0, 1, 8191, 8193, 1_000_000])
def test_sum_squares(nnz, dtype):
    record_format, records = make_records((50, 40), nnz, dtype)
    values = np.random.default_rng(0).standard_normal(nnz).astype(dtype)
    record_format.values(records)[...] = values
    expected = float((values.astype(np.float64) ** 2).sum())
    found = {CUDA.sum_squares(record_format.values(to_gpu(records))) for _ in range(3)}
    assert len(found) == 1
    assert found.pop() == pytest.approx(expected, rel=1e-14)


def make_entries(nnz, num_rows, columns_per_nonzero):
    """Return what `split_columns` does for random nonzeros, in host memory."""
    rng = np.random.default_rng(nnz)
    is_first = np.append(rng.random(nnz) < columns_per_nonzero, True)
    is_first[0] = True
    rows = rng.integers(0, num_rows, nnz).astype(np.uint32)
    return Entries(is_first, rows, rng.standard_normal(nnz))


@EVERY_PLACE_DTYPE
@EVERY_NNZ
@EVERY_SHAPE
def test_split_columns(shape, nnz, place_dtype):
    record_format, records = make_records(shape, nnz)
    places, mode = make_places(nnz, place_dtype), len(shape) - 1
    expected = NUMPY.split_columns(ModeRows(records, record_format, mode, places))
    found = CUDA.split_columns(ModeRows(to_gpu(records), record_format, mode, to_gpu(places)))
    for found_one, expected_one in zip(found, expected, strict=True):
        np.testing.assert_array_equal(found_one.get(), expected_one)


@EVERY_NNZ
@pytest.mark.parametrize("columns_per_nonzero", [0, 0.5, 0.999, 1])
@pytest.mark.parametrize("num_rows", [1, 70, 20_000])
def test_squares_and_shared_columns(num_rows, columns_per_nonzero, nnz):
    entries = make_entries(nnz, num_rows, columns_per_nonzero)
    arguments = (num_rows, 1024.0)
    on_gpu = Entries(*map(to_gpu, entries))
    squares = NUMPY.sum_single_squares(entries, *arguments)
    found = [CUDA.sum_single_squares(on_gpu, *arguments) for _ in range(2)]
    np.testing.assert_array_equal(*(one.get() for one in found))
    np.testing.assert_allclose(found[0].get(), squares, rtol=1e-12, atol=1e-25)
    expected = NUMPY.list_shared(entries, *arguments)
    shared = CUDA.list_shared(on_gpu, *arguments)
    for found_one, expected_one in zip(shared, expected, strict=True):
        check_equal(found_one, expected_one)
    rows = expected[0]
    check_equal(CUDA.add_signs(to_gpu(squares), to_gpu(rows)), NUMPY.add_signs(squares, rows))


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize(("num_rows", "count"), [(1, 1), (50, 50), (100_000, 7), (100_000, 3000)])
def test_find_largest_sums(num_rows, count, has_ties):
    rng = np.random.default_rng(0)
    squares = rng.random((2, num_rows)) * (rng.random(num_rows) < 0.5)
    squares = squares.round(2) if has_ties else squares
    excluded = np.flatnonzero(rng.random(num_rows) < 0.1)
    found = CUDA.find_largest_sums(to_gpu(squares), to_gpu(excluded), count)
    for found_one, expected in zip(
        found, NUMPY.find_largest_sums(squares, excluded, count), strict=True
    ):
        np.testing.assert_array_equal(found_one, expected)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("dtype", "placed"), [("float64", "float32"), ("float32", "float32")])
@pytest.mark.parametrize(("num_rows", "rank"), [(1, 1), (63, 5), (70_000, 40)])
def test_place_vectors(num_rows, rank, dtype, placed, order):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((num_rows, rank)).astype(dtype, order=order)
    signs = find_signs(vectors)
    np.testing.assert_array_equal(find_signs(to_gpu(vectors)), signs)
    sources, rows = np.arange(rank), rng.permutation(2 * num_rows)[:num_rows]
    some = np.append(sources[::2], [~(2 * num_rows), ~0])
    some_signs = np.append(signs[::2], [1, 1])
    for own_rows, own, *arguments in (
        (None, sources, signs, vectors.shape, np.dtype(placed)),
        (rows, some, some_signs, (2 * num_rows + 1, some.size + 1), np.dtype(placed)),
    ):
        pairs = LeadingPairs(vectors.copy(), np.ones(own.size), own_rows, own)
        on_gpu = pairs._replace(vectors=to_gpu(vectors), rows=to_gpu(own_rows))
        expected = NUMPY.place_vectors(pairs, *arguments)
        found = CUDA.place_vectors(on_gpu, *arguments)
        check_equal(found, expected)


@pytest.mark.parametrize("num_columns", [0, 1, 3000])
def test_gram(num_columns, monkeypatch):
    monkeypatch.setattr(engine, "_GRAM_BLOCK_SIZE", 50_000)
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((num_columns, 40)) * (rng.random((num_columns, 40)) < 0.1)
    matrix[:, 0] += 1  # no column is empty
    coords, diagonal = np.stack(np.nonzero(matrix)), rng.random(40)
    arguments = (coords, matrix[tuple(coords)], diagonal)
    found, expected = CUDA.gram(*map(to_gpu, arguments)).get(), matrix.T @ matrix
    np.testing.assert_allclose(found, expected + np.diag(diagonal), rtol=1e-12, atol=1e-12)
    stacked = np.stack([arguments[1], 2 * arguments[1], np.ones(coords.shape[1])], axis=1)
    expected = 5 * expected + (matrix != 0).T.astype(float) @ (matrix != 0)
    found = CUDA.gram(*map(to_gpu, (coords, stacked, diagonal))).get()
    np.testing.assert_allclose(found, expected + np.diag(diagonal), rtol=1e-12, atol=1e-12)
