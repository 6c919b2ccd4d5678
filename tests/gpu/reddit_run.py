"""MTTKRP of a tensor of Reddit-2015's shape: 4.69e9 nonzeros in slabs; needs 139 GB on a GPU.

    python tests/gpu/reddit_run.py
    python tests/gpu/reddit_run.py --rank 100 --iterations 80 --gpus 1 2 --precision mixed

The first line times a sweep of whole numbers, 1, 2 and their negatives, and compares each entry of
each mode with sums in float64: both are exact, so that a single lost nonzero shows. The second line
times whole calls of parafac: build, iterations, the way back; its factors must have the same bits
on any number of GPUs. In one piece, ids would take 8 bytes, and the tensor 150 GB. The nonzeros are
drawn on their GPU, slab by slab, and never are in one place. It is not part of the test suite,
whose tests share a GPU.
"""

import argparse
import hashlib
import sys
import time
from pathlib import Path

import cupy
import numpy as np
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo import mttkrp

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "benchmark_gpu"))
from tensors import Problem, build_by_slab, draw_factors


def make_whole(numbers):
    """Make 1, 2 and their negatives of random numbers from 0 to 1."""
    quarters = cupy.minimum(4 * numbers, 3).astype(np.int32)
    return cupy.asarray([-2, -1, 1, 2], np.float32)[quarters]


class WholeNumbers(Problem):
    """A tensor whose values are whole numbers: of both signs, so that sums stay below 2**24."""

    def draw_slab(self, dtype, number, num_slabs):
        coords, values, shape, rows = super().draw_slab(dtype, number, num_slabs)
        return coords, make_whole(values), shape, rows


def add_up(problem, num_slabs, factors):
    """Compute the MTTKRPs of all modes in float64, column by column."""
    expected = [cupy.zeros(factor.shape) for factor in factors]
    for number in range(num_slabs):
        coords, values, _, rows = problem.draw_slab(np.float32, number, num_slabs)
        coords[0] += rows.start
        for mode, total in enumerate(expected):
            for r in range(total.shape[1]):
                products = values.copy()
                for n, factor in enumerate(factors):
                    if n != mode:
                        products *= factor[:, r][coords[n]]
                total[:, r] += cupy.bincount(coords[mode], products, len(total))
    return expected


def time_parafac(problem, num_slabs, rank, num_iterations, gpus):
    """Time a call of parafac and its stages, and return the digest of its factors."""

    def synchronise():
        for number in range(gpus):
            cupy.cuda.Device(number).synchronize()
        return time.perf_counter()

    times, ends = [time.perf_counter()], []
    x = build_by_slab(problem, "indexed", num_slabs, gpus)
    times.append(synchronise())
    options = {"init": "random", "random_state": 0, "tol": -1.0}
    options["callback"] = lambda *_: ends.append(synchronise())
    with tl.backend_context("flycoo"):
        cp = tl.decomposition.parafac(x, rank, n_iter_max=num_iterations, **options)
        times.append(synchronise())
        factors = [tl.to_numpy(factor) for factor in cp.factors]
    times.append(time.perf_counter())
    build_s, parafac_s, back_s = np.diff(times)
    peaks = []
    for number in range(gpus):
        with cupy.cuda.Device(number):
            peaks.append(cupy.get_default_memory_pool().total_bytes() / 1e9)
    print(
        f"{gpus} GPUs, rank {rank}: {times[-1] - times[0]:.1f} s; {x.nbytes / 1e9:.1f} GB built in "
        f"{build_s:.1f} s, {num_iterations} iterations in {parafac_s:.1f} s, "
        f"{np.median(np.diff(ends)):.3f} s each, back in {back_s:.1f} s; the pools grew to "
        f"{', '.join(f'{peak:.1f}' for peak in peaks)} GB",
        flush=True,
    )
    return hashlib.sha256(b"".join(factor.tobytes() for factor in factors)).hexdigest()


def check_sweep(x, problem, num_slabs, rank):
    """Time a sweep, and compare each entry of each mode with sums in float64; `x` is given up."""
    factors = [make_whole(factor) for factor in draw_factors(problem.shape, rank, np.float32)]
    results, times = [], []
    for _ in range(2):
        results = []
        start = time.perf_counter()
        for mode in range(3):
            results.append(mttkrp(x[0], factors, mode))
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - start)
    print(f"a sweep of rank {rank}: {times[-1]:.3f} s", flush=True)
    x.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    for mode, expected in enumerate(add_up(problem, num_slabs, factors)):
        num_wrong = int(cupy.count_nonzero(results[mode] != expected))
        assert num_wrong == 0, (mode, num_wrong)
        largest = float(cupy.abs(expected).max())
        print(
            f"mode {mode}: all {expected.size} entries are exact, up to {largest:.0f}", flush=True
        )


def check_bits(problem, options):
    """Time parafac on each number of GPUs; the factors must have the same bits."""
    digests = set()
    for gpus in options.gpus:
        precision = tensorly_flycoo.set_precision(options.precision)
        with tensorly_flycoo.set_device("cuda", gpus=gpus), precision:
            fixed = (problem, options.slabs, options.rank, options.iterations)
            digests.add(time_parafac(*fixed, gpus))
        cupy.get_default_memory_pool().free_all_blocks()
    print(f"digests: {', '.join(digest[:16] for digest in digests)}", flush=True)
    assert len(digests) == 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=1, help="of the nonzeros")
    parser.add_argument("--slabs", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--iterations", type=int, help="of parafac, in place of the check")
    parser.add_argument("--precision", choices=["own", "mixed"], default="own")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1], help="for --iterations")
    options = parser.parse_args()
    arguments = ("reddit-2015", 3.0, True, 1.0, options.share)
    if options.iterations:
        check_bits(Problem(*arguments), options)
        return
    problem = WholeNumbers(*arguments)
    start = time.perf_counter()
    held = [build_by_slab(problem, "indexed", options.slabs, 1)]
    cupy.cuda.Device().synchronize()
    seconds, nbytes = time.perf_counter() - start, held[0].nbytes
    print(f"{held[0]}: {nbytes / 1e9:.1f} GB, built in {seconds:.1f} s", flush=True)
    check_sweep(held, problem, options.slabs, options.rank)


if __name__ == "__main__":
    main()
