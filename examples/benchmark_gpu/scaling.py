"""Time whole iterations of parafac on 1, 2, ... GPUs of one machine, and check their bits.

    python examples/benchmark_gpu/scaling.py                                   # all shapes
    python examples/benchmark_gpu/scaling.py --tensors nell-1 --gpus 1 2 4 8 --share 0.5

Nonzeros are drawn at random on the first GPU. "one" is a tensor in one piece on one GPU. The other
rows have the same number of slabs on 1, 2, ... GPUs, and their factors must have the same bits.
"""

import argparse
import json
import time
from pathlib import Path

import cupy
import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac
from tensors import LARGE_SHAPES, SHAPES, Problem, draw_factors, free_memory, repeats_kept

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines.cuda.devices import CudaDevices
from tensorly_flycoo.shards.row_shards import RowShards
from tensorly_flycoo.shards.sharding import Sharding, cut_evenly

RANK = 32


def parse_arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser("scaling", description=__doc__)
    add = parser.add_argument
    names = ("nell-1", "nell-2", *LARGE_SHAPES)
    add("--tensors", nargs="+", default=names, choices=(*SHAPES, *LARGE_SHAPES))
    add("--gpus", nargs="+", type=int, default=[1, 2])
    add("--slabs", type=int, help="by default as many as the most GPUs")
    add("--layout", default="remap")
    add("--share", type=float, default=1.0, help="of the nonzeros to draw; modes keep their sizes")
    add("--iterations", type=int, default=12)
    add("--json", type=Path)
    return parser.parse_args()


def wait_for_gpus(gpus):
    """Make every GPU idle."""
    for device in range(gpus):
        cupy.cuda.Device(device).synchronize()


def time_iterations(x, factors, num_iterations, gpus):
    """Return the median seconds of an iteration with its error, and the factors."""
    times = []

    def record(*_):
        wait_for_gpus(gpus)
        times.append(time.perf_counter())

    with tl.backend_context("flycoo"):
        guess = CPTensor((None, factors))
        options = {"n_iter_max": num_iterations, "init": guess, "tol": -1.0, "callback": record}
        cp = parafac(x, factors[0].shape[1], **options)
        found = [tl.to_numpy(factor) for factor in cp.factors]
    return float(np.median(np.diff(times)[1:])), found


def time_peer_copy(nbytes=2**30):
    """Return the bytes per second of a copy from one GPU to another."""
    with cupy.cuda.Device(0):
        source = cupy.zeros(nbytes, np.uint8)
    with cupy.cuda.Device(1):
        target = cupy.zeros(nbytes, np.uint8)
        for _ in range(2):
            start = time.perf_counter()
            target.data.copy_from_device_async(source.data, nbytes, cupy.cuda.get_current_stream())
            cupy.cuda.Device(1).synchronize()
    return nbytes / (time.perf_counter() - start)


def time_mover(num_rows=2**23):
    """Return the bytes per second that a GPU receives while it gathers a factor of two blocks."""
    devices = CudaDevices(2)
    sharding = Sharding.of(cut_evenly(num_rows, 2), devices)
    factor, best = RowShards.scatter(cupy.ones((num_rows, RANK), np.float32), sharding), np.inf
    for _ in range(5):
        other = factor.replace(factor.blocks, False)
        wait_for_gpus(2)
        start = time.perf_counter()
        other.gather(1)
        wait_for_gpus(2)
        best = min(best, time.perf_counter() - start)
    return factor.blocks[0].nbytes / best


def measure(name, options):
    """Time one tensor; print and return its figures."""
    most = max(options.gpus)
    slabs = options.slabs or most
    problem = Problem(name, 3.0, True, 1.0, options.share)
    figures = {"tensor": name, "slabs": slabs, "share": options.share, "layout": options.layout}
    digests = {}
    for gpus in (0, *options.gpus):
        free_all(most)
        try:
            with tensorly_flycoo.set_device("cuda", gpus=gpus or None), repeats_kept():
                coords, values = problem.draw(np.float32)
                start = time.perf_counter()
                keep = {"layout": options.layout, "slabs": slabs if gpus else None}
                x = FlycooTensor(coords, values, problem.shape, device="cuda", **keep)
                wait_for_gpus(most)
                build_s = time.perf_counter() - start
                del coords, values
                factors = draw_factors(problem.shape, RANK, np.float32)
                seconds, found = time_iterations(x, factors, options.iterations, max(gpus, 1))
                del x, factors
        except MemoryError as error:
            print(f"{name}, {gpus or 'one'}: {error}", flush=True)
            continue
        label = f"{gpus} gpus" if gpus else "one"
        figures[label] = {"iteration_ms": 1e3 * seconds, "build_s": build_s}
        print(
            f"{name:15s} {label:7s} {1e3 * seconds:8.2f} ms, built in {build_s:.1f} s", flush=True
        )
        if gpus:
            digests[gpus] = b"".join(factor.tobytes() for factor in found)
    figures["same bits"] = len(set(digests.values())) <= 1
    print(f"{name:15s} same bits on {list(digests)} GPUs: {figures['same bits']}", flush=True)
    return figures


def free_all(gpus):
    """Free CuPy's unused memory on every GPU."""
    for device in range(gpus):
        with cupy.cuda.Device(device):
            free_memory()


if __name__ == "__main__":
    options = parse_arguments()
    results = []
    if max(options.gpus) > 1:
        with tensorly_flycoo.set_device("cuda", gpus=2):
            link = time_peer_copy()
        print(
            f"a copy from GPU to GPU: {link / 1e9:.0f} GB/s, gathering: {time_mover() / link:.2f}"
        )
    for name in options.tensors:
        results.append(measure(name, options))
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
