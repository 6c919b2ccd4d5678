"""Time sweeps of a tensor that is streamed from the host or from files, against the link or disk.

    python examples/benchmark_gpu/streaming.py --tensor nell-1
    python examples/benchmark_gpu/streaming.py --tensor nell-1 --gpus 1 2
    python examples/benchmark_gpu/streaming.py --tensor nell-1 --folder /tmp/nell-1.flycoo

"link" is the rate of copies from pinned memory to all GPUs at once in the same run, "raw read" that
of reading the files by 1, 4 or 8 threads, the best. "sweep" and "iteration" are the rates at which
a sweep of MTTKRPs, or iterations of parafac, read records, as they are packed. Files are read cold,
after the system was told to forget them, and warm. Several GPUs have the same slabs as one.
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
from tensors import LARGE_SHAPES, SHAPES, Problem, draw_factors, free_memory, repeats_kept

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, mttkrp, open_slabs, save_slabs
from tensorly_flycoo.engines.cuda.staging import CudaStager
from tensorly_flycoo.loop.initial_guess import spread_factors
from tensorly_flycoo.spread import memory
from tensorly_flycoo.spread.memory import choose_num_slabs

RANK = 32

#: Bytes of a record of three large modes in float32.
RECORD_NBYTES = 16


def wait_for_gpus(gpus):
    """Make every GPU idle."""
    for device in range(gpus):
        cupy.cuda.Device(device).synchronize()


def time_link(gpus, nbytes=2**30, repeats=4):
    """Return the bytes per second of copies from pinned memory to all GPUs at the same time."""
    copies = []
    for device in range(gpus):
        with cupy.cuda.Device(device):
            target = cupy.zeros(nbytes, np.uint8)
            source = CudaStager().put_aside(target)
            copies.append((target, source, cupy.cuda.Stream(non_blocking=True)))
    best = np.inf
    for _ in range(4):
        wait_for_gpus(gpus)
        start = time.perf_counter()
        for _ in range(repeats):
            for device, (target, source, stream) in enumerate(copies):
                with cupy.cuda.Device(device):
                    target.data.copy_from_host_async(source.ctypes.data, nbytes, stream)
        wait_for_gpus(gpus)
        best = min(best, time.perf_counter() - start)
    return gpus * repeats * nbytes / best


def time_sweeps(x, factors, gpus, num_sweeps=4):
    """Return the seconds of a sweep over all modes, and its results."""
    spread = spread_factors(x, factors)
    times, found = [], []
    for _ in range(num_sweeps):
        wait_for_gpus(gpus)
        start = time.perf_counter()
        found = [mttkrp(x, spread, mode) for mode in range(x.ndim)]
        wait_for_gpus(gpus)
        times.append(time.perf_counter() - start)
    return float(np.median(times[num_sweeps > 1 :])), found


def time_iterations(x, factors, gpus, num_iterations=6):
    """Return the seconds of an iteration of parafac, and its factors."""
    times = []

    def record(*_):
        wait_for_gpus(gpus)
        times.append(time.perf_counter())

    with tl.backend_context("flycoo"):
        guess = CPTensor((None, list(factors)))
        options = {"n_iter_max": num_iterations, "init": guess, "tol": -1.0}
        cp = tl.decomposition.parafac(x, RANK, callback=record, **options)
    return float(np.median(np.diff(times)[1:])), cp.factors


def read_bits(matrices):
    """Return the bits of float32 matrices that are on GPUs."""
    with tl.backend_context("flycoo"):
        return [tl.to_numpy(matrix).view(np.uint32) for matrix in matrices]


def are_same(bits, others):
    """Return whether two lists of arrays are equal."""
    return all(map(np.array_equal, bits, others))


def count_streamed(x):
    """Count the bytes that a sweep copies to GPUs, and those of the same records unpacked."""
    copies = [copy for slab in x._layout.slabs for copy in slab.layout.copies]
    record_nbytes = x._layout.record_format.record_nbytes
    return sum(copy.nbytes for copy in copies), record_nbytes * sum(map(len, copies))


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


def measure_files(problem, folder, slabs, list_of_gpus):
    """Save a tensor, and time sweeps that read its files."""
    coords, values = problem.draw(np.float32)
    start = time.perf_counter()
    with repeats_kept():
        given = [(coords.get(), values.get())]
        save_slabs(folder, given, problem.shape, slabs=slabs, device="cuda")
    print(f"{problem.name}: {problem.nnz:,} nonzeros, saved in {time.perf_counter() - start:.1f} s")
    del coords, values, given
    free_memory()
    factors = draw_factors(problem.shape, RANK, np.float32)
    for gpus in list_of_gpus:
        with tensorly_flycoo.set_device("cuda", gpus=gpus):
            start = time.perf_counter()
            x = open_slabs(folder, keep="file")
            open_s = time.perf_counter() - start
        nbytes, unpacked_nbytes = count_streamed(x)
        on_disk = sum(path.stat().st_size for path in folder.iterdir())
        print(
            f"{gpus} GPUs: {x.slabs} slabs, opened in {open_s:.2f} s, {nbytes / 1e9:.2f} GB of "
            f"records, {nbytes / unpacked_nbytes:.0%} of them unpacked; {on_disk / 1e9:.2f} on disk"
        )
        time_sweeps(x, factors, gpus, 2)
        for name, is_cold in (("cold", True), ("warm", False)):
            raw = time_raw_read(folder, is_cold)
            seconds = []
            for _ in range(3):
                if is_cold:
                    forget(folder)
                seconds.append(time_sweeps(x, factors, gpus, 1)[0])
            rate = nbytes / float(np.median(seconds))
            rates = f"raw read {raw / 1e9:.2f} GB/s, sweep {rate / 1e9:.2f}, {rate / raw:.2f}"
            print(f"{name}: {rates}, {np.median(seconds):.3f} s")


def measure_host(problem, slabs, list_of_gpus):
    """Time sweeps of a tensor that waits on the host, and of a resident one."""
    memory.count_resident_slabs = lambda *_: 0
    coords, values = problem.draw(np.float32)
    factors = draw_factors(problem.shape, RANK, np.float32)
    first = None  # the seconds of one sweep and iteration of the first number of GPUs
    product_bits, factor_bits = [], []
    for gpus in list_of_gpus:
        link = time_link(gpus)
        with tensorly_flycoo.set_device("cuda", gpus=gpus), repeats_kept():
            start = time.perf_counter()
            x = FlycooTensor(coords, values, problem.shape, slabs=slabs, keep="host")
            build_s = time.perf_counter() - start
        free_memory()
        nbytes, unpacked_nbytes = count_streamed(x)
        sweep_s, products = time_sweeps(x, factors, gpus)
        product_bits.append(read_bits(products))
        del products
        iteration_s, found = time_iterations(x, factors, gpus)
        factor_bits.append(read_bits(found))
        del found
        seconds = {"sweep": sweep_s, "iteration": iteration_s}
        first = first or seconds
        print(f"{problem.name}: {x.nnz:,} nonzeros, {x.slabs} slabs, built in {build_s:.1f} s")
        print(f"packed    {nbytes / 1e9:6.1f} GB, {nbytes / unpacked_nbytes:.0%} of the records")
        print(f"link      {link / 1e9:6.1f} GB/s, {gpus} GPUs")
        for name, of_one in seconds.items():
            rate = nbytes / of_one
            text = f"{rate / link:.3f} of the link, {of_one:.4f} s, x {first[name] / of_one:.2f}"
            print(f"{name:9s} {rate / 1e9:6.1f} GB/s, {text}")
        slabs = x.slabs
        del x
        free_memory()
    has_same = [
        are_same(bits, all_bits[0]) for all_bits in (product_bits, factor_bits) for bits in all_bits
    ]
    print(f"same bits on all numbers of GPUs: {all(has_same)}")
    try:
        with tensorly_flycoo.set_device("cuda", gpus=1), repeats_kept():
            y = FlycooTensor(coords, values, problem.shape, layout="replicated", slabs=slabs)
    except MemoryError as error:
        print(error)
        return
    resident_s, products = time_sweeps(y, factors, 1)
    has_same = are_same(read_bits(products), product_bits[0])
    print(f"resident  {resident_s:.4f} s a sweep; same bits: {has_same}")


def main():
    parser = argparse.ArgumentParser("streaming", description=__doc__)
    parser.add_argument("--tensor", default="nell-1", choices=(*SHAPES, *LARGE_SHAPES))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--slabs", type=int, help="by default as the most GPUs choose")
    parser.add_argument("--gpus", nargs="+", type=int, default=[1])
    parser.add_argument("--folder", type=Path, help="a new folder, to time its files")
    options = parser.parse_args()
    problem = Problem(options.tensor, 3.0, True, 1.0, options.share)
    slabs = options.slabs
    if slabs is None:
        slabs = choose_num_slabs(problem.nnz, max(options.gpus), RECORD_NBYTES)
    if options.folder:
        measure_files(problem, options.folder, slabs, options.gpus)
    else:
        measure_host(problem, slabs, options.gpus)


if __name__ == "__main__":
    main()
