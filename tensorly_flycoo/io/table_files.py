"""Read the columns that a tensor needs from a table in a file: .parquet, or text as .csv."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.checks import warn
from .dataframe import check_columns
from .entries import cast_all, interpret_text, read_times, require_pyarrow, take_wall_times
from .files import FilePath
from .places import open_parquet

#: What times can be rounded to.
UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")

#: Those that repeat when the clock is set back.
_CLOCK_UNITS = UNITS[:3]

#: Bytes of a text file that are parsed at a time; a row may not be longer.
_BLOCK_NBYTES = 2**24


def read_table(
    path: FilePath,
    modes: Sequence[str],
    values: str | None = None,
    *,
    separator: str = ",",
    has_header: bool = True,
    missing_text: Sequence[str] = (),
) -> Any:
    """Return a table of Arrow with a column for each mode, times rounded as in "time:day".

    Entries of a text file become numbers or times as `entries` says. Empty fields are missing, and
    those that are as in `missing_text`. Without a header the columns are called "1", "2", ...
    """
    pa = require_pyarrow()
    from pyarrow import csv

    is_text = Path(path).suffix.lower() != ".parquet"
    if is_text:
        # Without the former, a line break in quotes ends a row where a block ends.
        parsing = csv.ParseOptions(newlines_in_values=True, delimiter=separator)
        options = csv.ReadOptions(autogenerate_column_names=not has_header)
        with csv.open_csv(path, options, parsing) as reader:
            known = reader.schema.names
        known = known if has_header else [str(number) for number in range(1, len(known) + 1)]
    else:
        data = open_parquet(str(path))
        known = data.schema.names
    sources = {mode: (mode, "") for mode in modes}  # its column, and what to round it to
    for mode in modes:
        name, _, unit = mode.rpartition(":")
        if mode not in known and unit in UNITS:
            sources[mode] = name, unit
    of_modes = {name for name, _ in sources.values()}
    columns = sorted({*of_modes, *([] if values is None else [values])})
    hint = f"; times can be rounded to {', '.join(UNITS)}" if any(":" in c for c in columns) else ""
    hint = "; if there are more, give --sep, as in --sep ';'" if len(known) == 1 else hint
    check_columns(columns, known, path, hint)
    if is_text:
        encoded = pa.dictionary(pa.int32(), pa.string())
        converting = csv.ConvertOptions(
            include_columns=columns,
            column_types={name: encoded if name in of_modes else pa.string() for name in columns},
            null_values=["", *missing_text],
            strings_can_be_null=True,
        )
        options = csv.ReadOptions(
            block_size=_BLOCK_NBYTES, column_names=None if has_header else known
        )
        try:
            found = csv.read_csv(path, options, parsing, converting)
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):
                raise ValueError(f"{path} is not UTF-8 text, convert it: {error}") from None
            raise
    else:
        found = data.to_table(columns=columns)
    table = {}
    if values is not None:
        table[values] = found[values]
        if is_text:  # numbers or booleans, if it is of these
            texts = pa.compute.utf8_trim_whitespace(found[values].cast("string"))
            numbers = cast_all(texts, "float64", "bool")
            table[values] = texts if numbers is None else numbers
    for mode, (name, unit) in sources.items():
        column = interpret_text(found[name]) if is_text and not unit else found[name]
        table[mode] = _round(column, name, unit) if unit else column
    return pa.table(table)


def _round(column: Any, name: str, unit: str) -> Any:
    """Return when the days or other units of a column of times begin, in local time."""
    pa = require_pyarrow()
    values = getattr(column.type, "value_type", column.type)
    is_text = pa.types.is_string(values) or pa.types.is_large_string(values)
    times = read_times(column.cast(values)) if is_text else column
    if times is None or not pa.types.is_temporal(times.type):
        kind = "text" if is_text else f"of {values}"
        raise ValueError(f"column {name!r} is {kind}, expected times to round to {unit}s")
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
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)  # the last: missing
    least = np.full(len(encoded.dictionary) + 1, offsets.max(initial=0))
    np.minimum.at(least, numbers, offsets)
    is_repeated = np.zeros(least.size, bool)
    is_repeated[numbers[offsets > least[numbers]]] = True
    if is_repeated[:-1].any():
        first = encoded.dictionary[int(np.argmax(is_repeated))]
        warn(
            f"column {name!r}: the {unit} of {first} in {times.type.tz} is one label of two, as "
            "the clock was set back; to keep them apart, store times in UTC"
        )
