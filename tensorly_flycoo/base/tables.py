"""Tables: of text, as `print` shows them, and of HTML, as notebooks do."""

from collections.abc import Iterable, Sequence

import numpy as np

#: Of positive and negative numbers.
_COLOURS = ("#4c78a8", "#e45756")
_WIDTH = 160
_HEIGHT = 40


def format_table(rows: Iterable[Sequence[str]], align: str = ">") -> str:
    """Return lines of text whose columns are aligned to the left, "<", or to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{align}{width}}}" for width in widths)
    return "\n".join(form.format(*row).rstrip() for row in rows)


def make_table(rows: Iterable[Sequence[str]], head: Sequence[str], caption: str) -> str:
    """Return a table of cells of HTML; caption, `head` and the first cell of a row are text."""
    import html

    lines = ["".join(f"<th>{html.escape(text)}</th>" for text in head)]
    for first, *others in rows:
        cells = "".join(f"<td>{other}</td>" for other in others)
        lines.append(f"<th>{html.escape(first)}</th>{cells}")
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{html.escape(caption)}</caption>{body}</table>"


def make_bars(values: Iterable[float], texts: Iterable[str], largest: float) -> str:
    """Return lines of a bar and its text; the longest has the `largest` magnitude, or more."""
    import html

    lines = []
    for value, text in zip(values, texts, strict=True):
        width = round(60 * min(abs(value) / largest, 1)) if largest else 0
        colour = _COLOURS[int(value < 0)]
        style = f"display:inline-block;height:.7em;width:{width}px;background:{colour}"
        lines.append(f'<span style="{style}"></span> {html.escape(text)}')
    return '<div style="text-align:left">' + "<br/>".join(lines) + "</div>"


def make_line(values: np.ndarray, low: float, high: float) -> str:
    """Return a line through values on a scale from `low` to `high`, which contains 0."""
    steps = np.linspace(0, values.size - 1, min(values.size, 2 * _WIDTH)).round().astype(int)
    x = _WIDTH * (steps + 0.5) / values.size
    scale = _HEIGHT / ((high - low) or 1)
    y = scale * (high - values[steps])
    zero = scale * high
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    axis = f'<path d="M0 {zero:.1f}H{_WIDTH}" stroke="silver"/>'
    line = f'<polyline points="{points}" fill="none" stroke="{_COLOURS[0]}"/>'
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}">{axis}{line}</svg>'
