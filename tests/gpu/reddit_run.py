"""MTTKRP of a tensor of Reddit-2015's shape: 4.69e9 nonzeros in slabs; needs 139 GB on a GPU.

    python tests/gpu/reddit_run.py
    python tests/gpu/reddit_run.py --rank 100 --iterations 80 --gpus 1 2

The second line times whole calls of parafac: build, iterations, the way back; its factors must have
the same bits on any number of GPUs. In one piece, ids would take 8 bytes, and the tensor 150 GB.
The nonzeros are drawn on their GPU, slab by slab, and never are in one place. Without --iterations
some rows of each mode are compared with sums in float64. It is not part of the test suite, whose
tests share a GPU.
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

NUM_CHECKED = 1000


def draw(problem, number, num_slabs):
    """Draw the nonzeros of a slab on the GPU, with the rows of the whole tensor."""
    coords, values, _, rows = problem.draw_slab(np.float32, number, num_slabs)
    coords[0] += rows.start
    return coords, values


def add_up(problem, num_slabs, factors, mode, rows):
    """Compute some rows of the MTTKRP of a mode in float64, and count their nonzeros."""
    rank = factors[0].shape[1]
    counts, expected = cupy.zeros(len(rows), np.int64), cupy.zeros((len(rows), rank))
    place_of = cupy.full(problem.shape[mode], -1, np.int32)
    place_of[rows] = cupy.arange(len(rows), dtype=np.int32)
    for number in range(num_slabs):
        coords, values = draw(problem, number, num_slabs)
        places = place_of[coords[mode]]
        kept = cupy.flatnonzero(places >= 0)
        counts += cupy.bincount(places[kept], minlength=len(rows))
        products = values[kept].astype(np.float64)[:, None]
        for n in range(3):
            if n != mode:
                products = products * factors[n][coords[n][kept]].astype(np.float64)
        for r in range(rank):
            expected[:, r] += cupy.bincount(places[kept], products[:, r], len(rows))
    return expected, counts


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
    """Time a sweep, and compare some rows of each mode with sums in float64; `x` is given up."""
    factors = draw_factors(problem.shape, rank, np.float32)
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
    for mode in range(3):
        random, size = np.random.default_rng(mode), problem.shape[mode]
        rows = np.sort(random.choice(size, NUM_CHECKED, replace=False))
        expected, counts = add_up(problem, num_slabs, factors, mode, cupy.asarray(rows))
        error = cupy.abs(results[mode][rows] - expected)
        # All terms are positive, so their sum is that of their absolute values.
        bound = ((counts + 3) * np.finfo(np.float32).eps)[:, None] * expected
        assert bool((error <= bound).all()), mode
        largest = float((error / cupy.maximum(expected, 1e-30)).max())
        print(f"mode {mode}: {NUM_CHECKED} rows, largest relative error {largest:.1e}", flush=True)


def check_bits(problem, options):
    """Time parafac on each number of GPUs; the factors must have the same bits."""
    digests = set()
    for gpus in options.gpus:
        with tensorly_flycoo.set_device("cuda", gpus=gpus):
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
    parser.add_argument("--gpus", type=int, nargs="+", default=[1], help="for --iterations")
    options = parser.parse_args()
    problem = Problem("reddit-2015", 3.0, True, 1.0, options.share)
    if options.iterations:
        check_bits(problem, options)
        return
    start = time.perf_counter()
    held = [build_by_slab(problem, "indexed", options.slabs, 1)]
    cupy.cuda.Device().synchronize()
    seconds, nbytes = time.perf_counter() - start, held[0].nbytes
    print(f"{held[0]}: {nbytes / 1e9:.1f} GB, built in {seconds:.1f} s", flush=True)
    check_sweep(held, problem, options.slabs, options.rank)


if __name__ == "__main__":
    main()
