"""No wait is for ever: workers that are paused, killed or silent are named."""

import contextlib
import os
import signal
import time

import dask
import dask.dataframe
import numpy as np
import pandas as pd
import pytest
import tensorly as tl
from distributed import Client, LocalCluster
from local_clusters import start_cluster, wait_for_addresses

from tensorly_flycoo import Progress, from_dataframe, mttkrp, save_slabs
from tensorly_flycoo.dask import (
    WorkerLost,
    from_dask_dataframe,
    loading,
    open_slabs,
    read_parquet,
    read_tns,
    waiting,
)

pytestmark = pytest.mark.slow

TABLE = pd.DataFrame(
    {"a": np.arange(600) % 20, "b": np.arange(600) // 20, "v": np.arange(1, 601.0)}
)


@pytest.fixture(scope="module")
def client():
    with start_cluster(2, memory_limit="1GB") as address, Client(address) as client:
        yield client


@pytest.fixture
def addresses(client):
    return wait_for_addresses(client, 2)


@pytest.fixture
def x(client, addresses, tmp_path):
    TABLE.to_parquet(tmp_path / "x.parquet")
    options = {"slabs": 4, "client": client, "workers": addresses}
    return read_parquet(tmp_path, ["a", "b"], "v", **options).tensor


def set_pause(fraction, dask_worker):
    """Have Dask pause a worker above a fraction of its memory limit."""
    dask_worker.memory_manager.memory_pause_fraction = fraction


@contextlib.contextmanager
def paused(client, *addresses):
    client.run(set_pause, 1e-6, workers=addresses)
    while any(client.scheduler_info()["workers"][a]["status"] != "paused" for a in addresses):
        time.sleep(0.1)
    yield
    client.run(set_pause, 0.8)
    while any(own["status"] == "paused" for own in client.scheduler_info()["workers"].values()):
        time.sleep(0.1)


@contextlib.contextmanager
def within(seconds):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


@pytest.mark.parametrize("count", [1, 2])
def test_reading_on_a_paused_worker(client, addresses, tmp_path, count):
    TABLE.to_parquet(tmp_path / "x.parquet")
    expected = from_dataframe(TABLE, ["a", "b"], "v", slabs=4).tensor.sum()
    victims = addresses[:count]
    caught = pytest.raises(MemoryError, match=rf"paused {victims[0]}.* limit of .*workers=")
    with paused(client, *victims), within(60), caught:
        read_parquet(tmp_path, ["a", "b"], "v", slabs=4, client=client)
    x = read_parquet(tmp_path, ["a", "b"], "v", slabs=4, client=client).tensor
    assert x.sum() == expected


def test_what_surely_does_not_fit_is_refused_unread(client, addresses, tmp_path, monkeypatch):
    TABLE.to_parquet(tmp_path / "x.parquet")
    x = read_parquet(tmp_path, ["a", "b"], "v", slabs=4, client=client)
    save_slabs(tmp_path / "slabs", x)
    known = client.scheduler_info(n_workers=-1)
    monkeypatch.setattr(client, "scheduler_info", lambda **_: known)
    monkeypatch.setattr(loading, "wait_for_tasks", lambda *_: pytest.fail("tasks are sent"))
    first, last = (known["workers"][address] for address in addresses)
    last["memory_limit"] = 9599  # half of 600 rows, twice 16 bytes each
    match = rf"{addresses[1]} needs .* for its share, .* limit is .*: give workers more"
    with pytest.raises(MemoryError, match=match):
        read_parquet(tmp_path / "x.parquet", ["a", "b"], "v", client=client)
    (tmp_path / "x.tns").write_text("# a note\n" * 4267)  # 38,403 bytes: a fourth for each worker
    with pytest.raises(MemoryError, match=match):
        read_tns(tmp_path / "x.tns", client=client)
    first["memory_limit"] = last["memory_limit"] = 3 * 4096
    for keep in ("device", "file"):
        with pytest.raises(MemoryError, match=f"{addresses[0]} needs .* for its slabs"):
            open_slabs(tmp_path / "slabs", keep=keep, client=client)


@dask.delayed
def pause_this_worker(table):
    from distributed import get_worker

    get_worker().memory_manager.memory_pause_fraction = 1e-6
    time.sleep(1)
    return table


def test_workers_that_are_paused_while_they_read(client, addresses):
    """By what they have read; all of them, so that tasks are left that nobody runs."""
    parts = [pause_this_worker(TABLE.iloc[n : n + 60]) for n in range(0, 600, 60)]
    df = dask.dataframe.from_delayed(parts, meta=TABLE.iloc[:0])
    with within(60), pytest.raises(MemoryError, match="paused tcp://"):
        from_dask_dataframe(df, ["a", "b"], "v", client=client)
    with paused(client, *addresses):
        pass
    x = from_dask_dataframe(dask.dataframe.from_pandas(TABLE), ["a", "b"], "v", client=client)
    assert x.tensor.nnz == 600


def test_recover_on_a_paused_worker(client, addresses, x):
    expected, last = x.sum(), x.workers[1]
    os.kill(client.run(os.getpid, workers=[x.workers[0]])[x.workers[0]], signal.SIGKILL)
    with within(10), pytest.raises(WorkerLost):
        mttkrp(x, [np.ones((size, 2)) for size in x.shape], 0)
    caught = pytest.raises((MemoryError, WorkerLost), match=last)
    with paused(client, last), within(60), caught:
        x.recover()
    x.recover()
    assert x.sum() == expected


def eat_memory():
    """Take memory until Dask's nanny ends this worker."""
    held = []
    while True:
        held.append(bytearray(b"x") * 2**26)
        time.sleep(0.05)


def test_the_loop_of_the_docs_after_a_nanny_has_killed_a_worker(client, addresses, x, tmp_path):
    options, has_eaten = {"random_state": 0, "tol": 0}, []

    def call(model, error):
        progress(model, error)
        if len(progress.errors) == 3 and not has_eaten:
            has_eaten.extend(x._cluster.run(x._cluster.workers[1], eat_memory))

    with tl.backend_context("flycoo"), within(60):
        cp = tl.decomposition.parafac(x, 2, 8, init="random", **options)
        expected = list(map(tl.to_numpy, cp.factors))
        for _ in range(3):
            with Progress(8, show=None, checkpoint=tmp_path / "run.npz", every=1) as progress:
                start, count = progress.resume(default="random"), progress.n_iter_left
                try:
                    cp = tl.decomposition.parafac(x, 2, count, init=start, callback=call, **options)
                    break
                except WorkerLost:
                    x.recover()
        assert has_eaten
        for factor, own in zip(cp.factors, expected, strict=True):
            np.testing.assert_array_equal(tl.to_numpy(factor), own)


def count_slabs(x):
    """Count the slabs on each worker."""
    return [sum(slab.home == home for slab in x._layout.slabs) for home in range(len(x.workers))]


def test_slabs_move_to_new_workers(tmp_path):
    """And back when they go; the bits stay."""
    save_slabs(tmp_path / "x", from_dataframe(TABLE, ["a", "b"], "v").tensor, slabs=6)
    TABLE.to_parquet(tmp_path / "x.parquet")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:

        def read():
            return read_parquet(tmp_path / "x.parquet", ["a", "b"], "v", slabs=6).tensor

        for load in (lambda: open_slabs(tmp_path / "x"), read, lambda: 2 * read()):
            x = load()
            factors = [np.ones((size, 2)) for size in x.shape]
            expected = mttkrp(x, factors, 0)
            for count, share in ((3, [2, 2, 2]), (2, [3, 3]), (1, [6])):
                cluster.scale(count)
                client.wait_for_workers(
                    count
                )  # until they run: one that has only come is not taken
                while len(client.nthreads()) != count:
                    time.sleep(0.1)
                if count == 3:
                    x.rebalance()
                else:
                    with pytest.raises(WorkerLost):
                        mttkrp(x, factors, 0)
                    x.recover()
                assert count_slabs(x) == share
                np.testing.assert_array_equal(mttkrp(x, factors, 0), expected)
        cluster.adapt(minimum=1, maximum=2)
        with pytest.raises(ValueError, match=r"adaptively.*scale"):
            open_slabs(tmp_path / "x")


def test_a_worker_that_hangs(client, addresses, x, monkeypatch):
    monkeypatch.setattr(waiting, "_PATIENCE", 5.0)
    victim = x.workers[0]
    pid = client.run(os.getpid, workers=[victim])[victim]
    os.kill(pid, signal.SIGSTOP)
    try:
        with within(20), pytest.raises(WorkerLost, match=victim):
            x.sum()
    finally:
        os.kill(pid, signal.SIGKILL)
