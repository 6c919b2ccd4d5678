"""Open a table of any library, and read its rows: entries become numbers, and values floats."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.checks import MAX_MODE_SIZE, check_choice, check_values
from .entries import (
    CodedColumn,
    ColumnLabels,
    as_integers,
    convert_column,
    drop_unused,
    encode_columns,
    is_hashed,
    number_entries,
    place_entries,
    require_pyarrow,
)

MISSING = ("raise", "drop")

DROP_ADVICE = 'drop or fill the missing ones, or pass missing="drop"'

#: Names of columns that an error lists.
_MOST_LISTED = 20

_logger = logging.getLogger(__name__)


def check_modes(modes: Iterable[str]) -> list[str]:
    """Return the names of columns as a list; refuse a single string, and repeated names."""
    if isinstance(modes, str):
        raise TypeError(f"modes is {modes!r}, expected a list of column names, like [{modes!r}]")
    modes = list(modes)
    if not modes or len(set(modes)) < len(modes):
        raise ValueError(f"modes is {modes}, expected distinct column names, at least one")
    return modes


def list_columns(modes: Iterable[str], values: str | None) -> list[str]:
    """List the columns to read, each once."""
    columns = dict.fromkeys(modes)
    if values is not None:
        columns[values] = None
    return list(columns)


def check_columns(columns: Iterable[str], names: Sequence[str], table: Any, hint: str = "") -> None:
    """Refuse columns that are not exactly once among the `names` of a table."""
    all_names = list(names)
    for name in columns:
        count = all_names.count(name)
        if count != 1:
            count_text = "no column"
            if count:
                count_text = f"{count} columns"
            listed = str(all_names[:_MOST_LISTED])
            if len(all_names) > _MOST_LISTED:
                listed = f"its {len(all_names):,} columns, such as {all_names[:3]}"
            raise ValueError(f"{table} has {count_text} {name!r}, expected one of {listed}{hint}")


def is_table(df: Any) -> bool:
    """Return whether `df` is a frame of pandas or polars, a data set, or a stream of Arrow."""
    names = ("iloc", "collect_schema", "scanner", "__arrow_c_stream__")
    return any(hasattr(df, name) for name in names)


def open_table(
    df: Any, modes: Sequence[str], values: str | None = None, argument: str = "df"
) -> dict[str, Any]:
    """Read columns of a table as Arrow arrays; raise if `df` is no table, or lacks one of them.

    `argument` is its name in errors.
    """
    columns = list_columns(modes, values)
    if hasattr(df, "collect_schema"):  # of polars
        check_columns(columns, df.collect_schema().names(), argument)
        frame = df.lazy().select(columns).collect()
        return {name: convert_column(frame[name], name) for name in columns}
    is_pandas = hasattr(df, "iloc")  # also a series, which is no table
    if is_pandas and hasattr(df, "columns"):
        names = list(df.columns)
        advice = _advise(df, modes, values, names)
        check_columns(columns, names, argument, advice)
        return {name: convert_column(df[name], name) for name in columns}
    if hasattr(df, "__arrow_c_stream__") and not is_pandas:
        return _read_stream(df, columns, argument)
    expected = "a table of pandas, polars, Arrow or DuckDB"
    if is_pandas:
        expected += ": pass df.reset_index()"
    raise TypeError(f"{argument} is a {type(df).__name__}, expected {expected}")


def _read_stream(df: Any, columns: Sequence[str], argument: str) -> dict[str, Any]:
    """Read some columns of an object with Arrow's stream interface, batch by batch."""
    pa = require_pyarrow()
    reader = open_stream(df, columns, argument)
    schema = pa.schema([reader.schema.field(name) for name in columns])
    batches = (batch.select(columns) for batch in reader)  # the rest of a batch is freed
    table = pa.Table.from_batches(batches, schema)
    return {name: table[name] for name in columns}


def open_stream(df: Any, columns: Sequence[str], argument: str) -> Any:
    """Open an object with Arrow's stream interface; it must have these columns, among others."""
    pa = require_pyarrow()
    reader = df
    if not isinstance(df, pa.RecordBatchReader):
        reader = pa.RecordBatchReader.from_stream(df)
    check_columns(columns, reader.schema.names, argument)
    return reader


def _advise(df: Any, modes: Sequence[str], values: str | None, names: Sequence[str]) -> str:
    """Name the pandas call that gives a frame its columns: it is a pivot, or has an index."""
    absent = [name for name in modes if name not in names]
    index_names = df.index.names
    # A pivot has a column for each label of one mode.
    pivoted = [name for name in absent if name in df.columns.names]
    if not pivoted and values is not None and values not in names:
        pivoted = [name for name in absent if name not in index_names]
    if pivoted:
        id_columns = [name for name in modes if name != pivoted[0]]
        frame = "df"
        if not {*id_columns}.isdisjoint(index_names):
            frame = "df.reset_index()"
        value_name = values or "value"
        call = f"melt({id_columns}, var_name={pivoted[0]!r}, value_name={value_name!r})"
        return f"; if the columns are labels of {pivoted[0]!r}, pass {frame}.{call}.dropna()"
    if not {*absent}.isdisjoint(index_names):
        return "; pass df.reset_index()"
    return ""


def read_rows(
    columns: Mapping[str, Any],
    modes: Sequence[str],
    values: str | None,
    labels: Mapping[str, Sequence[Any] | np.ndarray],
    missing: str,
    advice: str = DROP_ADVICE,
    hint: str = "",
) -> tuple[dict[str, CodedColumn], np.ndarray | None]:
    """Return the coded column of each mode of an open table, and the values, or None.

    `missing` "drop" leaves out incomplete rows, and "unknown" those that lack the value only; other
    incomplete rows are refused. The error ends with the `advice`, in which {name} is the column,
    and for values with the `hint`.
    """
    check_choice(missing, "missing", (*MISSING, "unknown"))
    mode_columns = {name: as_integers(columns[name]) for name in modes}
    mode_columns = encode_columns(mode_columns, is_hashed)
    coded = {name: number_column(mode_columns.pop(name), name, labels) for name in modes}
    numbers = None
    if values is not None:
        numbers = read_values(columns[values], values)

    codes = {name: column.codes for name, column in coded.items()}
    is_kept = find_complete(codes, numbers, values, missing, advice, hint)
    if is_kept is None:
        return coded, numbers
    for name, column in coded.items():
        kept_codes = column.codes[is_kept]
        if name in labels:  # all labels of the caller are kept
            coded[name] = CodedColumn(kept_codes, column.labels)
        else:
            coded[name] = drop_unused(kept_codes, column.labels)
    if numbers is not None:
        numbers = numbers[is_kept]
    return coded, numbers


def number_column(
    column: Any, name: str, labels: Mapping[str, Sequence[Any] | np.ndarray]
) -> CodedColumn:
    """Number the entries of a column, by the labels that are given for it, if any are."""
    codes, found = number_entries(column, name)
    if name not in labels:
        return CodedColumn(codes, found)
    places, entries = place_entries(name, codes, found.entries, labels[name])
    return CodedColumn(places, ColumnLabels(entries, found.zone))


def find_complete(
    codes: Mapping[str, np.ndarray],
    numbers: np.ndarray | None,
    values: str | None,
    missing: str,
    advice: str,
    hint: str,
) -> np.ndarray | None:
    """Mark the complete rows, or return None if all are; refuse others as `read_rows` does.

    A row is incomplete if one of its codes is -1, or its number, of the column `values`, is nan.
    """
    gaps = {name: rows < 0 for name, rows in codes.items() if rows.min(initial=0) < 0}
    if numbers is not None and values is not None:
        is_missing = np.isnan(numbers)
        if is_missing.any():
            # A column may be both a mode and the values.
            gaps[values] = is_missing | gaps.get(values, False)
    _refuse_gaps(gaps, values, missing, advice, hint)
    if not gaps:
        return None
    return ~np.logical_or.reduce(list(gaps.values()))


def log_dropped(num_dropped: int, num_rows: int) -> None:
    """Log how many rows are left out, if any are."""
    if num_dropped:
        text = "left out %d of %d rows: an entry or value is missing"
        _logger.warning(text, num_dropped, num_rows)


def _refuse_gaps(
    gaps: Mapping[str, np.ndarray], values: str | None, missing: str, advice: str, hint: str
) -> None:
    """Refuse rows without an entry or a value, if `missing` does not allow to leave them out."""
    if missing == "drop":
        return
    for name, rows in gaps.items():
        kind = "entry"
        if name == values:
            if missing == "unknown":
                continue
            kind = "value"
            advice += hint
        first_row = int(np.argmax(rows))
        raise ValueError(
            f"column {name!r} has no {kind} in row {first_row}, expected one in every row; "
            f"{advice.format(name=name)}"
        )


def refuse_zeros(numbers: np.ndarray, values: str | None, hint: str = "") -> None:
    """Refuse values of 0, which a sparse tensor does not store; `hint` names other ways out."""
    num_zeros = numbers.size - np.count_nonzero(numbers)
    if num_zeros:
        raise ValueError(
            f"{num_zeros} of {numbers.size} values of column {values!r} are 0: pass "
            f'zeros="drop" if cells without a row are 0 too{hint}'
        )


def read_indices(column: Any, name: str) -> np.ndarray:
    """Return the integers of a column of Arrow as int64; refuse other entries, and missing ones."""
    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} missing entries, expected none")
    indices = _decode(column).to_numpy(zero_copy_only=False)
    if indices.dtype.kind not in "iu":
        raise TypeError(
            f"column {name!r} is of {indices.dtype}, expected integers without missing ones; other "
            "labels are numbered by tensorly_flycoo.from_dataframe, on a cluster by "
            "tensorly_flycoo.dask.read_parquet without indices=True"
        )
    largest = indices.max(initial=0)
    if largest >= MAX_MODE_SIZE:  # uint64 may not fit int64
        raise ValueError(f"column {name!r} holds the index {largest}, expected less than 2**32")
    return indices.astype(np.int64, copy=False)


def _find_no_number(column: Any) -> str | None:
    """Return the first text of a column that is no number, or else the last; None without any."""
    last = None
    for scalar in column:
        text = scalar.as_py()
        if text is None:
            continue
        last = text
        try:
            float(text)
        except ValueError:
            break
    return last


def read_values(column: Any, name: str) -> np.ndarray:
    """Return the numbers of a column of Arrow, nan if missing; refuse others, and infinite ones."""
    types = require_pyarrow().types
    column = _decode(column)
    is_number = (
        types.is_floating(column.type)
        or types.is_integer(column.type)
        or types.is_boolean(column.type)
        or types.is_decimal(column.type)
        or types.is_null(column.type)  # all are missing
    )
    if not is_number:
        contents = f"entries of type {column.type}, expected numbers"
        if "string" in str(column.type):
            example = _find_no_number(column)
            contents = "text"
            if example is not None:
                contents = f"text, such as {example!r}"
            contents += (
                ", expected numbers; convert it, as by "
                'pandas.to_numeric(column, errors="coerce"), which makes nan of what is no number'
            )
        raise TypeError(f"column {name!r} holds {contents}")
    if types.is_integer(column.type):
        _refuse_rounding(column, name)
    if not types.is_floating(column.type):  # decimals are rounded
        column = column.cast("float64", safe=False)
    values = column.to_numpy(zero_copy_only=False)  # null becomes nan
    is_infinite = np.isinf(values)
    if is_infinite.any():
        row = int(np.argmax(is_infinite))
        raise ValueError(f"column {name!r} is {values[row]} in row {row}, expected finite numbers")
    return check_values(values, values.size)


def _refuse_rounding(column: Any, name: str) -> None:
    """Refuse integers of Arrow that float64 does not hold: some of those above 2**53."""
    integers = column.fill_null(0).to_numpy(zero_copy_only=False)
    largest = int(integers.max(initial=0))
    least = int(integers.min(initial=0))
    if max(largest, -least) <= 2**53:
        return
    floats = integers.astype(np.float64)
    # Floats beyond the integers' type cast back to anything, perhaps even to the integer.
    limit = float(np.iinfo(integers.dtype).max)
    is_outside = floats >= limit
    with np.errstate(invalid="ignore"):
        cast_back = floats.astype(integers.dtype)
    is_rounded = is_outside | (cast_back != integers)
    if is_rounded.any():
        row = int(np.argmax(is_rounded))
        raise ValueError(
            f"column {name!r} is {integers[row]} in row {row}, which float64 does not hold: "
            "expected integers up to 2**53; pass numbers of float64 if they may be rounded"
        )


def _decode(column: Any) -> Any:
    """Decode an Arrow column of a dictionary type."""
    entry_type = getattr(column.type, "value_type", column.type)
    if entry_type is column.type:
        return column
    return column.cast(entry_type)
