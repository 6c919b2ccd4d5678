"""Clusters of processes on this machine, whose workers tests may kill."""

import contextlib
import time

import dask
from distributed import LocalCluster


def wait_for_addresses(client, num_workers):
    """Return the addresses of all workers, once those that tests have killed are there again."""
    client.wait_for_workers(num_workers, timeout=60)
    return sorted(client.nthreads())


def wait_for_file(path):
    """Return whether there is a file within a minute."""
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return path.exists()


@contextlib.contextmanager
def start_cluster(num_workers, **options):
    """Yield the address of a cluster's scheduler.

    A client of the address asks the scheduler for workers. One of the `LocalCluster` itself asks
    that, which sometimes stops counting when a worker is killed, with a KeyError that `close`
    raises again (distributed 2026.8). On a busy machine a new worker may take longer than the 15 s
    after which a `LocalCluster` gives a lost one up.
    """
    dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})
    # Workers are forked from a process that has imported Dask, also those in place of killed ones.
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    options = {"threads_per_worker": 1, "dashboard_address": ":0", **options}
    cluster = LocalCluster(n_workers=num_workers, **options)
    try:
        yield cluster.scheduler_address
    finally:
        with contextlib.suppress(KeyError):
            cluster.close()
