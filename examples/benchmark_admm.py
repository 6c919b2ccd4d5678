"""Timing non-negative CP by ADMM next to SPLATT on the CPU
========================================================

Time iterations of non-negative CP by ADMM, ours and SPLATT's, from the same start.

Ours is `constrained_parafac` of a `sparse.COO` in float64. SPLATT's is the AO-ADMM of its branch
wip/ao-admm (Smith, Beri and Karypis, "Constrained tensor factorization with accelerated AO-ADMM",
ICPP 2017).

SPLATT takes part as a shared library with two C functions::

    void *rival_open(int ndim, int64_t nnz, const int64_t *shape,    // as of benchmark_rivals.py
                     const int32_t *coords, const double *values, int rank);
    int rival_iterate(void *rival, const char *setting, int threads, int num_iterations,
                      int num_steps,            // of ADMM for each factor and iteration
                      double *const *factors,   // the start, in whose place the result is written
                      double *seconds);         // of all iterations but the last

`rival_iterate` returns another number than 0 if it cannot serve the setting. All settings of
`--settings` are printed: count the fastest. They are SPLATT's numbers of CSFs, "private" with an
output for each thread, and a number of rows for the blocks of ADMM, which are 50 if none is named.

Both do the same work. They start from the same factors with columns of length 1, as SPLATT makes
them, and from duals of zero; the penalty of a mode is trace(gram) / rank; each factor gets exactly
so many steps (SPLATT's inner tolerance is 0); each iteration computes its error. SPLATT does all
steps of a block of rows before the next block, which changes no number: no row's step needs another
row. Only its test for an early end is by blocks, which tolerance 0 leaves unused. SPLATT drops rows
without nonzeros, so they are dropped for both.

NumPy computes from the nonzeros what share of the squared norm each result explains, 1 - error^2.
These shares must agree relatively, so that they are compared even where little is explained. Two
sums of nnz positive terms in different orders differ by at most nnz x eps relatively, and a solve
multiplies that by the condition of a penalized gram, at most rank + 1. Allowed is so much for each
iteration.

Each tool runs alone in a process, and they take turns. A time is that of the fastest iteration of
all rounds, without each run's first.

Run it::

    python examples/benchmark_admm.py splatt-float64.so --threads 1 4 16
    python examples/benchmark_admm.py splatt-float64.so --tensors 120K --rounds 1 --json admm.json
"""

import argparse
import ctypes
import functools
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmark_als import make_tensor
from benchmark_rivals import add_options, get_name, open_library, point_to, run_worker, work_apart

#: Iterations of a run, and steps of ADMM for each factor, as `constrained_parafac` has by default.
NUM_ITERATIONS, NUM_STEPS = 10, 10

SETTINGS = ("two", "two+400", "two+private+400", "all+400")

#: A share is computed from so many nonzeros at a time, whose rows fit a cache.
BLOCK_NNZ = 2**14


def save_problem(name, folder, rank):
    """Write sorted, unique nonzeros without empty rows, and factors with columns of length 1."""
    import sparse

    coo = sparse.COO(*make_tensor(name))
    ids = [np.unique(column, return_inverse=True) for column in coo.coords]
    coords = np.stack([places for _, places in ids]).astype(np.int32)
    shape = np.array([rows.size for rows, _ in ids])
    random = np.random.RandomState(1)
    factors = [random.rand(size, rank) for size in shape]
    starts = {
        f"factor{mode}": factor / np.linalg.norm(factor, axis=0)
        for mode, factor in enumerate(factors)
    }
    path = Path(folder) / f"{name}.npz"
    np.savez(path, coords=coords, values=np.abs(coo.data).astype(float), shape=shape, **starts)
    return path


def copy_start(arrays):
    """Return the factors to start from, which an iteration may overwrite."""
    return [arrays[f"factor{mode}"].copy() for mode in range(arrays["shape"].size)]


def find_share(arrays, factors):
    """Return the share of the squared norm that a model explains, from all nonzeros."""
    coords, values = arrays["coords"], arrays["values"]
    product = 0.0
    for start in range(0, values.size, BLOCK_NNZ):
        block = slice(start, start + BLOCK_NNZ)
        rows = [factor[ids[block]] for factor, ids in zip(factors, coords, strict=True)]
        product += values[block] @ functools.reduce(np.multiply, rows).sum(axis=1)
    model_square = functools.reduce(np.multiply, [factor.T @ factor for factor in factors]).sum()
    return float((2 * product - model_square) / (values @ values))


# The measurements.


def measure_flycoo(arrays, counts):
    """Yield our setting, threads, seconds of an iteration and share explained."""
    import numba
    import sparse
    import tensorly as tl

    from tensorly_flycoo.decomposition import constrained_parafac

    tl.set_backend("flycoo")
    shape = tuple(arrays["shape"].tolist())
    coo = sparse.COO(arrays["coords"], arrays["values"], shape, sorted=True, has_duplicates=False)
    for threads in counts:
        numba.set_num_threads(threads)
        stamps = []

        def note(model, error, stamps=stamps):
            stamps.append(time.perf_counter())

        model = constrained_parafac(
            coo,
            arrays["factor0"].shape[1],
            init=(None, copy_start(arrays)),
            non_negative=True,
            n_iter_max=NUM_ITERATIONS,
            n_iter_max_inner=NUM_STEPS,
            tol_outer=0,
            tol_inner=0,
            callback=note,
        )
        yield "", threads, float(np.diff(stamps).min()), find_share(arrays, model.factors)


def measure_library(path, settings, arrays, counts):
    """Yield a library's settings, threads, seconds of an iteration and share explained."""
    library, rival = open_library(path, arrays)
    seconds = np.empty(NUM_ITERATIONS - 1)
    for setting in settings:
        for threads in counts:
            factors = copy_start(arrays)
            status = library.rival_iterate(
                rival,
                setting.encode(),
                *map(ctypes.c_int, (threads, NUM_ITERATIONS, NUM_STEPS)),
                point_to(factors),
                ctypes.c_void_p(seconds.ctypes.data),
            )
            if status == 0:
                yield setting, threads, float(seconds[1:].min()), find_share(arrays, factors)


def work(tool, path, counts, settings, channel):
    """Measure one tool, and write a line of JSON for each figure."""
    with np.load(path) as file:
        arrays = dict(file)
    if tool == "flycoo":
        figures = measure_flycoo(arrays, counts)
    else:
        figures = measure_library(tool, settings, arrays, counts)
    for figure in figures:
        print(json.dumps(figure), file=channel, flush=True)


def measure(tool, path, options):
    """Measure one tool in a process of its own; return a row for each of its settings."""
    job = [str(tool), str(path), options.threads, options.settings]
    rows = {}
    for setting, threads, seconds, share in run_worker(__file__, job, max(options.threads)):
        empty = {"tool": get_name(tool), "setting": setting, "s": {}, "share": {}}
        row = rows.setdefault(setting, empty)
        row["s"][threads] = seconds
        row["share"][threads] = share
    return [*rows.values()]


def take_fastest(rounds):
    """Return the rows of several rounds as one, with the fewest seconds of each figure."""
    first, *others = rounds
    for rows in others:
        for best, row in zip(first, rows, strict=True):
            for threads, seconds in row["s"].items():
                best["s"][threads] = min(seconds, best["s"][threads])
    return first


def compare(name, options, folder):
    """Measure all tools on one tensor in turns; return a row for each of their settings."""
    path = save_problem(name, folder, options.rank)
    rounds = []
    for _ in range(options.rounds):
        tools = ("flycoo", *options.libraries)
        rounds.append([row for tool in tools for row in measure(tool, path, options)])
    rows = [{"tensor": name} | row for row in take_fastest(rounds)]
    print_rows(rows, options.threads)
    with np.load(path) as file:
        check(rows, file["values"].size, options.rank)
    path.unlink()
    return rows


def check(rows, nnz, rank):
    """Print by how much the shares differ, which rounding bounds: see the top of this file."""
    shares = [share for row in rows for share in row["share"].values()]
    difference = np.ptp(shares) / min(shares)
    allowed = NUM_ITERATIONS * (rank + 1) * nnz * np.finfo(float).eps
    print(f"shares differ by {difference:.1e} relatively, allowed {allowed:.1e}", flush=True)
    if not difference <= allowed:
        raise RuntimeError(f"shares from {min(shares)!r} to {max(shares)!r}")


def print_rows(rows, counts):
    """Print the table of one tensor, in ms."""
    print(f"{'ms an iteration':20}{'':10}{'setting':18}", end="")
    print("".join(f"{count:>10}" for count in counts) + f"{'error':>20}")
    for row in rows:
        times = [1e3 * row["s"].get(count, np.nan) for count in counts]
        *_, share = row["share"].values()
        print(f"{row['tensor']:20}{row['tool']:10}{row['setting']:18}", end="")
        print("".join(f"{figure:10.2f}" for figure in times) + f"{np.sqrt(1 - share):20.15f}")


def main(argv=None):
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[3])
    add_options(parser)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, help="of the libraries")
    parser.add_argument("--rounds", type=int, default=2, help="in which the tools take turns")
    options = parser.parse_args(argv)
    if options.worker:
        work_apart(work, options.worker)
        return []
    options.libraries = [path.resolve() for path in options.libraries]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tensors:
            rows += compare(name, options, folder)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    return rows


if __name__ == "__main__":
    main()
