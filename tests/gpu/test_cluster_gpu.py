"""A cluster of two workers on GPUs: linked by NCCL if there are two, else through the host."""

import os
import signal
import threading
import time

import cupy
import numpy as np
import pandas as pd
import pytest
import tensorly as tl
from distributed import Client
from local_clusters import start_cluster
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import Progress, from_dataframe, mttkrp, save_slabs
from tensorly_flycoo import open_slabs as open_here
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.dask import WorkerLost, open_slabs, read_parquet
from tensorly_flycoo.dask.cluster import RemoteObject
from tensorly_flycoo.decomposition import generalized_parafac
from tensorly_flycoo.engines.cuda.engine import CUDA
from tensorly_flycoo.io import slab_folder
from tensorly_flycoo.testing import planted_tensor, random_tensor

NUM_GPUS = cupy.cuda.runtime.getDeviceCount()
SHAPE, RANK, NUM_SLABS = (300, 200, 400), 8, 5


@pytest.fixture(scope="module")
def client():
    options = {"direct_to_workers": True}
    with start_cluster(2) as address, Client(address, **options) as client:
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    x = planted_tensor(SHAPE, RANK, 20_000, noise=0.1, random_state=0)[0]
    path = tmp_path_factory.mktemp("folders") / "x.flycoo"
    save_slabs(path, x.map(abs), slabs=NUM_SLABS, device="cuda")
    return path


@pytest.fixture(scope="module")
def tensors(folder, client):
    """The tensor on one worker and on two."""
    client.wait_for_workers(2, timeout=60)
    addresses = sorted(client.nthreads())
    return [
        open_slabs(folder, client=client, workers=addresses[:count], device="cuda")
        for count in (1, 2)
    ]


@pytest.fixture
def x(folder, client):
    client.wait_for_workers(2, timeout=60)
    return open_slabs(folder, client=client, device="cuda")


def call(x, number, function, *args):
    """Have a worker call a function; return its result."""
    worker = x._cluster.workers[number]
    (key,) = x._cluster.call(worker, function, args)
    return x._cluster.fetch([RemoteObject(worker, key)])[0]


def find_gpu():
    return bytes(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["uuid"]).hex()


def draw_start(xp=np):
    rng = np.random.default_rng(0)
    draws = [rng.random((size, RANK)) for size in SHAPE]
    return CPTensor((xp.ones(RANK), [xp.asarray(draw) for draw in draws]))


def decompose(x, name="parafac", xp=np, **options):
    options = {"n_iter_max": 4, "tol": 0, "init": draw_start(xp), **options}
    found = getattr(tl.decomposition, name)(x, RANK, **options)
    return [tl.to_numpy(factor).tobytes() for factor in found.factors]


def test_each_worker_has_a_gpu_of_its_own(tensors):
    found = {call(tensors[1], number, find_gpu) for number in range(2)}
    assert len(found) == min(NUM_GPUS, 2)
    assert tensors[1]._cluster._can_link == (NUM_GPUS > 1)


@pytest.mark.filterwarnings("ignore:The HALS algorithm")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("parafac", {}),
        ("parafac", {"normalize_factors": True}),
        ("parafac", {"l2_reg": 0.1, "fixed_modes": [0]}),
        ("parafac", {"init": "random", "random_state": 0}),
        ("non_negative_parafac", {}),
        ("non_negative_parafac_hals", {}),
    ],
)
def test_the_bits_of_one_process(tensors, folder, monkeypatch, name, options):
    with monkeypatch.context() as patch:
        patch.setattr(CUDA, "devices", OneDevice(cupy))
        expected = decompose(open_here(folder), name, cupy, **options)
    for x in tensors:
        assert decompose(x, name, **options) == expected


def test_tall_factors(client, tmp_path, monkeypatch):
    """Functions that decide by the rows of a block do so on the workers."""
    shape = (150_000, 200, 140_000)
    save_slabs(tmp_path / "x", random_tensor(shape, 50_000, random_state=0), slabs=2)
    options = {"init": "random", "random_state": 0, "normalize_factors": True, "n_iter_max": 2}
    with monkeypatch.context() as patch:
        patch.setattr(CUDA, "devices", OneDevice(cupy))
        expected = decompose(open_here(tmp_path / "x"), **options)
    there = open_slabs(tmp_path / "x", client=client, device="cuda")
    assert decompose(there, **options) == expected


def test_groups_of_modes(client, folder, tmp_path, monkeypatch):
    """Each slab numbers its prefixes; its results stay on its worker."""
    found = ((0,), (1,), (2,)), 2
    monkeypatch.setattr(slab_folder, "find_groups", lambda *_: found)
    save_slabs(tmp_path / "x", open_here(folder), slabs=NUM_SLABS, device="cuda")
    with monkeypatch.context() as patch:
        patch.setattr(CUDA, "devices", OneDevice(cupy))
        expected = decompose(open_here(tmp_path / "x"), "parafac", cupy)
    x = open_slabs(tmp_path / "x", client=client, device="cuda")
    assert x.groups == ((0, 1), (2,))
    assert decompose(x, "parafac") == expected


def test_tables_with_numbers_and_text_as_labels(client, tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({
        "user": random.integers(10**9, 10**9 + 40, 2000),
        "item": random.choice([f"item {n}" for n in range(30)], 2000),
        "day": random.integers(0, 20, 2000),
    })  # fmt: skip
    for part in range(4):
        frame[part::4].to_parquet(tmp_path / f"part{part}.parquet")
    x = read_parquet(tmp_path, [*frame], client=client, device="cuda")
    expected = from_dataframe(frame, [*frame])
    for name, labels in x.labels.items():
        np.testing.assert_array_equal(labels, expected.labels[name])
    assert float(tl.norm(x)) == pytest.approx(float(tl.norm(expected)), rel=1e-12)


@pytest.mark.parametrize("mode", range(3))
def test_mttkrp(tensors, folder, mode):
    expected = mttkrp(open_here(folder), draw_start(cupy).factors, mode).get()
    for x in tensors:
        np.testing.assert_array_equal(mttkrp(x, draw_start().factors, mode), expected)


RUNS = {
    "orthogonalise": lambda x: tl.decomposition.parafac(
        x, 3, init="random", random_state=0, orthogonalise=True, n_iter_max=3
    )[1],
    "svd": lambda x: tl.decomposition.parafac(x, 3, init="svd", n_iter_max=3)[1],
    "randomized svd": lambda x: tl.decomposition.parafac(
        x, 3, init="svd", svd="randomized_svd", random_state=0, n_iter_max=3
    )[1],
    "poisson": lambda x: generalized_parafac(x, 3, random_state=0, n_iter_max=3).factors,
    "tucker": lambda x: tl.decomposition.tucker(x, [2, 3, 4], n_iter_max=2)[1],
    "elementwise": lambda x: tl.decomposition.parafac(
        2 * np.log1p(x), 3, init="random", random_state=0, n_iter_max=2
    )[1],
    "sums": lambda x: [np.array([x.sum(), x.max(), x.norm()])],
}


@pytest.mark.parametrize("name", RUNS)
def test_the_number_of_workers_does_not_matter(tensors, name):
    expected, found = ([tl.to_numpy(y).tobytes() for y in RUNS[name](x)] for x in tensors)
    assert found == expected


def raise_memory_error():
    raise MemoryError("a large matrix")


def test_after_an_error_devices_are_linked_again(x):
    """One worker fails while the other one waits for it on its GPU."""
    expected = decompose(x)
    x._cluster.call(x._cluster.workers[1], raise_memory_error, num_results=0)
    with pytest.raises(MemoryError, match="a large matrix"):
        decompose(x)
    assert decompose(x) == expected


def test_a_killed_worker_is_named_and_recover_leads_to_the_same_bits(x, tmp_path):
    expected = decompose(x, n_iter_max=6)
    pid, since = call(x, 1, os.getpid), []

    def kill(model, error):
        progress(model, error)
        if len(progress.errors) == 3:
            os.kill(pid, signal.SIGKILL)
            since.append(time.monotonic())

    caught = pytest.raises(WorkerLost, match="recover")
    with Progress(6, show=None, checkpoint=tmp_path / "run.npz", every=1) as progress, caught:
        decompose(x, n_iter_max=6, callback=kill)
    assert time.monotonic() - since[0] < 10
    x.recover()
    with Progress(6, show=None, checkpoint=tmp_path / "run.npz") as progress:
        options = {"init": progress.resume(), "n_iter_max": 6 - 2, "callback": progress}
        assert decompose(x, **options) == expected


def test_a_worker_that_waits_on_its_gpu_stops_when_the_other_one_is_killed(x):
    """It would wait for ever for an exchange that the other one never begins."""
    expected = decompose(x)
    pid = call(x, 1, os.getpid)
    x._cluster.call(x._cluster.workers[1], time.sleep, [60], num_results=0)
    killer = threading.Timer(2, os.kill, (pid, signal.SIGKILL))
    killer.start()
    start = time.monotonic()
    with pytest.raises(WorkerLost):
        decompose(x)
    killer.join()
    assert time.monotonic() - start < 2 + 10
    x.recover()
    assert decompose(x) == expected


def test_ctrl_c_while_workers_exchange(x):
    expected = decompose(x)
    x._cluster.call(x._cluster.workers[1], time.sleep, [3], num_results=0)
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        decompose(x)
    assert decompose(x) == expected
