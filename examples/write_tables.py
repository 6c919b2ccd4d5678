"""Write the tables of the pages, and the picture of docs/history.md, from the kept runs.

    python examples/write_tables.py

A table stands between `<!-- written by write_tables.py: NAME -->` and `<!-- end -->`. The runs are
those of `speed_history.py`, `seconds_to_fit.py` and `benchmark_gpu/scaling.py` in
`examples/results`, and of `benchmark_gpu --paper` in its own folder.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np
from benchmark_gpu.paper import tables as paper
from runs import ROOT, load_runs

PAGES = (
    "README.md", "docs/performance.md", "docs/history.md", "docs/larger.md", "docs/paper.md",
)  # fmt: skip


def make_table(titles, rows):
    """Write a Markdown table, without columns that are empty."""
    used = [any(cells) for cells in zip(*rows, strict=True)]
    lines = [titles, ["---"] * len(titles), *rows]
    kept = [[cell for cell, is_used in zip(line, used, strict=True) if is_used] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in kept)


def write_title(run, machine):
    """Write the line above a table."""
    return f"**{machine}**, {run['date']}, commit {run['commit']}:\n\n"


# Whole calls, by speed_history.py.

TITLES = (
    "tensor", "nonzeros", "rank, dtype", "threads", "iteration, ms", "build, s", "start, s",
    "call of 50, s", "first call of a process, s",
)  # fmt: skip


def describe_caches(row):
    """Say if a row is of a process that began with empty caches of kernels."""
    return ", caches empty" if row["is_cold"] else ""


def make_cells(row):
    """Return a row's cells, by `TITLES`."""
    seconds = (1e3 * row["iteration_s"], row["build_s"], row["start_s"], row["total_s"])
    return [
        f"{row['tensor']}{describe_caches(row)}",
        f"{row['nnz'] / 1e6:.1f}M",
        f"{row['rank']}, {row['dtype']}",
        str(row["threads"] or ""),
        *(f"{number:.3g}" for number in (*seconds, row["first_call_s"])),
    ]


def group_by_machine(runs):
    """Return the runs of each machine, in the order of their commits."""
    machines = {}
    for run in runs:
        machines.setdefault(run["machine"], []).append(run)
    return machines


def write_newest(machines):
    """Write a table of the newest run of each machine."""
    parts = []
    for machine, runs in machines.items():
        rows = [make_cells(row) for row in runs[-1]["rows"]]
        parts.append(write_title(runs[-1], machine) + make_table(TITLES, rows))
    return "\n".join(parts)


def name_case(row):
    """Return the name of a row's case, the same in all runs."""
    case = f"{row['tensor']}, {row['nnz'] / 1e6:.1f}M, {row['rank']}, {row['dtype']}"
    threads = f", threads: {row['threads']}" if row["threads"] else ""
    return f"{case}{threads}{describe_caches(row)}"


def list_series(runs, key):
    """Return the numbers of each case over the runs of a machine, nan where it was not measured."""
    found = [{name_case(row): row[key] for row in run["rows"]} for run in runs]
    names = dict.fromkeys(name for numbers in found for name in numbers)
    return {name: [numbers.get(name, np.nan) for numbers in found] for name in names}


def write_history(machines):
    """Write a table of each machine's iterations and whole calls, a column for each commit."""
    parts = []
    for machine, runs in machines.items():
        calls, rows = list_series(runs, "total_s"), []
        for name, seconds in list_series(runs, "iteration_s").items():
            pairs = zip(seconds, calls[name], strict=True)
            rows.append([name, *(f"{1e3 * each:.3g} / {call:.3g}" for each, call in pairs)])
        titles = ["", *(f"{run['commit']}, {run['committed'][:10]}" for run in runs)]
        parts.append(f"## {machine}\n\n{make_table(titles, rows)}")
    return "\n".join(parts)


def draw_history(machines, path):
    """Draw whole calls over commits, relative to the newest, for machines with several runs."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    several = {machine: runs for machine, runs in machines.items() if len(runs) > 1}
    figure = Figure(figsize=(8, 4 * len(several)), layout="constrained")
    panels = figure.subplots(len(several), 1, squeeze=False)[:, 0]
    for axes, (machine, runs) in zip(panels, several.items(), strict=True):
        for name, seconds in list_series(runs, "total_s").items():
            axes.plot(np.divide(seconds, seconds[-1]), marker="o", label=name)
        axes.set_xticks(range(len(runs)), [run["commit"] for run in runs])
        axes.set(title=machine, ylabel="a whole call / the newest commit's")
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    with rc_context({"svg.hashsalt": path.name}):  # else each run names its shapes anew
        figure.savefig(path, metadata={"Date": None})


# Seconds to a fit, by seconds_to_fit.py.

#: Ways of README's table in its order, and their names.
WAYS = {
    "auto@cuda": "auto",
    "momentum": "momentum",
    "flycoo": "plain",
    "pygenten": "pygenten",
    "pyttb": "pyttb",
}

TENSORS = {
    "flights": "nycflights",
    "babynames": "babynames",
    "umls": "umls, a knowledge graph",
    "nell-2": "Nell-2's structure",
    "collinear": "nearly parallel components",
}


def name_way(way, run):
    """Return the name of a way, with what it ran on or its version."""
    if way in run["versions"]:
        return f"{WAYS[way]} {run['versions'][way]}"
    if way.endswith("@cuda"):
        return f"{WAYS[way]}, {run['gpu'].split()[1]}"
    return f"{WAYS[way]}, {run['threads']} cores"


def write_seconds(row, share, run):
    """Return a cell: the median seconds to a share of the best fit from the same start."""
    if row is None:  # not measured
        return ""
    if not row["num_calls"]:
        return "stopped"
    seconds = row[f"same_{share}_s"]
    stopped = "*" if row["num_calls"] < run["starts"] else ""
    if seconds is None:
        return f"never{stopped}"
    return f"{seconds:.2g} ({row[f'same_{share}_iterations']:.0f}){stopped}"


def write_fits(runs, shares):
    """Write a table of the newest run of each tensor, a row for each share."""
    newest = {run["tensor"]: run for run in runs}
    lines = []
    for tensor in (name for name in TENSORS if name in newest):
        run = newest[tensor]
        rows = {row["way"]: row for row in run["rows"]}
        shape = " x ".join(map(str, run["shape"]))
        for share in shares:
            percent = f"{100 * share:g} %" if len(shares) > 1 else ""
            cells = [f"{TENSORS[tensor]}, {shape}", f"{run['nnz']:,}, {run['rank']}", percent]
            lines.append([*cells, *(write_seconds(rows.get(way), share, run) for way in WAYS)])
    titles = ["tensor", "nonzeros, rank", "share", *(name_way(way, run) for way in WAYS)]
    return make_table(titles, lines)


# Several GPUs, by benchmark_gpu/scaling.py.


def write_gpus(runs):
    """Write a table of the newest run of each number of GPUs."""
    newest, parts = {run["num_gpus"]: run for run in runs}, []
    for num_gpus, run in sorted(newest.items()):
        counts = [n for n in range(2, num_gpus + 1) if f"{n} gpus" in run["rows"][0]]
        titles = ["tensor", "nonzeros", "one GPU, ms"]
        titles += [title for n in counts for title in (f"{n} GPUs, ms", "times as fast")]
        lines = []
        for row in run["rows"]:
            shape = " x ".join(f"{size:,}" for size in row["shape"])
            one = row.get("one", row["1 gpus"])["iteration_ms"]
            cells = [f"{row['tensor']}, {shape}", f"{row['nnz'] / 1e6:,.1f}M", f"{one:.3g}"]
            for n in counts:
                several = row[f"{n} gpus"]["iteration_ms"]
                cells += [f"{several:.3g}", f"{one / several:.2f}"]
            lines.append(cells)
        title = write_title(run, f"{num_gpus} x {run['machine']}")
        parts.append(title + make_table(titles, lines))
    return "\n".join(parts)


# The pages.


def make_tables(results):
    """Return all tables by name."""
    machines = group_by_machine(load_runs(results / "speed"))
    fits = load_runs(results / "fit")
    tables = {
        "speed, newest": write_newest(machines),
        "speed, all": write_history(machines),
        "fits, 99.9 %": write_fits(fits, [0.999]),
        "fits": write_fits(fits, [0.99, 0.999]),
        "gpus": write_gpus(load_runs(results / "gpus")),
    }
    for path in sorted(paper.RESULTS.glob("*.json")):
        for name, table in paper.make_parts(json.loads(path.read_text())).items():
            tables[f"{path.stem}, {name}"] = f"{table}\n"
    return tables


def fill_page(text, tables):
    """Replace what is between the marks of a page; a mark without a table is a KeyError."""
    pattern = r"(<!-- written by write_tables\.py: ([^\n]+) -->\n).*?(?=<!-- end -->)"
    return re.sub(pattern, lambda found: found[1] + tables[found[2]], text, flags=re.DOTALL)


def main(argv=None):
    """Write all pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=ROOT / "examples" / "results")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the pages")
    options = parser.parse_args(argv)
    tables = make_tables(options.results)
    for page in PAGES:
        path = options.root / page
        path.write_text(fill_page(path.read_text(), tables))
    machines = group_by_machine(load_runs(options.results / "speed"))
    draw_history(machines, options.root / "docs" / "history.svg")


if __name__ == "__main__":
    main()
