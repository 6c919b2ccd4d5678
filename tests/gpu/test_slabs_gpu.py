"""Slabs on one GPU: results within the bound, the bits of every layout, and row-sharded factors."""

import cupy
import numpy as np
import pytest
import reference
from error_bounds import bound_mttkrp

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.format import groups as groups_module
from tensorly_flycoo.ops.ttmc import multiply_nonempty_rows
from tensorly_flycoo.spread import building
from tensorly_flycoo.spread.row_shards import RowShards, Sharding, cut_evenly

SHAPE = (300, 2, 5000)


def draw(dtype, rank=5, nnz=20_000):
    rng = np.random.default_rng(0)
    sizes = np.array(SHAPE)[:, None]
    coords = np.unique((sizes * rng.random((3, nnz)) ** 2).astype(np.int64), axis=1)
    values = rng.standard_normal(coords.shape[1]).astype(dtype)
    return coords, values, [rng.standard_normal((size, rank)).astype(dtype) for size in SHAPE]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_slabs", [2, 5])
@pytest.mark.parametrize("few", [0, 2**20], ids=["numbered", "products"])
@pytest.mark.parametrize("groups", [None, [(0, 1), (2,)], [(0,), (1, 2)], [(0, 1, 2)]], ids=str)
def test_results_are_within_the_bound_and_the_same_in_every_layout(
    groups, few, num_slabs, dtype, monkeypatch
):
    monkeypatch.setattr(groups_module, "_FEW_ROWS", few)
    coords, values, factors = draw(dtype)
    on_gpu, results = [cupy.asarray(factor) for factor in factors], []
    for layout in ("remap", "replicated", "indexed"):
        options = {"layout": layout, "device": "cuda", "slabs": num_slabs, "groups": groups}
        x = FlycooTensor(coords, values, SHAPE, **options)
        assert groups is None or x.groups == tuple(groups)
        for mode in (0, 1, 2, 1):
            out = cupy.full((SHAPE[mode], 5), np.nan, dtype)
            results.append((x, mode, mttkrp(x, on_gpu, mode, out=out).get()))
    for x, mode, found in results:
        arguments = (coords, values, SHAPE, factors, mode)
        bound = bound_mttkrp(x, coords, values, factors, mode)
        assert (np.abs(found - reference.mttkrp(*arguments)) <= bound).all()
        first = next(result for _, n, result in results if n == mode)
        assert found.tobytes() == first.tobytes()


def test_nonzeros_orders_and_ttmc_are_those_of_one_piece():
    coords, values, factors = draw("float64")
    values, factors = np.rint(9 * values), [cupy.asarray(np.rint(3 * f)) for f in factors]
    x, y = (FlycooTensor(coords, values, SHAPE, device="cuda", slabs=n) for n in (1, 4))
    for found, expected in zip(y.nonzeros(), x.nonzeros(), strict=True):
        np.testing.assert_array_equal(found, expected)
    for mode in range(3):
        inputs = {n: factor for n, factor in enumerate(factors) if n != mode}
        found, expected = (multiply_nonempty_rows(z, mode, inputs)[0] for z in (y, x))
        cupy.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_records_wait_on_the_host_if_the_gpu_is_too_small(layout, monkeypatch):
    """In blocks, of host arrays that come in parts; the arrays of slabs are the same."""
    rng, shape = np.random.default_rng(0), (300, 200, 500)
    coords = np.stack([rng.integers(0, size, 50_000) for size in shape])
    values = rng.random(50_000)
    arrays = []
    for given in ((coords, values), tuple(map(cupy.asarray, (coords, values))), (coords, values)):
        x = FlycooTensor(*given, shape, device="cuda", layout=layout, slabs=5)
        slabs = [slab.layout.iterate_arrays() for slab in x._layout.slabs]
        arrays.append([array.get().tobytes() for own in slabs for _, array in own])
        monkeypatch.setattr(type(x._engine), "count_free_nbytes", lambda engine: 0)
        monkeypatch.setattr(building, "BLOCK_NNZ", 7777)
        monkeypatch.setattr(type(x._engine), "staging_size", 4000)
        assert not arrays[1:] or arrays[0] == arrays[-1]


def test_row_shards_of_cupy_arrays():
    x = np.random.default_rng(0).integers(-9, 10, (1000, 6)).astype("float32")
    shards = RowShards.scatter(
        cupy.asarray(x), Sharding.of(cut_evenly(1000, 8), OneDevice(cupy, 2))
    )
    cupy.testing.assert_array_equal(np.dot(shards.T, shards), x.T @ x)
    cupy.testing.assert_array_equal(np.sum(shards, axis=0), x.sum(axis=0))
    scaled = shards * cupy.arange(6, dtype="float32") - 1
    np.testing.assert_array_equal(scaled.to_numpy(), x * np.arange(6, dtype="float32") - 1)
    basis, triangle = np.linalg.qr(shards)
    np.testing.assert_allclose(basis.to_numpy() @ triangle.get(), x, atol=1e-3)
