"""Tables of the paper's experiments, in Markdown, for the terminal and for docs/paper.md.

`examples/write_tables.py` writes those of the committed results into it.
"""

from pathlib import Path
from statistics import geometric_mean, mean

#: The figures of the page, a file for each run.
RESULTS = Path(__file__).resolve().with_name("results")

#: Metrics of ncu in the paper's figures, and their names.
THROUGHPUTS = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "L1",
}


def sweep_s(row, name):
    """Return the seconds of a sweep over all modes: of the paper's kernel, or of ours."""
    if name == "published":
        return sum(row["published"]["zero_s"]) + sum(row["published"]["remap_s"])
    if name == "default":
        return row["default"]["sweep_s"]
    return sum(row["sweeps_s"][name]["32"])


def speedup(row, name):
    """Return how many times as fast as the paper's kernel ours is."""
    return sweep_s(row, "published") / sweep_s(row, name)


def remapping_share(row, name):
    """Return the share of remapping in a sweep of the paper's kernel, or of ours."""
    if name == "published":
        published = row["published"]
        return 1 - sum(published["compute_s"]) / sum(published["remap_s"])
    return 1 - sweep_s(row, "remap off") / sweep_s(row, "remap")


def get_balance(row, key):
    """Return the largest load over mean of the worst mode; of our tiles with key "tiles"."""
    if key == "tiles":
        return row["default"]["balance"]
    return max(mode[key] for mode in row["published"]["balance"])


def get_balance_ratio(row):
    """Return the largest ratio of Algorithm 1's fullest partition to the bound of the optimum."""
    return max(m["least filled"] / m["optimum, at least"] for m in row["published"]["balance"])


def _ms(seconds):
    return f"{1e3 * seconds:.3g}"


def _time(name):
    return lambda row: _ms(sweep_s(row, name))


def _speedup(name):
    return lambda row: f"{speedup(row, name):.2f}"


def _reading_ms(name):
    return lambda row: _ms(row["published"]["readings_s"][name])


def _columns_ms(num_columns):
    return lambda row: _ms(row["published"]["settings_s"]["1"][str(num_columns)])


def find_best(row):
    """Return the seconds of the paper's kernel at its best setting, its P, and partitions an SM."""
    settings = row["published"]["settings_s"].items()
    return min((s, int(count), ratio) for ratio, all in settings for count, s in all.items())


def _describe_best(row):
    seconds, count, ratio = find_best(row)
    return f"{_ms(seconds)} (P = {count}, {ratio} an SM)"


def get_throughput(row, variant, metric):
    """Return a metric of ncu, the mean over the modes."""
    return mean(launch[metric] for launch in row["ncu"] if launch["variant"] == variant)


def _throughput(variant, metric):
    return lambda row: f"{get_throughput(row, variant, metric):.0f}"


def _tile_ms(size):
    return lambda row: _ms(row["tiles_s"][str(size)])


def _bytes(layout):
    return lambda row: f"{row['bytes_per_nonzero'][layout]:.1f}"


def _balance(key):
    return lambda row: f"{get_balance(row, key):.3g}"


def _build(layout):
    return lambda row: f"{row['build_s'][layout]:.3g}"


#: For each table its columns: a title, and a function that makes a cell from a tensor's row.
TABLES = {
    "total": [
        ("the paper's, ms", _time("published")),
        ("remap, ms", _time("remap")),
        ("faster by", _speedup("remap")),
        ("replicated, ms", _time("replicated")),
        ("faster by", _speedup("replicated")),
        ("default, ms", _time("default")),
        ("its groups", lambda row: row["default"]["groups"]),
        ("faster by", _speedup("default")),
    ],
    "breakdown": [
        ("the paper's: remapping", lambda row: f"{remapping_share(row, 'published'):.0%}"),
        ("ours: remapping", lambda row: f"{remapping_share(row, 'remap'):.0%}"),
        (
            "the paper's: zeros in outputs",
            lambda row: f"{sum(row['published']['zero_s']) / sweep_s(row, 'published'):.0%}",
        ),
    ],
    "readings": [
        (f"{name}, ms", _reading_ms(name))
        for name in (
            "least filled, by index",
            "least filled, as they come",
            "cyclic, by index",
            "cyclic, as they come",
        )
    ],
    "accuracy": [
        ("the paper's kernel", lambda row: f"{row['published']['error']:.1e}"),
        ("ours", lambda row: f"{row['published']['our_error']:.1e}"),
    ],
    "settings": [
        *((f"P = {n}", _columns_ms(n)) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("the best", _describe_best),
        ("remap", lambda row: _ms(row["published"]["fewer_s"])),
        (
            "faster than the best by",
            lambda row: f"{find_best(row)[0] / row['published']['fewer_s']:.2f}",
        ),
    ],
    "throughput": [
        (f"{label}, {unit} %", _throughput(variant, metric))
        for metric, unit in THROUGHPUTS.items()
        for variant, label in (("paper", "the paper's"), ("remap", "remap"))
    ],
    "tiles": [(f"tiles of {size}", _tile_ms(size)) for size in (128, 256, 512, 1024)],
    "balance": [
        ("least filled", _balance("least filled")),
        ("cyclic", _balance("cyclic")),
        ("the optimum, at least", _balance("optimum, at least")),
        ("least filled / that", lambda row: f"{get_balance_ratio(row):.3f}"),
        ("our tiles", _balance("tiles")),
    ],
    "memory": [
        ("formula, two copies", lambda row: f"{row['published']['formula']:.1f}"),
        ("the paper's, here", lambda row: f"{row['published']['bytes_per_nonzero']:.1f}"),
        *((layout, _bytes(layout)) for layout in ("remap", "replicated", "indexed")),
        ("default", lambda row: f"{row['default']['bytes_per_nonzero']:.1f}"),
    ],
    "building": [
        ("the paper's, s", lambda row: f"{row['published']['build_s']:.3g}"),
        *((f"{layout}, s", _build(layout)) for layout in ("remap", "replicated", "indexed")),
    ],
}

#: Tables of tensors with fewer nonzeros.
_OF_FEWER = ("readings", "accuracy", "settings", "throughput", "tiles")


def make_table(rows, name):
    """Return a table in Markdown; a figure that was not measured is an empty cell."""
    columns = TABLES[name]
    titles = ["tensor", "alpha", "nonzeros", *(title for title, _ in columns)]
    lines = ["| " + " | ".join(titles) + " |", "|" + len(titles) * "---|"]
    for row in rows:
        cells = [_fill_cell(row, get) for _, get in columns]
        if any(cells):
            nnz = row["published"]["fewer_nnz"] if name in _OF_FEWER else row["nnz"]
            start = f"{row['tensor']} | {row['alpha']:g} | {nnz / 1e6:.1f}M"
            lines.append(f"| {start} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _fill_cell(row, get):
    try:
        return get(row)
    except KeyError:
        return ""


def make_products_table(rows):
    """Return the table of cuSPARSE's products."""
    titles = ["tensor", "nonzeros", "pairs", "by", "X C, ms", "X^T K, ms", "difference from ours"]
    lines = ["| " + " | ".join(titles) + " |", "|" + len(titles) * "---|"]
    for row in rows:
        start = f"{row['tensor']} | {row['nnz'] / 1e6:.1f}M | {row['num_pairs'] / 1e6:.2f}M"
        for product in row["products"]:
            times = " | ".join(map(_ms, product["seconds"]))
            end = f"{times} | {product['difference']:.1e}"
            lines.append(f"| {start} | {product['name']} | {end} |")
            start = "| |"
    return "\n".join(lines)


def make_libraries_table(rows):
    """Return the table of other libraries' programs; "faster by" is what remap is."""
    titles = ["tensor", "alpha", "nonzeros", "by", "ms", "building, s", "remap is faster by"]
    lines = ["| " + " | ".join(titles) + " |", "|" + len(titles) * "---|"]
    for row in rows:
        start = f"{row['tensor']} | {row['alpha']:g} | {row['nnz'] / 1e6:.1f}M"
        for own in row.get("libraries", []):
            if "failed" in own:
                end = "failed | | "
            else:
                seconds = sum(own["mttkrp_s"])
                faster = _fill_cell(row, lambda row, s=seconds: f"{s / sweep_s(row, 'remap'):.2f}")
                end = f"{_ms(seconds)} | {own['build_s']:.3g} | {faster}"
            lines.append(f"| {start} | {own['name']} | {end} |")
    return "\n".join(lines)


def summarise(result):
    """Return the device, and the means over the tensors that are drawn apart."""
    size = "" if result["scale"] == 1 else f", {result['scale']:g} of the tensors' sizes"
    lines = [
        f"{result['device']}, driver {result['driver']}, CuPy {result['cupy']}, "
        f"{result['date']}{size}."
    ]
    apart = [row for row in result["rows"] if "real pairs" not in row["tensor"]]
    for alpha in sorted({row["alpha"] for row in apart}):
        for name in ("remap", "replicated", "default"):
            rows = [row for row in apart if row["alpha"] == alpha]
            ratios = {
                row["tensor"]: speedup(row, name) for row in rows if _fill_cell(row, _speedup(name))
            }
            if ratios:
                lines.append(f"- alpha {alpha:g}, {name}: {_describe_ratios(ratios)}")
    return "\n".join([lines[0], *([""] if lines[1:] else []), *lines[1:]])


def _describe_ratios(ratios):
    """Describe ratios by tensor; Vast's mode of size 2 makes it a case of its own."""
    all = ratios.values()
    text = (
        f"{geometric_mean(all):.2f} times as fast as the paper's kernel (geometric mean of "
        f"{len(ratios)} tensors, {min(all):.2f} to {max(all):.1f})"
    )
    others = [ratio for tensor, ratio in ratios.items() if tensor != "vast"]
    return f"{text}, without vast {geometric_mean(others):.2f}" if others else text


def make_parts(result):
    """Return all tables that have figures, and the summary, by name."""
    parts = {"summary": summarise(result)}
    for name in TABLES:
        table = make_table(result["rows"], name)
        if table.count("\n") > 1:
            parts[name] = table
    if any("libraries" in row for row in result["rows"]):
        parts["libraries"] = make_libraries_table(result["rows"])
    if "spmm" in result:
        parts["spmm"] = make_products_table(result["spmm"])
    return parts


def print_tables(result):
    """Print all tables."""
    for name, text in make_parts(result).items():
        print(f"\n{name}\n\n{text}", flush=True)
