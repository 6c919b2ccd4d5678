"""Comparing with TensorLy and others
==================================

Compare this package with TensorLy's own methods and other packages, on one tensor.

Each row of the table is a separate process with a time and a memory limit. It runs the same
alternating least squares, with the same rank and initial guess. So fits and factors should agree;
time and memory differ. A row that fails gives the reason; one that is too slow is stopped.

Run it::

    python examples/compare_with_tensorly.py
    python examples/compare_with_tensorly.py --tensor flights --rank 4 --limit-s 300
    python examples/compare_with_tensorly.py --shape 2000 1000 500 --json out.json --figure out.png

pyttb and pygenten take part if installed, a GPU if CuPy is. The figure needs matplotlib.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmark_gpu.stages import add_time_to_fit
from showing import save

# The ways to compare. Each returns two functions: one converts a COO to its kind of tensor; the
# other takes that tensor, the guess and a number of iterations, and returns the factors and the
# fits, of every iteration or only of the last.


def use_tensorly(make, backend="numpy", device="cpu", parafac=None):
    """Run TensorLy's parafac under a backend."""
    import tensorly as tl

    import tensorly_flycoo

    tensorly_flycoo.set_device(device)
    tl.set_backend(backend)
    parafac = parafac or tl.decomposition.parafac

    def run(x, guess, num_iterations):
        context = tl.context(x) if backend == "flycoo" else {}
        init = (None, [tl.tensor(factor, **context) for factor in guess])
        # With tol=0 the run never stops early; return_errors still computes the errors.
        options = {"init": init, "tol": 0, "return_errors": True}
        (_, factors), errors = parafac(x, len(guess[0].T), num_iterations, **options)
        return [tl.to_numpy(factor) for factor in factors], [1 - as_float(e) for e in errors]

    return make, run


def as_float(error):
    """Convert an error to a float; contrib.sparse returns it as a sparse array without axes."""
    return float(error.todense() if hasattr(error, "todense") else error)


def use_dense():
    return use_tensorly(lambda coo: coo.todense())


def use_coo():
    return use_tensorly(lambda coo: coo)


def use_contrib():
    from tensorly.contrib.sparse.decomposition import parafac

    return use_tensorly(lambda coo: coo, parafac=parafac)


def use_flycoo(device="cpu"):
    from tensorly_flycoo import FlycooTensor

    return use_tensorly(FlycooTensor.from_coo, "flycoo", device)


def use_flycoo_gpu():
    return use_flycoo("cuda")


def use_pyttb():
    import pyttb

    def make(coo):
        return pyttb.sptensor(coo.coords.T.copy(), coo.data[:, None].copy(), coo.shape)

    def run(x, guess, num_iterations):
        init = pyttb.ktensor([factor.copy() for factor in guess])
        options = {"maxiters": num_iterations, "stoptol": 0, "printitn": 0, "init": init}
        model, _, output = pyttb.cp_als(x, len(guess[0].T), **options)
        return model.factor_matrices, [float(output["fit"])]

    return make, run


def use_pygenten():
    import pygenten

    def make(coo):
        subscripts = np.ascontiguousarray(coo.coords.T.astype(np.uint64))
        return pygenten.Sptensor(coo.shape, subscripts, coo.data)

    def run(x, guess, num_iterations):
        rank = len(guess[0].T)
        init = pygenten.Ktensor(np.ones(rank), [np.asfortranarray(factor) for factor in guess])
        options = {"maxiters": num_iterations, "tol": 0.0, "printitn": 0, "init": init}
        model, _, history = pygenten.cp_als(x, rank=rank, **options)
        # Copies: the library's own arrays must be freed before the interpreter exits.
        factors = [np.array(factor) for factor in model.factor_matrices]
        return factors, [float(history.getEntry(n).fit) for n in range(history.size())]

    return make, run


OURS = "flycoo, CPU"
WAYS = {
    OURS: use_flycoo,
    "flycoo, GPU": use_flycoo_gpu,
    "TensorLy, dense": use_dense,
    "TensorLy, COO": use_coo,
    "contrib.sparse": use_contrib,
    "pyttb": use_pyttb,
    "pygenten": use_pygenten,
}
NEEDS = {"flycoo, GPU": "cupy", "pyttb": "pyttb", "pygenten": "pygenten"}


# The tensors.


def make_tensor(options):
    """Return the tensor as a sparse.COO."""
    if options.tensor == "flights":
        from flights import build_tensor

        return build_tensor(device="cpu").tensor.to_coo()
    from tensorly_flycoo.testing import planted_tensor

    arguments = (options.shape, options.rank, options.nnz // options.rank)
    return planted_tensor(*arguments, noise=0.3, random_state=0, device="cpu")[0].to_coo()


def save_problem(path, coo, rank, seed):
    """Write the nonzeros and a random guess."""
    guess = {f"factor_{n}": factor for n, factor in enumerate(draw_guess(coo.shape, rank, seed))}
    np.savez(path, coords=coo.coords, values=coo.data.astype(float), shape=coo.shape, **guess)


def draw_guess(shape, rank, seed):
    """Draw the factors that TensorLy draws for init="random"."""
    random = np.random.RandomState(seed)
    return [random.random_sample((size, rank)) for size in shape]


def load_problem(path):
    """Read a tensor and the guess, if any, that `save_problem` wrote."""
    import sparse

    with np.load(path) as arrays:
        shape = tuple(arrays["shape"].tolist())
        coo = sparse.COO(
            arrays["coords"], arrays["values"], shape, sorted=True, has_duplicates=False
        )
        return coo, [arrays[name] for name in arrays if name.startswith("factor_")]


# The process of a row. It saves each figure immediately, in case it is stopped.


def work(way, folder, num_iterations, memory_gb):
    """Measure one way and write its figures and factors into the folder."""
    path, (coo, guess) = folder / "row.json", load_problem(folder / "problem.npz")
    make, run = WAYS[way]()
    if way != "flycoo, GPU":  # CUDA reserves addresses far beyond what it uses
        limit_memory(memory_gb)
    with failure_written(path):
        start = time.perf_counter()
        x = make(coo)
        run(x, guess, 1)
        first_s = time.perf_counter() - start
        path.write_text(json.dumps({"first_s": first_s}))
        few_s = time_run(run, x, guess, 1)[0]
        many_s, (factors, fits) = time_run(run, x, guess, 1 + num_iterations)
        iteration_s = max(many_s - few_s, 0) / num_iterations
        row = {"first_s": first_s, "iteration_s": iteration_s, "fit": fits[-1], "fits": fits}
        row["peak_nbytes"] = read_nbytes("VmHWM")
        if "cupy" in sys.modules and way == "flycoo, GPU":
            row["gpu_nbytes"] = sys.modules["cupy"].get_default_memory_pool().total_bytes()
        np.savez(folder / "factors.npz", *factors)
        path.write_text(json.dumps(row))


@contextlib.contextmanager
def failure_written(path):
    """If the block fails, write the reason to a file as its row."""
    try:
        yield
    except (MemoryError, TypeError, ValueError, RuntimeError) as error:
        text = str(error).strip().partition("\n")[0]
        path.write_text(json.dumps({"failure": f"{type(error).__name__}: {text}"}))


def time_run(run, *arguments):
    """Return the seconds of a run, the best of three if it is short, and its result."""
    times = []
    while len(times) < 3 and sum(times) < 3:
        start = time.perf_counter()
        result = run(*arguments)
        times.append(time.perf_counter() - start)
    return min(times), result


def limit_memory(memory_gb):
    """Limit memory, so that exceeding it raises MemoryError before the system kills the process."""
    limit = read_nbytes("VmSize") + int(memory_gb * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def read_nbytes(name):
    """Return a figure of this process from Linux: VmSize, or VmHWM, its peak memory."""
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


# The table.


def measure(way, problem, options, program=__file__):
    """Measure a way in a process of a program; return its row. The first one is the reference."""
    if way in NEEDS and importlib.util.find_spec(NEEDS[way]) is None:
        return {"way": way, "failure": f"{NEEDS[way]} is not installed"}
    threads = str(options.threads)
    environment = os.environ | {
        "NUMBA_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads,
        "OMP_PROC_BIND": "spread" if way == "pygenten" else "false", "OMP_PLACES": "threads",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "problem.npz").symlink_to(problem)
        arguments = [way, name, options.iterations, options.memory_gb]
        command = [sys.executable, program, "--worker", json.dumps(arguments)]
        failure = run_process(command, environment, options.limit_s)
        path = folder / "row.json"
        row = {"way": way} | (json.loads(path.read_text()) if path.exists() else {})
        if failure is not None and "failure" not in row and "fit" not in row:
            row["failure"] = failure
        reference, factors = problem.with_name("reference.npz"), folder / "factors.npz"
        if factors.exists() and way == OURS:
            factors.replace(reference)
        elif factors.exists() and reference.exists():
            row["difference"] = largest_difference(factors, reference)
    return row


def run_process(command, environment, limit_s):
    """Run a process to its end or the time limit; return what went wrong, or None."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return f"cut off at {limit_s:g} s"
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else f"exit {done.returncode}: {(lines or [''])[-1]}"


def largest_difference(path, reference_path):
    """Compare factors with unit columns, ignoring the order and signs of components."""
    factors, reference = read_unit_factors(path), read_unit_factors(reference_path)
    cosines = [b.T @ a for a, b in zip(factors, reference, strict=True)]
    order = np.abs(np.prod(cosines, axis=0)).argmax(axis=1)
    differences = [
        np.abs(a[:, order] * np.sign(np.diagonal(c[:, order])) - b).max()
        for a, b, c in zip(factors, reference, cosines, strict=True)
    ]
    return float(max(differences))


def read_unit_factors(path):
    """Read factors and scale their columns to norm 1."""
    with np.load(path) as arrays:
        factors = [arrays[name] for name in arrays.files]
    return [f / np.maximum(np.linalg.norm(f, axis=0), 1e-300) for f in factors]


COLUMNS = {
    "first_s": ("first, s", ".3g"),
    "iteration_s": ("s/iteration", ".3g"),
    "ratio": ("ratio", ",.3g"),
    "to_fit_s": ("s to fit", ".3g"),
    "peak_mb": ("peak MB", ",.0f"),
    "gpu_mb": ("GPU MB", ",.0f"),
    "fit": ("fit", ".6f"),
    "difference": ("difference", ".1e"),
}


def print_table(rows):
    """Print the rows; for those that did not finish, the reason."""
    print(f"{'':16}" + "".join(f"{title:>12}" for title, _ in COLUMNS.values()))
    ours_s = rows[0].get("iteration_s")
    for row in rows:
        figures = row | {"peak_mb": row.get("peak_nbytes", np.nan) / 1e6}
        if "gpu_nbytes" in row:
            figures["gpu_mb"] = row["gpu_nbytes"] / 1e6
        if ours_s and "iteration_s" in row:
            figures["ratio"] = row["iteration_s"] / ours_s
        cells = [
            format(figures[name], style) if np.isfinite(figures.get(name, np.nan)) else ""
            for name, (_, style) in COLUMNS.items()
        ]
        print(f"{row['way']:16}" + "".join(f"{cell:>12}" for cell in cells))
        if "failure" in row:
            print(f"{'':18}{row['failure'][:100]}")


def plot(rows, path, title):
    """Plot time per iteration and memory; a row that did not finish gives the reason instead."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.5 + 0.5 * len(rows)), layout="constrained")
    figure.suptitle(title, size=14)
    places, names = range(len(rows)), [row["way"] for row in rows]
    panels = (("iteration_s", 1, "seconds per iteration"), ("peak_nbytes", 1e6, "peak, MB"))
    for axes, (key, unit, label) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
        values = [row.get(key, np.nan) / unit for row in rows]
        bars = axes.barh(places, values, color=["C1" if "flycoo" in n else "C0" for n in names])
        texts = [f"{value:.3g}" if np.isfinite(value) else "" for value in values]
        axes.bar_label(bars, texts, padding=3)
        is_log = key == "iteration_s" and np.isfinite(values).any()
        axes.set(xlabel=label, xscale="log" if is_log else "linear")
        axes.margins(x=0.15)
        for y, row in enumerate(rows):
            if "failure" in row and key == "iteration_s":
                reason = row["failure"].partition(":")[0]
                axes.annotate(reason, (0.02, y), xycoords=axes.get_yaxis_transform(), va="center",
                              color="gray", style="italic")  # fmt: skip
    axes.set(yticks=places, yticklabels=names, ylim=(len(rows) - 0.5, -0.5))
    save(figure, path)


def add_limits(parser, limit_s):
    """Add the options for the limits of a process."""
    free_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 1e9
    parser.add_argument("--limit-s", type=float, default=limit_s, help="seconds for each way")
    parser.add_argument("--memory-gb", type=float, default=0.8 * free_gb, help="for each way")


def parse(argv):
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tensor", default="planted", choices=("planted", "flights"))
    parser.add_argument("--shape", type=int, nargs="+", default=(300, 250, 200))
    parser.add_argument("--nnz", type=int, default=100_000, help="approximate, if planted")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of the guess")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--fit", type=float, help="by default 99%% of our last fit")
    names = ", ".join(f"'{name}'" for name in WAYS)
    options = {"nargs": "+", "default": list(WAYS), "choices": WAYS, "metavar": "WAY"}
    parser.add_argument("--ways", **options, help=f"some of {names}; by default all")
    add_limits(parser, limit_s=120)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--figure", type=Path, help="write a figure to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv=None):
    """Run the comparison; print its table and return its rows."""
    options = parse(argv)
    if options.worker:
        way, folder, *arguments = json.loads(options.worker)
        return work(way, Path(folder), *arguments)
    coo = make_tensor(options)
    title = f"{' x '.join(map(str, coo.shape))}, {coo.nnz:,} nonzeros, rank {options.rank}"
    print(f"{title}, {options.threads} threads, seed {options.seed}")
    with tempfile.TemporaryDirectory() as folder:
        problem = Path(folder) / "problem.npz"
        save_problem(problem, coo, options.rank, options.seed)
        ways = [OURS, *(way for way in options.ways if way != OURS)]
        rows = [measure(way, problem, options) for way in ways]
    target = add_time_to_fit(rows, options.fit)
    print(f"seconds to a fit of {target:.4f}; difference of factors and ratio to {OURS}\n")
    print_table(rows)
    if options.json:
        conditions = {"tensor": title, "threads": options.threads, "fit": target}
        options.json.write_text(json.dumps(conditions | {"rows": rows}, indent=1))
    if options.figure:
        plot(rows, options.figure, f"{title}, {options.threads} threads")
    return rows


if __name__ == "__main__":
    main()
