"""Run the paper's experiments, write their figures to JSON, print tables and draw pictures."""

import datetime
import json
import shutil
import subprocess

from experiments import paper_bytes_per_nonzero
from report import print_row
from tensors import Problem, free_memory

from .experiments import PARTS as TENSOR_PARTS
from .experiments import TENSORS, PaperExperiments
from .pictures import draw_pictures
from .spmm import measure_products
from .tables import print_tables

#: The tensor whose passes cuSPARSE computes too: it has two groups of modes.
_TWO_GROUPS = "nell-2, real pairs"

PARTS = (*TENSOR_PARTS, "spmm")


def run_paper(options, deadline, result):
    """Run the parts that the options name, or all but "ncu"; return whether all succeeded."""
    parts = options.paper or [part for part in PARTS if part != "ncu"]
    result |= {"driver": find_driver(), "date": str(datetime.date.today()), "scale": options.scale}

    def save():
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")

    measured = []
    for name in options.tensors or TENSORS:
        experiments = PaperExperiments(name, options, deadline, save)
        row = experiments.row
        row["published"]["formula"] = paper_bytes_per_nonzero(row["shape"], row["nnz"])
        measured.append(experiments)
    result["rows"] = [experiments.row for experiments in measured]
    for part in parts:
        if part == "spmm":
            problem = Problem(_TWO_GROUPS, options.alphas[0], True, options.scale)
            result["spmm"] = measure_products(problem, options.repeats)
            free_memory()
            save()
            continue
        for experiments in measured:
            experiments.run(part)
    for row in result["rows"]:
        print_row(row)
    print_tables(result)
    if options.figure:
        draw_pictures(result, options.figure)
    return not any(row["failed"] for row in result["rows"])


def find_driver():
    """Return the driver's version, or an empty string without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True).stdout.split("\n")[0].strip()
