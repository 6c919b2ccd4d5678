"""Pictures like the paper's, drawn from the figures of its experiments."""

import numpy as np

from .tables import THROUGHPUTS, get_balance, get_throughput, remapping_share, sweep_s

_OURS = ("remap", "replicated", "indexed")


def _get(figure, rows, *arguments):
    """Return a figure of each tensor's row: nan where it was not measured."""
    values = []
    for row in rows:
        try:
            values.append(figure(row, *arguments))
        except KeyError:
            values.append(np.nan)
    return np.array(values)


def draw_pictures(result, path):
    """Draw each experiment of which there are figures to a file of its own for each alpha."""
    for alpha in sorted({row["alpha"] for row in result["rows"]}):
        for name, draw in _PICTURES.items():
            rows = [row for row in result["rows"] if row["alpha"] == alpha]
            rows = [
                row for row in rows if row.get(_NEEDED[name]) or _NEEDED[name] in row["published"]
            ]
            if rows:
                own_path = path.with_stem(f"{path.stem}-{name}-{alpha:g}")
                _draw(draw, rows, describe_run(result, alpha), own_path)


def describe_run(result, alpha):
    """Describe where the figures of a picture are from."""
    scale = "" if result["scale"] == 1 else f", {result['scale']:g} of the size"
    return f"alpha {alpha:g}{scale}; {result['device']}, {result['date']}"


#: What a tensor's row, or its part "published", must have for each picture.
_NEEDED = {
    "breakdown": "remap_s",
    "throughput": "ncu",
    "columns": "settings_s",
    "tiles": "tiles_s",
    "total": "remap_s",
    "balance": "balance",
    "memory": "bytes_per_nonzero",
    "building": "build_s",
}


def _draw(draw, rows, description, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    draw(figure, rows)
    figure.supxlabel(description, size="x-small", x=0.99, ha="right")
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def _draw_bars(axes, rows, heights, **options):
    """Draw a bar for each tensor and name; return the bars' places by name."""
    width, places = 0.8 / len(heights), {}
    for number, (name, values) in enumerate(heights.items()):
        places[name] = np.arange(len(rows)) + (number - (len(heights) - 1) / 2) * width
        axes.bar(places[name], values, width, label=name, **options)
    _label_tensors(axes, rows)
    return places


def _label_tensors(axes, rows):
    labels = [row["tensor"].replace(", ", "\n") for row in rows]
    axes.set_xticks(range(len(rows)), labels, size="small")


def _add_legend(figure, axes, ncols):
    handles = axes.get_legend_handles_labels()
    sizes = {"fontsize": "small", "handlelength": 1, "columnspacing": 1}
    figure.legend(*handles, loc="outside upper center", ncols=ncols, **sizes)


def draw_breakdown(figure, rows):
    """The shares of computing and remapping, of the paper's kernel and of ours."""
    axes = figure.subplots()
    for name, shift in (("published", -0.2), ("remap", 0.2)):
        shares = _get(remapping_share, rows, name)
        places = np.arange(len(rows)) + shift
        label = "the paper's" if name == "published" else "ours"
        axes.bar(places, 1 - shares, 0.38, label=f"computing, {label}")
        axes.bar(places, shares, 0.38, bottom=1 - shares, label=f"remapping, {label}")
    _label_tensors(axes, rows)
    axes.set_ylabel("share of the time")
    _add_legend(figure, axes, 4)


def draw_throughput(figure, rows):
    """SM and L1 throughput by ncu, means over the modes."""
    variants = ("paper", "replicated", "indexed", "remap")
    for axes, (metric, name) in zip(figure.subplots(1, 2), THROUGHPUTS.items(), strict=True):
        heights = {variant: _get(get_throughput, rows, variant, metric) for variant in variants}
        _draw_bars(axes, rows, heights)
        axes.set(ylabel="% of the peak", title=f"{name} throughput")
        axes.tick_params(axis="x", rotation=45)
    _add_legend(figure, axes, len(variants))


def draw_columns(figure, rows):
    """Throughput of the paper's kernel by P, relative to its best."""
    axes = figure.subplots()
    times = [row["published"]["settings_s"]["1"] for row in rows]
    counts = sorted(times[0], key=int)
    seconds = {count: np.array([own[count] for own in times]) for count in counts}
    best = np.min(list(seconds.values()), axis=0)
    _draw_bars(axes, rows, {f"P = {count}": best / seconds[count] for count in counts})
    axes.set_ylabel("throughput / the best")
    _add_legend(figure, axes, len(counts))


def draw_tiles(figure, rows):
    """Throughput of ours by remap and the size of a tile, relative to its best."""
    axes = figure.subplots()
    sizes = sorted({size for row in rows for size in row["tiles_s"]}, key=int)
    seconds = np.array([_get(lambda row, n=n: row["tiles_s"][n], rows) for n in sizes])
    throughput = np.nanmin(seconds, axis=0) / seconds
    _draw_bars(axes, rows, {f"tiles of {n}": own for n, own in zip(sizes, throughput, strict=True)})
    axes.set_ylabel("throughput / the best")
    _add_legend(figure, axes, len(sizes))


def draw_total(figure, rows):
    """The time of a sweep, and how much faster than the paper's kernel ours are."""
    axes = figure.subplots()
    names = ("published", "remap", "replicated", "default")
    heights = {name: 1e3 * _get(sweep_s, rows, name) for name in names}
    labels = {"the paper's": heights["published"], **{n: heights[n] for n in names[1:]}}
    places = _draw_bars(axes, rows, labels)
    axes.set(yscale="log", ylabel="ms a sweep")
    for name in names[1:]:
        ratios = heights["published"] / heights[name]
        for x, y, ratio in zip(places[name], heights[name], ratios, strict=True):
            if np.isfinite(ratio):
                label = f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"
                axes.text(x, y, label, ha="center", va="bottom", size="x-small")
    _add_legend(figure, axes, len(names))


def draw_balance(figure, rows):
    """The largest load of the worst mode: of Algorithm 1, the best, and of our tiles."""
    axes = figure.subplots()
    names = {
        "least filled": "least filled", "cyclic": "cyclic",
        "optimum, at least": "the best that whole rows allow, at least", "tiles": "our tiles",
    }  # fmt: skip
    _draw_bars(axes, rows, {names[key]: _get(get_balance, rows, key) for key in names})
    axes.set(yscale="log", ylabel="largest load / mean")
    _add_legend(figure, axes, len(names))


def draw_memory(figure, rows):
    """Bytes of a nonzero: by the paper's formula, of its copies as built here, and of ours."""
    axes = figure.subplots()
    heights = {
        "the formula": _get(lambda row: row["published"]["formula"], rows),
        "the paper's, here": _get(lambda row: row["published"]["bytes_per_nonzero"], rows),
        **{name: _get(lambda row, n=name: row["bytes_per_nonzero"][n], rows) for name in _OURS},
        "default": _get(lambda row: row["default"]["bytes_per_nonzero"], rows),
    }
    _draw_bars(axes, rows, heights)
    axes.set_ylabel("bytes a nonzero")
    _add_legend(figure, axes, len(heights))


def draw_building(figure, rows):
    """The time to build the paper's format, its partitions on one core of the host, and ours."""
    axes = figure.subplots()
    heights = {
        "the paper's": _get(lambda row: row["published"]["build_s"], rows),
        **{name: _get(lambda row, n=name: row["build_s"][n], rows) for name in _OURS},
    }
    _draw_bars(axes, rows, heights)
    axes.set(yscale="log", ylabel="s")
    _add_legend(figure, axes, len(heights))


_PICTURES = {
    "breakdown": draw_breakdown,
    "throughput": draw_throughput,
    "columns": draw_columns,
    "tiles": draw_tiles,
    "total": draw_total,
    "balance": draw_balance,
    "memory": draw_memory,
    "building": draw_building,
}
