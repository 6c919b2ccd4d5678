"""Pictures of labelled models: a row of panels for each component, with a panel for each mode."""

import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.checks import require
from ..engines.tall import find_largest
from ..tensor.labelled import take_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches of a panel with bars or with a line, and of the headings at the left.
_BARS_WIDTH = 3.4
_LINE_WIDTH = 4.2
_HEADING_WIDTH = 1.2
#: Inches of a row of panels: for the axes, and for each bar.
_ROW_HEIGHT = 0.5
_BAR_HEIGHT = 0.17
#: Inches of a row of panels at least, and of the titles above all of them.
_MIN_HEIGHT = 1.4
_TITLE_HEIGHT = 0.8

#: Labels are shown as they are: a "$" does not begin a formula.
_TICKS: dict[str, Any] = {"fontsize": 8, "parse_math": False}

#: Longer names are cut, and lines with more points have no markers.
_MAX_NAME_LENGTH = 28
_MAX_MARKERS = 40

#: Elements below this share of a component's largest are not shown by name.
_LEAST_SHARE = 0.01

#: Numbers are a scale if so many of their steps are alike; else they may be ids.
_EVEN_SHARE = 0.9


class DrawnMode(NamedTuple):
    """What is drawn of a mode: the columns of its factor, each with the ends of its intervals."""

    name: Any
    labels: np.ndarray
    factor: np.ndarray
    ends: Sequence[np.ndarray]


def is_scale(labels: np.ndarray) -> bool:
    """Return whether ordered labels are a scale, and no ids: integers have even steps.

    >>> is_scale(np.array([2001, 2002, 2003, 2004])), is_scale(np.array([17, 4711, 20_000]))
    (True, False)
    """
    if labels.dtype.kind not in "iu" or labels.size < 3:
        return True
    steps = np.diff(np.sort(labels))
    _, counts = np.unique(steps, return_counts=True)
    return bool(counts.max() >= _EVEN_SHARE * steps.size)


def is_visible(element: float, largest: float) -> bool:
    """Return whether an element is large enough beside the largest of its component."""
    return abs(element) >= _LEAST_SHARE * largest and element != 0


def find_top(column: np.ndarray, n: int) -> np.ndarray:
    """Return the places of the largest magnitudes in a column, all if it has fewer than `n`."""
    return find_largest(np.abs(column)[None], min(n, column.size))[0]


def make_panels(
    num_components: int, num_modes: int, num_bars: int, line_modes: Iterable[int]
) -> np.ndarray:
    """Make a figure with a panel for each component and mode: (R, ndim)."""
    widths = [_BARS_WIDTH] * num_modes
    for n in line_modes:
        widths[n] = _LINE_WIDTH
    height = max(_MIN_HEIGHT, _ROW_HEIGHT + _BAR_HEIGHT * num_bars)
    figure = _make_figure(_HEADING_WIDTH + sum(widths), _TITLE_HEIGHT + height * num_components)
    grid = figure.subplots(num_components, num_modes, squeeze=False, width_ratios=widths)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
    return grid


def clear(axes: "Axes") -> None:
    """Leave a panel empty, but for the heading that may be there."""
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[])


def draw_heading(axes: "Axes", heading: str, r: int) -> None:
    """Write what a component is at the left of its first panel."""
    axes.set_ylabel(
        heading,
        weight="bold",
        color=f"C{r % 10}",
        rotation=0,
        ha="right",
        va="center",
        labelpad=12,
    )


def _make_figure(width: float, height: float) -> "Figure":
    """Make an empty figure, in inches; say what to install if Matplotlib is missing."""
    matplotlib = require("matplotlib.figure", "plot needs Matplotlib: pip install matplotlib")
    figure = matplotlib.Figure(figsize=(width, height), layout="constrained")
    # A notebook knows how to show pyplot's figures, or any after "%matplotlib inline".
    figure._repr_png_ = functools.partial(_draw_png, figure)
    return figure


def _draw_png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def draw_bars(num_bars: int, panels: "Mapping[int, Axes]", mode: DrawnMode) -> None:
    """Draw the largest elements of components, the largest on top, and their intervals."""
    _, labels, factor, ends = mode
    limits = find_limits(factor, *ends)
    for r, axes in panels.items():
        rows = find_top(factor[:, r], num_bars)
        largest = abs(factor[rows[:1], r]).max(initial=0)
        rows = rows[[is_visible(element, largest) for element in factor[rows, r]]]
        places = range(rows.size)
        axes.barh(places, factor[rows, r], color=f"C{r % 10}")
        if ends:
            lower, upper = ends
            axes.hlines(places, lower[rows, r], upper[rows, r], color="black", linewidth=1)
        axes.set_yticks(places, list(map(shorten, take_labels(labels, rows))), **_TICKS)
        axes.set_ylim(num_bars - 0.5, -0.5)
        axes.set_xlim(*limits)
        axes.axvline(0, color="gray", linewidth=0.8)
    _keep_last_ticks(panels, "element")


def draw_lines(panels: "Mapping[int, Axes]", mode: DrawnMode) -> None:
    """Draw columns of a factor along its labels, in the bands of their intervals."""
    _, labels, factor, ends = mode
    has_numbers = labels.dtype.kind in "iufM" and labels.size > 1  # numbers or dates
    if has_numbers:
        order = np.argsort(labels, kind="stable")
        x = labels[order]
    else:
        order = np.arange(labels.size)
        x = order
    limits = find_limits(factor, *ends)
    marker = ""
    if labels.size <= _MAX_MARKERS:
        marker = "."
    for r, axes in panels.items():
        axes.plot(x, factor[order, r], marker=marker, color=f"C{r % 10}", linewidth=1)
        if ends:
            lower, upper = ends
            color = f"C{r % 10}"
            axes.fill_between(x, lower[order, r], upper[order, r], color=color, alpha=0.3, lw=0)
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_ylim(*limits)
        _set_ticks(axes, labels, has_numbers)
    _keep_last_ticks(panels, str(mode.name))


def _keep_last_ticks(panels: "Mapping[int, Axes]", axis_name: str) -> None:
    """Label the axis of the last panel of a mode; the others have the same."""
    drawn = list(panels.values())
    for axes in drawn[:-1]:
        axes.tick_params("x", labelbottom=False)
    for axes in drawn[-1:]:
        axes.set_xlabel(axis_name, fontsize=8, parse_math=False)


def _set_ticks(axes: "Axes", labels: np.ndarray, has_numbers: bool) -> None:
    """Choose ticks for ordered labels: of dates, of numbers, or five names."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import MaxNLocator

    kind = labels.dtype.kind
    if not has_numbers:
        evenly = np.linspace(0, labels.size - 1, 5)
        places = np.unique(evenly.round().astype(int))
        shown: Any = labels[places]
        if kind != "M":  # as Python's objects; tolist would make numbers of dates
            shown = shown.tolist()
        axes.set_xticks(places, list(map(shorten, shown)), rotation=20, ha="right", **_TICKS)
    elif kind == "M":
        locator = AutoDateLocator(maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=kind in "iu"))


def find_limits(*arrays: np.ndarray) -> tuple[float, float]:
    """Return the bounds of the scale that all panels of a mode share; it contains 0.

    >>> find_limits(np.array([1.0, 2.0]))
    (0.0, 2.1)
    """
    low = float(np.fmin.reduce([0.0, *map(np.min, arrays)]))  # not nan
    high = float(np.fmax.reduce([0.0, *map(np.max, arrays)]))
    margin = 0.05 * (high - low) or 1.0
    return low - margin * (low < 0), high + margin


def shorten(label: Any) -> str:
    """Return a label as text, cut if it is long."""
    text = str(label)
    if len(text) <= _MAX_NAME_LENGTH:
        return text
    return text[: _MAX_NAME_LENGTH - 1] + "…"
