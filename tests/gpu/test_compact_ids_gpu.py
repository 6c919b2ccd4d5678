"""Ids in few bytes on a GPU: what is written is what is read, and takes the predicted bytes."""

import cupy
import numpy as np
import pytest

from tensorly_flycoo.engines.cuda import compact_ids, tuning
from tensorly_flycoo.engines.cuda.compact_ids import PackedIds, RunIds
from tensorly_flycoo.engines.cuda.engine import CUDA
from tensorly_flycoo.format.remap import RemapLayout

SIZES = (0, 1, 33, 5001, 300_000)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
@pytest.mark.parametrize("limit", [2, 2**9, 2**11, 2**16, 2**18, 2**24, 2**31])
@pytest.mark.parametrize("tile_size", [128, 256, 512, 2048])
@pytest.mark.parametrize("size", SIZES)
def test_packed_ids_are_what_they_were(size, tile_size, limit, dtype):
    limit = min(limit, 2 ** (8 * np.dtype(dtype).itemsize))
    ids = np.random.default_rng(size).integers(0, limit, size).astype(dtype)
    ids[-1:] = limit - 1
    packed = PackedIds.split(cupy.asarray(ids), limit, tile_size)
    found = packed.find_positions(ids.dtype, max(size, 1))  # in one bucket, they are the ids
    np.testing.assert_array_equal(found.get(), ids)
    assert packed.nbytes == packed.bits.count_nbytes(size, tile_size)


def read_runs(runs, tile_size, size):
    """Return the ids (size,) of runs, as `Runs` in `ids.cuh` reads them."""
    num_warps = tuning.choose_block_size(tile_size) // 32
    shape = (-1, num_warps, tile_size // (32 * num_warps))  # tiles, warps, moves
    bits = runs.starts.get().reshape(*shape, 1) >> np.arange(32, dtype=np.uint32) & 1
    is_start = bits.transpose(0, 2, 1, 3).reshape(-1, tile_size)
    numbers = np.cumsum(is_start, axis=1)
    before = (numbers - is_start)[:, ::32].reshape(-1, shape[2], num_warps)
    np.testing.assert_array_equal(runs.counts.get().reshape(shape), before.transpose(0, 2, 1))
    shifts = np.take_along_axis(runs.shifts.get(), numbers - 1, axis=1)
    return (shifts + np.arange(tile_size, dtype=shifts.dtype)).reshape(-1)[:size]


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("tile_size", [128, 512, 2048])
@pytest.mark.parametrize("num_buckets", [1, 3, 100, 4000])
@pytest.mark.parametrize("size", SIZES)
def test_runs_are_what_they_were(size, num_buckets, tile_size, dtype):
    """Items go to random buckets, and keep their sequence there, as records do."""
    buckets = np.random.default_rng(size).integers(0, num_buckets, size)
    ids = np.empty(size, dtype)
    ids[np.argsort(buckets, kind="stable")] = np.arange(size)
    for first in range(0, size, tile_size):
        ids[first : first + tile_size].sort()
    max_runs = min(tile_size, num_buckets)
    runs = RunIds.find(cupy.asarray(ids), tile_size, max_runs)
    np.testing.assert_array_equal(read_runs(runs, tile_size, size), ids)
    num_tiles = -(-size // tile_size)
    assert runs.nbytes == num_tiles * (6 * tile_size // 32 + ids.itemsize * max_runs)


@pytest.mark.parametrize("tile_size", [128, 1024])
def test_without_neighbours_each_id_is_a_run(tile_size):
    ids = np.arange(0, 12_000, 2, dtype=np.uint32)
    runs = RunIds.find(cupy.asarray(ids), tile_size, tile_size)
    np.testing.assert_array_equal(read_runs(runs, tile_size, ids.size), ids)


def test_ids_wrap_around_at_the_end_of_their_type():
    """A shift is an id less its place, and may be negative."""
    ids = np.array([5, 6, 900, 2**32 - 2, 2**32 - 1], np.uint32)
    runs = RunIds.find(cupy.asarray(ids), 128, 5)
    np.testing.assert_array_equal(read_runs(runs, 128, ids.size), ids)


@pytest.mark.parametrize("nnz", [0, 1, 5000, 1_000_000])
def test_a_plan_takes_the_predicted_bytes(nnz):
    cut = CUDA.choose_cut((300, 200, 100), np.dtype(np.float32))
    rng = np.random.default_rng(0)
    coords = cupy.asarray(rng.integers(0, 2**31, (3, nnz)) % np.array([[300], [200], [100]]))
    layout = RemapLayout.build(coords, cupy.ones(nnz, np.float32), cut, CUDA)
    stored = layout.records.shape[0]
    assert {plan.nbytes for plan in layout.plans} == {CUDA.count_plan_nbytes(stored, cut)}
    itemsize = layout.plans[0].remap_ids.shifts.itemsize
    sizes = (stored, cut.tile_size, cut.bucket_size, itemsize)
    assert layout.plans[0].nbytes == compact_ids.count_plan_nbytes(*sizes)
