"""Run `small_run.py` under each tool of compute-sanitizer; fail at a fault or if none is installed.

    python tests/gpu/sanitize.py                  # four tools, three parts each
    python tests/gpu/sanitize.py memcheck counts  # one tool, one part

Each part runs once without a tool, so that its kernels are compiled, and then under each tool, in a
process of its own.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

TOOLS = {
    "memcheck": [],
    "initcheck": [],
    "synccheck": [],
    # CuPy's own scan, used to find nonzeros, has a race within a warp.
    "racecheck": ["--kernel-name-exclude", "kernel_substring=cupy_"],
}
PARTS = ("modes", "counts", "tall")  # those of small_run.py, which needs a GPU to be imported


def find_sanitizer():
    """Return the path of compute-sanitizer, which is part of the CUDA toolkit."""
    folders = [os.environ.get(name, "") for name in ("CUDA_PATH", "CUDA_HOME")]
    folders = [str(Path(folder, "bin")) for folder in [*folders, "/usr/local/cuda"] if folder]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    found = shutil.which("compute-sanitizer", path=path)
    if found is None:
        raise FileNotFoundError("compute-sanitizer is not on the PATH nor in CUDA_PATH")
    return found


def run(part, tool=None):
    """Run a part of the script under a tool, if one is given; print the end of its output."""
    command = [sys.executable, str(Path(__file__).with_name("small_run.py")), part]
    if tool:
        options = ["--tool", tool, "--error-exitcode", "1", *TOOLS[tool]]
        command = [find_sanitizer(), *options, *command]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    summaries = [line.strip("= ") for line in lines if "SUMMARY" in line]
    seconds = time.monotonic() - start
    print(f"{tool or 'no tool'}, {part}: {'; '.join(summaries)}, {seconds:.0f} s", flush=True)
    # Also check the script's last line: a tool that sees no kernel reports no fault.
    if done.returncode != 0 or "ran" not in lines or (tool and not summaries):
        print("\n".join(lines[-60:]))
        raise SystemExit(1)


def main(names):
    """Run the tools and parts that are named, or all."""
    tools = [name for name in names if name in TOOLS] or TOOLS
    parts = [name for name in names if name in PARTS] or PARTS
    if unknown := set(names) - {*TOOLS, *PARTS}:
        raise SystemExit(
            f"expected tools of {', '.join(TOOLS)} or parts of {', '.join(PARTS)}, not {unknown}"
        )
    find_sanitizer()
    for part in parts:
        run(part)
        for tool in tools:
            run(part, tool)
    print(f"{', '.join(tools)}: 0 faults in {', '.join(parts)}")


if __name__ == "__main__":
    main(sys.argv[1:])
