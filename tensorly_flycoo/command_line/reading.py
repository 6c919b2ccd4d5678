"""Read the file of the command line: a table's columns, or a tensor."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ..io.dataframe import from_dataframe
from ..io.tns import read_tns
from ..tensor.labelled import LabelledTensor, Labels

#: What can be read, by the ends of names.
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".tns", ".tns.gz", ".tns.zst")

#: What times can be rounded to.
UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")


def find_suffix(path: Path) -> str | None:
    """Return which of `SUFFIXES` the name of a file ends in."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), None)


def read_tensor(arguments: argparse.Namespace, suffix: str) -> LabelledTensor:
    """Read the file of `fit`; the labels of a .tns are its indices as in the file, from 1."""
    if suffix.startswith(".tns"):
        return _read_tns(arguments)
    table = _read_table(arguments, suffix)
    try:
        return from_dataframe(
            table,
            arguments.modes,
            arguments.values,
            aggregate=arguments.aggregate,
            missing=arguments.missing,
            dtype=arguments.dtype,
        )
    except (TypeError, ValueError) as error:
        text = str(error).replace('missing="drop"', "--missing drop")
        raise ValueError(text.replace("df has", f"{arguments.file} has")) from None


def _read_tns(arguments: argparse.Namespace) -> LabelledTensor:
    if arguments.values is not None:
        raise ValueError("--values is for tables: a .tns file has its values in the last field")
    x = read_tns(arguments.file, dtype=arguments.dtype)
    names = arguments.modes or [f"mode {n}" for n in range(x.ndim)]
    if len(names) != x.ndim:
        raise ValueError(f"--modes has {len(names)} names, expected {x.ndim}, one for each mode")
    return LabelledTensor(x, Labels([np.arange(1, size + 1) for size in x.shape], names))


def _read_table(arguments: argparse.Namespace, suffix: str) -> Any:
    """Read the needed columns only, and round times."""
    path, modes = str(arguments.file), arguments.modes
    try:
        import pyarrow
        from pyarrow import csv, parquet
    except ImportError as error:
        need = 'tables need pyarrow: pip install "tensorly-flycoo[tables]"'
        raise ImportError(f"{need} ({error})") from None
    if suffix == ".parquet":
        known = parquet.read_schema(path).names
    else:
        separator = arguments.sep or ("\t" if suffix.startswith(".tsv") else ",")
        parsing = csv.ParseOptions(delimiter=separator)
        with csv.open_csv(path, parse_options=parsing) as reader:
            known = reader.schema.names
    sources = {name: _split_unit(name, known) for name in modes}
    columns = [name for name, _ in sources.values()] + [arguments.values] * bool(arguments.values)
    columns = list(dict.fromkeys(columns))
    _check_columns(columns, known, path)
    if suffix == ".parquet":
        table = parquet.read_table(path, columns=columns)
    else:
        converting = csv.ConvertOptions(include_columns=columns, strings_can_be_null=True)
        table = csv.read_csv(path, parse_options=parsing, convert_options=converting)
        for field in table.schema:
            if pyarrow.types.is_binary(field.type):
                raise ValueError(f"column {field.name!r} is not UTF-8 text: convert {path} to it")
    for mode, (name, unit) in sources.items():
        if unit:
            table = table.append_column(mode, _round(table[name], name, unit))
    return table


def _split_unit(mode: str, known: list[str]) -> tuple[str, str]:
    """Return the column of a mode, and what to round it to or ""."""
    name, _, unit = mode.rpartition(":")
    return (name, unit) if mode not in known and unit in UNITS else (mode, "")


def _round(column: Any, name: str, unit: str) -> Any:
    """Return when the days or other units of a column of times begin, in local time."""
    import pyarrow
    import pyarrow.compute

    if not pyarrow.types.is_temporal(column.type):
        raise ValueError(f"column {name!r} is of {column.type}, expected times to round to {unit}s")
    if getattr(column.type, "tz", None):
        column = pyarrow.compute.local_timestamp(column)
    return pyarrow.compute.floor_temporal(column, unit=unit)


def _check_columns(columns: list[str], found: list[str], path: str) -> None:
    for column in columns:
        if found.count(column) > 1:
            raise ValueError(f"{path} has {found.count(column)} columns {column!r}, expected one")
        if column not in found:
            hint = "; if it is more than one column, give --sep" if len(found) == 1 else ""
            hint = f"; times can be rounded to {', '.join(UNITS)}" if ":" in column else hint
            raise ValueError(
                f"{path} has no column {column!r}, expected one of {', '.join(found)}{hint}"
            )
