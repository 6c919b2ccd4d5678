"""From the file of "fit" to a tensor with labels, of which some entries may be held out."""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from .. import LabelledTensor, from_dataframe, read_tns
from ..io.table_files import read_table
from ..loop.holding_out import hold_out
from ..loop.masks import MissingEntries
from .wording import spell

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


def is_table(suffix: str) -> bool:
    """Return whether a file has columns to choose modes from."""
    return suffix not in _TENSORS


def read_tensor(arguments: argparse.Namespace, suffix: str) -> LabelledTensor:
    """Read the file of `fit`; the labels of a .tns are its indices as in the file, from 1."""
    if is_table(suffix):
        return _read_events(arguments, suffix)
    modes = arguments.modes
    if arguments.values is not None:
        raise ValueError("--values is for tables: a .tns file has its values in the last field")
    x = read_tns(arguments.file, dtype=arguments.dtype)
    labels: Any = [np.arange(1, size + 1) for size in x.shape]
    if modes:
        if len(modes) != x.ndim:
            text = f"--modes has {len(modes)} names, expected {x.ndim}, one for each mode"
            raise ValueError(text)
        labels = dict(zip(modes, labels, strict=True))
    return LabelledTensor(x, labels)


def _read_events(arguments: argparse.Namespace, suffix: str) -> LabelledTensor:
    """Read a table; warnings of Python become lines that speak of options."""
    separator = arguments.sep
    if separator is None:
        separator = "\t" if suffix.startswith(".tsv") else ","
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        table = read_table(
            arguments.file,
            arguments.modes,
            arguments.values,
            separator=separator,
            has_header=not arguments.no_header,
            missing_text=arguments.missing_text,
        )
        x = from_dataframe(
            table,
            arguments.modes,
            arguments.values,
            aggregate=arguments.aggregate,
            missing=arguments.missing,
            dtype=arguments.dtype,
            zeros="keep" if arguments.observed else "drop",
        )
    for warning in caught:
        print("warning:", spell(str(warning.message)), file=sys.stderr)
    return x


def hold_out_tenth(x: LabelledTensor, seed: int) -> tuple[LabelledTensor, LabelledTensor]:
    """Return nine tenths of the stored entries, and one to judge by."""
    tensor = x.tensor
    count = max(1, tensor.nnz // 10)
    coords = hold_out(tensor, count, np.random.RandomState(seed), with_zeros=False)
    entries = MissingEntries(tensor, coords)
    held_out = tensor._rebuild(entries.coords, entries.start)
    return x._replace(tensor=entries.observed), x._replace(tensor=held_out)
