"""Read the file of the command line: a table's columns, or a tensor."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ..io.dataframe import from_dataframe
from ..io.tns import read_tns
from ..tensor.labelled import LabelledTensor, Labels

#: What can be read, by the ends of names.
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".tns", ".tns.gz", ".tns.zst")


def find_suffix(path: Path) -> str | None:
    """Return which of `SUFFIXES` the name of a file ends in."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), None)


def read_tensor(arguments: argparse.Namespace, suffix: str) -> LabelledTensor:
    """Read the file of `fit`; the labels of a .tns are its indices as in the file, from 1."""
    if suffix.startswith(".tns"):
        return _read_tns(arguments)
    table = _read_table(arguments, suffix)
    return from_dataframe(
        table,
        arguments.modes,
        arguments.values,
        aggregate=arguments.aggregate,
        missing=arguments.missing,
        dtype=arguments.dtype,
    )


def _read_tns(arguments: argparse.Namespace) -> LabelledTensor:
    if arguments.values is not None:
        raise ValueError("--values is for tables: a .tns file has its values in the last field")
    x = read_tns(arguments.file, dtype=arguments.dtype)
    names = arguments.modes or [f"mode {n}" for n in range(x.ndim)]
    if len(names) != x.ndim:
        raise ValueError(f"--modes has {len(names)} names, expected {x.ndim}, one for each mode")
    return LabelledTensor(x, Labels([np.arange(1, size + 1) for size in x.shape], names))


def _read_table(arguments: argparse.Namespace, suffix: str) -> Any:
    """Read the needed columns only."""
    columns = list(dict.fromkeys([*arguments.modes, *filter(None, [arguments.values])]))
    path = str(arguments.file)
    try:
        from pyarrow import csv, parquet
    except ImportError as error:
        need = 'tables need pyarrow: pip install "tensorly-flycoo[tables]"'
        raise ImportError(f"{need} ({error})") from None
    if suffix == ".parquet":
        _check_columns(columns, parquet.read_schema(path).names, path)
        return parquet.read_table(path, columns=columns)
    with csv.open_csv(path) as reader:
        _check_columns(columns, reader.schema.names, path)
    options = csv.ConvertOptions(include_columns=columns, strings_can_be_null=True)
    return csv.read_csv(path, convert_options=options)


def _check_columns(columns: list[str], found: list[str], path: str) -> None:
    for column in columns:
        if column not in found:
            raise ValueError(f"{path} has no column {column!r}, expected one of {', '.join(found)}")
