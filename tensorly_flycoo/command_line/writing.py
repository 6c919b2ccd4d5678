"""The results of "fit": files in a folder."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from .. import LabelledCP
from ..base.checks import require
from ..io.files import replace_file, try_writing

#: The longest part of a file's name that a mode gives; systems allow about 250 bytes.
_MAX_NAME_LENGTH = 50


def try_folder(folder: Path) -> None:
    """Find out before a long run what writing would lack: packages, or the folder."""
    for module in ("matplotlib", "pandas"):
        require(module, 'results need pandas and Matplotlib: pip install "tensorly-flycoo[tables]"')
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_writing(folder / "model.npz")
        if is_new:
            folder.rmdir()
    except OSError as error:
        raise OSError(f"--output is {folder}, where nothing can be written: {error}") from None


def write_results(cp: LabelledCP, folder: Path, arguments: argparse.Namespace) -> Iterator[Path]:
    """Write all files into the folder, the most precious first; yield the path of each."""
    folder.mkdir(parents=True, exist_ok=True)
    cp.save(folder / "model.npz")
    yield folder / "model.npz"
    weights, frames = cp.to_frames()
    for number, frame in enumerate(frames):
        name = re.sub(r"[^\w.-]+", "_", str(frame.index.name))[:_MAX_NAME_LENGTH]
        yield write_text(folder / f"mode{number}_{name}.csv", frame.to_csv())
    pairs = zip(cp.components, weights.tolist(), strict=True)
    lines = [f"{component},{weight!r}\n" for component, weight in pairs]
    yield write_text(folder / "weights.csv", "component,weight\n" + "".join(lines))
    try:
        cp.plot(arguments.top, arguments.lines).savefig(folder / "components.png", dpi=100)
    except Exception as error:
        raise RuntimeError(
            f"the picture could not be drawn, the other files are complete: {error}"
        ) from error
    yield folder / "components.png"


def write_text(path: Path, text: str) -> Path:
    """Write a file, or leave the old one if that fails; return its path."""
    with replace_file(path) as file:
        file.write(text.encode())
    return path
