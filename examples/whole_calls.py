"""Whole CP-ALS calls on the CPU, for `benchmark_als.py --whole`: ours, pygenten's and pyttb's.

A call builds the tensor, makes the initial guess, iterates, and has the factors in NumPy. Each runs
in its own process, after a call with a single iteration, which compiles. All random guesses are the
same, so the fits are too. pygenten and pyttb return NumPy arrays; their conversions count as
iterations. They take part if installed.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import compare_with_tensorly as compare
import numpy as np
from benchmark_gpu.stages import add_time_to_fit, make_call, time_stages

RANK, SEED = 16, 0
#: What our calls get and their init; None for the others, which start from the same random guess.
WAYS = {
    "COO, random": ("COO", "random"),
    "COO, svd": ("COO", "svd"),
    "FlycooTensor, random": ("FlycooTensor", "random"),
    "pygenten": None,
    "pyttb": None,
}


def time_call(way, coo, num_iterations):
    """Time a whole call, stage by stage."""
    if WAYS[way] is None:
        return time_theirs(*compare.WAYS[way](), coo, num_iterations)
    kind, init = WAYS[way]
    make, _ = compare.use_flycoo()
    if kind == "COO":  # a new one, which is converted
        make = copy.copy
    return time_stages(lambda: make(coo), RANK, num_iterations, init)


def time_theirs(make, run, coo, num_iterations):
    """Time a whole call of another package."""
    times = [time.perf_counter()]
    x = make(coo)
    times.append(time.perf_counter())
    guess = compare.draw_guess(coo.shape, RANK, SEED)
    times.append(time.perf_counter())
    _, fits = run(x, guess, num_iterations)
    times.append(time.perf_counter())
    build_s, *others = np.diff(times).tolist()
    return make_call((build_s, 0.0, *others, 0.0), fits, num_iterations)


def work(way, folder, num_iterations, memory_gb):
    """Measure a call and write its figures into the folder."""
    path, (coo, _) = folder / "row.json", compare.load_problem(folder / "problem.npz")
    compare.limit_memory(memory_gb)
    with compare.failure_written(path):
        time_call(way, coo, 1)
        call = time_call(way, coo, num_iterations)
        path.write_text(json.dumps(call | {"peak_nbytes": compare.read_nbytes("VmHWM")}))


def compare_calls(name, problem, options):
    """Let the ways take turns on one tensor; return the fastest call of each."""
    best = {}
    for _ in range(options.rounds):
        for way in WAYS:
            if "failure" in best.get(way, {}):
                continue
            call = compare.measure(way, problem, options, __file__)
            if way not in best or call.get("total_s", np.inf) < best[way]["total_s"]:
                best[way] = call
    calls = list(best.values())
    add_time_to_fit(calls, None)
    coo, _ = compare.load_problem(problem)
    return [{"tensor": name, "nnz": coo.nnz, **call} for call in calls]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--worker", required=True, help="a call, in JSON")
    way, folder, *arguments = json.loads(parser.parse_args().worker)
    work(way, Path(folder), *arguments)
