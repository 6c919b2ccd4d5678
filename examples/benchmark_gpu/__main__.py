"""Measure the CUDA engine on tensors of the paper's shapes and compare with the targets.

    python examples/benchmark_gpu                                  # all shapes
    python examples/benchmark_gpu --tensors nell-1 --tables speed --ranks 16 32 64
    python examples/benchmark_gpu --tables whole --tensors uber nell-2 "nell-2, real pairs"
    python examples/benchmark_gpu --tables groups --json groups.json
    python examples/benchmark_gpu --json results.json --figure results.png
    python examples/benchmark_gpu --paper --json paper.json --figure paper.png
    python examples/benchmark_gpu --paper sweeps libraries --library blco=./blco

Nonzeros are drawn on the GPU: each mode apart, and, in tensors named "real pairs", so that
combinations of indices repeat as in FROSTT's (see structured.py). Times are medians of many runs,
measured with events. The kernel "gather only" reads what MTTKRP reads, in the same order, and
writes nothing; its time plus that of writing the output once is a lower bound for every layout.
"remap off" is the remap layout without writing the records for the next mode. The table "whole"
times calls of parafac from nonzeros in NumPy to factors in NumPy. The table "groups" compares all
modes apart with the default groups; the other tables but "whole" have all modes apart.

`--paper` runs the experiments of the paper instead, on its tensors, with its own kernel beside ours
(see `paper`), with uniform and with heavy rows: all but "ncu", which needs Nsight Compute, or the
parts that are named. `--library NAME=PATH` adds a program of another library; what it reads and
writes is in `paper/libraries.py`.
"""

import argparse
import json
import sys
from pathlib import Path

import cupy
import profiling
from experiments import LAYOUTS_OF, Experiments, paper_bytes_per_nonzero
from paper.experiments import TENSORS as PAPER_NAMES
from paper.libraries import parse_library
from paper.run import PARTS, run_paper
from report import RANK, draw_figure, print_row, print_verdicts
from stages import draw_calls, print_calls
from tensors import NAMES, Problem, free_memory
from timing import Deadline
from whole import NUM_ITERATIONS

from tensorly_flycoo import set_device

TABLES = (*LAYOUTS_OF, "ncu")


def parse_arguments(argv):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        "benchmark_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tensors", nargs="+", choices=NAMES)
    add("--tables", nargs="+", default=TABLES, choices=TABLES)
    add("--ranks", nargs="+", type=int, default=[RANK], help=f"added to {RANK}, the targets' rank")
    add("--alphas", nargs="+", type=float, help="1: uniform; 3: heavy rows")
    add("--unscattered", action="store_true", help="also with heavy rows side by side")
    add("--scale", type=float, default=1.0, help="fraction of nonzeros and of large modes' sizes")
    add("--repeats", type=int, default=20, help="maximum number of runs for a median")
    add("--time-limit", type=float, metavar="S", help="start nothing new after S seconds")
    add("--json", type=Path, help="write the figures to this file, each as it is measured")
    add("--figure", type=Path, help="draw a picture to this file, and others to NAME-*")
    add("--paper", nargs="*", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    add("--library", action="append", type=parse_library, metavar="NAME=PATH", help="a program")
    add("--profile", action="store_true", help=argparse.SUPPRESS)  # for ncu
    options = parser.parse_args(argv)
    is_paper = options.paper is not None
    if options.library and not is_paper:
        parser.error("--library needs --paper")
    options.tensors = options.tensors or (PAPER_NAMES if is_paper else NAMES)
    options.alphas = options.alphas or ([1.0, 3.0] if is_paper else [3.0])
    return options


def make_problems(options):
    """List the tensors in the order of measurement."""
    scatterings = (True, False) if options.unscattered else (True,)
    return [
        Problem(name, alpha, is_scattered, options.scale)
        for alpha in options.alphas
        for is_scattered in scatterings
        for name in options.tensors
    ]


def describe_device():
    """Return the hardware, versions and options of the figures."""
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "device": properties["name"].decode(),
        "multiprocessors": properties["multiProcessorCount"],
        "cupy": cupy.__version__,
        "cuda_runtime": cupy.cuda.runtime.runtimeGetVersion(),
    }


def run_profiler(options, deadline):
    """Profile one tensor with ncu: nell-1 if it is among them."""
    name = "nell-1" if "nell-1" in options.tensors else options.tensors[0]
    problem = Problem(name, options.alphas[0], True, options.scale)
    limit_s = min(600, deadline.remaining_s())
    if limit_s <= 0:
        print("skipped ncu: out of time", flush=True)
        return None
    variants = profiling.list_variants(len(problem.shape))
    launches = profiling.profile(problem, len(variants), limit_s)
    if launches is None:
        return None
    profiling.print_launches(name, launches, variants)
    return {"tensor": name, "alpha": problem.alpha, "variants": variants, "launches": launches}


def list_calls(rows):
    """List the whole calls of all tensors."""
    return [call for row in rows for call in row.get("whole", [])]


def draw_figures(rows, path):
    """Draw the sweeps to a file, and whole calls to it or, if it is taken, to NAME-whole."""
    if any(row["sweeps_s"] for row in rows):
        draw_figure(rows, path)
        path = path.with_stem(f"{path.stem}-whole")
    if calls := list_calls(rows):
        draw_calls(calls, path, f"parafac, rank {RANK}, float32, {NUM_ITERATIONS} iterations")


def main(argv=None):
    """Run the benchmark; return whether everything succeeded."""
    options = parse_arguments(argv)
    problems = make_problems(options)
    if options.profile:
        profiling.run_for_profiler(problems[0], RANK)
        return True
    set_device("cuda")  # of a COO, whatever the environment says
    deadline, result = Deadline(options.time_limit), {**describe_device(), "rows": []}
    print(f"{result['device']}, CuPy {result['cupy']}", flush=True)
    if options.paper is not None:
        return run_paper(problems, options, deadline, result)

    def save():
        if options.json:
            options.json.write_text(json.dumps(result, indent=1))

    for problem in problems:
        experiments = Experiments(problem, options, deadline, save)
        experiments.row["paper"] = paper_bytes_per_nonzero(problem.shape, problem.nnz)
        result["rows"].append(experiments.row)
        experiments.run()
        print_row(experiments.row)
        print_calls(experiments.row.get("whole", []))
    print_verdicts(result["rows"])
    print_calls(list_calls(result["rows"]))
    if options.figure:
        draw_figures(result["rows"], options.figure)
    if "ncu" in options.tables:
        free_memory()
        result["ncu"] = run_profiler(options, deadline)
        save()
    return not any(row["failed"] for row in result["rows"])


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
