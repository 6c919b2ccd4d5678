"""The speed of whole calls, kept over commits.

    python examples/speed_history.py measure --threads 1 16    # on this machine's CPU
    python examples/speed_history.py measure --device cuda     # on its GPU
    python examples/speed_history.py write                     # the pages' tables and picture

`measure` times `parafac` of a `sparse.COO`, with its errors, from building the tensor to having
the factors in NumPy. It writes a JSON file a run to `examples/results`: commit, date, machine,
versions, and a row for each case. A case has a process of its own, in which the first call compiles
or loads kernels; of the later calls, the median by total time counts. Rows of "cold" are of a
process whose caches of kernels are empty. `write` makes docs/history.md of all runs, and the table
of docs/performance.md of the newest run of each machine.
"""

import argparse
import copy
import datetime
import importlib.metadata
import json
import operator
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from benchmark_gpu.stages import STAGES, time_stages
from benchmark_gpu.structured import STRUCTURES, draw_structured

ROOT = Path(__file__).resolve().parents[1]
NUM_ITERATIONS, NUM_ROUNDS = 50, 3
BEGIN, END = "<!-- examples/speed_history.py write -->\n", "<!-- end -->\n"
PACKAGES = ("numpy", "numba", "tensorly", "sparse", "cupy-cuda12x", "cupy-cuda13x")

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
    command = [sys.executable, __file__, "case", json.dumps([device, *case])]
    with tempfile.TemporaryDirectory() as folder:
        if is_cold:
            environment |= {"NUMBA_CACHE_DIR": folder, "CUPY_CACHE_DIR": folder}
        output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    row = json.loads(output.stdout.splitlines()[-1])
    return row | {"threads": threads, "is_cold": is_cold}


def describe_machine(device):
    """Return the GPU, or the processor and the number of its cores."""
    if device == "cuda":
        import cupy

        return cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def list_versions():
    """Return the versions of Python and of the packages that are installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def measure(options):
    """Time all cases, and write the file of the run anew with each row."""
    device, rows = options.device, []
    date, machine = datetime.datetime.now(datetime.UTC).date().isoformat(), describe_machine(device)
    commit, committed = options.commit
    run = {"commit": commit, "committed": committed, "date": date, "machine": machine}
    run |= {"versions": list_versions(), "rows": rows}
    label = "-".join(re.findall("[a-z0-9]+", machine.lower()))
    path = options.results / f"{committed}-{commit}-{label}.json"
    path.parent.mkdir(exist_ok=True)
    jobs = [(case, False) for case in CASES[device]] + [(CASES[device][0], True)]
    for threads in options.threads if device == "cpu" else [None]:
        for case, is_cold in jobs:
            rows.append(run_case(case, device, threads, is_cold))
            path.write_text(json.dumps(run, indent=1) + "\n")
            print("\t".join(make_cells(rows[-1])), flush=True)


# The pages.

TITLES = (
    "tensor", "nonzeros", "rank, dtype", "cores", "iteration, ms", "build, s", "start, s",
    f"call of {NUM_ITERATIONS}, s", "first call of a process, s",
)  # fmt: skip


def make_cells(row):
    """Return a row's cells, by `TITLES`."""
    note = ", caches empty" if row["is_cold"] else ""
    seconds = (1e3 * row["iteration_s"], row["build_s"], row["start_s"], row["total_s"])
    return [
        f"{row['tensor']}{note}",
        f"{row['nnz'] / 1e6:.1f}M",
        f"{row['rank']}, {row['dtype']}",
        str(row["threads"] or ""),
        *(f"{number:.3g}" for number in (*seconds, row["first_call_s"])),
    ]


def make_table(titles, rows):
    """Write a Markdown table, without columns that are empty."""
    used = [any(cells) for cells in zip(*rows, strict=True)]
    lines = [titles, ["---"] * len(titles), *rows]
    kept = [[cell for cell, is_used in zip(line, used, strict=True) if is_used] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in kept)


def load_runs(folder):
    """Load all runs, in the order of their commits, by machine."""
    machines = {}
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text())
        machines.setdefault(run["machine"], []).append(run)
    return machines


def write_newest(machines):
    """Write a table of the newest run of each machine."""
    parts = []
    for machine, runs in machines.items():
        rows = [make_cells(row) for row in runs[-1]["rows"]]
        title = f"**{machine}**, {runs[-1]['date']}, commit {runs[-1]['commit']}:\n\n"
        parts.append(f"{title}{make_table(TITLES, rows)}")
    return "\n".join(parts)


def name_case(row):
    """Name what is comparable over runs."""
    cores = f", {row['threads']} cores" if row["threads"] else ""
    note = ", caches empty" if row["is_cold"] else ""
    return f"{row['tensor']}, {row['nnz'] / 1e6:.1f}M, {row['rank']}, {row['dtype']}{cores}{note}"


def list_series(runs, key):
    """Return the numbers of each case over the runs of a machine, nan where it was not measured."""
    found = [{name_case(row): row[key] for row in run["rows"]} for run in runs]
    names = dict.fromkeys(name for numbers in found for name in numbers)
    return {name: [numbers.get(name, np.nan) for numbers in found] for name in names}


def write_history(machines):
    """Write a table of each machine's iterations and whole calls, a column for each commit."""
    parts = []
    for machine, runs in machines.items():
        calls, rows = list_series(runs, "total_s"), []
        for name, seconds in list_series(runs, "iteration_s").items():
            pairs = zip(seconds, calls[name], strict=True)
            rows.append([name, *(f"{1e3 * each:.3g} / {call:.3g}" for each, call in pairs)])
        titles = ["", *(f"{run['commit']}, {run['committed'][:10]}" for run in runs)]
        parts.append(f"## {machine}\n\n{make_table(titles, rows)}")
    return "\n".join(parts)


def draw_history(machines, path):
    """Draw the whole calls of each machine over its commits, relative to the newest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(machines), 4), layout="constrained")
    panels = figure.subplots(1, len(machines), squeeze=False)[0]
    for axes, (machine, runs) in zip(panels, machines.items(), strict=True):
        for name, seconds in list_series(runs, "total_s").items():
            axes.plot(np.divide(seconds, seconds[-1]), marker="o", label=name)
        axes.set_xticks(range(len(runs)), [run["commit"] for run in runs])
        axes.set(title=machine, ylabel="a whole call / the newest commit's")
        axes.legend(fontsize="xx-small")
    figure.savefig(path, metadata={"Date": None})


def write(options):
    """Write the tables between the marks of both pages, and the picture."""
    machines = load_runs(options.results)
    pages = {"performance.md": write_newest(machines), "history.md": write_history(machines)}
    for name, tables in pages.items():
        path = options.docs / name
        before, _, rest = path.read_text().partition(BEGIN)
        path.write_text(f"{before}{BEGIN}{tables}{END}{rest.partition(END)[2]}")
    draw_history(machines, options.docs / "history.svg")


def find_commit():
    """Return the short name of the commit that is checked out, and its time."""
    command = ["git", "show", "-s", "--abbrev=8", "--format=%h %cd", "--date=format:%Y-%m-%dT%H%M"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()


def parse(argv):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("command", choices=("measure", "write", "case"))
    add("case", nargs="?", type=json.loads, help=argparse.SUPPRESS)
    add("--device", choices=tuple(CASES), default="cpu")
    add("--threads", type=int, nargs="+", default=[os.cpu_count()], help="of CPUs")
    add("--commit", nargs=2, default=find_commit(), metavar=("NAME", "TIME"), help="without .git")
    add("--results", type=Path, default=ROOT / "examples" / "results")
    add("--docs", type=Path, default=ROOT / "docs")
    return parser.parse_args(argv)


def main(argv=None):
    """Run a command."""
    options = parse(argv)
    if options.command == "case":
        print(json.dumps(time_case(*options.case)))
    elif options.command == "write":
        write(options)
    else:
        measure(options)


if __name__ == "__main__":
    main()
