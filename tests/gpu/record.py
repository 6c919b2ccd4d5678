"""Run commands of tests/README.md on this machine's GPU, and write their rows in RESULTS.md.

    python tests/gpu/record.py --list
    python tests/gpu/record.py suite "cold start"
    python tests/gpu/record.py --commit 484b45c4 "memcheck modes"  # in a copy without .git
    python tests/gpu/record.py --jobs 2 "debug build" "lowered index"  # at the same time

A row has the command, GPU, commit, date, seconds, and what the command said; it replaces the row of
the same command on GPUs of that kind. The program fails if a command does.
With `--jobs`, commands that need the GPU to themselves come last, one after the other. Each lowered
limit has four processes, which take up to 4 GB of the GPU each: three at a time fit into 80 GB.
"""

import argparse
import datetime
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().with_name("RESULTS.md")

_PYTEST = "python -m pytest -p no:cacheprovider"
_TWENTY = (
    "for i in $(seq 20); do python tests/support/determinism.py cuda {layout}; done | sort | "
    'uniq -c | awk \'{{n++; if ($1 != 20) bad = " NOT"}} '
    'END {{print n + 0 " digests, each" bad " 20 times"; exit bad != "" || n == 0}}\''
)
_LIMITS = ("index", "grid", "tiles", "record", "groups", "prefixes", "remap")
#: Where the limits matter; `pytest tests/gpu --lowered` takes as long as the suite for each.
_LOWERED_FILES = " ".join(
    f"tests/gpu/test_{name}_gpu.py"
    for name in (
        "mttkrp", "mttkrp_laws", "ttmc", "building", "compact_ids", "svd_start", "parafac",
        "random", "gram_products", "determinism",
    )
)  # fmt: skip
_TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")

#: The commands by name, as a shell takes them in the root of the repository.
COMMANDS = {
    "suite": f"{_PYTEST} tests/gpu -n 10 --ignore tests/gpu/test_cold_start_gpu.py",
    "cold start": f"{_PYTEST} -n 0 tests/gpu/test_cold_start_gpu.py",
    "debug build": f"TENSORLY_FLYCOO_ASSERTIONS=1 {_PYTEST} -n 10 tests/gpu/test_mttkrp_gpu.py "
    "tests/gpu/test_ttmc_gpu.py tests/gpu/test_mttkrp_laws_gpu.py tests/gpu/test_parafac_gpu.py",
    **{
        f"lowered {limit}": f"{_PYTEST} -n 4 --lowered {limit} {_LOWERED_FILES}"
        for limit in _LIMITS
    },
    **{
        f"{tool} {part}": f"python tests/gpu/sanitize.py {tool} {part}"
        for tool in _TOOLS
        for part in ("modes", "counts", "tall")
    },
    "cluster kills": "python tests/support/cluster_kills.py 30 10 --workers 2",
    "huge": "python tests/gpu/huge_run.py",
    "reddit": "python tests/gpu/reddit_run.py --rank 2",
    "error ratios": "python tests/support/error_ratios.py cuda",
    "crowded": "python tests/gpu/crowded_run.py",
    **{
        f"20 processes, {layout}": _TWENTY.format(layout=layout)
        for layout in ("remap", "replicated", "indexed")
    },
}

#: Commands that fill the memory of a GPU, or time a process.
_ALONE = {"suite", "cold start", "cluster kills", "huge", "reddit", "crowded"}

BEGIN, END = "<!-- rows of record.py -->\n", "<!-- end -->\n"


def run(command, limit_s):
    """Run a command; return its status, seconds, and what it said. None: it took too long."""
    start = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, time.monotonic() - start, summarise(output)
    print(output[-40_000:], flush=True)
    return process.returncode, time.monotonic() - start, summarise(output)


def run_all(names, limit_s, jobs):
    """Run commands, up to `jobs` at the same time; yield each name and its result as it ends."""
    with ThreadPoolExecutor(jobs) as pool:
        started = {
            pool.submit(run, COMMANDS[name], limit_s): name for name in names if name not in _ALONE
        }
        for future in as_completed(started):
            yield started[future], future.result()
    for name in names:
        if name in _ALONE:
            yield name, run(COMMANDS[name], limit_s)


def summarise(output):
    """Return pytest's counts without its seconds, or the last line of other output."""
    lines = [line.strip("= ") for line in output.splitlines() if line.strip("= ")]
    last = lines[-1] if lines else "nothing"
    match = re.match(r"(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s", last)
    return match[1] if match else last[:150]


def describe_gpus():
    """Return the kind of this machine's GPUs, or of those that CUDA sees, and how many they are."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    names = [name.strip().removeprefix("NVIDIA ") for name in names if name.strip()]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        names = [names[int(number)] for number in visible.split(",")]
    return names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"


def find_commit():
    """Return the commit of a clean checkout."""
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True).stdout:
        raise SystemExit("the checkout is changed: commit first, or pass --commit")
    process = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if process.returncode != 0:
        raise SystemExit("there is no git repository here: pass --commit")
    return process.stdout.strip()


def add_row(text, name, gpu, commit, date, seconds, result):
    """Return the page with a row, in place of that of the same command and GPU."""
    before, _, rest = text.partition(BEGIN)
    rows, _, after = rest.partition(END)
    cells = (name, gpu, commit, date, f"{seconds:.0f}", result.replace("|", "/"))
    new, order = f"| {' | '.join(cells)} |\n", list(COMMANDS)
    kept = [row for row in rows.splitlines(True) if not row.startswith(f"| {name} | {gpu} |")]
    kept = sorted([*kept, new], key=lambda row: _find_place(row, order))
    return f"{before}{BEGIN}{''.join(kept)}{END}{after}"


def _find_place(row, order):
    name = row.split("|")[1].strip()
    return order.index(name) if name in order else len(order)


def main(argv=None):
    """Run the commands that are named, and record each as soon as it ends."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*COMMANDS, []], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the commands")
    parser.add_argument("--commit", help="by default that of the checkout, which must be clean")
    parser.add_argument("--jobs", type=int, default=1, help="commands at the same time")
    parser.add_argument("--limit-s", type=float, default=3600, help="seconds for each command")
    options = parser.parse_args(argv)
    if options.list:
        print("\n".join(f"{name}: {command}" for name, command in COMMANDS.items()))
        return True
    commit, gpu, is_right = options.commit or find_commit(), describe_gpus(), True
    for name, (status, seconds, result) in run_all(options.names, options.limit_s, options.jobs):
        if status != 0:
            is_right = False
            result = f"CUT OFF: {result}" if status is None else f"FAILED ({status}): {result}"
        row = (name, gpu, commit, str(datetime.date.today()), seconds, result)
        print(*row, sep=" | ", flush=True)
        RESULTS.write_text(add_row(RESULTS.read_text(), *row))
    return is_right


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
