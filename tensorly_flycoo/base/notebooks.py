"""HTML tables of text, by which notebooks show tensors, statistics and searches.

Every text is escaped, since labels and the names of modes are whatever a user's table holds.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def make_facts(facts: Mapping[str, object], caption: str = "") -> str:
    """Return a table with a row for each fact: its name and its value.

    >>> make_facts({"mode": "<name>", "size": 3})
    '<table><tr><th>mode</th><td>&lt;name&gt;</td></tr><tr><th>size</th><td>3</td></tr></table>'
    """
    rows = [_make_row([name], [fact]) for name, fact in facts.items()]
    return _make_table(rows, caption)


def make_text_table(rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Return a table whose first row has the headings of the columns.

    >>> make_text_table([["rank", "error"], [1, 0.5]])
    '<table><tr><th>rank</th><th>error</th></tr><tr><td>1</td><td>0.5</td></tr></table>'
    """
    head, *body = rows
    lines = [_make_row(head, [])]
    lines += [_make_row([], cells) for cells in body]
    return _make_table(lines, caption)


def make_tensor_table(x: Any, caption: str, labels: Mapping[str, object] | None = None) -> str:
    """Return a table of facts about a `FlycooTensor`, after the facts that its labels add."""
    facts: dict[str, object] = dict(labels or {})
    facts["shape"] = " x ".join(map(str, x.shape))
    facts["dtype"] = x.dtype
    facts["nonzeros"] = f"{x.nnz:,}"
    facts["density"] = f"{x.density:.3g}"
    facts["memory"] = f"{x.nbytes / 1e6:,.1f} MB"
    facts["layout"] = x.layout
    facts["device"] = x.device
    if x.slabs > 1:
        facts["slabs"] = x.slabs
    if len(x.groups) < x.ndim:
        facts["groups of modes"] = x.groups
    return make_facts(facts, caption)


def make_paragraphs(texts: Iterable[str]) -> str:
    """Return a paragraph for each text.

    >>> make_paragraphs(["1 < 2"])
    '<p>1 &lt; 2</p>'
    """
    return "".join(f"<p>{_escape(text)}</p>" for text in texts)


def _escape(text: object) -> str:
    import html  # of which only notebooks have need

    return html.escape(str(text))


def _make_row(headings: Sequence[object], cells: Sequence[object]) -> str:
    row = "".join(f"<th>{_escape(heading)}</th>" for heading in headings)
    row += "".join(f"<td>{_escape(cell)}</td>" for cell in cells)
    return f"<tr>{row}</tr>"


def _make_table(rows: Iterable[str], caption: str) -> str:
    title = f"<caption>{_escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{''.join(rows)}</table>"
