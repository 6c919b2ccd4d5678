"""Pictures of labelled CP models."""

from collections.abc import Set
from typing import TYPE_CHECKING, Any

import numpy as np

from ..array_modules import move

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .labelled_cp import LabelledCP

#: Inches of a panel with bars or with a line, and of the headings at the left.
_BARS_WIDTH, _LINE_WIDTH, _HEADING_WIDTH = 3.4, 4.2, 1.2
#: Inches of a row of panels: for the axes, and for each bar.
_ROW_HEIGHT, _BAR_HEIGHT = 0.5, 0.17

#: Labels are shown as they are: a "$" does not begin a formula.
_TICKS: dict[str, Any] = {"fontsize": 8, "parse_math": False}

#: Longer names are cut, and lines with more points have no markers.
_MAX_NAME_LENGTH, _MAX_MARKERS = 28, 40


def make_figure(width: float, height: float) -> "Figure":
    """Make an empty figure, in inches; say what to install if Matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plot needs Matplotlib: pip install matplotlib ({error})") from None
    return Figure(figsize=(width, height), layout="constrained")


def draw_components(cp: "LabelledCP", top: int, line_modes: Set[int]) -> "Figure":
    """Draw a row of panels for each component; see `LabelledCP.plot`."""
    ndim = len(cp.names)
    widths = [_LINE_WIDTH if n in line_modes else _BARS_WIDTH for n in range(ndim)]
    num_bars = min(top, max((cp.shape[n] for n in range(ndim) if n not in line_modes), default=0))
    height = max(1.4, _ROW_HEIGHT + _BAR_HEIGHT * num_bars)
    figure = make_figure(_HEADING_WIDTH + sum(widths), 0.8 + height * cp.rank)
    grid = figure.subplots(cp.rank, ndim, squeeze=False, width_ratios=widths)
    for n, column in enumerate(grid.T):
        factor = move(cp.factors[n], np)
        if n in line_modes:
            _draw_lines(column, cp.labels[cp.names[n]], factor)
        else:
            _draw_bars(column, cp.top(n, num_bars), num_bars, _find_limits(factor))
        column[0].set_title(cp.names[n], weight="bold", parse_math=False)
    for r, row in enumerate(grid):
        heading = f"component {r}\nweight {float(cp.weights[r]):.3g}"
        row[0].set_ylabel(heading, rotation=0, ha="right", va="center", labelpad=12, weight="bold")
        row[0].yaxis.label.set_color(f"C{r % 10}")
        for axes in row:
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_bars(
    column: "list[Axes]",
    components: list[dict[Any, float]],
    num_bars: int,
    limits: tuple[float, float],
) -> None:
    """Draw the largest elements of each component, the largest on top."""
    for r, (axes, component) in enumerate(zip(column, components, strict=True)):
        places = range(len(component))
        axes.barh(places, list(component.values()), color=f"C{r % 10}")
        axes.set_yticks(places, [_shorten(label) for label in component], **_TICKS)
        axes.set_ylim(num_bars - 0.5, -0.5)
        axes.set_xlim(*limits)
        axes.axvline(0, color="gray", linewidth=0.8)
        axes.tick_params("x", labelbottom=axes is column[-1])


def _draw_lines(column: "list[Axes]", labels: np.ndarray, factor: np.ndarray) -> None:
    """Draw each column of a factor along its labels."""
    is_scale = labels.dtype.kind in "iufM" and labels.size > 1
    order = np.argsort(labels, kind="stable") if is_scale else np.arange(labels.size)
    x = labels[order] if is_scale else order
    limits, marker = _find_limits(factor), "." if labels.size <= _MAX_MARKERS else ""
    for r, axes in enumerate(column):
        axes.plot(x, factor[order, r], marker=marker, color=f"C{r % 10}", linewidth=1)
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_ylim(*limits)
        axes.tick_params("x", labelbottom=axes is column[-1])
        _set_ticks(axes, labels, is_scale)


def _set_ticks(axes: "Axes", labels: np.ndarray, is_scale: bool) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import MaxNLocator

    if not is_scale:
        places = np.unique(np.linspace(0, labels.size - 1, 5).round().astype(int))
        shown = labels[places] if labels.dtype.kind == "M" else labels[places].tolist()
        axes.set_xticks(
            places, [_shorten(label) for label in shown], rotation=20, ha="right", **_TICKS
        )
    elif labels.dtype.kind == "M":
        locator = AutoDateLocator(maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=labels.dtype.kind in "iu"))


def _find_limits(factor: np.ndarray) -> tuple[float, float]:
    """Return the bounds of the scale that all panels of a mode share; it contains 0."""
    low, high = min(0.0, float(factor.min())), max(0.0, float(factor.max()))
    margin = 0.05 * (high - low) or 1.0
    return low - margin * (low < 0), high + margin


def _shorten(label: Any) -> str:
    text = str(label)
    return text if len(text) <= _MAX_NAME_LENGTH else text[: _MAX_NAME_LENGTH - 1] + "…"
