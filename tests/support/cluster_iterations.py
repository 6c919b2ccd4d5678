"""Time iterations of parafac in one process and on two workers: ``python cluster_iterations.py``.

As many slabs as workers, float32; by default modes of 10,000 rows and R = 16. Prints milliseconds
of wall time, the least and the median, and of the processors' time in the client and in all
workers. With ``--device cuda`` the process has one GPU, or each slab one if there are enough.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorly as tl
from distributed import Client
from local_clusters import start_cluster
from tensorly.cp_tensor import CPTensor

import tensorly_flycoo.dask
from tensorly_flycoo import FlycooTensor, open_slabs, save_slabs
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.engines import select_engine


def use_processor():
    """Return the seconds for which this process has used a processor."""
    times = os.times()
    return times.user + times.system


def time_iterations(x, draws, count):
    """Return the milliseconds that iterations take."""
    rank = draws[0].shape[1]
    times, xp = [], x._engine.xp
    start = CPTensor((xp.ones(rank, np.float32), [xp.asarray(draw) for draw in draws]))
    with tl.backend_context("flycoo"):
        tl.decomposition.parafac(
            x, rank, n_iter_max=count, init=start, tol=-1, return_errors=True,
            callback=lambda *_: times.append(time.perf_counter()),
        )  # fmt: skip
    return np.diff(times)[2:] * 1e3


def describe(name, times):
    print(f"{name}: least {times.min():.1f} ms, median {np.median(times):.1f} ms", flush=True)


def list_devices(device, count):
    """List what one process spreads row-sharded factors over, as on a cluster, by name."""
    if device == "cpu":
        return {"one process": OneDevice()}
    import cupy

    from tensorly_flycoo.engines.cuda.gpus import CudaDevices

    found = {"one process": OneDevice(cupy)}
    if cupy.cuda.runtime.getDeviceCount() >= count:
        found[f"one process with {count} GPUs"] = CudaDevices(count)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nonzeros", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = (options.rows,) * 3
    coords = rng.integers(0, options.rows, (3, options.nonzeros))
    device = options.device
    values = rng.random(options.nonzeros, np.float32)
    x = FlycooTensor(coords, values, shape, device=device)
    path = Path(tempfile.mkdtemp()) / "x.flycoo"
    save_slabs(path, x, slabs=options.workers, device=device)
    draws = [rng.random((size, options.rank), np.float32) for size in shape]
    engine, tensors = select_engine(device), {}
    for name, devices in list_devices(device, options.workers).items():
        engine.devices = devices
        tensors[name] = open_slabs(path, device=device, keep="device")
    engine.devices = None
    connection = {"direct_to_workers": True}
    with start_cluster(options.workers) as address, Client(address, **connection) as client:
        there = tensorly_flycoo.dask.open_slabs(path, client=client, device=device)
        for _ in range(options.repeats):
            for name, here in tensors.items():
                describe(name, time_iterations(here, draws, options.iterations))
            before = use_processor(), sum(client.run(use_processor).values())
            describe("cluster", time_iterations(there, draws, options.iterations))
            after = use_processor(), sum(client.run(use_processor).values())
            own, of_workers = (
                1e3 * (b - a) / options.iterations for a, b in zip(before, after, strict=True)
            )
            print(f"processors: client {own:.1f} ms, workers {of_workers:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
