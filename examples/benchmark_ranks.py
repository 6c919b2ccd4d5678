"""Timing rank searches
====================

Time many starts and a rank search, and count how often a planted rank is found.

Run it::

    python examples/benchmark_ranks.py starts             # 20 starts against one
    python examples/benchmark_ranks.py planted --seeds 30 --processes 16
    python examples/benchmark_ranks.py sparse --seeds 30 --runs 4
    python examples/benchmark_ranks.py search --ranks 5 15 25

"search" compares `select_rank` with a loop over TensorLy on the dense array, which is how
cell2cell's rank search works (25 ranks, 20 runs each). The loop runs once for each rank, and its
time is multiplied by the number of runs. Everything of ours runs on the current device; --device
chooses another.

"planted" counts how often `select_rank` finds planted ranks of 2 to 6 among 1 to 8: tensors of
25 x 30 x 35, components with about 300 nonzeros, noise relative to them. Counts are Poisson
variables with a mean of 5 at the nonzeros of the planted model, whose zeros stay zero. Methods for
non-negative data get no negative values. Seeds begin at 1000; none of these tensors was used to
choose the rule.

"sparse" plants ranks of 2 to 5 in counts of 60 x 50 x 40, few of which are not 0: their means come
from factors that are Gamma variables of shape 0.5. It chooses among ranks 1 to 6.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import time
import warnings

import numpy as np
import tensorly as tl
from tensorly.decomposition import parafac

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, best_of, select_rank
from tensorly_flycoo.testing import planted_tensor, random_tensor

#: The data that each method suits.
METHODS = {
    "parafac": (0.0, 0.05, 0.5),
    "non_negative_parafac": (0.0, 0.05, 0.5),
    "generalized_parafac": ("counts",),
}
COLUMNS = {0.0: "noise 0", 0.05: "noise 5 %", 0.5: "noise 50 %", "counts": "counts"}
#: Set the number of threads of numba and of libraries for linear algebra.
THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PLANTED_RANKS, TRIED_RANKS = range(2, 7), range(1, 9)
SPARSE_RANKS = range(2, 6)


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


def make_planted(method, data, rank, seed):
    """Return a tensor of one planted rank."""
    noise = 0.0 if data == "counts" else data
    x, _ = planted_tensor((25, 30, 35), rank, 300, noise=noise, random_state=seed)
    if method == "parafac":
        return x
    coords, values = x.nonzeros()
    if data == "counts":
        means = 5 * values / values.mean()
        values = np.random.RandomState(seed).poisson(means).astype(float)
    return FlycooTensor(coords[:, values > 0], values[values > 0], x.shape)


def find_rank(task):
    """Return the rank that is suggested for a planted one."""
    method, data, rank, seed, runs = task
    x = make_planted(method, data, rank, seed)
    warnings.simplefilter("ignore")
    with tl.backend_context("flycoo"):
        return select_rank(x, TRIED_RANKS, runs, method, random_state=seed).rank


def count_found(args):
    """Print a table of how often each planted rank is found; return the counts."""
    # One thread for each process, which reads these when it starts.
    os.environ.update(dict.fromkeys(THREADS, "1"))
    tasks = [
        (method, data, rank, seed, args.runs)
        for seed in range(args.first, args.first + args.seeds)
        for method, columns in METHODS.items()
        for data in columns
        for rank in reversed(PLANTED_RANKS)
    ]
    counts = dict.fromkeys((task[:3] for task in tasks), 0)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.processes, context) as pool:
        for task, found in zip(tasks, pool.map(find_rank, tasks), strict=True):
            method, data, rank, seed, _ = task
            counts[method, data, rank] += found == rank
            if found != rank:
                name = f"{method}, {COLUMNS[data]}, seed {seed}"
                print(f"{name}: {found} in place of {rank}", flush=True)
    ranks = ", ".join(map(str, PLANTED_RANKS))
    print(f"\nright of {args.seeds}, for the planted ranks {ranks}; {args.runs} runs\n")
    print("| method |", " | ".join(COLUMNS.values()), "|")
    print("|---|" + "---|" * len(COLUMNS))
    for method, columns in METHODS.items():
        cells = [
            ", ".join(str(counts[method, data, rank]) for rank in PLANTED_RANKS)
            if data in columns
            else ""
            for data in COLUMNS
        ]
        print(f"| `{method}` |", " | ".join(cells), "|")
    return counts


def find_sparse_rank(task):
    """Return the rank that is suggested for sparse counts, and whether they are said to be few."""
    mean, rank, seed, runs = task
    random = np.random.default_rng(seed)
    means = np.einsum("ir,jr,kr->ijk", *(random.gamma(0.5, 1, (n, rank)) for n in (60, 50, 40)))
    counts = random.poisson(means * (mean / means.mean())).astype(float)
    warnings.simplefilter("ignore")
    with tl.backend_context("flycoo"):
        options = {"method": "generalized_parafac", "random_state": seed}
        found = select_rank(FlycooTensor.from_dense(counts), range(1, 7), runs, **options)
    return found.rank, any("too few to tell" in text for text in found.warnings)


def count_sparse(args):
    """Print how often each planted rank of sparse counts is found; return the counts."""
    os.environ.update(dict.fromkeys(THREADS, "1"))
    print("| mean | planted rank | right | too low | too high | said to be too few: right, wrong |")
    print("|---|---|---|---|---|---|")
    counts, context = {}, multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.processes, context) as pool:
        for mean in args.means:
            for rank in SPARSE_RANKS:
                tasks = [(mean, rank, seed, args.runs) for seed in range(args.seeds)]
                found = list(pool.map(find_sparse_rank, tasks))
                own = [sum(f == rank for f, _ in found), sum(f < rank for f, _ in found)]
                own += [sum(f > rank for f, _ in found)]
                said = [sum(few and (f == rank) == good for f, few in found) for good in (1, 0)]
                cells = " | ".join(map(str, [mean, rank, *own]))
                print(f"| {cells} | {said[0]}, {said[1]} |", flush=True)
                counts[mean, rank] = own[0]
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
    parts = {
        "starts": compare_starts,
        "planted": count_found,
        "sparse": count_sparse,
        "search": search,
    }
    parser.add_argument("part", choices=parts)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--means", type=float, nargs="+", default=[0.003, 0.01, 0.03, 0.1, 0.3])
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
