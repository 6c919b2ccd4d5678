"""Print and write a labelled model: a table for each mode, a picture, and the model itself."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from ..decomposition.labelled_cp import LabelledCP
from ..io.files import replace_text

#: The end of a date without a time of day.
_MIDNIGHT = re.compile(r"T00:00:00(\.0+)?$")


def describe(cp: LabelledCP, top: int) -> str:
    """Return the largest labels of each component as text."""
    tops = {name: cp.top(name, top) for name in cp.names}
    width = max(map(len, tops))
    lines = []
    for number, weight in enumerate(cp.weights.tolist()):
        lines.append(f"\ncomponent {number}, weight {weight:.4g}")
        for name, components in tops.items():
            labels = components[number].items()
            entries = [f"{_MIDNIGHT.sub('', str(label))} {value:.2f}" for label, value in labels]
            lines.append(f"  {name:{width}}  {', '.join(entries)}")
    return "\n".join(lines) + "\n"


def write_results(cp: LabelledCP, folder: Path, arguments: argparse.Namespace) -> Iterator[Path]:
    """Write all files into the folder; yield the path of each."""
    figure = cp.plot(top=arguments.top, lines=arguments.lines)  # first: it may lack a package
    folder.mkdir(parents=True, exist_ok=True)
    weights, frames = cp.to_frames()
    for number, frame in enumerate(frames):
        name = re.sub(r"[^\w.-]+", "_", str(frame.index.name))
        yield _write_text(folder / f"mode{number}_{name}.csv", frame.to_csv())
    lines = [f"{number},{weight!r}\n" for number, weight in enumerate(weights.tolist())]
    yield _write_text(folder / "weights.csv", "component,weight\n" + "".join(lines))
    cp.save(folder / "model.npz")
    yield folder / "model.npz"
    figure.savefig(folder / "components.png", dpi=100)
    yield folder / "components.png"


def _write_text(path: Path, text: str) -> Path:
    with replace_text(path) as file:
        file.write(text.encode())
    return path
