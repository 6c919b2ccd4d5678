"""Time sweeps of a tensor that is streamed from the host or from files, against the link or disk.

    python examples/benchmark_gpu/streaming.py --tensor nell-1
    python examples/benchmark_gpu/streaming.py --tensor nell-1 --folder /tmp/nell-1.flycoo

"link" is the rate of copies from pinned memory in the same run, "raw read" that of reading the
files by 1, 4 or 8 threads, the best. "sweep" and "iteration" are the rates at which a sweep of
MTTKRPs, or iterations of parafac, read records, as they are packed. Files are read cold, after the
system was told to forget them, and warm.
"""

import argparse
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cupy
import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac
from tensors import LARGE_SHAPES, SHAPES, Problem, draw_factors, free_memory, repeats_kept

from tensorly_flycoo import FlycooTensor, mttkrp, open_slabs, save_slabs
from tensorly_flycoo.engines.cuda.staging import CudaStager
from tensorly_flycoo.spread import memory

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
    return float(np.median(times[num_sweeps > 1 :])), [f.get().tobytes() for f in found]


def time_iterations(x, factors, num_iterations=6):
    """Return the seconds of an iteration of parafac."""
    times = []
    with tl.backend_context("flycoo"):
        guess = CPTensor((None, list(factors)))
        options = {"n_iter_max": num_iterations, "init": guess, "tol": -1.0}
        parafac(x, RANK, callback=lambda *_: times.append(time.perf_counter()), **options)
    return float(np.median(np.diff(times)[1:]))


def forget(folder):
    """Let the system forget what it has read of a folder's files."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def time_raw_read(folder, is_cold, piece=2**24):
    """Return the bytes per second of reading the files into memory in use, by 1, 4 or 8 threads."""
    pieces = [
        (path, start) for path in folder.iterdir() for start in range(0, path.stat().st_size, piece)
    ]
    rates, num_bytes = [], sum(path.stat().st_size for path in folder.iterdir())
    of_thread = threading.local()

    def prepare():
        of_thread.buffer = memoryview(bytearray(b"1" * piece))

    def read(path, start):
        with open(path, "rb", buffering=0) as file:
            os.preadv(file.fileno(), [of_thread.buffer], start)

    for num_threads in (1, 4, 8):
        with ThreadPoolExecutor(num_threads, initializer=prepare) as pool:
            list(pool.map(time.sleep, [0.05] * num_threads))  # threads start
            if is_cold:
                forget(folder)
            start = time.perf_counter()
            list(pool.map(read, *zip(*pieces, strict=True)))
            rates.append(num_bytes / (time.perf_counter() - start))
    return max(rates)


def measure_file(problem, folder):
    """Save a tensor, and time sweeps that read its files."""
    coords, values = problem.draw(np.float32)
    start = time.perf_counter()
    with repeats_kept():
        save_slabs(folder, [(coords.get(), values.get())], problem.shape, device="cuda")
    print(f"{problem.name}: {problem.nnz:,} nonzeros, saved in {time.perf_counter() - start:.1f} s")
    del coords, values
    free_memory()
    factors = draw_factors(problem.shape, RANK, np.float32)
    x = open_slabs(folder, device="cuda", keep="file")
    nbytes = x.ndim * x.nnz * x._layout.record_format.record_nbytes
    print(f"{x.slabs} slabs, {nbytes / 1e9:.1f} GB of records")
    time_sweeps(x, factors, 2)
    for name, is_cold in (("cold", True), ("warm", False)):
        raw, seconds = time_raw_read(folder, is_cold), []
        for _ in range(3):
            if is_cold:
                forget(folder)
            seconds.append(time_sweeps(x, factors, 1)[0])
        rate = nbytes / float(np.median(seconds))
        print(f"{name}: raw read {raw / 1e9:.2f} GB/s, sweep {rate / 1e9:.2f}, {rate / raw:.2f}")


def main():
    parser = argparse.ArgumentParser("streaming", description=__doc__)
    parser.add_argument("--tensor", default="nell-1", choices=(*SHAPES, *LARGE_SHAPES))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--slabs", type=int)
    parser.add_argument("--folder", type=Path, help="a new folder, to time its files")
    options = parser.parse_args()
    problem = Problem(options.tensor, 3.0, True, 1.0, options.share)
    if options.folder:
        measure_file(problem, options.folder)
        return
    memory.count_resident_slabs = lambda *_: 0
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
    link = time_link()
    nbytes = sum(copy.nbytes for slab in x._layout.slabs for copy in slab.layout.copies)
    unpacked_nbytes = len(x.groups) * x.nnz * x._layout.record_format.record_nbytes
    sweep_s, found = time_sweeps(x, factors)
    iteration_s = time_iterations(x, factors)
    print(f"{options.tensor}: {x.nnz:,} nonzeros, {x.slabs} slabs, built in {build_s:.1f} s")
    print(f"packed    {nbytes / 1e9:6.1f} GB, {nbytes / unpacked_nbytes:.0%} of the records")
    print(f"link      {link / 1e9:6.1f} GB/s")
    for name, seconds in (("sweep", sweep_s), ("iteration", iteration_s)):
        rate = nbytes / seconds
        print(f"{name:9s} {rate / 1e9:6.1f} GB/s, {rate / link:.3f} of the link, {seconds:.3f} s")
    if y is not None:
        resident_s, expected = time_sweeps(y, factors)
        print(f"resident  {resident_s:.4f} s a sweep; same bits: {found == expected}")


if __name__ == "__main__":
    main()
