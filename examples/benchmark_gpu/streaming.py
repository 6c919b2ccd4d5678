"""Time sweeps of a tensor that is streamed from the host, against the link's rate.

    python examples/benchmark_gpu/streaming.py --tensor nell-1

"link" is the rate of copies from pinned memory in the same run. "streamed" is the rate at which a
sweep of MTTKRPs, or iterations of parafac, read records.
"""

import argparse
import time

import cupy
import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac
from tensors import LARGE_SHAPES, SHAPES, Problem, draw_factors, free_memory, repeats_kept

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.engines import slab_plan
from tensorly_flycoo.engines.cuda.staging import CudaStager

RANK = 32


def time_link(nbytes=2**30):
    """Return the bytes per second of copies from pinned memory."""
    target = cupy.zeros(nbytes, np.uint8)
    source = CudaStager().put_aside(target)
    stream, best = cupy.cuda.Stream(non_blocking=True), np.inf
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(4):
            target.data.copy_from_host_async(source.ctypes.data, nbytes, stream)
        stream.synchronize()
        best = min(best, (time.perf_counter() - start) / 4)
    return nbytes / best


def time_sweeps(x, factors, num_sweeps=4):
    """Return the seconds of a sweep over all modes, and the last mode's result."""
    times, found = [], []
    for _ in range(num_sweeps):
        start = time.perf_counter()
        found = [mttkrp(x, factors, mode) for mode in range(x.ndim)]
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:])), [result.get().tobytes() for result in found]


def time_iterations(x, factors, num_iterations=6):
    """Return the seconds of an iteration of parafac."""
    times = []
    with tl.backend_context("flycoo"):
        guess = CPTensor((None, list(factors)))
        options = {"n_iter_max": num_iterations, "init": guess, "tol": -1.0}
        parafac(x, RANK, callback=lambda *_: times.append(time.perf_counter()), **options)
    return float(np.median(np.diff(times)[1:]))


def main():
    parser = argparse.ArgumentParser("streaming", description=__doc__)
    parser.add_argument("--tensor", default="nell-1", choices=(*SHAPES, *LARGE_SHAPES))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--slabs", type=int)
    options = parser.parse_args()
    problem = Problem(options.tensor, 3.0, True, 1.0, options.share)
    slab_plan.count_resident_slabs = lambda *_: 0
    with repeats_kept():
        coords, values = problem.draw(np.float32)
        keep = {"slabs": options.slabs, "keep": "host"}
        start = time.perf_counter()
        x = FlycooTensor(coords, values, problem.shape, device="cuda", **keep)
        build_s = time.perf_counter() - start
        try:
            y = FlycooTensor(
                coords, values, problem.shape, device="cuda", layout="replicated", slabs=x.slabs
            )
        except MemoryError as error:
            y = None
            print(error)
    del coords, values
    free_memory()
    factors = draw_factors(problem.shape, RANK, np.float32)
    link, nbytes = time_link(), x.ndim * x.nnz * x._layout.record_format.record_nbytes
    sweep_s, found = time_sweeps(x, factors)
    iteration_s = time_iterations(x, factors)
    print(f"{options.tensor}: {x.nnz:,} nonzeros, {x.slabs} slabs, built in {build_s:.1f} s")
    print(f"link      {link / 1e9:6.1f} GB/s")
    for name, seconds in (("sweep", sweep_s), ("iteration", iteration_s)):
        rate = nbytes / seconds
        print(f"{name:9s} {rate / 1e9:6.1f} GB/s, {rate / link:.3f} of the link, {seconds:.3f} s")
    if y is not None:
        resident_s, expected = time_sweeps(y, factors)
        print(f"resident  {resident_s:.4f} s a sweep; same bits: {found == expected}")


if __name__ == "__main__":
    main()
