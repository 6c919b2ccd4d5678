"""Slabs that are streamed from the host: the bits of resident ones, whatever is under way."""

import threading

import cupy
import numpy as np
import pytest
import tensorly as tl
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, mttkrp, open_slabs, save_slabs, set_device, stats
from tensorly_flycoo.engines.cuda.engine import CUDA
from tensorly_flycoo.engines.cuda.gpus import CudaDevices
from tensorly_flycoo.engines.cuda.staging import CudaStager
from tensorly_flycoo.format.groups import find_groups
from tensorly_flycoo.format.packed_records import PackedRecords
from tensorly_flycoo.io import slab_folder
from tensorly_flycoo.spread import memory
from tensorly_flycoo.spread.slab_layout import SlabLayout
from tensorly_flycoo.spread.streamed import StreamedLayout

SHAPE, RANK, NUM_SLABS = (3000, 2000, 50_000), 8, 6


@pytest.fixture(params=[0, 2], ids=["all on the host", "two resident"])
def num_resident(request, monkeypatch):
    monkeypatch.setattr(memory, "count_resident_slabs", lambda *_: request.param)
    return request.param


def make(dtype="float32", num_slabs=NUM_SLABS, nnz=400_000, **options):
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, nnz) for size in SHAPE])
    values = rng.random(nnz).astype(dtype)
    return FlycooTensor(coords, values, SHAPE, device="cuda", slabs=num_slabs, **options)


def draw_factors(dtype="float32"):
    random = cupy.random.RandomState(0)
    return [random.random_sample((size, RANK)).astype(dtype) for size in SHAPE]


def compute(x, modes=range(3)):
    factors = draw_factors(x.dtype)
    return [mttkrp(x, factors, mode).get() for mode in modes]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_have_the_bits_of_resident_slabs(dtype, num_resident):
    x, resident = make(dtype, keep="host"), make(dtype)
    assert x._layout.num_streamed == NUM_SLABS - num_resident
    modes = (0, 1, 2, 0, 1, 2, 2, 0, 1)
    for found, expected in zip(compute(x, modes), compute(resident, modes), strict=True):
        assert found.tobytes() == expected.tobytes()
    for found, expected in zip(x.nonzeros(), resident.nonzeros(), strict=True):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(compute(x * 2), compute(resident * 2), strict=True):
        assert found.tobytes() == expected.tobytes()


def test_records_are_packed(monkeypatch):
    """Less is kept of few values, and of rows with many nonzeros; all has the bits it had."""
    monkeypatch.setattr(memory, "count_resident_slabs", lambda *_: 0)
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 400_000) for size in SHAPE])
    coords = np.unique(coords, axis=1)
    nnz = coords.shape[1]
    shares = {}
    for name, values in (("any", rng.random(nnz)), ("few", rng.integers(1, 5, nnz))):
        for dtype in ("float32", "float64"):
            options = {"device": "cuda", "slabs": NUM_SLABS}
            x, resident = (
                FlycooTensor(coords, values.astype(dtype), SHAPE, keep=keep, **options)
                for keep in ("host", "device")
            )
            for y, expected in ((x, resident), (x * -3, resident * -3)):
                for found, other in zip(compute(y), compute(expected), strict=True):
                    assert found.tobytes() == other.tobytes()
                for found, other in zip(y.nonzeros(), expected.nonzeros(), strict=True):
                    np.testing.assert_array_equal(found, other)
            copies = [copy for slab in x._layout.slabs for copy in slab.layout.copies]
            assert all(isinstance(copy, PackedRecords) for copy in copies)
            facts = stats(x)
            assert facts.host_nbytes == sum(copy.nbytes for copy in copies)
            shares[name, dtype] = facts.host_nbytes / facts.unpacked_nbytes
    assert shares["any", "float32"] < 0.75
    assert shares["few", "float32"] < 0.45
    assert shares["few", "float64"] < shares["any", "float64"]


def test_groups_of_modes(num_resident, tmp_path, monkeypatch):
    """Each slab numbers its prefixes, also those of files."""
    groups = [(0, 1), (2,)]
    resident = make(groups=groups)
    found = [make(groups=groups, keep="host"), 2 * (make(groups=groups, keep="host") / 2)]
    monkeypatch.setattr(slab_folder, "find_groups", lambda _, *s: find_groups(groups, *s))
    save_slabs(tmp_path / "x", resident, slabs=NUM_SLABS, device="cuda")
    found += [open_slabs(tmp_path / "x", device="cuda", keep=keep) for keep in ("file", "device")]
    for x in found:
        assert x.groups == resident.groups == tuple(groups)
        for product, expected in zip(compute(x), compute(resident), strict=True):
            assert product.tobytes() == expected.tobytes()


def test_parafac(num_resident):
    results = set()
    for keep in ("host", "device"):
        for init in ("random", "svd"):
            with tl.backend_context("flycoo"):
                options = {"init": init, "n_iter_max": 4, "tol": 0, "random_state": 0}
                cp = parafac(make(keep=keep), RANK, **options)
            results.add((init, b"".join(factor.get().tobytes() for factor in cp.factors)))
    assert len(results) == 2


def test_launches_are_not_overtaken_by_copies(num_resident):
    """The GPU is kept busy, so that the host runs far ahead of it."""
    x, factors = make(keep="host"), draw_factors()
    expected = compute(x)
    big = cupy.ones((8192, 8192), "float32")
    for _ in range(5):
        for _ in range(10):
            big @ big
        found = [mttkrp(x, factors, mode) for mode in range(3)]
        for one, other in zip(found, expected, strict=True):
            assert one.get().tobytes() == other.tobytes()


def test_threads_with_streams_of_their_own(num_resident):
    x, expected, failed = make(keep="host"), None, []
    expected = compute(x)

    def run(seed):
        order = np.random.default_rng(seed).permutation(np.repeat(range(3), 5)).tolist()
        with cupy.cuda.Stream(non_blocking=True):
            cupy.cuda.get_current_stream().synchronize()
            for mode, found in zip(order, compute(x, order), strict=True):
                if found.tobytes() != expected[mode].tobytes():
                    failed.append((seed, mode))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_an_exception_in_the_middle(monkeypatch, num_resident):
    x, expected, calls = make(keep="host"), None, []
    expected, original = compute(x), CUDA.mttkrp

    def fail(layout, *arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            with layout.step(arguments[1], CUDA):
                raise KeyboardInterrupt
        original(layout, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(CUDA, "mttkrp", fail)
        with pytest.raises(KeyboardInterrupt):
            compute(x)
    for found, other in zip(compute(x), expected, strict=True):
        assert found.tobytes() == other.tobytes()


def test_arrays_in_files(tmp_path):
    """Memory-mapped arrays are read piece by piece, the last one shorter."""
    resident, stager, slabs = (
        make(nnz=6_000_000, layout="replicated", num_slabs=2),
        CudaStager(),
        [],
    )
    for number, slab in enumerate(resident._layout.slabs):
        copies = []
        for mode, copy in enumerate(slab.layout.copies):
            path = tmp_path / f"{number}-{mode}.npy"
            np.save(path, copy.get())
            copies.append(np.load(path, mmap_mode="r"))
        layout = slab.layout
        streamed = StreamedLayout(layout.cut, copies, layout.tilings, layout.norm, stager)
        slabs.append(slab._replace(layout=streamed))
    of = resident._layout
    y = FlycooTensor._of(CUDA, SlabLayout(of.record_format, 2, slabs, CUDA, of.devices))
    for _ in range(2):
        for found, expected in zip(compute(y), compute(resident), strict=True):
            assert found.tobytes() == expected.tobytes()


def test_memory_is_given_back():
    pool = cupy.get_default_memory_pool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "count_resident_slabs", lambda *_: 0)
        compute(make(keep="host"))
        before = pool.used_bytes()
        for _ in range(3):
            compute(make(keep="host"))
    assert pool.used_bytes() == before


def test_less_of_the_gpu_is_used():
    """At most two slabs of one mode, and the tilings."""
    pool = cupy.get_default_memory_pool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "count_resident_slabs", lambda *_: 0)
        before = pool.used_bytes()
        x, factors = make(keep="host", nnz=3_000_000), draw_factors()
        results = [mttkrp(x, factors, mode) for mode in range(3)]
        kept = sum(array.nbytes for array in (*factors, *results))
        used = pool.used_bytes() - before - kept
    one_mode = x.nnz * x._layout.record_format.record_nbytes / NUM_SLABS
    assert used <= 2.1 * one_mode + 0.02 * x.nbytes


@pytest.mark.parametrize("keep", ["file", "host", "device"])
def test_a_folder(tmp_path, keep):
    resident = make(layout="replicated")
    save_slabs(tmp_path / "x", resident, slabs=NUM_SLABS, device="cuda")
    x = open_slabs(tmp_path / "x", device="cuda", keep=keep)
    assert x._layout.num_streamed == (0 if keep == "device" else NUM_SLABS)
    for _ in range(2):
        for found, expected in zip(compute(x), compute(resident), strict=True):
            assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("keep", ["host", "file"])
def test_several_gpus(tmp_path, monkeypatch, keep):
    """Each GPU streams its own slabs; what holds them changes no bit."""
    monkeypatch.setattr(memory, "count_resident_slabs", lambda *_: 0)
    monkeypatch.setattr(CudaDevices, "least_nbytes", 0)  # else small factors are on the first GPU
    save_slabs(tmp_path / "x", make(layout="replicated"), slabs=NUM_SLABS, device="cuda")
    products, models = {tuple(array.tobytes() for array in compute(make()))}, set()
    for count in range(1, cupy.cuda.runtime.getDeviceCount() + 1):
        with set_device("cuda", gpus=count):
            if keep == "host":
                x = make(keep="host")
            else:
                x = open_slabs(tmp_path / "x", keep="file")
        layout = x._layout
        assert (layout.num_streamed, {*layout.homes}) == (NUM_SLABS, {*range(count)})
        stagers = {(slab.home, id(slab.layout.stager)) for slab in layout.slabs}
        assert len(stagers) == count
        for _ in range(2):
            products.add(tuple(array.tobytes() for array in compute(x)))
        with tl.backend_context("flycoo"):
            options = {"init": "random", "n_iter_max": 4, "tol": 0, "random_state": 0}
            cp = parafac(x, RANK, **options)
            models.add(tuple(tl.to_numpy(factor).tobytes() for factor in cp.factors))
    assert (len(products), len(models)) == (1, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_folder_is_packed(tmp_path, dtype):
    """Files are streamed as they lie, and a CPU can unpack them."""
    rng = np.random.default_rng(0)
    coords = np.unique([rng.integers(0, size, 400_000) for size in SHAPE], axis=1)
    values = rng.integers(1, 5, coords.shape[1]).astype(dtype)
    options = {"slabs": NUM_SLABS, "layout": "replicated"}
    resident = FlycooTensor(coords, values, SHAPE, device="cuda", **options)
    save_slabs(tmp_path / "x", resident, slabs=NUM_SLABS, device="cuda")
    nbytes = sum(path.stat().st_size for path in (tmp_path / "x").iterdir())
    assert nbytes < 0.35 * resident.nbytes
    x = open_slabs(tmp_path / "x", device="cuda", keep="file", verify=True)
    for slab in x._layout.slabs:
        for copy in slab.layout.copies:
            assert isinstance(copy, PackedRecords)
            assert not copy.words.flags.writeable  # it is in the file
    for found, expected in zip(compute(x), compute(resident), strict=True):
        assert found.tobytes() == expected.tobytes()
    on_cpu = open_slabs(tmp_path / "x", device="cpu")
    for found, expected in zip(on_cpu.nonzeros(), (coords, values), strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="has a plan for another kind of device"):
        open_slabs(tmp_path / "x", device="cpu", keep="file")


def test_folders_that_cannot_be_streamed(tmp_path):
    save_slabs(tmp_path / "x", make(), layout="indexed", device="cuda")
    with pytest.raises(ValueError, match=r"keep is 'file', expected 'device': the layout of this"):
        open_slabs(tmp_path / "x", device="cuda", keep="file")
    save_slabs(tmp_path / "y", make(), device="cpu")
    with pytest.raises(ValueError, match=r"has a plan for another kind of device"):
        open_slabs(tmp_path / "y", device="cuda", keep="file")
    assert open_slabs(tmp_path / "y", device="cuda").device == "cuda"
