"""Hardware counters of the kernels from Nsight Compute (ncu), if available and permitted."""

import contextlib
import csv
import math
import shutil
import subprocess
import sys
from pathlib import Path

#: Metrics of ncu, with the label and unit of each column.
METRICS = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("SM %", 1),
    "l1tex__throughput.avg.pct_of_peak_sustained_active": ("L1 %", 1),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("DRAM %", 1),
    "dram__bytes.sum": ("DRAM GB", 1e9),
}


def profile(name, scale, alpha, num_launches, limit_s):
    """Run this program again under ncu on one tensor, profiling `num_launches` launches.

    Returns
    -------
    list of dict, or None if ncu is not available
        The metrics of each layout and mode, in the order of `run_for_profiler`.
    """
    program = shutil.which("ncu")
    if program is None:
        print("ncu: not found on the PATH")
        return None
    command = [
        program, "--profile-from-start", "off", "--clock-control", "none", "--kernel-name",
        "mttkrp", "--metrics", ",".join(METRICS), "--csv", "--print-units", "base",
        sys.executable, str(Path(__file__).resolve().parent),
        "--tensors", name, "--scale", str(scale), "--alphas", str(alpha), "--profile",
    ]  # fmt: skip
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        print(f"ncu: not finished within {limit_s:.0f} s")
        return None
    launches = parse(process.stdout) if process.returncode == 0 else []
    if len(launches) != num_launches:
        lines = (process.stderr + process.stdout).strip().splitlines()
        print("ncu: not available here: " + " / ".join(lines[-3:]))
        return None
    return launches


def parse(text):
    """Parse the CSV among ncu's messages: a dictionary of metrics for each launch, in order."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    launches = {}
    for line in csv.DictReader(lines):
        launch = launches.setdefault(int(line["ID"]), {})
        with contextlib.suppress(ValueError):  # a metric that this GPU does not count
            launch[line["Metric Name"]] = float(line["Metric Value"].replace(",", ""))
    return [launches[number] for number in sorted(launches)]


def run_for_profiler(problem, rank):
    """Run one sweep of each layout with the profiler on."""
    import numpy as np
    from cupyx.profiler import profile as profiler_on
    from experiments import LAYOUTS, make_sweep
    from tensors import build, free_memory
    from timing import synchronize

    nonzeros = problem.draw(np.float32)
    for layout in LAYOUTS:
        x, _ = build(*nonzeros, problem.shape, layout)
        steps = make_sweep(x, rank)[-1]
        for step in steps:
            step()
        synchronize()
        with profiler_on():
            for step in steps:
                step()
            synchronize()
        del x, steps
        free_memory()


def print_launches(name, launches, layouts, ndim):
    """Print the metrics of each layout and mode."""
    print(f"\n{name}, counted by ncu" + "".join(f"{label:>9}" for label, _ in METRICS.values()))
    pairs = [(layout, mode) for layout in layouts for mode in range(ndim)]
    for (layout, mode), launch in zip(pairs, launches, strict=True):
        values = (launch.get(metric, math.nan) / unit for metric, (_, unit) in METRICS.items())
        print(f"  {layout:12} mode {mode}    " + "".join(f"{value:9.1f}" for value in values))
    print(flush=True)
