"""The tuning tables: lookups, cuts that cover all columns, and tiles that fit."""

import doctest
from types import SimpleNamespace

import numpy as np
import pytest

from tensorly_flycoo.engines.cuda import macros, source, structs, tuning

RANKS = (1, 2, 3, 4, 5, 7, 10, 12, 16, 25, 32, 33, 50, 64, 100, 128, 200, 1000)
H200 = tuning.Gpu((9, 0), 228 * 1024)


@pytest.mark.parametrize("module", [macros, source, structs, tuning])
def test_examples(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_each_row_names_where_it_was_measured():
    assert all(row.measured for row in (*tuning.OCCUPANCIES, *tuning.NARROW_OCCUPANCIES))


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)])
@pytest.mark.parametrize(
    ("num_inputs", "batch", "num_threads"),
    [(0, 8, 1024), (1, 8, 1024), (2, 4, 1024), (3, 4, 640), (4, 2, 1024), (5, 2, 512)],
)
def test_occupancy(num_inputs, batch, num_threads, capability):
    gpu = tuning.Gpu(capability, 100 * 1024)
    row = tuning.choose_occupancy(gpu, num_inputs)
    expected = batch if capability == (9, 0) else min(4, batch)  # registers would spill
    assert (row.batch, row.num_threads) == (expected, num_threads)
    assert row.capability <= capability


def test_the_nearest_capability_decides(monkeypatch):
    """Use the highest capability that the GPU has, and its first row for the inputs."""
    rows = tuple(
        SimpleNamespace(capability=capability, max_inputs=max_inputs)
        for capability in ((8, 0), (8, 6), (9, 0))
        for max_inputs in (2, 4)
    )
    monkeypatch.setattr(tuning, "OCCUPANCIES", rows)
    choose = tuning.choose_occupancy.__wrapped__
    for capability, num_inputs, expected in (
        ((8, 0), 2, 0), ((8, 5), 3, 1), ((8, 9), 1, 2), ((9, 0), 4, 5), ((12, 0), 2, 4),
    ):  # fmt: skip
        assert choose(tuning.Gpu(capability, 0), num_inputs) is rows[expected]


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
@pytest.mark.parametrize(
    ("num_inputs", "in_float32", "in_float64"), [(1, 4, 4), (2, 4, 4), (3, 8, 8), (4, 2, 2)]
)
def test_the_batch_of_narrow_rows(num_inputs, in_float32, in_float64, capability):
    """No longer than that of whole rows where none was measured."""
    occupancy = tuning.choose_occupancy(tuning.Gpu(capability, 2**17), num_inputs)
    for itemsize, expected in ((4, in_float32), (8, in_float64)):
        if capability != (9, 0):
            expected = min(expected, occupancy.batch)
        cut = tuning.cut_rank(32, itemsize, 16, 16)
        batch, _ = tuning.choose_work(occupancy, num_inputs, itemsize, cut, is_narrow=True)
        assert batch == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_narrow_rows_pay_if_rows_are_long_and_read_often(dtype):
    """And if sweeps take longer than to launch the conversion."""
    dtype, nell_2, nnz = np.dtype(dtype), (12_092, 9_184, 28_818), 76_900_000
    assert tuning.narrow_pays(nell_2, nnz, 32, dtype)
    assert not tuning.narrow_pays(nell_2, nnz // 100, 32, dtype)
    assert not tuning.narrow_pays(nell_2, nnz, 32 // dtype.itemsize, dtype)
    assert not tuning.narrow_pays((10**8, 10**8, 10**8), nnz, 32, dtype)


def test_blocks_of_the_largest_tiles_fill_the_threads():
    for row in tuning.OCCUPANCIES:
        assert row.num_threads % tuning.choose_block_size(row.max_tile_size) == 0


@pytest.mark.parametrize("capability", [(6, 1), (7, 0), (7, 5)])
def test_old_gpus_are_refused(capability):
    match = (
        rf"GPU 3 has compute capability {capability[0]}\.{capability[1]}, expected 8\.0 or higher"
    )
    with pytest.raises(RuntimeError, match=match):
        tuning.check_capability(capability, 3)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
def test_newer_gpus_are_not(capability):
    tuning.check_capability(capability, 0)


@pytest.mark.parametrize("num_inputs", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("num_columns", [1, 2, 9, 127, 128, 255, 256, 1000, 1025, 4096, 10**6])
def test_a_cut_covers_all_columns_of_ttmc(num_columns, num_inputs):
    cut = tuning.cut_columns(num_columns, num_inputs)
    assert tuning.BLOCK_SIZE % cut.group_size == 0
    assert cut.lane_columns == (4 if num_columns >= 128 and num_inputs <= 3 else 1)
    part = cut.lane_columns * cut.group_size
    assert (cut.num_parts - 1) * part < num_columns <= cut.num_parts * part


@pytest.mark.parametrize("store_alignment", [4, 8, 16])
@pytest.mark.parametrize("load_alignment", [4, 8, 16])
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("num_inputs", [1, 2])
def test_a_cut_covers_all_columns(rank, itemsize, load_alignment, store_alignment, num_inputs):
    load_alignment, store_alignment = max(load_alignment, itemsize), max(store_alignment, itemsize)
    num_loads = tuning.choose_num_loads(rank, itemsize, num_inputs)
    cut = tuning.cut_rank(rank, itemsize, load_alignment, store_alignment, num_loads)
    assert cut.load_columns * itemsize <= load_alignment
    assert cut.store_columns * itemsize <= store_alignment
    assert cut.lane_columns % cut.load_columns == 0
    assert cut.load_columns % cut.store_columns == 0
    aligned = tuning.cut_rank(rank, itemsize, 16, 16, num_loads)
    assert (cut.lane_columns, cut.group_size) == (aligned.lane_columns, aligned.group_size)
    assert cut.group_size in (1, 2, 4, 8, 16, 32)
    part = cut.lane_columns * cut.group_size
    assert (cut.num_parts - 1) * part < rank <= cut.num_parts * part


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("rank", RANKS)
def test_narrow_rows_are_aligned_for_one_load_of_all_columns(rank, itemsize):
    """Which may read the padding, but not past it."""
    pitch = tuning.choose_row_nbytes(rank * itemsize // 2)
    num_loads = tuning.choose_num_loads(rank, itemsize, num_inputs=2)
    cut = tuning.cut_rank(rank, itemsize, min(16, 2 * (pitch & -pitch)), itemsize, num_loads)
    assert cut.load_columns * num_loads == cut.lane_columns
    assert -(-rank // cut.load_columns) * cut.load_columns * itemsize // 2 <= pitch


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("rank", RANKS)
def test_aligned_rows_touch_the_fewest_possible_lines(rank, itemsize):
    row_nbytes = tuning.choose_row_nbytes(rank * itemsize)
    assert 0 <= row_nbytes - rank * itemsize < 64
    if rank * itemsize % 16:
        starts = row_nbytes * np.arange(64)
        num_lines = (starts + rank * itemsize - 1) // 64 - starts // 64 + 1
        assert set(num_lines) == {-(-rank * itemsize // 64)}


@pytest.mark.parametrize("shared_nbytes", [64 * 1024, 100 * 1024, 164 * 1024, 228 * 1024])
@pytest.mark.parametrize("slot_nbytes", [8, 16, 24, 40, 64])
@pytest.mark.parametrize("num_inputs", [0, 2, 3, 4, 7])
def test_tiles_fit(num_inputs, slot_nbytes, shared_nbytes):
    gpu = tuning.Gpu((9, 0), shared_nbytes)
    tile_size = tuning.choose_tile_size(slot_nbytes, num_inputs, gpu)
    assert tile_size % tuning.BLOCK_SIZE == 0
    is_least = tile_size == tuning.BLOCK_SIZE
    block_size = tuning.choose_block_size(tile_size)
    num_threads = tuning.choose_occupancy(gpu, num_inputs).num_threads
    num_blocks = 1 if is_least else num_threads // block_size
    assert num_blocks * (tile_size * slot_nbytes + 19 * block_size) <= shared_nbytes


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("rank", range(1, 130))
def test_rows_are_updated_with_their_padding(rank, itemsize):
    """In kernels that fit an H200's shared memory."""
    padded_rank = tuning.choose_row_nbytes(rank * itemsize) // itemsize
    cuts = [tuning.cut_sweep(rank, itemsize)]
    if rank <= tuning.MAX_TALL_RANK:
        cuts += [tuning.cut_steps(rank, itemsize, has_norms=has) for has in (False, True)]
    for cut in cuts:
        if cut is None:
            assert rank * itemsize > 128 * 4
            continue
        assert cut.width >= padded_rank
        assert cut.shared_nbytes <= 227 * 1024
        assert cut.min_blocks > 0


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("rank", RANKS)
def test_carry_outs_fit_beside_a_tile(rank, itemsize):
    num_loads = tuning.choose_num_loads(rank, itemsize, num_inputs=2)
    cut = tuning.cut_rank(rank, itemsize, 16, 16, num_loads)
    for block_size in (128, 256):
        nbytes = structs.carries_nbytes(np.dtype(f"f{itemsize}"), cut, block_size)
        assert nbytes <= 18 * num_loads * block_size


@pytest.mark.usual_limits("tiles")
@pytest.mark.parametrize(
    ("slot_nbytes", "num_inputs", "expected"),
    [(16, 2, 2048), (24, 2, 512), (24, 3, 1024), (32, 3, 512), (32, 4, 512), (56, 7, 512)],
)
def test_tile_sizes_of_an_h200(slot_nbytes, num_inputs, expected):
    assert tuning.choose_tile_size(slot_nbytes, num_inputs, H200) == expected
