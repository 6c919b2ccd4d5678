"""The stages of a whole call of parafac: time them, compare them and draw them.

Nothing here needs a GPU; the benchmarks of the CPU use it too. A call is a dictionary: the tensor,
the way, the seconds of each stage, the peak of memory, and the fit after each iteration.
"""

import time

import numpy as np

STAGES = {
    "build": "build the tensor",
    "check": "check the COO",
    "start": "initial guess",
    "iterations": "iterations",
    "back": "factors to NumPy",
}

#: parafac computes the fit for any tol but 0, and never converges with a negative one.
_TOL = -1.0

#: A bar ends at this multiple of its tensor's shortest; only its label gives the total.
_LONGEST = 4

#: Titles, formats and figures of the table; a column that no call has is left out.
COLUMNS = (
    *((f"{stage}, s", ".3g", lambda call, key=f"{stage}_s": call[key]) for stage in STAGES),
    ("total, s", ".3g", lambda call: call["total_s"]),
    ("start / iteration", ".1f", lambda call: call["start_s"] / call["iteration_s"]),
    ("s to fit", ".3g", lambda call: call["to_fit_s"]),
    ("peak, GB", ".2f", lambda call: call["peak_nbytes"] / 1e9),
    ("(peak - tensor) / factors", ".2f",
        lambda call: (call["peak_nbytes"] - call["tensor_nbytes"]) / call["factors_nbytes"]),
)  # fmt: skip


def time_stages(make, rank, num_iterations, init, wait=lambda: None):
    """Time parafac from building its tensor with `make` to having the factors in NumPy.

    `make` returns a FlycooTensor, or a new COO, which "build" then converts. "check" is what each
    later call does to a COO: compare it with what was converted. "start" includes the first fit.
    `wait` waits for the device.
    """
    import tensorly as tl
    from tensorly.decomposition import parafac

    times, fits = [], []

    def note_time():
        wait()
        times.append(time.perf_counter())

    def record(_, error):  # also called before the first iteration
        fits.append(1 - float(error))
        note_time()

    options = {"init": init, "random_state": 0, "tol": _TOL, "callback": record}
    note_time()
    x = make()
    tl.norm(x)  # converts a COO
    note_time()
    tl.norm(x)  # checks it, as parafac will
    note_time()
    _, factors = parafac(x, rank, num_iterations, **options)
    factors = [tl.to_numpy(factor) for factor in factors]
    note_time()
    build_s, check_s, start_s, *iterations, back_s = np.diff(times).tolist()
    # The first call of parafac has just converted the COO; a later one checks it, as this one did.
    seconds = build_s, check_s, max(start_s - check_s, 0.0), sum(iterations), back_s
    return make_call(seconds, fits[1:], num_iterations)


def make_call(seconds, fits, num_iterations):
    """Return a call's figures from the seconds of its stages."""
    call = {f"{stage}_s": s for stage, s in zip(STAGES, seconds, strict=True)}
    iteration_s = call["iterations_s"] / num_iterations
    first_s = call["build_s"] + call["check_s"] + call["start_s"] + iteration_s
    total = {"total_s": sum(seconds), "iteration_s": iteration_s, "first_s": first_s}
    return call | total | {"fit": fits[-1], "fits": fits}


def add_time_to_fit(rows, target):
    """Add the seconds to reach a fit, by default 99 % of the first row's last; return that fit.

    A way that reports only its last fit counts as many iterations as the first if that fit is the
    same.
    """
    fits = rows[0].get("fits", [np.nan])
    target = 0.99 * fits[-1] if target is None else target
    for row in rows:
        is_same = "fit" in row and abs(row["fit"] - fits[-1]) < 1e-6
        its_fits = fits if is_same else row.get("fits", [])
        reached = [n for n, fit in enumerate(its_fits) if fit >= target]
        if reached:
            row["to_fit_s"] = row["first_s"] + reached[0] * row["iteration_s"]
    return target


def print_calls(calls):
    """Print a Markdown table of calls, if there are any, and below it why some failed."""
    if not calls:
        return
    columns = [c for c in COLUMNS if any(_format(c, call) for call in calls)]
    titles = ["tensor", "nonzeros", "call", *(title for title, _, _ in columns)]
    print("\n| " + " | ".join(titles) + " |")
    print("|" + len(titles) * "---|")
    for call in calls:
        cells = [call["tensor"], f"{call['nnz']:,}", call["way"]]
        cells += [_format(column, call) for column in columns]
        print("| " + " | ".join(cells) + " |")
    for call in calls:
        if "failure" in call:
            print(f"{call['tensor']}, {call['way']}: {call['failure']}")
    print(flush=True)


def _format(column, call):
    _, style, figure = column
    try:
        return format(figure(call), style)
    except KeyError:
        return ""


def draw_calls(calls, path, title):
    """Draw each call as a stacked bar, with a panel and an axis for each tensor, to a file."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(call["tensor"] for call in calls))
    groups = [[call for call in calls if call["tensor"] == name] for name in names]
    height = 1.2 + 0.3 * len(calls) + 0.55 * len(groups)
    figure = Figure(figsize=(9, height), layout="constrained")
    figure.suptitle(title)
    options = {"squeeze": False, "height_ratios": [len(group) for group in groups]}
    panels = figure.subplots(len(groups), 1, **options)[:, 0]
    for axes, group in zip(panels, groups, strict=True):
        draw_panel(axes, group)
    panels[-1].set_xlabel("seconds")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(STAGES))
    figure.savefig(path, dpi=120)


def draw_panel(axes, calls):
    """Draw the calls of one tensor."""
    ways = [call["way"] for call in calls]
    limit = _LONGEST * min((call["total_s"] for call in calls if "total_s" in call), default=1)
    lefts = np.zeros(len(calls))
    for stage, label in STAGES.items():
        rights = lefts + [call.get(f"{stage}_s", 0) for call in calls]
        rights = np.minimum(rights, limit)
        axes.barh(ways, rights - lefts, left=lefts, label=label)
        lefts = rights
    for y, (call, length) in enumerate(zip(calls, lefts, strict=True)):
        text = f" ... {_label(call)}" if length == limit else f" {_label(call)}"
        axes.text(length, y, text, va="center", size="small").set_in_layout(False)
    axes.set_xlim(0, 1.35 * (lefts.max() or limit))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{calls[0]['tensor']}, {calls[0]['nnz']:,} nonzeros", size="medium", loc="left")


def _label(call):
    if "total_s" not in call:
        return call["failure"].partition(":")[0]
    return f"{call['total_s']:.3g} s, peak {call['peak_nbytes'] / 1e9:.2f} GB"
