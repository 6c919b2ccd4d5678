"""Workers whose devices are linked: the bits of one process; and which worker has which GPU."""

import logging
import threading

import numpy as np
import pytest
import tensorly as tl
from distributed import Client, LocalCluster, get_worker
from simulated_links import SimulatedLink

from tensorly_flycoo import open_slabs, save_slabs
from tensorly_flycoo.base.devices import LinkBroken, OneDevice
from tensorly_flycoo.dask import WorkerLost, actor, cluster
from tensorly_flycoo.dask import open_slabs as open_on_workers
from tensorly_flycoo.dask.actor import Gpus, choose_gpus, list_links
from tensorly_flycoo.dask.machine import Site
from tensorly_flycoo.engines import select_engine
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.testing import planted_tensor

SHAPE, RANK, NUM_SLABS = (30, 20, 40), 3, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    x = planted_tensor(SHAPE, RANK, 400, noise=0.1, random_state=0)[0]
    path = tmp_path_factory.mktemp("folders") / "x.flycoo"
    save_slabs(path, x.map(np.abs), slabs=NUM_SLABS)
    return path


@pytest.fixture(scope="module")
def linked(folder):
    """The tensor on two workers, threads of this process, with one simulated GPU each."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor, "list_gpus", lambda device: Gpus([get_worker().address], True))
        patch.setattr(actor, "_make_gpu_site", make_site)
        with LocalCluster(processes=False, **options) as cluster, Client(cluster) as client:
            yield open_on_workers(folder, client=client)


def make_site(gpu):
    return Site(select_engine("cpu"), lambda: None, SimulatedLink), lambda: None


@pytest.mark.filterwarnings("ignore:The HALS algorithm")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("parafac", {}),
        ("parafac", {"init": "random", "normalize_factors": True, "orthogonalise": True}),
        ("non_negative_parafac_hals", {"init": "random"}),
        pytest.param("tucker", {"rank": [2, 2, 2], "n_iter_max": 3}, marks=pytest.mark.slow),
    ],
)
def test_the_bits_of_one_process(linked, folder, monkeypatch, name, options):
    with monkeypatch.context() as patch:
        patch.setattr(CPU, "devices", OneDevice())
        here = open_slabs(folder)
    options = {"rank": RANK, "n_iter_max": 9, "random_state": 0, "tol": 0, **options}
    monkeypatch.setattr(SimulatedLink, "num_arrays", 0)
    expected = decompose(here, name, options)
    assert SimulatedLink.num_arrays == 0
    assert decompose(linked, name, options) == expected
    assert SimulatedLink.num_arrays > 0


def decompose(x, name, options):
    with tl.backend_context("flycoo"):
        found = getattr(tl.decomposition, name)(x, **options)
        return [tl.to_numpy(factor).tobytes() for factor in found[1]]


def test_after_a_call_that_failed_devices_are_linked_again(linked):
    options = {"rank": RANK, "init": "random", "random_state": 0, "n_iter_max": 2}
    expected = decompose(linked, "parafac", options)
    slab = linked._layout.slabs[0].layout.held
    with pytest.raises(TypeError, match="cannot do that"):
        linked._cluster.fetch(linked._cluster.run(slab.worker, refuse, slab))
    assert decompose(linked, "parafac", options) == expected


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_link_that_breaks_because_a_worker_is_gone(linked, monkeypatch, is_lost):
    """The error of the other worker comes before Dask has noticed."""
    worker, timers = linked._cluster.workers[1], []

    def check(link):
        timers.append(threading.Timer(0.2, setattr, (worker, "is_lost", is_lost)))
        timers[-1].start()
        raise LinkBroken("a peer is gone")

    monkeypatch.setattr(SimulatedLink, "check", check)
    monkeypatch.setattr(cluster, "_NOTICE_TIMEOUT", 0.5)
    with pytest.raises(WorkerLost if is_lost else LinkBroken) as caught:
        decompose(linked, "parafac", {"rank": RANK, "init": "random", "random_state": 0})
    if is_lost:
        assert caught.value.addresses == (worker.address,)
    monkeypatch.undo()
    for timer in timers:  # each worker may have started one
        timer.join()
    worker.is_lost = False
    decompose(linked, "parafac", {"rank": RANK, "init": "random", "random_state": 0})


def refuse(layout):
    raise TypeError("cannot do that")


@pytest.mark.parametrize(
    ("uuids", "expected"),
    [
        (["ab", "ab"], [0, 1]),  # all workers see all GPUs of their machine
        (["ab", "ba"], [0, 0]),  # dask-cuda puts each worker's own first
        (["a", "b"], [0, 0]),
        (["ab", "ab", "cd", "cd"], [0, 1, 0, 1]),
        (["ab", "ab", "ab"], [0, 1, 0]),
        (["", ""], [None, None]),
    ],
)
def test_each_worker_has_a_gpu_of_its_own(uuids, expected):
    assert choose_gpus([Gpus(own, True) for own in uuids]) == expected


def test_workers_of_two_kinds_are_refused(client, folder, monkeypatch):
    first = sorted(client.nthreads())[0]

    def list_gpus(device):
        return Gpus(["a"] if get_worker().address == first else [], True)

    monkeypatch.setattr(actor, "list_gpus", list_gpus)
    with pytest.raises(ValueError, match=r"workers \['tcp.* have no GPU, but others have"):
        open_on_workers(folder, client=client)


@pytest.mark.parametrize(
    ("gpus", "expected", "reason"),
    [
        ([Gpus("a", True), Gpus("b", True)], ["a", "b"], None),
        ([Gpus("a", True), Gpus("a", True)], [None, None], "share a GPU"),
        ([Gpus("a", True), Gpus("b", False)], [None, None], "install nvidia-nccl"),
        ([Gpus("", False), Gpus("", False)], [None, None], None),
        ([Gpus("a", False)], [None], None),
    ],
)
def test_only_gpus_that_nccl_can_link_are(gpus, expected, reason, caplog):
    with caplog.at_level(logging.WARNING, "tensorly_flycoo"):
        assert list_links(gpus, choose_gpus(gpus)) == expected
    assert bool(caplog.records) == (reason is not None)
    assert reason is None or reason in caplog.text
