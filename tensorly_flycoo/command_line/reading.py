"""From files to tensors with labels, of which some entries may be held out, and to models."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import FitRecord, LabelledCP, LabelledTensor, from_dataframe, read_tns
from ..base.checks import warn
from ..base.watching import watch
from ..io.table_files import read_table
from ..loop.holding_out import hold_out
from ..loop.masks import MissingEntries
from .wording import spell_warnings

#: The readable files, by the ends of their names.
_TENSORS = (".tns", ".tns.gz", ".tns.zst", ".ttx", ".mtx")
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz", *_TENSORS)


def find_suffix(path: Path) -> str | None:
    """Return the end of a file's name that says how to read it, None if it is unknown.

    >>> find_suffix(Path("Events.CSV.gz"))
    '.csv.gz'
    """
    name = path.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def check_suffix(path: Path, arguments: argparse.Namespace) -> str:
    """Return the end of a file's name; refuse a file that no command reads."""
    suffix = find_suffix(path)
    if suffix is None:
        arguments.refuse(f"{path} is not one of {', '.join(SUFFIXES)}")
    return str(suffix)


def name_after(path: Path, end: str) -> Path:
    """Return the path of results of a file: in this folder, and named like the file.

    >>> name_after(Path("data/events.csv.gz"), "_ranks").name
    'events_ranks'
    """
    return Path(f"{path.name.removesuffix(find_suffix(path) or '')}{end}")


def check_exists(path: Path) -> None:
    """Refuse a file that does not exist."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")


def is_table(suffix: str) -> bool:
    """Return whether a file has columns to choose modes from."""
    return suffix not in _TENSORS


def check_modes(option: str, modes: Sequence[str], known: Collection[str]) -> None:
    """Refuse modes of an option that a tensor or model does not have."""
    for mode in modes:
        if mode not in known:
            raise ValueError(f"{option} has {mode!r}, expected some of {', '.join(known)}")


def read_tensor(arguments: argparse.Namespace, suffix: str) -> LabelledTensor:
    """Read the file of `fit`; the labels of a .tns are its indices as in the file, from 1."""
    with watch(f"reading {arguments.file}"):
        if not is_table(suffix):
            return _read_indices(arguments)
        options = {
            "aggregate": arguments.aggregate,
            "missing": arguments.missing,
            "dtype": arguments.dtype,
            "zeros": "drop",
        }
        if arguments.observed:  # cells without a row are unknown: that some are absent is no news
            options |= {"missing": arguments.missing or "raise", "zeros": "keep"}
        return _read_events(arguments.file, arguments.modes, arguments.values, arguments, **options)


def _read_indices(arguments: argparse.Namespace) -> LabelledTensor:
    """Read a .tns."""
    modes = arguments.modes
    _refuse_values(arguments)
    x = read_tns(arguments.file, dtype=arguments.dtype)
    labels: Any = [_count_from_1(size) for size in x.shape]
    if modes:
        if len(modes) != x.ndim:
            text = f"--modes has {len(modes)} names, expected {x.ndim}, one for each mode"
            raise ValueError(text)
        labels = dict(zip(modes, labels, strict=True))
    return LabelledTensor(x, labels)


def _refuse_values(arguments: argparse.Namespace) -> None:
    """Refuse to choose a column of a .tns."""
    if arguments.values is not None:
        raise ValueError("--values is for tables: a .tns file has its values in the last field")


def _count_from_1(size: int) -> np.ndarray:
    return np.arange(1, size + 1)


def _read_events(
    path: Path,
    modes: Sequence[str],
    values: str | None,
    arguments: argparse.Namespace,
    labels: Mapping[str, np.ndarray] | None = None,
    **options: Any,
) -> LabelledTensor:
    """Read a tensor from a table; warnings of Python become lines that speak of options."""
    with spell_warnings():
        table = _read_columns(path, modes, values, arguments, labels)
        return from_dataframe(table, modes, values, labels=labels, **options)


def _read_columns(
    path: Path,
    modes: Sequence[str],
    values: str | None,
    arguments: argparse.Namespace,
    labels: Mapping[str, np.ndarray] | None = None,
) -> Any:
    """Read the columns of a table; of a text file as text, where given `labels` are text."""
    separator = arguments.sep
    if separator is None:
        separator = "\t" if str(find_suffix(path)).startswith(".tsv") else ","
    texts = [name for name, of in (labels or {}).items() if of.dtype == object]
    return read_table(
        path,
        modes,
        values,
        separator=separator,
        has_header=not arguments.no_header,
        missing_text=arguments.missing_text,
        text_modes=texts,
    )


def load_model(path: Path) -> LabelledCP:
    """Load a model that `fit` has written."""
    check_exists(path)
    return LabelledCP.load(path)


def read_for_model(arguments: argparse.Namespace, cp: LabelledCP) -> LabelledTensor:
    """Read a file as the data of a model were read: with its labels, and its column of values."""
    path = arguments.file
    if not is_table(check_suffix(path, arguments)):
        _refuse_values(arguments)
    record = cp.flycoo or FitRecord()
    values = arguments.values or record.value_column
    options = {
        "aggregate": arguments.aggregate,
        "dtype": cp.weights.dtype,
        "zeros": "keep" if record.absent == "unknown" else "drop",
    }
    return _read_with_labels(path, values, arguments, cp, **options)


def read_cells(path: Path, arguments: argparse.Namespace, cp: LabelledCP) -> LabelledTensor:
    """Read which cells of a model have a row in a file, whatever its values."""
    return _read_with_labels(path, None, arguments, cp)


def _read_with_labels(
    path: Path, values: str | None, arguments: argparse.Namespace, cp: LabelledCP, **options: Any
) -> LabelledTensor:
    """Read a file with the labels of a model, on its device."""
    suffix = check_suffix(path, arguments)
    check_exists(path)
    with watch(f"reading {path}"):
        if is_table(suffix):
            options |= {"missing": arguments.missing or "raise", "device": "cpu"}
            return _read_events(path, cp.names, values, arguments, cp.labels, **options)
        for name, labels in cp.labels.items():
            if not np.array_equal(labels, _count_from_1(labels.size)):
                raise ValueError(
                    f"{path} has indices from 1, but the labels of {name!r} in the model are "
                    "others: give a table"
                )
        x = read_tns(path, shape=cp.shape, dtype=cp.weights.dtype, device="cpu")
        return LabelledTensor(x, cp.labels)


def read_rows(arguments: argparse.Namespace, cp: LabelledCP) -> Any:
    """Read the rows of a file as a DataFrame with a column for each mode of a model."""
    path = arguments.file
    suffix = check_suffix(path, arguments)
    check_exists(path)
    if not is_table(suffix):
        frame = _read_with_labels(path, None, arguments, cp).to_frame()
        return frame[[*cp.names]]
    with watch(f"reading {path}"):
        table = _read_columns(path, cp.names, None, arguments, cp.labels)
    if arguments.missing == "drop":
        complete = table.drop_null()
        if len(complete) < len(table):
            warn(f"left out {len(table) - len(complete)} of {len(table)} rows: an entry is missing")
        table = complete
    return table.to_pandas()


def hold_out_tenth(x: LabelledTensor, seed: int) -> tuple[LabelledTensor, LabelledTensor]:
    """Return nine tenths of the stored entries, and one to judge by."""
    tensor = x.tensor
    count = max(1, tensor.nnz // 10)
    coords = hold_out(tensor, count, np.random.RandomState(seed), with_zeros=False)
    entries = MissingEntries(tensor, coords)
    held_out = tensor._rebuild(entries.coords, entries.start)
    return x._replace(tensor=entries.observed), x._replace(tensor=held_out)
