"""Run the paper's experiments, write their figures to JSON, print tables and draw pictures."""

import datetime
import json
import shutil
import subprocess

from report import print_row
from tensors import Problem, free_memory

from .experiments import PARTS as TENSOR_PARTS
from .experiments import PaperExperiments
from .pictures import draw_pictures
from .spmm import measure_products
from .tables import print_tables

#: Tensors with two groups of modes, whose passes cuSPARSE computes too.
_TWO_GROUPS = ("nell-2, real pairs", "nell-1, real pairs", "darpa, real pairs")

PARTS = (*TENSOR_PARTS, "spmm")


def run_paper(problems, options, deadline, result):
    """Run the parts that the options name, or all but "ncu"; return whether all succeeded."""
    parts = options.paper or [part for part in PARTS if part != "ncu"]
    result |= {"driver": find_driver(), "date": str(datetime.date.today()), "scale": options.scale}

    def save():
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")

    measured = [PaperExperiments(problem, options, deadline, save) for problem in problems]
    result["rows"] = [experiments.row for experiments in measured if parts != ["spmm"]]
    for part in parts:
        if part == "spmm":
            result["spmm"] = measure_all_products(options, deadline)
            save()
            continue
        for experiments in measured:
            experiments.run(part)
    if "sweeps" in parts:
        for row in result["rows"]:
            print_row(row)
    print_tables(result)
    if options.figure:
        draw_pictures(result, options.figure)
    return not any(row["failed"] for row in result["rows"])


def measure_all_products(options, deadline):
    """Measure cuSPARSE's products beside ours, one tensor after the other."""
    rows = []
    for name in _TWO_GROUPS:
        if deadline.remaining_s() > 0:
            rows.append(measure_products(Problem(name, 3.0, True, options.scale), options.repeats))
            free_memory()
    return rows


def find_driver():
    """Return the driver's version, or an empty string without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True).stdout.split("\n")[0].strip()
