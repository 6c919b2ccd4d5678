"""Hardware counters of the kernels from Nsight Compute (ncu), if available and permitted."""

import contextlib
import csv
import itertools
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

#: Metrics of ncu, with the label and unit of each column.
METRICS = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("SM %", 1),
    "l1tex__throughput.avg.pct_of_peak_sustained_active": ("L1 %", 1),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("DRAM %", 1),
    "dram__bytes.sum": ("DRAM GB", 1e9),
}

#: What is profiled: our layouts, and the paper's kernel.
_VARIANTS = ("replicated", "indexed", "remap", "paper")


def list_variants(ndim):
    """Return what is profiled, in order: each variant, mode by mode."""
    return list(itertools.product(_VARIANTS, range(ndim)))


def profile(problem, num_launches, limit_s):
    """Run this program again under ncu on one tensor, profiling `num_launches` launches.

    Returns
    -------
    list of dict, or None if ncu is not available
        The metrics of each launch, in the order of `list_variants`.
    """
    program = shutil.which("ncu")
    if program is None:
        print("ncu: not found on the PATH")
        return None
    command = [
        program, "--profile-from-start", "off", "--clock-control", "none", "--kernel-name",
        "regex:^(mttkrp|thread_block)$", "--metrics", ",".join(METRICS), "--csv",
        "--print-units", "base", sys.executable, str(Path(__file__).resolve().parent),
        "--tensors", problem.name, "--scale", str(problem.scale),
        "--alphas", str(problem.alpha), "--profile",
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
    """Run one sweep of each variant with the profiler on."""
    from cupyx.profiler import profile as profiler_on
    from tensors import free_memory
    from timing import synchronize

    nonzeros = problem.draw(np.float32)
    for variant in _VARIANTS:
        steps = _make_sweep(variant, nonzeros, problem.shape, rank)
        for step in steps:
            step()
        synchronize()
        with profiler_on():
            for step in steps:
                step()
            synchronize()
        del steps
        free_memory()


def _make_sweep(variant, nonzeros, shape, rank):
    import cupy
    from experiments import make_sweep
    from paper.kernel import PaperTensor, make_steps
    from tensors import build, draw_factors

    if variant != "paper":
        x, _ = build(*nonzeros, shape, variant)
        return make_sweep(x, rank)[-1]
    x = PaperTensor(*nonzeros, shape, cupy.cuda.Device().attributes["MultiProcessorCount"])
    outputs = [cupy.empty((size, rank), np.float32) for size in shape]
    steps = make_steps(x, draw_factors(shape, rank, np.float32), outputs)
    return [step for _, zero, compute in steps for step in (zero, compute)]


def print_launches(name, launches, variants):
    """Print the metrics of each variant and mode."""
    print(f"\n{name}, counted by ncu" + "".join(f"{label:>9}" for label, _ in METRICS.values()))
    for (variant, mode), launch in zip(variants, launches, strict=True):
        values = (launch.get(metric, math.nan) / unit for metric, (_, unit) in METRICS.items())
        print(f"  {variant:12} mode {mode}    " + "".join(f"{value:9.1f}" for value in values))
    print(flush=True)
