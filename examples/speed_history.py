"""The speed of whole calls, kept over commits.

    python examples/speed_history.py --threads 1 16    # on this machine's CPU
    python examples/speed_history.py --device cuda     # on its GPU
    python examples/write_tables.py                    # into the pages

Times `parafac` of a `sparse.COO`, with its errors, from building the tensor to having the factors
in NumPy, and writes a JSON file a run to `examples/results/speed`, with a row for each case. A case
has a process of its own, in which the first call compiles or loads kernels; of the later calls, the
median by total time counts. Rows of "cold" are of a process whose caches of kernels are empty.
"""

import argparse
import copy
import json
import operator
import os
import subprocess
import sys
import tempfile

import numpy as np
import runs
from benchmark_gpu.stages import STAGES, time_stages
from benchmark_gpu.structured import STRUCTURES, draw_structured

NUM_ITERATIONS, NUM_ROUNDS = 50, 3

#: Structure, share of its nonzeros, rank, dtype.
CASES = {
    "cpu": (
        ("uber", 1.0, 16, "float64"),
        ("uber", 1.0, 35, "float64"),
        ("uber", 1.0, 16, "float32"),
        ("nell-2", 0.1, 16, "float64"),
        ("nell-2", 0.1, 35, "float64"),
    ),
    "cuda": (
        ("uber", 1.0, 16, "float64"),
        ("uber", 1.0, 35, "float64"),
        ("uber", 1.0, 32, "float32"),
        ("nell-2", 1.0, 16, "float64"),
        ("nell-2", 1.0, 35, "float64"),
        ("nell-2", 1.0, 32, "float32"),
        ("nell-1", 1.0, 32, "float32"),
    ),
}


def draw_coo(name, share, dtype, xp):
    """Draw a tensor whose combinations of indices repeat as in FROSTT's."""
    import sparse

    structure = STRUCTURES[name].shrink(share)
    coords = draw_structured(structure, 1.0, True, xp.random.RandomState(0), xp)
    coords = coords if xp is np else coords.get()
    values = 0.5 + np.random.RandomState(1).random_sample(coords.shape[1]).astype(dtype)
    return sparse.COO(coords, values, structure.shape, sorted=True, has_duplicates=False)


def time_case(device, name, share, rank, dtype):
    """Return the row of a case: its first call in this process, and the median of later ones."""
    import tensorly as tl

    import tensorly_flycoo

    if device == "cuda":
        import cupy as xp

        wait = xp.cuda.Device().synchronize
    else:
        xp, wait = np, lambda: None
    tl.set_backend("flycoo")
    tensorly_flycoo.set_device(device)
    coo = draw_coo(name, share, dtype, xp)

    def time_call():
        return time_stages(lambda: copy.copy(coo), rank, NUM_ITERATIONS, "random", wait)

    first, *calls = [time_call() for _ in range(1 + NUM_ROUNDS)]
    call = sorted(calls, key=operator.itemgetter("total_s"))[NUM_ROUNDS // 2]
    seconds = {f"{key}_s": call[f"{key}_s"] for key in (*STAGES, "iteration", "total")}
    case = {"tensor": name, "nnz": coo.nnz, "rank": rank, "dtype": dtype}
    return case | seconds | {"first_call_s": first["total_s"], "fit": call["fit"]}


def run_case(case, device, threads, is_cold):
    """Run a case in a new process, on some threads, with empty caches of kernels if it is cold."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    if threads:
        names = ("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
        environment |= dict.fromkeys(names, str(threads))
    command = [sys.executable, __file__, "--case", json.dumps([device, *case])]
    with tempfile.TemporaryDirectory() as folder:
        if is_cold:
            environment |= {"NUMBA_CACHE_DIR": folder, "CUPY_CACHE_DIR": folder}
        output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    row = json.loads(output.stdout.splitlines()[-1])
    return row | {"threads": threads, "is_cold": is_cold}


def measure(options):
    """Time all cases, and write the file of the run anew with each row."""
    device = options.device
    run = runs.describe_run(options.commit, device)
    jobs = [(case, False) for case in CASES[device]] + [(CASES[device][0], True)]
    for threads in options.threads if device == "cpu" else [None]:
        for case, is_cold in jobs:
            run["rows"].append(run_case(case, device, threads, is_cold))
            runs.save_run(run, options.results / "speed", run["machine"])
            print(run["rows"][-1], flush=True)


def parse(argv):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=tuple(CASES), default="cpu")
    add("--threads", type=int, nargs="+", default=[os.cpu_count()], help="of CPUs")
    add("--case", type=json.loads, help=argparse.SUPPRESS)
    runs.add_options(parser)
    return parser.parse_args(argv)


def main(argv=None):
    """Measure all cases, or one of them in this process."""
    options = parse(argv)
    if options.case:
        print(json.dumps(time_case(*options.case)))
    else:
        measure(options)


if __name__ == "__main__":
    main()
