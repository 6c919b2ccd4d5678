"""Rules by which the entries of a table's columns become labels.

Every table, of whatever library or file, gives its columns as Arrow's. Then one rule holds:

- Integers, floats, booleans, text, dates, times and spans of time are labels; others are refused.
  Integers are int64, or uint64 if one needs it. Labels are sorted, and only those that occur.
- Equal numbers are one label: 0.0 and -0.0 are 0.0.
- A time with a zone becomes its local wall time there, without the zone.
- Ordered categories keep their order. Others are what they stand for, and sorted as such.
- Null, NaN and NaT are missing. In a text file, the empty field is.
- The text of a file becomes numbers or times only if each entry is spelt as such, and different
  texts stay different: "07" stays text, and so do all entries beside it.
- What would merge different entries, or cannot be told, is an error.

A column in parts gets the labels that one table with all rows would have.
"""

import contextlib
import datetime
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from ..base.checks import require, warn
from ..tensor.labelled import as_labels

_EXPECTED = "expected numbers, text or dates: convert the others, for instance to text"

#: A number without signs and zeros that say nothing, but for a last ".0"; and what ends a time.
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.(0|[0-9]*[1-9]))?(e[+-]?[0-9]+)?$"
_OFFSET = r"(:[0-9.]+)(Z|[+-][0-9]{2}:?[0-9]{2})$"


class ColumnLabels(NamedTuple):
    """The labels of a column, or of one part of its rows, and what decides whether parts fit."""

    entries: np.ndarray  # those that occur; text as objects, dates in the coarsest unit
    zone: str | None = None  # whose wall times they are
    categories: np.ndarray | None = None  # all of them, if they are ordered


def require_pyarrow() -> Any:
    """Import pyarrow, or say what to install."""
    need = 'tables need pyarrow: pip install "tensorly-flycoo[tables]"'
    require("pyarrow.compute", need)
    return require("pyarrow", need)


def convert_column(column: Any, name: str) -> Any:
    """Return a column of pandas or polars as one of Arrow; periods are starts, intervals text."""
    pa = require_pyarrow()
    kind = column.dtype
    try:
        if hasattr(column, "to_arrow"):  # of polars
            return column.to_arrow()
        import pandas

        column = _convert_objects(column) if column.dtype == object else column
        if isinstance(column.dtype, pandas.IntervalDtype | pandas.PeriodDtype):
            column = column.astype(pandas.CategoricalDtype(ordered=True))
        if isinstance(column.dtype, pandas.CategoricalDtype):
            categories = column.dtype.categories
            if isinstance(categories.dtype, pandas.PeriodDtype):
                column = column.cat.rename_categories(categories.to_timestamp())
            elif isinstance(categories.dtype, pandas.IntervalDtype):
                column = column.cat.rename_categories(categories.astype(str))
        elif isinstance(column.dtype, pandas.SparseDtype):
            column = column.sparse.to_dense()
        return pa.array(column, from_pandas=True)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"column {name!r} has text with half a surrogate pair, {error.object!r}, which is not "
            f"Unicode: replace it, as by df[{name!r}].str.encode('utf-8', 'replace').str.decode("
            "'utf-8')"
        ) from None
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise TypeError(f"column {name!r} of {kind}: {error}, {_EXPECTED}") from None


def _convert_objects(column: Any) -> Any:
    """Give objects a type if they have one; refuse what pandas or Arrow would cut or merge."""
    import pandas

    kind = pandas.api.types.infer_dtype(column, skipna=True)
    if kind == "integer":
        return column.astype("UInt64" if column.dropna().max() >= 2**63 else "Int64")
    if kind in ("date", "mixed", "mixed-integer"):  # a date may be a time, too
        types = sorted({type(entry).__name__ for entry in column.dropna()})
        if len(types) > 1:
            raise TypeError(f"it holds {' and '.join(types)}")
    elif kind in ("datetime", "period", "interval"):
        column = column.infer_objects()
        if column.dtype == object and column.notna().any():
            raise TypeError(f"it holds {kind}s of several kinds or zones")
    return column


def number_entries(column: Any, name: str) -> tuple[np.ndarray, ColumnLabels]:
    """Number the distinct entries of a column of Arrow, called `name` in errors.

    Returns the number of each row's label, int64, -1 if its entry is missing; and the labels. A
    TypeError refuses entries that cannot be labels.
    """
    pa = require_pyarrow()
    try:
        if all_occur := not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        if len(column) == 0:  # of which Arrow combines some types only
            return np.empty(0, np.int64), ColumnLabels(np.empty(0, object))
        chunks = [chunk.dictionary for chunk in getattr(column, "chunks", ()) if len(chunk)]
        is_ordered = column.type.ordered and all(chunk.equals(chunks[0]) for chunk in chunks)
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        distinct = _normalise(column.dictionary).dictionary_encode()
        _warn_of_merged_times(column.dictionary, distinct, name)
        order = pa.array(np.arange(len(distinct.dictionary)))
        order = order if is_ordered else pa.compute.sort_indices(distinct.dictionary)
        entries = coarsen(distinct.dictionary.take(order).to_numpy(zero_copy_only=False))
        if entries.dtype == object and {*map(type, entries)} - {str}:
            raise TypeError(f"it holds {type(entries[0]).__name__}")
    except (TypeError, ValueError, NotImplementedError) as error:  # also Arrow's
        raise TypeError(f"column {name!r}: {error}, {_EXPECTED}") from None
    places = np.argsort(order)
    for encoded in (distinct, column):
        places = np.append(places, -1)[encoded.indices.cast("int64").fill_null(-1).to_numpy()]
    zone = getattr(column.type.value_type, "tz", None)
    labels = ColumnLabels(entries, zone, entries if is_ordered else None)
    return (places, labels) if all_occur else drop_unused(places, labels)


def _normalise(values: Any) -> Any:
    """Give equal entries one spelling, and missing ones none."""
    pa = require_pyarrow()
    pc = pa.compute
    if str(values.type) in ("null", "string_view"):  # which few functions take
        return values.cast("large_string")
    if pa.types.is_floating(values.type):
        return pc.if_else(pc.is_nan(values), None, pc.add(values, pa.scalar(0.0, values.type)))
    if pa.types.is_integer(values.type):
        values = cast_all(values, "int64", values.type)  # some of uint64 do not fit
    return take_wall_times(values)


def _warn_of_merged_times(instants: Any, local: Any, name: str) -> None:
    """Warn if different times of a zone are one `local` time, as when the clock is set back."""
    if not getattr(instants.type, "tz", None) or len(local.dictionary) == len(instants):
        return
    numbers = local.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    is_repeated = (numbers[order][1:] == numbers[order][:-1]) & (numbers[order][1:] >= 0)
    if not is_repeated.any():  # one is missing
        return
    place = int(np.argmax(is_repeated))
    first, second = sorted(instants.take(order[place : place + 2]).cast("int64").to_pylist())
    utc = require_pyarrow().timestamp(instants.type.unit, "UTC")
    shown = [str(require_pyarrow().scalar(time, utc)) for time in (first, second)]
    when = local.dictionary[int(numbers[order][place])]
    others = f" ({is_repeated.sum() - 1} more are)" if is_repeated.sum() > 1 else ""
    warn(
        f"column {name!r}: {when} in {instants.type.tz} is one label of two times{others}, "
        f"{' and '.join(shown)}, as the clock was set back; to keep them apart, take UTC, as by "
        f"df[{name!r}].dt.tz_convert('UTC')"
    )


def take_wall_times(times: Any) -> Any:
    """Return the local times of an Arrow array with a zone; others as they are."""
    pa = require_pyarrow()
    zone = (getattr(times.type, "tz", None) or "").replace(":", "")
    if not zone.startswith(("+", "-")):
        return pa.compute.local_timestamp(times) if zone else times
    # An offset such as +0530, which older versions of Arrow do not know.
    offset = datetime.timedelta(hours=int(zone[:3]), minutes=int(zone[0] + zone[3:]))
    unit = times.type.unit
    return pa.compute.add(times.cast(pa.timestamp(unit)), pa.scalar(offset, pa.duration(unit)))


def coarsen(dates: np.ndarray) -> np.ndarray:
    """Return dates in the coarsest unit that keeps them, as days print without a time."""
    for unit in ("D", "s", "ms") if dates.dtype.kind == "M" else ():
        coarse = dates.astype(f"M8[{unit}]")
        if np.array_equal(coarse, dates, equal_nan=True):
            return coarse
    return dates


def drop_unused(codes: np.ndarray, labels: ColumnLabels) -> tuple[np.ndarray, ColumnLabels]:
    """Renumber `codes` without the entries that do not occur; -1 stays."""
    is_used = np.bincount(codes + 1, minlength=labels.entries.size + 1)[1:] > 0
    if is_used.all():
        return codes, labels
    places = np.append(np.cumsum(is_used) - 1, -1)
    return places[codes], labels._replace(entries=labels.entries[is_used])


def unite_labels(parts: Iterable[ColumnLabels], name: str) -> ColumnLabels:
    """Return the labels of a column from those of its parts, exactly; empty parts do not count.

    Numbers of different types are united as numbers. The order of categories is kept if it is the
    same in all parts. A TypeError refuses parts of different kinds, such as text and numbers, or
    times of two zones, and numbers or dates that no type holds exactly.
    """
    parts = list(parts)
    parts = [part for part in parts if part.entries.size] or parts[:1]
    arrays = [part.entries for part in parts]
    zone = parts[0].zone
    first = parts[0].categories
    if len(kinds := {_describe(part) for part in parts}) > 1:
        raise TypeError(
            f"column {name!r} holds {' and '.join(sorted(kinds))} in different parts, expected one"
        )
    categories = [part.categories if part.categories is not None else () for part in parts]
    if first is not None and all(np.array_equal(first, others) for others in categories):
        is_used = np.zeros(first.size, bool)
        is_used[find_places(np.concatenate(arrays), first)] = True
        return ColumnLabels(first[is_used], zone, first)
    try:
        united = _unite(arrays)
    except ValueError as error:
        raise TypeError(f"column {name!r} in parts: {error}, store one type") from None
    return ColumnLabels(coarsen(united), zone)


def _describe(part: ColumnLabels) -> str:
    times = f"times of {part.zone or 'no zone'}"
    kinds = {"b": "booleans", "O": "text", "m": "spans of time", "M": times}
    return kinds.get(part.entries.dtype.kind, "numbers")


def _unite(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Unite entries of one kind, sorted."""
    arrays = _share_unit(arrays) if arrays[0].dtype.kind in "mM" else arrays
    if arrays[0].dtype != object and len({array.dtype for array in arrays}) == 1:
        return np.unique(np.concatenate(arrays))
    found = sorted(set().union(*(array.tolist() for array in arrays)))  # Python compares exactly
    for dtype in (object,) if arrays[0].dtype == object else (np.int64, np.uint64, np.float64):
        with contextlib.suppress(OverflowError, ValueError):
            united = np.array(found, dtype)
            if united.tolist() == found:
                return united
    raise ValueError(f"no type has all numbers from {found[0]} to {found[-1]} exactly")


def find_places(entries: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the number of each entry in an array of distinct labels, -1 for others."""
    if {entries.dtype.kind, labels.dtype.kind} in ({"m"}, {"M"}):
        entries, labels = _share_unit([entries, labels])
    if entries.dtype == labels.dtype != object and labels.size:
        order = np.argsort(labels)
        found = np.searchsorted(labels, entries, sorter=order)
        places = order[np.minimum(found, labels.size - 1)]
        return np.where(labels[places] == entries, places, -1)
    numbers = {label: number for number, label in enumerate(labels.tolist())}
    return np.array([numbers.get(entry, -1) for entry in entries.tolist()], np.int64)


def _share_unit(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return dates or spans of time in one unit; refuse those that it cannot hold."""
    dtype = np.result_type(*arrays)
    cast = []
    for array in arrays:
        with contextlib.suppress(OverflowError):  # NumPy 2.5 raises it
            cast.append(array.astype(dtype))
            if np.array_equal(cast[-1].astype(array.dtype), array, equal_nan=True):
                continue
        raise ValueError(f"times from {array.min()} to {array.max()} do not fit {dtype}")
    return cast


def place_entries(
    name: str, codes: np.ndarray, entries: np.ndarray, labels: Sequence[Any] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Renumber a column's `codes` by the given labels, and return both; -1 marks a missing entry.

    A ValueError refuses entries that are not among the labels.
    """
    kind = type(labels).__name__
    if not isinstance(labels, np.ndarray) and np.asarray(labels).dtype.kind in "SU":
        labels = np.array(list(labels), object)  # NumPy turns numbers beside texts into texts
    labels = known = as_labels(labels)
    if labels.ndim != 1:
        raise ValueError(f"labels[{name!r}] is a {kind} of shape {labels.shape}, expected a list")
    if entries.dtype.kind in "mM" and labels.dtype.kind not in "mM":
        with contextlib.suppress(ValueError):  # dates of Python, or text
            known = np.array(labels.tolist(), f"{entries.dtype.kind}8")
    places = np.append(find_places(entries, known), -1)[codes]
    is_unknown = (places < 0) & (codes >= 0)
    if is_unknown.any():
        row = int(np.argmax(is_unknown))
        example = f", such as {_show(labels[0])}" if labels.size else ""
        advice = "drop such rows, or extend the labels, those of a model by its `extend`"
        if entries.dtype == object and labels.dtype.kind == "M":
            advice = "these are dates: convert the text, as by pandas.to_datetime"
        raise ValueError(
            f"column {name!r} is {_show(entries[codes[row]])} in row {row}, expected one of its "
            f"{labels.size} labels{example}; {advice}"
        )
    return places, labels


def _show(entry: Any) -> str:
    """Show an entry so that text differs from a number or date; others without NumPy's names."""
    return repr(str(entry)) if isinstance(entry, str) else str(entry)


def interpret_text(column: Any) -> Any:
    """Return an encoded column of text as numbers or times, if each entry is spelt so, else as is.

    No two different texts become one label, but for 0.0 and -0.0, and for times that differ only in
    their offset from UTC: these are local times, as written.
    """
    pa = require_pyarrow()
    column = column.combine_chunks()
    texts = column.dictionary
    values = cast_all(texts, "int64", "uint64")
    if values is None or not values.cast(texts.type).equals(texts):
        values = _read_floats(texts)
    values = read_times(texts) if values is None else values
    if values is None or len(values.unique()) < len(_drop_offsets(texts).unique()):
        return column
    return pa.DictionaryArray.from_arrays(column.indices, values)


def cast_all(values: Any, *types: Any) -> Any:
    """Return values as the first of these types of Arrow that takes all of them, or None."""
    for of in types:
        with contextlib.suppress(ValueError):  # Arrow's, too
            return values.cast(of)
    return None


def _read_floats(texts: Any) -> Any:
    pc = require_pyarrow().compute
    numbers = cast_all(texts, "float64")
    if numbers is None or not pc.all(pc.match_substring_regex(texts, _NUMBER)).as_py():
        return None
    pairs = zip(texts.to_pylist(), map(repr, numbers.to_pylist()), strict=True)
    return numbers if all(Decimal(text) == Decimal(shortest) for text, shortest in pairs) else None


def read_times(texts: Any) -> Any:
    """Return texts as times, as written, without offsets from UTC, or None if one is no time."""
    units = ("timestamp[s]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]")
    return cast_all(_drop_offsets(texts), *units)


def _drop_offsets(texts: Any) -> Any:
    """Return times without their offsets from UTC, if all have one; other texts as they are."""
    pc = require_pyarrow().compute
    have_offsets = pc.all(pc.match_substring_regex(texts, _OFFSET)).as_py()
    return pc.replace_substring_regex(texts, _OFFSET, r"\1") if have_offsets else texts
