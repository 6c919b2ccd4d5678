"""What happens when a worker or the client is gone, memory runs out, or somebody presses Ctrl-C."""

import gc
import os
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorly as tl
from distributed import Client, WorkerPlugin
from local_clusters import start_cluster, wait_for_file

from tensorly_flycoo import Progress, mttkrp, save, save_slabs
from tensorly_flycoo.dask import (
    WorkerLost,
    actor,
    cluster_layout,
    cluster_tensor,
    machine,
    open_slabs,
)
from tensorly_flycoo.dask import cluster as cluster_module
from tensorly_flycoo.dask.actor import start_workers
from tensorly_flycoo.dask.cluster import RemoteObject
from tensorly_flycoo.testing import planted_tensor

RANK = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    x = planted_tensor((30, 20, 40), RANK, 400, noise=0.1, random_state=0)[0]
    path = tmp_path_factory.mktemp("folders") / "x.flycoo"
    save_slabs(path, x, slabs=4)
    return path


class LookOften(WorkerPlugin):
    """Lets the actors of a worker look every tenth of a second for whether they are needed."""

    def setup(self, worker):
        machine._POLL_SECONDS = 0.1


@pytest.fixture(scope="module")
def client():
    """A client of a cluster of its own, since some tests kill workers; Dask starts others."""
    with start_cluster(2) as address, Client(address) as client:
        client.register_plugin(LookOften())  # also for workers in place of killed ones
        yield client


@pytest.fixture
def x(folder, client):
    client.wait_for_workers(2, timeout=60)
    return open_slabs(folder, client=client)


def run(x, n_iter_max, init="random", callback=None):
    options = {"n_iter_max": n_iter_max, "tol": 0, "random_state": 0, "init": init}
    with tl.backend_context("flycoo"):
        found = tl.decomposition.parafac(x, RANK, **options, callback=callback)
        return [tl.to_numpy(factor).tobytes() for factor in found.factors]


def call(x, number, function, *args):
    """Have a worker call a function; return its result."""
    return x._cluster.fetch(x._cluster.run(x._cluster.workers[number], function, *args))[0]


def raise_memory_error():
    raise MemoryError("a large matrix")


def test_a_killed_worker_is_named_and_recover_leads_to_the_same_bits(x, tmp_path):
    expected = run(x, 5)
    victim = x.workers[1]
    pid, since = call(x, 1, os.getpid), []

    def kill_later(model, error):
        progress(model, error)
        if len(progress.errors) == 3:
            os.kill(pid, signal.SIGKILL)
            since.append(time.monotonic())

    caught = pytest.raises(WorkerLost, match="recover")
    with Progress(5, show=None, checkpoint=tmp_path / "run.npz", every=1) as progress, caught as e:
        run(x, 5, callback=kill_later)
    assert time.monotonic() - since[0] < 10
    assert isinstance(e.value, ConnectionError)
    assert e.value.addresses == (victim,)
    assert victim in str(e.value)
    with pytest.raises(WorkerLost):  # at once
        run(x, 1)
    x.recover()
    assert victim not in x.workers
    with Progress(5, show=None, checkpoint=tmp_path / "run.npz") as progress:
        assert run(x, 5 - 2, progress.resume(), progress) == expected


@pytest.mark.slow
def test_recover_when_no_worker_is_left(x):
    expected = run(x, 2)
    for pid in [call(x, number, os.getpid) for number in range(2)]:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        run(x, 1)
    x._pool.client.wait_for_workers(2, timeout=60)
    for _ in range(5):
        try:
            x.recover()
            break
        except WorkerLost:  # the second one was noticed only now
            time.sleep(1)
    assert run(x, 2) == expected


def test_a_worker_that_is_gone_before_it_has_anything(client, folder):
    with pytest.raises(WorkerLost, match=r"lost tcp://127\.0\.0\.1:1 while .* load") as caught:
        open_slabs(folder, client=client, workers=["tcp://127.0.0.1:1"])
    assert caught.value.addresses == ("tcp://127.0.0.1:1",)
    assert "recover" not in str(caught.value)  # there is no tensor


def test_a_worker_that_ends_just_after_its_actor_starts(client, folder, monkeypatch):
    """Dask's own error names no worker."""
    client.wait_for_workers(2, timeout=60)
    lost, wait = [], actor.wait_for_tasks

    def kill_first(client, tasks, addresses):
        found = wait(client, tasks, addresses)
        if not getattr(found[0], "_cls", None):  # not actors yet
            return found
        lost.append(addresses[0])
        os.kill(client.run(os.getpid, workers=lost)[lost[0]], signal.SIGKILL)
        while tasks[0].status == "finished":
            time.sleep(0.01)
        return wait(client, tasks, addresses)

    monkeypatch.setattr(actor, "wait_for_tasks", kill_first)
    with pytest.raises(WorkerLost, match="while the tensor was loaded") as caught:
        open_slabs(folder, client=client)
    assert list(caught.value.addresses) == lost


def test_a_worker_whose_loss_the_scheduler_had_not_noticed_is_left_out(monkeypatch):
    known = {address: {"status": "running"} for address in ("here", "lost", "new")}
    client = SimpleNamespace(scheduler_info=lambda n_workers: {"workers": known})

    def start(client, addresses, device, held):
        if "lost" in addresses:
            raise WorkerLost(["lost"])
        return addresses

    monkeypatch.setattr(cluster_tensor, "start_workers", start)
    assert cluster_tensor.Pool(client, None, None).start([SimpleNamespace(address="here")]) == [
        "new"
    ]


def test_recover_drops_what_was_queued_for_a_lost_worker(x):
    """Else a worker would wait for an array of one that is gone."""
    expected, (lost, other) = run(x, 2), x._cluster.workers
    (key,) = x._cluster.call(lost, np.ones, [3])
    (key,) = x._cluster.transfer([(RemoteObject(lost, key), other)])
    x._cluster.call(other, np.negative, [RemoteObject(other, key)])
    lost.is_lost = True
    x.recover()
    assert other in x._cluster.workers
    assert lost not in x._cluster.workers
    assert run(x, 2) == expected


def test_a_worker_that_is_lost_while_a_message_is_sent(x, monkeypatch):
    """One that has started anew at its address does not know the actor."""
    expected, worker = run(x, 2), x._cluster.workers[1]
    with monkeypatch.context() as patch:
        patch.setattr(worker, "key", "of another life")
        with pytest.raises(WorkerLost) as caught:
            run(x, 1)
        assert caught.value.addresses == (worker.address,)
        x.recover()
        assert run(x, 2) == expected


def test_memory_runs_out(x):
    expected = run(x, 2)
    with pytest.raises(MemoryError, match=f"worker {x.workers[1]} .* a large matrix; .* is free"):
        call(x, 1, raise_memory_error)
    assert run(x, 2) == expected


def test_an_error_on_a_worker_is_raised_here(x):
    expected = run(x, 2)
    with pytest.raises(ValueError, match="invalid literal") as caught:
        call(x, 0, int, "x")
    assert caught.value.__notes__ == [f"on worker {x.workers[0]}"]
    assert run(x, 2) == expected


def test_an_error_is_raised_although_nobody_needs_the_result(x, monkeypatch):
    monkeypatch.setattr(cluster_module, "_MANY_COMMANDS", 0)
    cluster, expected = x._cluster, run(x, 2)
    calls = (cluster.call(cluster.workers[0], int, [text], num_results=0) for text in "x12")
    with pytest.raises(ValueError, match="invalid literal"):
        list(calls)
    assert run(x, 2) == expected


def test_arrays_of_a_failed_call_say_so(x):
    (lost,) = x._cluster.run(x._cluster.workers[0], int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        x._cluster.fetch([lost])
    with pytest.raises(RuntimeError, match="the call that made it has failed"):
        x._cluster.fetch([lost])


def test_a_worker_that_waits_for_one_that_failed_goes_on(x):
    source, target = x._cluster.workers
    (sent,) = x._cluster.run(source, int, "x")
    received = RemoteObject(target, *x._cluster.transfer([(sent, target)]))
    with pytest.raises(ValueError, match="invalid literal"):
        x._cluster.fetch([received])
    assert call(x, 1, int, "5") == 5


def test_ctrl_c_while_a_worker_computes(x, tmp_path):
    """The client does not wait for the worker, which goes on until there is a file."""
    expected, begun, end = run(x, 2), tmp_path / "begun", tmp_path / "end"

    def interrupt():
        if wait_for_file(begun):
            os.kill(os.getpid(), signal.SIGINT)

    def compute():
        begun.touch()
        end.with_name("found").write_text(str(wait_for_file(end)))

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        call(x, 0, compute)
    thread.join()
    assert not (tmp_path / "found").exists()  # the worker still waits
    end.touch()
    assert run(x, 2) == expected


def test_two_threads(x):
    expected, found = run(x, 3), []
    threads = [threading.Thread(target=lambda: found.append(run(x, 3))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected] * 2


def count_machines():
    """Count the threads of actors in a worker."""
    return sum(thread.name == "tensorly_flycoo" for thread in threading.enumerate())


def count_all(client):
    gc.collect()
    return sum(client.run(count_machines).values())


def wait_until_there_are(client, count):
    deadline = time.monotonic() + 10
    while count_all(client) > count:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_workers_free_what_nobody_holds(client, folder):
    wait_until_there_are(client, 0)
    x = open_slabs(folder, client=client)
    run(x, 2)
    assert count_all(client) == 2
    del x
    wait_until_there_are(client, 0)


def test_workers_free_what_a_client_held_that_is_gone(client, folder):
    wait_until_there_are(client, 0)
    other = Client(client.scheduler.address, set_as_default=False)
    x = open_slabs(folder, client=other)
    product = mttkrp(x, [np.ones((size, 2)) for size in x.shape], 0)
    assert count_all(client) == 2
    other.close()
    wait_until_there_are(client, 0)
    del product


def fail_to_describe(layout):
    raise MemoryError("a slab's neighbour")


def test_what_a_call_had_loaded_is_freed_although_its_error_is_kept(client, folder, monkeypatch):
    """As an interactive session keeps it, in `sys.last_value`; and without Python's collector."""
    wait_until_there_are(client, 0)
    with monkeypatch.context() as patch:
        patch.setattr(cluster_layout, "describe_slab", fail_to_describe)
        gc.disable()
        try:
            with pytest.raises(MemoryError, match="slab's neighbour") as caught:
                open_slabs(folder, client=client)
            deadline = time.monotonic() + 10
            while sum(client.run(count_machines).values()):
                assert time.monotonic() < deadline
                time.sleep(0.2)
        finally:
            gc.enable()
    assert open_slabs(folder, client=client).sum() != 0
    assert caught.value.__traceback__ is not None


def test_workers_that_never_were_connected_are_freed(client):
    """As if another one had been lost while they started."""
    wait_until_there_are(client, 0)
    workers = start_workers(client, client.scheduler_info()["workers"])
    wait_until_there_are(client, len(workers))
    del workers
    wait_until_there_are(client, 0)


def test_a_folder_that_workers_do_not_see_is_named(client, tmp_path, folder, monkeypatch):
    import shutil

    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "slab-00001.npz").unlink()
    with pytest.raises(FileNotFoundError, match="slab-00001") as caught:
        open_slabs(tmp_path / "copy", client=client)
    assert "on worker tcp://" in caught.value.__notes__[0]


def test_too_little_memory_for_a_slab(client, folder, monkeypatch):
    from tensorly_flycoo.dask import readers

    index = readers.Index.read(folder)
    entries = [entry._replace(nbytes=10**15) for entry in index.entries]
    monkeypatch.setattr(
        readers.Index, "read", lambda path: readers.Index(**{**index.__dict__, "entries": entries})
    )
    monkeypatch.setattr(cluster_tensor, "check_limits", lambda *_: None)
    with pytest.raises(MemoryError, match=r"worker tcp.* slab [02] of .* needs .* is free"):
        open_slabs(folder, client=client)


def test_a_closed_client_is_named(folder, client):
    """Its workers seem to be gone, but are there: recovering would not help."""
    with Client(client.scheduler.address, set_as_default=False) as other:
        x = open_slabs(folder, client=other)
        assert x.sum() != 0
        with pytest.raises(ValueError, match="call save_slabs"):
            save("x.npz", x)
    for use in (x.sum, x.recover):
        with pytest.raises(RuntimeError, match=r"client .* is closed.* with another client"):
            use()
    assert open_slabs(folder, client=client).sum() != 0
