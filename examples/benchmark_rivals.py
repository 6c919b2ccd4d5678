"""Timing MTTKRP next to other libraries on the CPU
================================================

Time one sweep of MTTKRPs over all modes: ours in each layout, and other libraries'. Ours is that of
an iteration of `parafac`, in which the modes of one group share a pass over the nonzeros. Tensors
named "real pairs" have combinations of indices that repeat as in FROSTT's.

Another library takes part as a shared library with four C functions, one file for each number type,
called NAME-float64.so or NAME-float32.so::

    void *rival_open(int ndim, int64_t nnz, const int64_t *shape,    // coords is (ndim, nnz);
                     const int32_t *coords, const real *values, int rank);  // arrays are copied
    int rival_prepare(void *rival, const char *setting, int threads, // build; not timed
                      const real *const *factors);                   // (shape[m], rank), copied
    void rival_mttkrp(void *rival, int mode);                        // timed, clearing included
    const real *rival_output(void *rival, int mode);                 // (shape[mode], rank)

`rival_prepare` returns another number than 0 if it cannot serve the setting. Each tool runs alone
in a process; a time is that of the fastest of many sweeps; one column of every output is checked
against NumPy. All settings in `SETTINGS` are printed: count the fastest of each library.

Iterations of whole CP-ALS are compared too: our `parafac` of a `sparse.COO`, and ALTO's program
`cpd64`, both with their errors. Build `cpd64` with gcc (``-march=native
-mprefer-vector-width=512``) and the OpenBLAS that uses OpenMP, whose kernels for Haswell are its
fastest, and with `%.7f` for `%.4f` where cpd.hpp prints `time(for MTTKRP)`.

Run it::

    python examples/benchmark_rivals.py                              # ours alone
    python examples/benchmark_rivals.py splatt-float64.so alto-float64.so cpd64 --threads 1 4 16
    python examples/benchmark_rivals.py --dtype float32 --rank 32 dynasor-float32.so
"""

import argparse
import ctypes
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmark_als import make_tensor

NAMES = ("nycflights", "babynames", "uber, real pairs", "nell-2, real pairs", "120K")

#: Each library's settings. SPLATT's are its numbers of CSFs, "private" with an output for each
#: thread however long the mode. Those of dynasor_plus are its layouts ("plain" does not sort a mode
#: again in each sweep), of which "all-modes" and "morton" take one pass with one set of factors:
#: ALS, which updates one mode after the other, cannot use them.
SETTINGS = {
    "flycoo": ("auto", "remap", "replicated", "indexed"),
    "splatt": ("one", "two", "all", "one+private", "two+private"),
    "dynasor": ("pingpong+plain", "ncopy", "all-modes", "morton"),
    "genten": ("perm", "duplicated"),
}
#: GenTen's threads are made once a process.
ONE_COUNT = ("genten",)

#: Sweeps are timed for so many seconds, and at least so many of them for at most so many seconds.
LEAST_S, LEAST_SWEEPS, MOST_S = 0.25, 5, 1.5

#: Iterations of CP-ALS, of which the fastest but the first counts.
NUM_ITERATIONS = 20


# The tensors, and one column of their MTTKRPs.


def save_problem(name, folder, dtype, rank):
    """Write sorted, unique nonzeros, factors, and what to compare the outputs with."""
    import sparse

    coo = sparse.COO(*make_tensor(name))
    random = np.random.RandomState(1)
    coords = np.ascontiguousarray(coo.coords, np.int32)
    values = np.abs(coo.data).astype(dtype)
    factors = [random.rand(size, rank).astype(dtype) for size in coo.shape]
    arrays = {"coords": coords, "values": values, "shape": np.array(coo.shape)}
    for mode, factor in enumerate(factors):
        column = values.astype(float)
        for other in set(range(coo.ndim)) - {mode}:
            column *= factors[other][coords[other], rank - 1]
        size = coo.shape[mode]
        arrays[f"factor{mode}"] = factor
        arrays[f"column{mode}"] = np.bincount(coords[mode], column, minlength=size)
        arrays[f"counts{mode}"] = np.bincount(coords[mode], minlength=size)
    path = Path(folder) / f"{name}.npz"
    np.savez(path, **arrays)
    return path


def check(arrays, mode, output):
    """Compare the last column of an output with NumPy's; all terms are positive."""
    expected = arrays[f"column{mode}"]
    num_terms = arrays[f"counts{mode}"] + arrays["shape"].size
    allowed = num_terms * np.finfo(output.dtype).eps * expected
    error = np.abs(output[:, -1] - expected)
    if not (error <= allowed).all():
        raise RuntimeError(f"mode {mode}: an error of {error.max()}, allowed {allowed.max()}")


# The measurements.


def time_sweeps(run, ndim):
    """Return the seconds of the fastest sweep."""
    times = []
    while sum(times) < LEAST_S or (len(times) < LEAST_SWEEPS and sum(times) < MOST_S):
        start = time.perf_counter()
        for mode in range(ndim):
            run(mode)
        times.append(time.perf_counter() - start)
    return min(times)


def time_parafac(coo, factors):
    """Return the seconds of the fastest iteration of `parafac`."""
    import tensorly as tl

    from tensorly_flycoo import Progress

    tl.set_backend("flycoo")
    # It only reads factors: what is known of them is kept, as without a callback.
    with Progress(NUM_ITERATIONS, show=None) as progress:
        tl.decomposition.parafac(
            coo, factors[0].shape[1], init=(None, [factor.copy() for factor in factors]),
            n_iter_max=NUM_ITERATIONS, tol=1e-300, callback=progress,
        )  # fmt: skip
    return min(progress.seconds)


def measure_flycoo(arrays, counts):
    """Yield the seconds of our sweeps, and of iterations: setting, threads, seconds."""
    import numba
    import sparse

    from tensorly_flycoo import FlycooTensor
    from tensorly_flycoo.loop.whole_tensor import WholeTensor

    shape = tuple(arrays["shape"].tolist())
    factors = [arrays[f"factor{mode}"] for mode in range(len(shape))]
    for layout in SETTINGS["flycoo"]:
        x = FlycooTensor(arrays["coords"], arrays["values"], shape, layout=layout, device="cpu")
        run = functools.partial(WholeTensor(x).mttkrp, None, factors)
        for threads in counts:
            numba.set_num_threads(threads)
            for mode in range(len(shape)):
                check(arrays, mode, run(mode))
            yield layout, threads, time_sweeps(run, len(shape))
    coo = sparse.COO(arrays["coords"], arrays["values"], shape, sorted=True, has_duplicates=False)
    for threads in counts:
        numba.set_num_threads(threads)
        yield "parafac", threads, time_parafac(coo, factors)


def measure_program(path, arrays, counts):
    """Yield the seconds of iterations of ALTO's program: setting, threads, seconds."""
    shape, values, rank = arrays["shape"], arrays["values"], arrays["factor0"].shape[1]
    with tempfile.TemporaryDirectory() as folder:
        tensor = Path(folder) / "tensor.bin"
        with tensor.open("wb") as file:
            np.array([shape.size, *shape, values.size], np.uint64).tofile(file)
            arrays["coords"].astype(np.uint64).tofile(file)
            values.astype(float).tofile(file)
        options = f"-b {tensor} -r {rank} -l als -m {NUM_ITERATIONS} -e 1e-300".split()
        for threads in counts:
            environment = os.environ | {
                "OMP_NUM_THREADS": str(threads),
                "OPENBLAS_CORETYPE": "Haswell",
            }
            program = subprocess.run(
                [path, *options], env=environment, capture_output=True, text=True, check=True
            )
            _, *seconds = re.findall(r"time\(for MTTKRP\): ([\d.]+)", program.stdout)
            yield "als", threads, min(map(float, seconds))


def open_library(path, arrays):
    """Load another library and hand it the nonzeros; return it and what its calls take first."""
    library = ctypes.CDLL(str(path))
    library.rival_open.restype = ctypes.c_void_p
    shape, coords, values = arrays["shape"], arrays["coords"], arrays["values"]
    rival = library.rival_open(
        ctypes.c_int(shape.size),
        ctypes.c_int64(values.size),
        *(ctypes.c_void_p(array.ctypes.data) for array in (shape, coords, values)),
        ctypes.c_int(arrays["factor0"].shape[1]),
    )
    return library, ctypes.c_void_p(rival)


def point_to(factors):
    """Return what C calls an array of pointers to the factors."""
    return (ctypes.c_void_p * len(factors))(*(factor.ctypes.data for factor in factors))


def measure_library(path, arrays, counts):
    """Yield the seconds of a library's sweeps: setting, threads, seconds."""
    library, rival = open_library(path, arrays)
    library.rival_output.restype = ctypes.c_void_p
    shape = arrays["shape"]
    factors = [arrays[f"factor{mode}"] for mode in range(shape.size)]
    pointers = point_to(factors)
    number = np.ctypeslib.as_ctypes_type(arrays["values"].dtype)
    rank = factors[0].shape[1]

    def run(mode):
        library.rival_mttkrp(rival, mode)

    for setting in SETTINGS.get(get_name(path), ("",)):
        for threads in counts:
            if library.rival_prepare(rival, setting.encode(), ctypes.c_int(threads), pointers) != 0:
                continue
            for mode in range(shape.size):
                run(mode)
            for mode, size in enumerate(shape):
                output = ctypes.cast(library.rival_output(rival, mode), ctypes.POINTER(number))
                check(arrays, mode, np.ctypeslib.as_array(output, (int(size), rank)))
            yield setting, threads, time_sweeps(run, shape.size)


def work(tool, path, counts, channel):
    """Measure one tool, and write a line of JSON for each figure."""
    with np.load(path) as file:
        arrays = dict(file)
    if tool == "flycoo":
        rows = measure_flycoo(arrays, counts)
    elif Path(tool).suffix == ".so":
        rows = measure_library(tool, arrays, counts)
    else:
        rows = measure_program(tool, arrays, counts)
    for row in rows:
        print(json.dumps(row), file=channel, flush=True)


def run_worker(script, job, num_threads, limit_s=None):
    """Run a script's worker for one tool, the job's first entry; return the figures it wrote."""
    tool, most = job[0], str(num_threads)
    environment = os.environ | {
        "NUMBA_NUM_THREADS": most,
        "TENSORLY_FLYCOO_DEVICE": "cpu",
        "OMP_NUM_THREADS": most,
        "OMP_PLACES": "threads",
        "OMP_PROC_BIND": "false" if tool == "flycoo" else "spread",
    }
    command = [sys.executable, script, "--worker", json.dumps(job)]
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit_s
        )
        output, errors = process.stdout, process.stderr if process.returncode else ""
    except subprocess.TimeoutExpired as expired:
        output, errors = (expired.stdout or b"").decode(), f"stopped after {limit_s:.0f} s"
    if errors:
        print(f"{get_name(tool)}: {errors.strip()[-500:]}")
    return [json.loads(line) for line in output.splitlines()]


def measure(tool, path, counts, limit_s):
    """Run one tool in a process of its own; return {setting: {threads: seconds}}."""
    most = counts[0] if get_name(tool) in ONE_COUNT else max(counts)
    times = {}
    figures = run_worker(__file__, [str(tool), str(path), counts], most, limit_s)
    for setting, threads, seconds in figures:
        times.setdefault(setting, {})[threads] = seconds
    return times


def get_name(tool):
    """Return the name of a tool: "splatt" of lib/splatt-float64.so."""
    return Path(tool).stem.split("-")[0]


def compare(name, options, folder, end):
    """Measure all tools on one tensor; print and return a row for each of their settings."""
    path = save_problem(name, folder, options.dtype, options.rank)
    rows = []
    for tool in ("flycoo", *options.libraries):
        times = {}
        alone = get_name(tool) in ONE_COUNT
        for counts in [[count] for count in options.threads] if alone else [options.threads]:
            limit_s = end - time.monotonic()
            if limit_s < 1:
                print(f"{name}, {get_name(tool)}, threads {counts}: no time left")
                continue
            for setting, seconds in measure(tool, path, counts, limit_s).items():
                times.setdefault(setting, {}).update(seconds)
        rows += [
            {"tensor": name, "tool": get_name(tool), "setting": s} | {"s": t}
            for s, t in times.items()
        ]
    path.unlink()
    print_rows(rows, options.threads)
    return rows


def print_rows(rows, counts):
    """Print the table of one tensor, in ms."""
    print(f"{'ms a sweep':20}{'':10}{'setting':14}" + "".join(f"{count:>10}" for count in counts))
    for row in rows:
        times = [1e3 * row["s"].get(count, np.nan) for count in counts]
        print(f"{row['tensor']:20}{row['tool']:10}{row['setting']:14}", end="")
        print("".join(f"{figure:10.2f}" for figure in times), flush=True)


def add_options(parser):
    """Add the options of every comparison with other libraries."""
    add = parser.add_argument
    add("libraries", nargs="*", type=Path, help="NAME-float64.so, for example")
    add("--tensors", nargs="+", choices=NAMES, default=NAMES)
    add("--threads", nargs="+", type=int, default=[1, 2])
    add("--rank", type=int, default=16)
    add("--json", type=Path, help="write the figures to this file")
    add("--worker", help=argparse.SUPPRESS)


def work_apart(work, job):
    """Call `work` with a job from `run_worker`; what a library prints goes to stderr."""
    with os.fdopen(os.dup(1), "w") as channel:
        os.dup2(2, 1)
        work(*json.loads(job), channel)


def main(argv=None):
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[3])
    add_options(parser)
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    parser.add_argument("--limit-s", type=float, default=1800, help="stop after so many seconds")
    options = parser.parse_args(argv)
    if options.worker:
        work_apart(work, options.worker)
        return []
    options.libraries = [path.resolve() for path in options.libraries]
    rows, end = [], time.monotonic() + options.limit_s
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tensors:
            rows += compare(name, options, folder, end)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    return rows


if __name__ == "__main__":
    main()
