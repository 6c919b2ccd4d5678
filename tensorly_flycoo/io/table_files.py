"""Read the columns that a tensor needs from a table in a file: .parquet, or text as .csv."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.checks import warn
from .entries import cast_all, interpret_text, read_times, require_pyarrow, take_wall_times
from .places import FilePath, open_parquet
from .table_rows import check_columns, list_columns

#: The units to which times can be rounded.
UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")

#: The units whose values repeat when the clock is set back.
_CLOCK_UNITS = UNITS[:3]

#: Bytes of a text file that are parsed at a time; a row may not be longer.
_BLOCK_NBYTES = 2**24


class _Text(NamedTuple):
    """How a text file writes a table."""

    separator: str
    has_header: bool
    missing_text: Sequence[str]  # fields that mean a missing entry, beside the empty one


def read_table(
    path: FilePath,
    modes: Sequence[str],
    values: str | None = None,
    *,
    separator: str = ",",
    has_header: bool = True,
    missing_text: Sequence[str] = (),
    text_modes: Collection[str] = (),
) -> Any:
    """Return a table of Arrow with a column for each mode, times rounded as in "time:day".

    Entries of a text file become numbers or times as `entries` says, but for those of `text_modes`.
    Empty fields are missing, and those that are as in `missing_text`. Without a header the columns
    are called "1", "2", ...
    """
    pa = require_pyarrow()
    is_text = Path(path).suffix.lower() != ".parquet"
    text = _Text(separator, has_header, missing_text)
    if is_text:
        names = _list_text_columns(path, text)
    else:
        dataset = open_parquet(str(path))
        names = dataset.schema.names
    sources = {mode: _find_source(mode, names) for mode in modes}
    mode_columns = {column for column, _ in sources.values()}
    columns = sorted({*mode_columns, *list_columns((), values)})
    check_columns(columns, names, path, _hint_at_columns(columns, names))
    if is_text:
        raw = _read_text_columns(path, text, names, columns, mode_columns)
    else:
        raw = dataset.to_table(columns=columns)

    table = {}
    if values is not None:
        table[values] = raw[values]
        if is_text:
            table[values] = _read_numbers(raw[values])
    for mode, (column, unit) in sources.items():
        if unit:
            table[mode] = _round(raw[column], column, unit)
        elif is_text and mode not in text_modes:
            table[mode] = interpret_text(raw[column])
        else:
            table[mode] = raw[column]
    return pa.table(table)


def _find_source(mode: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the column of a mode, and the unit that its times are rounded to, or "".

    A column whose name happens to end like a unit is taken as it is.

    Examples
    --------
    >>> _find_source("time:day", ["shop", "time"])
    ('time', 'day')
    >>> _find_source("time:day", ["shop", "time:day"])
    ('time:day', '')
    """
    column, _, unit = mode.rpartition(":")
    if mode not in names and unit in UNITS:
        return column, unit
    return mode, ""


def _hint_at_columns(columns: Sequence[str], names: Sequence[str]) -> str:
    """Say why columns may be missing among the `names` that a file seems to have."""
    if len(names) == 1:
        return "; if there are more, give --sep, as in --sep ';'"
    if any(":" in column for column in columns):
        return f"; times can be rounded to {', '.join(UNITS)}"
    return ""


def _make_parse_options(text: _Text) -> Any:
    """Tell pyarrow how rows and fields are separated."""
    from pyarrow import csv

    # Without newlines_in_values, a line break in quotes ends a row where a block ends.
    return csv.ParseOptions(newlines_in_values=True, delimiter=text.separator)


def _list_text_columns(path: FilePath, text: _Text) -> list[str]:
    """Return the names in a text file's header, or "1", "2", ... for as many columns."""
    from pyarrow import csv

    options = csv.ReadOptions(autogenerate_column_names=not text.has_header)
    with csv.open_csv(path, options, _make_parse_options(text)) as reader:
        names = reader.schema.names
    if text.has_header:
        return names
    return [str(number) for number in range(1, len(names) + 1)]


def _read_text_columns(
    path: FilePath,
    text: _Text,
    names: Sequence[str],
    columns: Sequence[str],
    mode_columns: Collection[str],
) -> Any:
    """Read some of the columns of a text file as text, those of modes with numbered entries."""
    pa = require_pyarrow()
    from pyarrow import csv

    numbered = pa.dictionary(pa.int32(), pa.string())
    column_types = dict.fromkeys(columns, pa.string())
    column_types |= dict.fromkeys(mode_columns, numbered)
    converting = csv.ConvertOptions(
        include_columns=columns,
        column_types=column_types,
        null_values=["", *text.missing_text],
        strings_can_be_null=True,
    )
    reading = csv.ReadOptions(block_size=_BLOCK_NBYTES)
    if not text.has_header:
        reading.column_names = names
    try:
        return csv.read_csv(path, reading, _make_parse_options(text), converting)
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise ValueError(f"{path} is not UTF-8 text, convert it: {error}") from None
        raise


def _read_numbers(column: Any) -> Any:
    """Return a column of text as numbers or booleans if each entry is one, else as text."""
    texts = require_pyarrow().compute.utf8_trim_whitespace(column.cast("string"))
    numbers = cast_all(texts, "float64", "bool")
    if numbers is None:
        return texts
    return numbers


def _find_no_time(column: Any, text_type: Any) -> str:
    """Return the first text of a column that is no time, or else its first one."""
    pa = require_pyarrow()
    texts = column.cast(text_type).unique().drop_null().to_pylist()
    no_times = (text for text in texts if read_times(pa.array([text])) is None)
    return next(no_times, texts[0])


def _round(column: Any, name: str, unit: str) -> Any:
    """Round a column of times down to days or other units, in local time."""
    pa = require_pyarrow()
    entry_type = getattr(column.type, "value_type", column.type)  # of a dictionary
    is_text = pa.types.is_string(entry_type) or pa.types.is_large_string(entry_type)
    times = column
    if is_text:
        times = read_times(column.cast(entry_type))
    if times is None or not pa.types.is_temporal(times.type):
        kind = f"of {entry_type}"
        advice = ""
        if is_text:
            kind = f"text such as {_find_no_time(column, entry_type)!r}"
            advice = "; write them as 2024-12-31 13:00:00"
        raise ValueError(f"column {name!r} is {kind}, expected times to round to {unit}s{advice}")
    local = take_wall_times(times)
    rounded = pa.compute.floor_temporal(local, unit=unit)
    if local is not times and unit in _CLOCK_UNITS:
        _warn_of_repeated_hours(times, local, rounded, name, unit)
    return rounded


def _warn_of_repeated_hours(times: Any, local: Any, rounded: Any, name: str, unit: str) -> None:
    """Warn if rounded local times have two offsets from UTC, as when the clock is set back."""
    pa = require_pyarrow()
    utc = times.cast(pa.timestamp(times.type.unit))
    offsets = pa.compute.subtract(local, utc).cast("int64").fill_null(0).to_numpy()
    encoded = rounded.combine_chunks().dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    num_labels = len(encoded.dictionary)
    # One element more than labels: the last, which -1 points to, is that of missing times.
    least_offsets = np.full(num_labels + 1, offsets.max(initial=0))
    np.minimum.at(least_offsets, codes, offsets)
    is_repeated = np.zeros(num_labels + 1, bool)
    is_repeated[codes[offsets > least_offsets[codes]]] = True
    if is_repeated[:-1].any():
        first = encoded.dictionary[int(np.argmax(is_repeated))]
        warn(
            f"column {name!r}: the {unit} of {first} in {times.type.tz} is one label of two, as "
            "the clock was set back; to keep them apart, store times in UTC"
        )
