"""Timing rank searches
====================

Time many starts and a rank search, and count how often a planted rank is found.

Run it::

    python examples/benchmark_ranks.py starts             # 20 starts against one
    python examples/benchmark_ranks.py planted --seeds 20
    python examples/benchmark_ranks.py search --ranks 5 15 25

"search" compares `select_rank` with a loop over TensorLy on the dense array, which is how
cell2cell's rank search works (25 ranks, 20 runs each). The loop runs once for each rank, and its
time is multiplied by the number of runs. Everything of ours runs on the current device; --device
chooses another.
"""

import argparse
import time

import numpy as np
import tensorly as tl
from tensorly.decomposition import parafac

import tensorly_flycoo
from tensorly_flycoo import best_of, select_rank
from tensorly_flycoo.testing import planted_tensor, random_tensor

#: Shape, rank, nonzeros of a component, and noise.
PLANTED = (
    ((30, 40, 50), 3, 300, 0.1),
    ((30, 40, 50), 4, 300, 0.3),
    ((60, 60, 60), 5, 500, 0.2),
)


def measure(function):
    """Return the seconds of a call, of all cores together too, since other programs slow it."""
    start, start_of_cores = time.perf_counter(), time.process_time()
    function()
    return np.array([time.perf_counter() - start, time.process_time() - start_of_cores])


def compare_starts(args):
    """Return how many times as long as one start 20 take."""
    x = random_tensor((100, 100, 100), 20_000, random_state=0, dtype=args.dtype)
    options = {"n_iter_max": args.iterations, "tol": 0}
    lone = {"init": "random", "random_state": 0, "return_errors": True, **options}

    def run_one():
        parafac(x, 4, **lone)

    def run_many():
        best_of(parafac, x, 4, 20, random_state=0, **options)

    seconds = [[measure(run)[0] for run in (run_one, run_many)] for _ in range(6)][1:]
    one, many = np.min(seconds, axis=0)
    print(f"100^3, 20,000 nonzeros, rank 4, {args.iterations} iterations, {x.device}, {x.dtype}")
    print(f"one start {one:.3f} s, 20 starts {many:.3f} s: {many / one:.2f} times as long")
    return many / one


def count_found(args):
    """Return how often each planted rank is found."""
    counts = []
    for shape, rank, nnz, noise in PLANTED:
        found = []
        for seed in range(args.seeds):
            x, _ = planted_tensor(shape, rank, nnz, noise=noise, random_state=seed)
            found.append(select_rank(x, range(1, rank + 3), args.runs, random_state=seed).rank)
        counts.append(sum(r == rank for r in found))
        print(f"{shape}, noise {noise}: rank {rank} found {counts[-1]} times of {args.seeds}")
        print(f"  {found}")
    return counts


def search(args):
    """Return how many times as long as ours the dense search takes."""
    shape = (args.size,) * 3
    x, _ = planted_tensor(shape, 6, 3500, noise=0.2, random_state=0, dtype=args.dtype)
    dense, ours, theirs = x.to_coo().todense(), 0.0, 0.0
    select_rank(x, args.ranks, args.runs, random_state=0, n_iter_max=2)  # loads compiled code
    for rank in args.ranks:
        seconds = measure(lambda rank=rank: select_rank(x, [rank], args.runs, random_state=0))
        with tl.backend_context("numpy"):
            options = {"init": "random", "random_state": 0, "return_errors": True}
            of_dense = args.runs * measure(lambda: parafac(dense, rank, **options))  # noqa: B023
        ours, theirs = ours + seconds, theirs + of_dense
        print(f"rank {rank}, {args.runs} runs: {seconds[0]:.2f} s, dense {of_dense[0]:.1f} s")
    ratio, of_cores = theirs / ours
    print(f"{x.nnz:,} nonzeros of {args.size}^3: the dense search takes {ratio:.1f} times as long, "
          f"and {of_cores:.1f} times the cores' time")  # fmt: skip
    return ratio


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"starts": compare_starts, "planted": count_found, "search": search}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(range(1, 26)))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--device")
    args = parser.parse_args(argv)
    if args.device:
        tensorly_flycoo.set_device(args.device)
    with tl.backend_context("flycoo"):
        return parts[args.part](args)


if __name__ == "__main__":
    main()
