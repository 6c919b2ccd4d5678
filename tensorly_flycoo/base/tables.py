"""Tables: of text, as `print` shows them, and of HTML, as notebooks do."""

from collections.abc import Iterable, Sequence

import numpy as np

#: Of positive and negative numbers.
_COLOURS = ("#4c78a8", "#e45756")

#: Pixels: of a line's picture, and of the longest bar.
_WIDTH = 160
_HEIGHT = 40
_BAR_WIDTH = 60


def format_table(rows: Iterable[Sequence[str]], align: str = ">") -> str:
    """Return lines of text whose columns are aligned to the left, "<", or to the right."""
    all_rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*all_rows, strict=True)]
    lines = []
    for row in all_rows:
        cells = [f"{cell:{align}{width}}" for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def make_table(rows: Iterable[Sequence[str]], head: Sequence[str], caption: str) -> str:
    """Return an HTML table of plain text, but for the cells after the first: they are HTML."""
    import html

    lines = ["".join([f"<th>{html.escape(text)}</th>" for text in head])]
    for name, *cells in rows:
        columns = "".join([f"<td>{cell}</td>" for cell in cells])
        lines.append(f"<th>{html.escape(name)}</th>{columns}")
    body = "".join([f"<tr>{line}</tr>" for line in lines])
    return f"<table><caption>{html.escape(caption)}</caption>{body}</table>"


def make_bars(values: Iterable[float], texts: Iterable[str], largest: float) -> str:
    """Return lines of a bar and its text; the longest has the `largest` magnitude, or more."""
    import html

    lines = []
    for value, text in zip(values, texts, strict=True):
        share = min(abs(value) / largest, 1) if largest else 0
        width = round(_BAR_WIDTH * share)
        colour = _COLOURS[int(value < 0)]
        style = f"display:inline-block;height:.7em;width:{width}px;background:{colour}"
        lines.append(f'<span style="{style}"></span> {html.escape(text)}')
    return '<div style="text-align:left">' + "<br/>".join(lines) + "</div>"


def make_line(values: np.ndarray, low: float, high: float) -> str:
    """Return a line through values on a scale from `low` to `high`, which contains 0."""
    # Of very many values, two for each pixel.
    num_shown = min(values.size, 2 * _WIDTH)
    shown = np.linspace(0, values.size - 1, num_shown).round().astype(int)
    scale = _HEIGHT / ((high - low) or 1)
    xs = _WIDTH * (shown + 0.5) / values.size
    ys = scale * (high - values[shown])
    y_of_zero = scale * high
    points = " ".join([f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True)])
    axis = f'<path d="M0 {y_of_zero:.1f}H{_WIDTH}" stroke="silver"/>'
    line = f'<polyline points="{points}" fill="none" stroke="{_COLOURS[0]}"/>'
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}">{axis}{line}</svg>'
