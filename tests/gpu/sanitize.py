"""Run `small_run.py` under each tool of compute-sanitizer; fail at a fault or if none is installed.

python tests/gpu/sanitize.py
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = {
    "memcheck": [],
    "initcheck": [],
    "synccheck": [],
    # CuPy's own scan, used to find nonzeros, has a race within a warp.
    "racecheck": ["--kernel-name-exclude", "kernel_substring=cupy_"],
}


def find_sanitizer():
    """Return the path of compute-sanitizer, which is part of the CUDA toolkit."""
    folders = [os.environ.get(name, "") for name in ("CUDA_PATH", "CUDA_HOME")]
    folders = [str(Path(folder, "bin")) for folder in [*folders, "/usr/local/cuda"] if folder]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    found = shutil.which("compute-sanitizer", path=path)
    if found is None:
        raise FileNotFoundError("compute-sanitizer is not on the PATH nor in CUDA_PATH")
    return found


def run(tool, options):
    """Run the script under one tool and print the end of its output."""
    script = str(Path(__file__).with_name("small_run.py"))
    command = [find_sanitizer(), "--tool", tool, "--error-exitcode", "1", *options]
    done = subprocess.run([*command, sys.executable, script], capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    summaries = [line.strip("= ") for line in lines if "SUMMARY" in line]
    print(f"{tool}: {'; '.join(summaries) or 'no summary'}")
    # Also check the script's last line: a tool that sees no kernel reports no fault.
    if done.returncode != 0 or "ran" not in lines:
        print("\n".join(lines[-60:]))
        raise SystemExit(1)


if __name__ == "__main__":
    for tool, options in TOOLS.items():
        run(tool, options)
