"""Timing CP-ALS on the CPU
========================

Time CP-ALS on the CPU: TensorLy's parafac under "flycoo", pygenten, and tensorly.contrib.sparse.

Every measurement runs alone in its own process, and the tools take turns for several rounds, so
that other load on the machine affects them alike. What counts is the ratios within one run.

Run it::

    python examples/benchmark_als.py                      # ours against pygenten, 2 threads
    python examples/benchmark_als.py --contrib            # also contrib.sparse (minutes)
    python examples/benchmark_als.py --masks              # only the cost of missing values
    python examples/benchmark_als.py --whole              # whole calls, see whole_calls.py
    python examples/benchmark_als.py --json results.json
    python examples/benchmark_als.py --tensors nell-2 "nell-2, real pairs"

Random tensors draw each mode apart, or, if named "real pairs", so that combinations of indices
repeat as in FROSTT's tensor. pygenten is optional (`pip install pygenten`); without it only our own
figures are printed.
"""

import argparse
import functools
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmark_gpu.stages import draw_calls, print_calls
from benchmark_gpu.structured import STRUCTURES, draw_structured
from compare_with_tensorly import add_limits
from whole_calls import RANK, compare_calls

#: contrib.sparse at rank 16 needs more than 24 GB on nycflights.
CONTRIB_RANK = 4
#: Shapes and nonzeros of the random tensors; "long" only takes part in whole calls.
RANDOM = {
    "cube": ((1000, 1000, 1000), 1_000_000),
    "uber": ((183, 24, 1140, 1717), 3_300_000),
    "long": ((300_000, 200_000, 2_500_000), 5_000_000),
    "nell-2": (STRUCTURES["nell-2"].shape, 7_687_942),
    "120K": ((120_000, 60_000, 250_000), 10_000_000),
}
#: Random tensors whose combinations of indices repeat as in FROSTT's, and the share that is kept.
#: Lbnl with modes drawn apart is so sparse that the svd start finds nothing.
STRUCTURED = {"uber, real pairs": 1, "nell-2, real pairs": 0.1, "lbnl, real pairs": 1}
NAMES = (
    "nycflights", "babynames", "kinships", "cube", "uber", "uber, real pairs",
    "nell-2", "nell-2, real pairs", "lbnl, real pairs",
)  # fmt: skip
WHOLE_NAMES = (*NAMES, "long")
PYGENTEN_METHODS = ("MttkrpPerm", "MttkrpDuplicated", "MttkrpAtomic")


# The tensors: coords (ndim, nnz), values, shape.


def make_tensor(name):
    """Make one of the tensors."""
    if name == "nycflights":
        from flights import build_tensor

        coo = build_tensor(device="cpu").tensor.to_coo()
        return coo.coords, coo.data.astype(float), coo.shape
    if name == "babynames":
        return make_babynames()
    if name == "kinships":
        from knowledge_graph import read_triples

        triples, entities, relations = read_triples(name)
        coords = np.hstack(triples)
        return coords, np.ones(coords.shape[1]), (entities.size, relations.size, entities.size)
    random = np.random.RandomState(0)
    if name in STRUCTURED:
        structure = STRUCTURES[name.removesuffix(", real pairs")].shrink(STRUCTURED[name])
        coords = draw_structured(structure, 1.0, True, random)
        return coords, random.rand(coords.shape[1]), structure.shape
    shape, nnz = RANDOM[name]
    return np.stack([random.randint(0, size, nnz) for size in shape]), random.rand(nnz), shape


def make_babynames():
    """Return 138 years of American babies, as counts by year x sex x name."""
    import pandas as pd
    from baby_names import load_table

    babynames = load_table()
    columns = (babynames.year.astype(int), babynames.sex, babynames.name)
    coords = np.stack([pd.factorize(column, sort=True)[0] for column in columns])
    shape = tuple(int(rows.max()) + 1 for rows in coords)
    return coords, babynames.n.to_numpy(float), shape


def save_tensor(name, folder):
    """Write a tensor with sorted, unique coordinates, like those of a sparse.COO."""
    from tensorly_flycoo import FlycooTensor

    # pydata/sparse cannot sort lbnl's coordinates.
    coo = FlycooTensor(*make_tensor(name), device="cpu").to_coo()
    path = Path(folder) / f"{name.replace(' ', '-')}.npz"
    np.savez(path, coords=coo.coords, values=coo.data, shape=coo.shape)
    return str(path)


def load_tensor(path):
    """Read a tensor that `save_tensor` wrote."""
    with np.load(path) as arrays:
        return arrays["coords"], arrays["values"], tuple(arrays["shape"].tolist())


# The measurements. Time per iteration is the slope between few and many iterations.

FEW = 2


def best_time(run, *arguments):
    """Return the seconds of a call: the best of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def measure_flycoo(path, iterations, layout, rank=RANK):
    """Time our building, SVD initialisation and iterations; measure the peak memory."""
    import sparse
    import tensorly as tl
    from tensorly.decomposition import parafac

    from tensorly_flycoo import FlycooTensor

    tl.set_backend("flycoo")
    coords, values, shape = load_tensor(path)
    coo = sparse.COO(coords, values, shape, sorted=True, has_duplicates=False)
    FlycooTensor(np.zeros((coo.ndim, 1), int), [1.0], (3,) * coo.ndim, layout=layout)  # kernels
    start = time.perf_counter()
    x = FlycooTensor.from_coo(coo, layout=layout)
    build_s = time.perf_counter() - start

    def run(n, init="random"):
        # tol is too small to stop the run, but makes every iteration compute the fit.
        parafac(x, rank, n_iter_max=n, init=init, tol=1e-300, random_state=0)

    run(1)
    few_s, many_s = best_time(run, FEW), best_time(run, FEW + iterations)
    peak_nbytes = read_peak_nbytes()
    factors_nbytes = 8 * rank * sum(shape)
    allowed = coords.nbytes + values.nbytes + x.nbytes + 5 * factors_nbytes + 200e6
    return {
        "build_s": build_s,
        "few_s": few_s,
        "many_s": many_s,
        "svd_and_one_s": best_time(run, 1, "svd"),
        "peak_nbytes": peak_nbytes,
        "allowed_nbytes": allowed,
    }


def read_peak_nbytes():
    """Return the peak memory of this process (getrusage would include its parent's)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def measure_masks(path, iterations, layout, rank=RANK):
    """Time our iterations without a mask and with 1 % of the nonzeros missing, in turn."""
    import sparse
    import tensorly as tl
    from tensorly.decomposition import non_negative_parafac, parafac

    from tensorly_flycoo import FlycooTensor

    tl.set_backend("flycoo")
    coords, values, shape = load_tensor(path)
    x = FlycooTensor(coords, values, shape, layout=layout)
    missing = coords[:, np.random.RandomState(0).permutation(values.size)[: values.size // 100]]
    masks = {
        "none": None,
        "mask": sparse.COO(missing, np.zeros(missing.shape[1]), shape, fill_value=1.0),
    }

    def run(function, mask, n):
        function(x, rank, n_iter_max=n, init="random", tol=1e-300, random_state=0, mask=mask)

    best = {}
    for function in (parafac, non_negative_parafac):
        for n in 3 * [FEW, FEW + iterations]:
            for name, mask in masks.items():
                run(function, mask, 1)
                start = time.perf_counter()
                run(function, mask, n)
                keep_best(best, {f"{function.__name__} {name} {n}": time.perf_counter() - start})
    return best


def measure_pygenten(path, iterations, method):
    """Time pygenten's iterations with one of its MTTKRP methods."""
    import pygenten

    coords, values, shape = load_tensor(path)
    subscripts = np.ascontiguousarray(coords.T.astype(np.uint64))
    x = pygenten.Sptensor(shape, subscripts, values)

    run = functools.partial(run_pygenten, pygenten, x, method)
    run(1)
    few_s, many_s = best_time(run, FEW), best_time(run, FEW + iterations)
    del run, x  # before the interpreter unloads the library
    return {"few_s": few_s, "many_s": many_s}


def run_pygenten(pygenten, x, method, n):
    """Run n iterations of pygenten."""
    method = getattr(pygenten, method)
    pygenten.cp_als(x, rank=RANK, maxiters=n, tol=0.0, mttkrp_method=method, seed=1, printitn=0)


def measure_contrib(path, rank):
    """Time one iteration of tensorly.contrib.sparse."""
    import sparse
    from tensorly.contrib.sparse.decomposition import parafac

    coords, values, shape = load_tensor(path)
    coo = sparse.COO(coords, values, shape, sorted=True, has_duplicates=False)
    start = time.perf_counter()
    parafac(coo, rank, n_iter_max=1, init="random", tol=1e-300, random_state=0)
    return {"iteration_s": time.perf_counter() - start}


MEASUREMENTS = {
    "flycoo": measure_flycoo,
    "masks": measure_masks,
    "pygenten": measure_pygenten,
    "contrib": measure_contrib,
}


def measure(tool, *arguments, threads):
    """Run one measurement in its own process."""
    environment = os.environ | {
        "NUMBA_NUM_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_PROC_BIND": "spread" if tool == "pygenten" else "false",
        "OMP_PLACES": "threads",
    }
    command = [sys.executable, __file__, "--worker", json.dumps([tool, *arguments])]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    if process.returncode != 0:
        raise RuntimeError(f"{tool} {arguments} failed:\n{process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def compare(name, path, options):
    """Let the tools take turns on one tensor; keep the best times of each."""
    ours, theirs = {}, {}
    has_pygenten = importlib.util.find_spec("pygenten") is not None
    arguments, threads = (path, options.iterations), options.threads
    for _ in range(options.rounds):
        keep_best(ours, measure("flycoo", *arguments, options.layout, threads=threads))
        # Try all its methods once, then repeat only the best.
        method = min(theirs, key=lambda m: theirs[m]["many_s"], default=None)
        for m in ([method] if method else PYGENTEN_METHODS) if has_pygenten else ():
            keep_best(theirs.setdefault(m, {}), measure("pygenten", *arguments, m, threads=threads))
    row = {"tensor": name, **ours, "iteration_s": get_slope(ours, options.iterations)}
    row["svd_s"] = row["svd_and_one_s"] - row["iteration_s"]
    if theirs:
        slopes = {m: get_slope(times, options.iterations) for m, times in theirs.items()}
        method = min(theirs, key=lambda m: theirs[m]["many_s"])
        row |= {"pygenten_method": method, "pygenten_s": slopes[method]}
        row["speedup"] = row["pygenten_s"] / row["iteration_s"]
    return row


def keep_best(best, result):
    """Keep the smaller of each pair of figures, because noise only ever adds."""
    for key, figure in result.items():
        best[key] = min(figure, best.get(key, np.inf))


def get_slope(times, iterations):
    """Return seconds per iteration without the fixed cost of a run."""
    return (times["many_s"] - times["few_s"]) / iterations


def compare_with_contrib(name, path, options):
    """Time one iteration of contrib.sparse and one of ours, at a rank that fits in memory."""
    times = measure(
        "flycoo", path, options.iterations, options.layout, CONTRIB_RANK, threads=options.threads
    )
    ours = get_slope(times, options.iterations)
    theirs = measure("contrib", path, CONTRIB_RANK, threads=options.threads)["iteration_s"]
    print(f"{name}, rank {CONTRIB_RANK}: contrib.sparse takes {theirs / ours:,.0f} times as long")
    return {"contrib_s": theirs, "contrib_ours_s": ours}


def compare_masks(name, path, options):
    """Print how much 1 % of missing nonzeros adds to an iteration."""
    best = {}
    for _ in range(options.rounds):
        arguments = (path, options.iterations, options.layout)
        keep_best(best, measure("masks", *arguments, threads=options.threads))
    row = {"tensor": name}
    for function in ("parafac", "non_negative_parafac"):
        slopes = {}
        for kind in ("none", "mask"):
            counts = {"few_s": FEW, "many_s": FEW + options.iterations}
            times = {key: best[f"{function} {kind} {n}"] for key, n in counts.items()}
            slopes[kind] = get_slope(times, options.iterations)
        ratio = slopes["mask"] / slopes["none"]
        print(f"{name:23}{function:22}{1e3 * slopes['none']:8.1f} ms/iteration", end="")
        print(f"{1e3 * slopes['mask']:8.1f} with 1 % missing: {ratio:.2f} times as long")
        row |= {f"{function}_{kind}_s": slope for kind, slope in slopes.items()}
    return row


def print_rows(rows):
    """Print the table."""
    print(f"\n{'':23}{'ms/iteration':>13}{'pygenten':>10}{'ratio':>7}", end="")
    print(f"{'build/it.':>11}{'svd/it.':>9}{'peak MB':>9}{'allowed':>9}")
    for row in rows:
        print(f"{row['tensor']:23}{1e3 * row['iteration_s']:13.1f}", end="")
        print(
            f"{1e3 * row.get('pygenten_s', np.nan):10.1f}{row.get('speedup', np.nan):7.2f}", end=""
        )
        print(f"{row['build_s'] / row['iteration_s']:11.1f}", end="")
        print(f"{row['svd_s'] / row['iteration_s']:9.1f}", end="")
        print(f"{row['peak_nbytes'] / 1e6:9.0f}{row['allowed_nbytes'] / 1e6:9.0f}")
    if all("speedup" in row for row in rows):
        mean = np.exp(np.mean([np.log(row["speedup"]) for row in rows]))
        print(f"geometric mean of the ratios to pygenten: {mean:.2f}")


def compare_whole_calls(options):
    """Compare whole calls on each tensor; print a table after each, and that of all."""
    calls = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tensors:
            calls.append(compare_calls(name, Path(save_tensor(name, folder)), options))
            print_calls(calls[-1])
    calls = list(itertools.chain.from_iterable(calls))
    print_calls(calls)
    if options.figure:
        title = f"parafac, rank {RANK}, {options.iterations} iterations, {options.threads} threads"
        draw_calls(calls, options.figure, title)
    return calls


def compare_iterations(options):
    """Compare iterations, or those with and without masks, on each tensor."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tensors:
            path = save_tensor(name, folder)
            if options.masks:
                rows.append(compare_masks(name, path, options))
                continue
            rows.append(compare(name, path, options))
            if options.contrib and name == "nycflights":
                rows[-1] |= compare_with_contrib(name, path, options)
            print_rows(rows[-1:])
    if not options.masks:
        print_rows(rows)
    return rows


def parse(argv):
    """Parse the options; their defaults depend on whether whole calls are measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, help="by default 10, or 50 in whole calls")
    parser.add_argument("--threads", type=int, default=2)
    layouts = ("auto", "remap", "replicated", "indexed")
    parser.add_argument("--layout", default="auto", choices=layouts)
    parser.add_argument("--tensors", nargs="+", choices=WHOLE_NAMES)
    parser.add_argument("--contrib", action="store_true", help="also time contrib.sparse")
    parser.add_argument("--masks", action="store_true", help="only time what a mask costs")
    parser.add_argument("--whole", action="store_true", help="only time whole calls")
    add_limits(parser, limit_s=1800)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--figure", type=Path, help="draw whole calls to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.iterations = options.iterations or (50 if options.whole else 10)
    options.tensors = options.tensors or (WHOLE_NAMES if options.whole else NAMES)
    return options


def main(argv=None):
    """Run the benchmark and print its table."""
    options = parse(argv)
    if options.worker:
        tool, *arguments = json.loads(options.worker)
        print(json.dumps(MEASUREMENTS[tool](*arguments)))
        return []
    rows = compare_whole_calls(options) if options.whole else compare_iterations(options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return rows


if __name__ == "__main__":
    main()
