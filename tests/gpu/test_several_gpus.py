"""Tensors spread over several GPUs; and over one that stands for several."""

import cupy
import numpy as np
import pytest
import sparse
import tensorly as tl
from determinism import compute_digests
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import non_negative_parafac_hals, parafac

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, mttkrp, mttkrps
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.decomposition import generalized_parafac
from tensorly_flycoo.engines.cuda.engine import CUDA, CudaEngine
from tensorly_flycoo.engines.cuda.gpus import CudaDevices
from tensorly_flycoo.format.tree import add_parts, count_parts
from tensorly_flycoo.loop.initial_guess import spread_factors
from tensorly_flycoo.spread.row_shards import RowShards

NUM_GPUS = cupy.cuda.runtime.getDeviceCount()
SHAPE, RANK, NUM_SLABS = (3000, 2000, 5000), 8, 4


@pytest.fixture(autouse=True)
def no_factors_are_small(monkeypatch):
    """Shard the factors of small tensors too, as tests of `RowShards` expect."""
    monkeypatch.setattr(CudaDevices, "least_nbytes", 0)


def list_devices():
    """List ways to spread a tensor: one GPU as several, and as many as there are."""
    one = [OneDevice(cupy, count) for count in (1, 2, 3)]
    return [*one, *map(CudaDevices, range(1, NUM_GPUS + 1))]


def spread(devices, dtype="float32", layout="remap", groups="auto", slabs=NUM_SLABS):
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 200_000) for size in SHAPE])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CUDA, "devices", devices)
        options = {"slabs": None if devices is None else slabs, "layout": layout}
        options["groups"] = groups
        values = rng.random(200_000).astype(dtype)
        return FlycooTensor(coords, values, SHAPE, device="cuda", **options)


def draw_factors(dtype="float32"):
    random = cupy.random.RandomState(0)
    return [random.random_sample((size, RANK)).astype(dtype) for size in SHAPE]


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("mode", range(3))
def test_mttkrp(mode, layout):
    factors = draw_factors("float64")
    expected = mttkrp(spread(None, "float64", layout), factors, mode).get()
    results = set()
    for devices in list_devices():
        x = spread(devices, "float64", layout)
        whole = mttkrp(x, factors, mode)
        assert whole.device.id == 0
        np.testing.assert_allclose(whole.get(), expected, rtol=1e-12)
        found = mttkrp(x, spread_factors(x, factors), mode)
        assert isinstance(found, RowShards)
        homes = [block.device.id for block in found.blocks]
        is_one = isinstance(devices, OneDevice)
        assert homes == ([0] * len(homes) if is_one else list(found.sharding.homes))
        results |= {whole.get().tobytes(), found.to_numpy().tobytes()}
    assert len(results) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_slabs_write_where_rows_are_added(count, layout, dtype, monkeypatch):
    """One GPU stands for several, or there are as many: the bits of results that are copied."""
    factors = draw_factors(dtype)
    results = set()
    all_devices = [OneDevice(cupy, count)]
    if count <= NUM_GPUS:
        all_devices.append(CudaDevices(count))
    monkeypatch.setattr(OneDevice, "can_lend", lambda *_: True)
    for devices in all_devices:
        x = spread(devices, dtype, layout, slabs=count)
        for most_blocks in (1, 8):
            monkeypatch.setattr(CudaEngine, "most_row_blocks", most_blocks)
            sharded = spread_factors(x, factors)
            weights = cupy.arange(RANK, dtype=dtype)
            found = [mttkrp(x, sharded, mode, weights=weights) for mode in range(3)]
            with tl.backend_context("flycoo"):
                counts = generalized_parafac(x, RANK, 2, random_state=0)
            arrays = [*found, *counts.factors]
            results.add(b"".join(tl.to_numpy(array).tobytes() for array in arrays))
    assert len(results) == 1


def test_groups_of_modes():
    """Each slab numbers its prefixes, and contracts its own results."""
    results = set()
    for devices in list_devices():
        x = spread(devices, groups=[(0, 1), (2,)])
        assert x.groups == ((0, 1), (2,))
        factors = draw_factors()
        expected = [mttkrp(x, factors, mode).get().tobytes() for mode in range(3)]
        for given in (factors, spread_factors(x, factors)):
            assert [tl.to_numpy(m).tobytes() for m in mttkrps(x, given)] == expected
        with tl.backend_context("flycoo"):
            cp = parafac(x, RANK, n_iter_max=3, tol=0, init="random", random_state=0)
            results.add(b"".join(tl.to_numpy(factor).tobytes() for factor in cp.factors))
    assert len(results) == 1


@pytest.mark.parametrize("function", [parafac, non_negative_parafac_hals])
def test_small_factors_stay_on_the_first_gpu(function, monkeypatch):
    """The bits are those of slabs on one GPU, for any number of GPUs."""
    monkeypatch.setattr(CudaDevices, "least_nbytes", 2**25)
    results = set()
    for devices in (OneDevice(cupy), *map(CudaDevices, range(1, NUM_GPUS + 1))):
        monkeypatch.setattr(OneDevice, "least_nbytes", 2**25)
        x = spread(devices)
        with tl.backend_context("flycoo"):
            for init in ("random", "svd"):
                options = {"n_iter_max": 4, "tol": 0, "init": init, "random_state": 0}
                factors = function(x, RANK, **options).factors
                assert all(factor.device.id == 0 for factor in factors)
                results.add((init, b"".join(tl.to_numpy(f).tobytes() for f in factors)))
    assert len(results) == 2


@pytest.mark.parametrize("least_nbytes", [0, 2**25])
@pytest.mark.parametrize("name", ["tucker", "generalized_parafac", "masked"])
def test_with_whole_factors(name, least_nbytes, monkeypatch):
    """What is not computed block by block: on the first GPU, but for the slabs' products."""
    results = set()
    monkeypatch.setattr(CudaDevices, "least_nbytes", least_nbytes)
    for devices in list_devices():
        x = spread(devices)
        with tl.backend_context("flycoo"):
            if name == "tucker":
                core, factors = tl.decomposition.tucker(x, [4] * 3, n_iter_max=2)
                arrays = [core, *factors]
            elif name == "masked":
                coords, zeros = np.array([[0, 5], [1, 6], [2, 7]]), np.zeros(2)
                mask = sparse.COO(coords, zeros, shape=SHAPE, fill_value=1.0)
                options = {"n_iter_max": 3, "init": "random", "random_state": 0}
                arrays = parafac(x, RANK, mask=mask, **options).factors
            else:
                arrays = generalized_parafac(x, RANK, 4, random_state=0).factors
        results.add(b"".join(tl.to_numpy(array).tobytes() for array in arrays))
    assert len(results) == 1


@pytest.mark.parametrize("function", [parafac, non_negative_parafac_hals])
@pytest.mark.parametrize("init", ["random", "svd", None])
def test_decompositions(function, init):
    results = set()
    for devices in list_devices():
        x = spread(devices)
        start = CPTensor((cupy.ones(RANK, "float32"), draw_factors())) if init is None else init
        with tl.backend_context("flycoo"):
            options = {"init": start, "n_iter_max": 4, "tol": 0, "random_state": 0}
            if function is non_negative_parafac_hals:
                options["tol"] = 1e-9
            cp = function(x, RANK, **options)
            results.add(b"".join(tl.to_numpy(f).tobytes() for f in cp.factors))
    assert len(results) == 1


@pytest.mark.parametrize(("dtype", "rank"), [("float32", 8), ("float32", 7), ("float64", 40)])
def test_mixed_precision(dtype, rank, monkeypatch):
    """Factors and narrow rows have the same bits wherever they are; also rows of 14 bytes."""
    monkeypatch.setattr(CudaEngine, "narrow_pays", lambda *arguments: True)
    results = set()
    for devices in list_devices():
        x = spread(devices, dtype, groups=None)
        with tl.backend_context("flycoo"), tensorly_flycoo.set_precision("mixed"):
            options = {"n_iter_max": 5, "init": "random", "random_state": 0, "tol": 0}
            cp = parafac(x, rank, **options)
        results.add(b"".join(tl.to_numpy(f).tobytes() for f in cp.factors))
    assert len(results) == 1


@pytest.mark.parametrize("normalize_factors", [False, True])
@pytest.mark.parametrize(("dtype", "rank"), [("float32", 8), ("float32", 40), ("float64", 8)])
def test_parafac_finds_the_model_of_one_piece(dtype, rank, normalize_factors):
    """Kernels solve with row-sharded factors of float32 up to rank 32, CuPy with the others."""
    options = {"n_iter_max": 3, "init": "random", "random_state": 0, "return_errors": True}
    options["normalize_factors"] = normalize_factors
    _, expected = parafac(spread(None, dtype), rank, **options)
    for devices in list_devices():
        _, errors = parafac(spread(devices, dtype), rank, **options)
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(errors, expected, rtol=0, atol=tolerance)


def test_a_copy_waits_for_what_it_copies():
    """And the memory of what is copied is not used again too early."""
    devices = CudaDevices(NUM_GPUS)
    with devices.use(0):
        for number in range(20):
            array = cupy.full(2**24, number, "float32")
            copies = [devices.bring(array, device) for device in range(NUM_GPUS)]
            del array
            cupy.full(2**24, -1, "float32")
            for copy in copies:
                assert (devices.fetch([copy]) == number).all()


def test_each_gpu_runs_its_own_calls_in_sequence():
    devices, homes = CudaDevices(NUM_GPUS), [n % NUM_GPUS for n in range(5 * NUM_GPUS)]
    seen = []

    def note(home, number):
        seen.append((home, number))
        return cupy.cuda.runtime.getDevice(), number

    assert devices.map(note, homes, range(len(homes))) == [
        (home, n) for n, home in enumerate(homes)
    ]
    for device in range(NUM_GPUS):
        own = [number for home, number in seen if home == device]
        assert own == sorted(own)


def test_the_number_of_gpus():
    with tensorly_flycoo.set_device("cuda", gpus="all") as _:
        assert CUDA.devices.count == NUM_GPUS
        nonzeros = [[0, 1], [2, 0], [1, 1]], [2.0, 3.0], (3, 3, 2)
        assert FlycooTensor(*nonzeros).slabs == 1  # one GPU is as fast
        assert FlycooTensor(*nonzeros, slabs=NUM_GPUS).slabs == NUM_GPUS
    with tensorly_flycoo.set_device("cuda", gpus=NUM_GPUS):
        assert FlycooTensor(*nonzeros).slabs == NUM_GPUS
    assert CUDA.devices is None
    with pytest.raises(ValueError, match=f"gpus is {NUM_GPUS + 1}, expected at most {NUM_GPUS}"):
        tensorly_flycoo.set_device("cuda", gpus=NUM_GPUS + 1)
    with pytest.raises(ValueError, match="gpus is 2, but the device is the CPU"):
        tensorly_flycoo.set_device("cpu", gpus=2)


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_determinism(layout):
    """20 runs, on one GPU and on several."""
    expected = compute_digests("cuda", layout, 1)
    for number in range(20):
        assert compute_digests("cuda", layout, 1 + number % NUM_GPUS) == expected


@pytest.mark.parametrize("nbytes", [2**10, 2**22])
def test_exchanges(nbytes):
    """Of matrices whose rows or columns lie apart, and of bytes; small ones and large ones."""
    devices, num_rows = CudaDevices(NUM_GPUS), nbytes // 64
    for dtype in ("float32", "float64", "bool"):
        blocks = []
        for device in range(NUM_GPUS):
            with devices.use(device):
                whole = cupy.arange(num_rows * 16).reshape(num_rows, 16) % 251 + device
                blocks.append(whole.astype(dtype))
        for cut in (slice(None), slice(1, 12), slice(None, None, 2)):
            own = [block[:, cut] for block in blocks]
            expected = devices.fetch(blocks)[:, cut]
            found = devices.gather([(own, device) for device in range(NUM_GPUS)])
            for device, array in enumerate(found):
                assert array.device.id == device
                np.testing.assert_array_equal(devices.fetch([array]), expected)
        for copy, block in zip(devices.collect(blocks), blocks, strict=True):
            assert copy.device.id == 0
            np.testing.assert_array_equal(devices.fetch([copy]), devices.fetch([block]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tree", [0, (0, 1), ((0, 1), (2, 3)), ((0, (1, 2)), 3)])
def test_adding_parts_along_a_tree(tree, dtype):
    rows = np.random.default_rng(0).standard_normal((4 * 300, 7)).astype(dtype)
    rows = rows[: 300 * count_parts(tree)]
    found = CUDA.add_parts(cupy.asarray(rows), tree)
    np.testing.assert_array_equal(found.get(), add_parts(rows, tree))
    assert CUDA.add_parts(cupy.asarray(rows[:0]), tree).shape == (0, 7)
