"""The results of commands: files, of which some are in a folder."""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import LabelledCP
from ..base.checks import require
from ..io.files import replace_file, try_writing
from ..models.rank_selection import RankSelection
from .profiles import Profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The longest part of a file's name that a mode gives; systems allow about 250 bytes.
_MAX_NAME_LENGTH = 50

#: Rows of a table that are printed.
_NUM_SHOWN = 10


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


def write_results(
    cp: LabelledCP,
    profiles: Mapping[str, list[Profile]],
    folder: Path,
    arguments: argparse.Namespace,
) -> Iterator[Path]:
    """Write all files of `fit`, the most precious first; yield the path of each."""
    folder.mkdir(parents=True, exist_ok=True)
    cp.save(folder / "model.npz")
    yield folder / "model.npz"
    weights, frames = cp.to_frames()
    for number, frame in enumerate(frames):
        name = _name_file(frame.index.name)
        yield write_text(folder / f"mode{number}_{name}.csv", frame.to_csv())
    pairs = zip(cp.components, weights.tolist(), strict=True)
    lines = [f"{component},{weight!r}\n" for component, weight in pairs]
    yield write_text(folder / "weights.csv", "component,weight\n" + "".join(lines))
    for name, profiles_of_mode in profiles.items():
        path = folder / f"profile_{_name_file(name)}.csv"
        yield write_text(path, _list_profiles(cp, profiles_of_mode))
    yield _draw(folder / "components.png", lambda: cp.plot(arguments.top, arguments.lines))


def name_mode(mode: str, end: str) -> Path:
    """Return the path of a file in this folder that is named like a mode."""
    return Path(f"{_name_file(mode)}{end}")


def _name_file(mode: Any) -> str:
    """Return the part of a file's name that stands for a mode."""
    return re.sub(r"[^\w.-]+", "_", str(mode))[:_MAX_NAME_LENGTH]


def _list_profiles(cp: LabelledCP, profiles: list[Profile]) -> str:
    """Return the profiles of a mode as CSV, with a row for each hour and weekday."""
    pandas = require("pandas", "profiles need pandas: pip install pandas")
    times = [(profile.unit, time) for profile in profiles for time in profile.times]
    index = pandas.MultiIndex.from_tuples(times, names=["by", "time"])
    rows = np.concatenate([profile.rows for profile in profiles])
    text: str = pandas.DataFrame(rows, index, cp.components).to_csv()
    return text


def write_ranks(selection: RankSelection, folder: Path) -> Iterator[Path]:
    """Write the files of `rank`; yield the path of each."""
    table = selection.table
    table["suggested"] = table.index == selection.rank
    yield write_text(folder / "ranks.csv", table.to_csv())
    yield _draw(folder / "ranks.png", lambda: selection.plot()[0].figure)


def _draw(path: Path, make_figure: "Callable[[], Figure]") -> Path:
    """Write a picture, the last of several files; return its path."""
    try:
        make_figure().savefig(path, dpi=100)
    except Exception as error:
        raise RuntimeError(
            f"the picture could not be drawn, the other files are complete: {error}"
        ) from error
    return path


def print_after(paths: Iterator[Path], lines: list[str]) -> None:
    """Let files be written, and then print lines and the paths, those before an error too.

    Printing is last, since the other end of a pipe may be closed.
    """
    try:
        lines.extend(f"wrote {path}" for path in paths)
    finally:
        print("\n".join(lines))


def write_text(path: Path, text: str) -> Path:
    """Write a file in a folder that may be new, or leave the old file if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as file:
        file.write(text.encode())
    return path


def write_table(frame: Any, path: Path, arguments: argparse.Namespace) -> None:
    """Write a DataFrame as CSV, then print its first rows."""
    write_text(path, frame.to_csv(index=False))
    if not arguments.quiet:
        print(frame.head(_NUM_SHOWN).to_string(index=False))
    print(f"wrote {path}, rows: {len(frame):,}")
