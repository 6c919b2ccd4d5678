"""Runs of benchmarks: JSON files in `examples/results`, from which `write_tables.py` makes tables.

Each file has rows of figures, and says where they are from: commit, date, machine and versions.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "numpy", "numba", "tensorly", "sparse", "cupy-cuda12x", "cupy-cuda13x", "pygenten", "pyttb",
)  # fmt: skip


def add_options(parser):
    """Add the options of a benchmark that keeps its runs."""
    found = find_commit()
    parser.add_argument(
        "--commit",
        nargs=2,
        default=found,
        required=not found,
        metavar=("NAME", "TIME"),
        help="what is checked out; needed in a copy without .git",
    )
    parser.add_argument("--results", type=Path, default=ROOT / "examples" / "results")


def find_commit():
    """Return the short name of the commit that is checked out, and its time."""
    command = ["git", "show", "-s", "--abbrev=8", "--format=%h %cd", "--date=format:%Y-%m-%dT%H%M"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()


def describe_run(commit, device):
    """Return a run without rows: its commit, date, machine and versions."""
    name, committed = commit
    return {
        "commit": name,
        "committed": committed,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": describe_machine(device),
        "versions": list_versions(),
        "rows": [],
    }


def describe_machine(device):
    """Return the name of the GPU, or of the processor with the number of its cores."""
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


def save_run(run, folder, label):
    """Write the file of a run, whose name begins with the time of its commit."""
    label = "-".join(re.findall("[a-z0-9]+", label.lower()))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run['committed']}-{run['commit']}-{label}.json"
    path.write_text(json.dumps(run, indent=1) + "\n")


def load_runs(folder):
    """Load the runs of a folder, in the order of their commits."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
