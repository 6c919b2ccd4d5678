"""How a notebook shows a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tensor import FlycooTensor


def to_html(x: FlycooTensor) -> str:
    """Return a table of facts."""
    facts = {
        "shape": " x ".join(str(size) for size in x.shape),
        "dtype": x.dtype,
        "nonzeros": f"{x.nnz:,}",
        "density": f"{x.density:.3g}",
        "memory": f"{x.nbytes / 1e6:,.1f} MB",
        "layout": x.layout,
        "device": x.device,
    }
    if x.slabs > 1:
        facts["slabs"] = x.slabs
    if x.keep != "device":
        facts["kept on"] = x.keep
    rows = "".join(f"<tr><th>{name}</th><td>{fact}</td></tr>" for name, fact in facts.items())
    return f"<table><caption>FlycooTensor</caption>{rows}</table>"
