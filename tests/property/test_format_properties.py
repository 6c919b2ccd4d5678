"""Laws of the FLYCOO format, with NumPy alone and no engine."""

import numpy as np
import reference
from hypothesis import given
from hypothesis import strategies as st
from numpy_primitives import NumpyPrimitives, pack
from strategies import (
    build_layout,
    dtypes,
    huge_nonzeros,
    nonzeros,
    quick,
    tilings,
    word_dtypes,
)

from tensorly_flycoo.format import packing
from tensorly_flycoo.format.ordering import make_canonical_records
from tensorly_flycoo.format.packing import RecordFormat

layout_names = st.sampled_from(["remap", "replicated", "indexed"])


@quick
@given(huge_nonzeros(), dtypes, word_dtypes)
def test_packing_round_trip(drawn, dtype, word_dtype):
    coords, values, shape = drawn
    record_format = RecordFormat.of(shape, dtype, word_dtype)
    records = pack(record_format, coords, values.astype(dtype))
    np.testing.assert_array_equal(record_format.coords(records), coords)
    np.testing.assert_array_equal(record_format.values(records), values.astype(dtype))
    # Padding is only for alignment: to words, to 64 bits per field and to the size of a value.
    bits = sum(packing.field_width(size) for size in shape)
    assert 8 * record_format.record_nbytes >= bits + 8 * np.dtype(dtype).itemsize
    if word_dtype == "uint32":
        assert 8 * record_format.record_nbytes < bits + 2 * 8 * np.dtype(dtype).itemsize + 32


@quick
@given(huge_nonzeros(), word_dtypes)
def test_canonical_records_are_sorted_and_unique(drawn, word_dtype):
    coords, values, shape = drawn
    record_format = RecordFormat.of(shape, "float64", word_dtype)
    records = make_canonical_records(coords, values, record_format, NumpyPrimitives())
    found = [tuple(place) for place in record_format.coords(records).T.tolist()]
    assert found == sorted(set(map(tuple, coords.T.tolist())))


@quick
@given(nonzeros(exact=True), dtypes, word_dtypes)
def test_canonical_records_keep_sums_and_no_zeros(drawn, dtype, word_dtype):
    record_format = RecordFormat.of(drawn.shape, dtype, word_dtype)
    values = drawn.values.astype(dtype)
    records = make_canonical_records(drawn.coords, values, record_format, NumpyPrimitives())
    found, expected = np.zeros(drawn.shape), np.zeros(drawn.shape)
    found[tuple(record_format.coords(records))] = record_format.values(records)
    np.add.at(expected, tuple(drawn.coords), drawn.values)
    np.testing.assert_array_equal(found, expected)
    assert records.shape[0] == np.count_nonzero(expected)


def find_positions(layout, mode):
    """Return, for each place in the order of `mode`, where its record is stored in that mode."""
    pull_ids = layout.plans[mode].pull_ids
    places = np.arange(pull_ids.size)
    return places // layout.cut.bucket_size * layout.cut.bucket_size + pull_ids.astype(np.int64)


@quick
@given(nonzeros(), tilings)
def test_ids_are_permutations(drawn, tiling):
    """Remap ids permute all places; pull ids stay within each bucket."""
    layout = build_layout("remap", drawn, tiling)
    every_place = np.arange(layout.records.shape[0])
    for mode in range(len(drawn.shape)):
        np.testing.assert_array_equal(np.sort(layout.plans[mode].remap_ids), every_place)
        np.testing.assert_array_equal(np.sort(find_positions(layout, mode)), every_place)


@quick
@given(nonzeros(), tilings, word_dtypes)
def test_remapping_puts_every_record_where_the_next_mode_pulls_it(drawn, tiling, word_dtype):
    """Each mode pulls records in row order; after all modes they are where they started."""
    layout = build_layout("remap", drawn, tiling, word_dtype=word_dtype)
    at_start, records = layout.records.copy(), layout.records
    for mode in range(len(drawn.shape)):
        ordered = records[find_positions(layout, mode)]
        rows = layout.record_format.rows(ordered, mode).astype(np.int64)
        assert (np.diff(rows) >= 0).all()
        records = np.zeros_like(records)
        records[layout.plans[mode].remap_ids] = ordered
    np.testing.assert_array_equal(records, at_start)


@quick
@given(nonzeros(), tilings)
def test_both_layouts_have_the_same_orders_and_tiles(drawn, tiling):
    remap, replicated = (build_layout(name, drawn, tiling) for name in ("remap", "replicated"))
    records = remap.records
    for mode in range(len(drawn.shape)):
        ordered = records[find_positions(remap, mode)]
        np.testing.assert_array_equal(ordered, replicated.copies[mode])
        records = np.zeros_like(records)
        records[remap.plans[mode].remap_ids] = ordered
        for name in ("carry_rows", "empty_rows"):
            pair = [getattr(layout.tilings[mode], name) for layout in (remap, replicated)]
            np.testing.assert_array_equal(*pair)


@quick
@given(nonzeros(), tilings)
def test_a_tile_writes_to_each_bucket_in_order(drawn, tiling):
    """Records that one tile writes to one bucket are contiguous there, in the same order."""
    layout = build_layout("remap", drawn, tiling)
    for plan in layout.plans:
        for first in range(0, plan.remap_ids.size, layout.tile_size):
            ids = plan.remap_ids[first : first + layout.tile_size].astype(np.int64)
            for bucket in np.unique(ids // layout.cut.bucket_size):
                inside = ids[ids // layout.cut.bucket_size == bucket]
                assert (np.diff(inside) == 1).all()


@quick
@given(nonzeros(), tilings, layout_names)
def test_empty_rows_are_those_absent(drawn, tiling, name):
    layout = build_layout(name, drawn, tiling)
    for mode, size in enumerate(drawn.shape):
        absent = sorted(set(range(size)) - set(drawn.coords[mode].tolist()))
        assert layout.tilings[mode].empty_rows.tolist() == absent


@quick
@given(nonzeros(), tilings)
def test_tiles_store_each_row_once_and_add_up_to_its_nonzeros(drawn, tiling):
    """Each nonzero is in exactly one tile, and each row begins in exactly one tile."""
    layout = build_layout("replicated", drawn, tiling)
    for mode, size in enumerate(drawn.shape):
        rows = layout.record_format.rows(layout.copies[mode], mode).astype(np.int64)
        tiles, counts = layout.tilings[mode], np.full(size, -1)
        num_tiles = -(-rows.size // layout.tile_size)
        assert tiles.carry_rows.size == num_tiles
        partial = np.zeros(num_tiles, int)
        for tile, carry in enumerate(tiles.carry_rows.tolist()):
            in_tile = rows[tile * layout.tile_size : (tile + 1) * layout.tile_size]
            if carry >= 0:
                assert in_tile[0] == carry
                partial[tile] = np.count_nonzero(in_tile == carry)
            begun, row_nnz = np.unique(in_tile[in_tile != carry], return_counts=True)
            assert (counts[begun] == -1).all()  # no other tile stores it
            counts[begun] = row_nnz
        assert (counts[tiles.empty_rows] == -1).all()
        counts[tiles.empty_rows] = 0
        assert (counts >= 0).all()  # no row keeps its old contents
        inherited = tiles.carry_rows >= 0
        np.add.at(counts, tiles.carry_rows[inherited], partial[inherited])
        np.testing.assert_array_equal(counts, np.bincount(rows, minlength=size))


@quick
@given(nonzeros(unique=True), st.integers(1, 12))
def test_tiles_are_balanced_at_least_as_well_as_algorithm_1(drawn, num_partitions):
    """With one tile per partition, no tile is larger than the largest partition.

    A tile has ``ceil(nnz / kappa)`` nonzeros, the lower bound for any partitioning.
    """
    tile_size = max(1, -(-drawn.nnz // num_partitions))
    layout = build_layout("replicated", drawn, (tile_size, 1))
    for mode, size in enumerate(drawn.shape):
        num_tiles = layout.tilings[mode].carry_rows.size
        assert num_tiles <= num_partitions
        largest_tile = min(tile_size, drawn.nnz)
        assert num_tiles * largest_tile >= drawn.nnz
        rows = drawn.coords[mode]
        partition = reference.partition_mode(rows, size, num_partitions)
        largest_partition = reference.partition_sizes(rows, partition, num_partitions).max()
        assert largest_tile <= largest_partition


@quick
@given(nonzeros(unique=True), tilings, st.integers(1, 6))
def test_imbalance_is_at_most_one_tile(drawn, tiling, num_workers):
    """Tiles of equal size, dealt out in turn, give no worker more than one tile above its share."""
    layout = build_layout("remap", drawn, tiling)
    for tiles in layout.tilings:
        firsts = np.arange(tiles.carry_rows.size) * layout.tile_size
        tile_nnz = np.minimum(layout.tile_size, drawn.nnz - firsts)
        assert tile_nnz.sum() == drawn.nnz
        loads = [tile_nnz[worker::num_workers].sum() for worker in range(num_workers)]
        assert max(loads) <= drawn.nnz / num_workers + layout.tile_size


@quick
@given(nonzeros(exact=True), layout_names, dtypes)
def test_map_values_maps_and_moves_nothing_else(drawn, name, dtype):
    layout = build_layout(name, drawn, dtype=dtype)
    mapped = layout.map_values(lambda values: 2 * values, 2.0)
    before, after = layout.records, mapped.records
    read = layout.record_format
    np.testing.assert_array_equal(read.coords(after), read.coords(before))
    np.testing.assert_array_equal(read.values(after), 2 * read.values(before))
    assert mapped.nbytes == layout.nbytes
