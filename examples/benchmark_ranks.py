"""Time many starts and a rank search, and count how often a planted rank is found.

    python examples/benchmark_ranks.py starts             # 20 starts against one
    python examples/benchmark_ranks.py planted --seeds 20
    python examples/benchmark_ranks.py search --ranks 1 5 10 15 20 25 --runs 3

"search" compares `select_rank` with a loop over TensorLy on the dense array, which is how
cell2cell's rank search works (25 ranks, 20 runs each). Everything runs on the current device;
--device chooses another.
"""

import argparse
import time

import numpy as np
import tensorly as tl
from tensorly.decomposition import parafac

import tensorly_flycoo
from tensorly_flycoo import best_of, select_rank
from tensorly_flycoo.testing import planted_tensor, random_tensor


def measure(function, repeats):
    """Return the least and the median seconds of several calls, after one that is not counted."""
    function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds), float(np.median(seconds))


def compare_starts(args):
    x = random_tensor((100, 100, 100), 20_000, random_state=0, dtype=args.dtype)
    options = {"n_iter_max": 100, "tol": 0}
    lone = {"init": "random", "random_state": 0, "return_errors": True, **options}
    one = measure(lambda: parafac(x, 4, **lone), 5)
    many = measure(lambda: best_of(parafac, x, 4, 20, random_state=0, **options), 5)
    print(f"100^3, 20,000 nonzeros, rank 4, 100 iterations, {x.device}, {x.dtype}")
    print(
        f"one start {one[0]:.3f} s, 20 starts {many[0]:.3f} s, median {one[1]:.3f}, {many[1]:.3f}"
    )
    print(f"20 starts take {many[0] / one[0]:.2f} times as long, median {many[1] / one[1]:.2f}")


def find_planted(args):
    settings = (
        ((30, 40, 50), 3, 300, 0.1),
        ((30, 40, 50), 4, 300, 0.3),
        ((60, 60, 60), 5, 500, 0.2),
    )
    for shape, rank, nnz, noise in settings:
        found = []
        for seed in range(args.seeds):
            x, _ = planted_tensor(shape, rank, nnz, noise=noise, random_state=seed)
            found.append(select_rank(x, range(1, rank + 3), args.runs, random_state=seed).rank)
        count = sum(r == rank for r in found)
        print(f"{shape}, noise {noise}: rank {rank} found {count} times of {args.seeds}: {found}")


def search(args):
    x, _ = planted_tensor((100, 100, 100), 6, 4000, noise=0.2, random_state=0, dtype=args.dtype)
    start = time.perf_counter()
    selection = select_rank(x, args.ranks, args.runs, random_state=0)
    ours = time.perf_counter() - start
    print(selection)
    dense = x.to_coo().todense()
    start = time.perf_counter()
    with tl.backend_context("numpy"):
        for rank in args.ranks:
            for seed in range(args.runs):
                parafac(dense, rank, init="random", random_state=seed, return_errors=True)
    theirs = time.perf_counter() - start
    print(f"{x.nnz:,} nonzeros of 100^3, ranks {args.ranks}, {args.runs} runs each")
    print(f"select_rank {ours:.1f} s, TensorLy on the dense array {theirs:.1f} s: "
          f"{theirs / ours:.1f} times as long")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["starts", "planted", "search"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(range(1, 26)))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    tensorly_flycoo.set_device(args.device)
    tl.set_backend("flycoo")
    {"starts": compare_starts, "planted": find_planted, "search": search}[args.part](args)


if __name__ == "__main__":
    main()
