"""What the entries of a table's columns become as labels: the rules, in one place.

Every table, of whatever library or file, gives its columns as Arrow's. Then one rule holds:

- Integers, floats, booleans, text, dates, times and spans of time are labels; others are refused.
  Integers are int64, or uint64 if one needs it. Labels are sorted, and only those that occur.
- Equal numbers are one label: 0.0 and -0.0 are 0.0.
- A time with a zone becomes its local wall time there, without the zone.
- Ordered categories keep their order. Others are what they stand for, and sorted as such.
- Null, NaN and NaT are missing. In a text file, the empty field is.
- The text of a file becomes numbers or times only if each entry is spelt as such, and different
  texts stay different: "07" stays text, and so do all entries beside it.

`number_entries` labels the entries of one column, `unite_labels` unites the labels that parts of a
column have, as if one table had all their rows, and `find_places` finds one part's in these. What
would merge different entries, or cannot be told, is an error.
"""

import contextlib
import datetime
import decimal
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

_EXPECTED = "expected numbers, text or dates: convert the others, for instance to text"

#: How a number may be spelt: no sign or zero that says nothing, but for a last ".0".
_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.(0|[0-9]*[1-9]))?(e[+-]?[0-9]+)?$"

#: A date, or a time; and what may follow it, its offset from UTC.
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?)?"
_OFFSET = r"(Z|[+-][0-9]{2}:?[0-9]{2})$"


class ColumnLabels(NamedTuple):
    """The labels of a column, or of one part of its rows."""

    #: The distinct entries that occur, sorted, or in the order of their categories: of int64,
    #: uint64, float, bool, text (objects), or dates of NumPy in the coarsest unit that keeps them.
    entries: np.ndarray
    #: The time zone whose wall time they are.
    zone: str | None = None
    #: All categories, if they are ordered.
    categories: np.ndarray | None = None


def require_pyarrow() -> Any:
    """Import pyarrow, or say what to install."""
    try:
        import pyarrow.compute
    except ImportError as error:
        need = 'tables need pyarrow: pip install "tensorly-flycoo[tables]"'
        raise ImportError(f"{need} ({error})") from None
    return pyarrow


def convert_column(column: Any, name: str) -> Any:
    """Return a column of pandas or polars as Arrow's; one of Arrow stays."""
    pa = require_pyarrow()
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column
    try:
        if hasattr(column, "array"):
            return _convert_pandas(column)
        if str(column.dtype) == "Object":  # which Arrow would take as pointers
            raise TypeError("its dtype is Object")
        return column.to_arrow()
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise TypeError(f"column {name!r} of {column.dtype}: {error}, {_EXPECTED}") from None


def _convert_pandas(column: Any) -> Any:
    import pandas
    import pyarrow

    column = _convert_objects(column) if column.dtype == object else column
    kind = type(column.dtype).__name__
    if kind == "IntervalDtype":
        column, kind = column.astype(pandas.CategoricalDtype(ordered=True)), "CategoricalDtype"
    if kind == "CategoricalDtype":
        of = type(column.dtype.categories.dtype).__name__
        if of == "PeriodDtype":
            column = column.cat.rename_categories(column.dtype.categories.to_timestamp())
        elif of == "IntervalDtype":
            column = column.cat.rename_categories(column.dtype.categories.astype(str))
    elif kind == "PeriodDtype":
        column = column.dt.to_timestamp()
    elif kind == "SparseDtype":
        column = column.sparse.to_dense()
    return pyarrow.array(column, from_pandas=True)


def _convert_objects(column: Any) -> Any:
    """Convert objects of one type, or numbers; refuse what pandas or Arrow would cut or merge."""
    present = column.dropna()
    types = set(map(type, present))
    are_numbers = all(issubclass(of, int | float | np.number) and of is not bool for of in types)
    if len(types) > 1 and not are_numbers:
        raise TypeError(f"it holds {' and '.join(sorted(of.__name__ for of in types))}")
    if types == {int}:
        return column.astype("UInt64" if present.max() >= 2**63 else "Int64")
    if types <= {str} or are_numbers:
        return column
    converted = column.infer_objects()
    if converted.dtype == object and issubclass(types.pop(), datetime.datetime):
        raise TypeError("it holds times of several zones")
    return converted


def number_entries(column: Any, name: str) -> tuple[np.ndarray, ColumnLabels]:
    """Number the distinct entries of a column, called `name` in errors.

    Returns the number of each row's label, int64, -1 if its entry is missing; and the labels. A
    TypeError refuses entries that cannot be labels.
    """
    column = convert_column(column, name)
    pa = require_pyarrow()
    chunks = [chunk for chunk in getattr(column, "chunks", [column]) if len(chunk)]
    is_ordered = getattr(column.type, "ordered", False) and all(
        chunk.dictionary.equals(chunks[0].dictionary) for chunk in chunks[1:]
    )
    try:
        column = _check_type(column)
        if len(column) == 0:  # Arrow combines no chunks of some types only
            return np.empty(0, np.int64), ColumnLabels(np.empty(0, object))
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        zone = getattr(column.type.value_type, "tz", None)
        distinct = _normalise(column.dictionary).dictionary_encode()
    except (TypeError, ValueError, NotImplementedError) as error:  # also Arrow's
        raise TypeError(f"column {name!r}: {error}, {_EXPECTED}") from None
    order = np.arange(len(distinct.dictionary))
    if not is_ordered:
        order = pa.compute.sort_indices(distinct.dictionary).to_numpy()
    entries = distinct.dictionary.take(pa.array(order)).to_numpy(zero_copy_only=False)
    entries = coarsen(entries) if entries.dtype.kind == "M" else entries
    places = np.append(np.argsort(order), -1)[_take_indices(distinct)]
    codes = np.append(places, -1)[_take_indices(column)]
    return drop_unused(codes, ColumnLabels(entries, zone, entries if is_ordered else None))


def _take_indices(column: Any) -> np.ndarray:
    """Return the indices of a dictionary array, -1 for null."""
    return column.indices.cast("int64").fill_null(-1).to_numpy()


def _check_type(column: Any) -> Any:
    """Refuse entries that cannot be labels; make text of types that few functions of Arrow take."""
    from pyarrow import large_string, types

    of = getattr(column.type, "value_type", column.type)
    if types.is_null(of) or str(of) == "string_view":
        return column.cast(large_string())
    kinds = ("integer", "floating", "boolean", "string", "large_string", "date", "timestamp")
    if not any(getattr(types, f"is_{kind}")(of) for kind in (*kinds, "duration")):
        raise TypeError(f"it holds {of}")
    return column


def _normalise(values: Any) -> Any:
    """Give equal entries one spelling, and missing ones none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    of = values.type
    if pa.types.is_floating(of):
        of = pa.float32() if pa.types.is_float16(of) else of
        return pc.if_else(pc.is_nan(values), None, pc.add(values.cast(of), pa.scalar(0.0, of)))
    if pa.types.is_integer(of):
        is_wide = of == pa.uint64() and (pc.max(values).as_py() or 0) >= 2**63
        return values if is_wide else values.cast(pa.int64())
    return pc.local_timestamp(values) if getattr(of, "tz", None) else values


def coarsen(dates: np.ndarray) -> np.ndarray:
    """Return dates in the coarsest unit that keeps them: days print without a time."""
    for unit in ("D", "s", "ms"):
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
    """Return the labels of a column from those of its parts, exactly; parts without any are equal.

    Numbers of different types are united as numbers. The order of categories is kept if it is the
    same in all parts. A TypeError refuses parts of different kinds, such as text and numbers, and
    numbers that no type holds exactly; a ValueError refuses times of different zones.
    """
    parts = [part for part in parts if part.entries.size] or list(parts)[:1]
    arrays = [part.entries for part in parts]
    zones = {part.zone for part in parts}
    if len(zones) > 1:
        found = " and ".join(sorted(zone or "no zone" for zone in zones))
        raise ValueError(f"column {name!r} has times of {found}, expected one zone in all parts")
    (zone,) = zones
    first = parts[0].categories
    if first is not None and all(_is_same(first, part.categories) for part in parts):
        is_used = np.zeros(first.size, bool)
        for array in arrays:
            is_used[find_places(array, first)] = True
        return ColumnLabels(first[is_used], zone, first)
    kinds = {"number" if array.dtype.kind in "iuf" else array.dtype.kind for array in arrays}
    if len(kinds) > 1:
        found = " and ".join(sorted({_name_type(array) for array in arrays}))
        raise TypeError(f"column {name!r} is of {found} in different parts, expected one kind")
    if kinds == {"O"}:
        texts = sorted(set().union(*(array.tolist() for array in arrays)))
        return ColumnLabels(np.array(texts, object), zone)
    if kinds == {"number"}:
        return ColumnLabels(_unite_numbers(arrays, name), zone)
    united = np.unique(np.concatenate(_share_unit(arrays)))
    return ColumnLabels(coarsen(united) if kinds == {"M"} else united, zone)


def _name_type(array: np.ndarray) -> str:
    return "text" if array.dtype == object else str(array.dtype)


def _is_same(categories: np.ndarray, others: np.ndarray | None) -> bool:
    return others is not None and np.array_equal(categories, others)


def _unite_numbers(arrays: Sequence[np.ndarray], name: str) -> np.ndarray:
    if len({array.dtype for array in arrays}) == 1 or {a.dtype.kind for a in arrays} == {"f"}:
        return np.unique(np.concatenate(arrays))
    found = sorted(set().union(*(array.tolist() for array in arrays)))  # Python compares exactly
    for dtype in (np.int64, np.uint64, np.float64):
        try:
            numbers = np.array(found, dtype)
        except (OverflowError, ValueError):
            continue
        if numbers.tolist() == found:
            return numbers
    raise TypeError(
        f"column {name!r} holds numbers of different types in its parts, from {found[0]} to "
        f"{found[-1]}, which no type of numbers holds exactly: store one type"
    )


def find_places(entries: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the number of each entry in an array of labels, the first if it repeats, else -1."""
    if {entries.dtype.kind, labels.dtype.kind} in ({"m"}, {"M"}):
        entries, labels = _share_unit([entries, labels])
    if entries.dtype == labels.dtype != object and labels.size:
        order = np.argsort(labels, kind="stable")
        found = np.searchsorted(labels, entries, sorter=order)
        places = order[np.minimum(found, labels.size - 1)]
        return np.where(labels[places] == entries, places, -1)
    numbers: dict[Any, int] = {}
    for number, label in enumerate(labels.tolist()):
        numbers.setdefault(label, number)
    return np.array([numbers.get(entry, -1) for entry in entries.tolist()], np.int64)


def _share_unit(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return dates or spans of time in one unit; refuse those that it cannot hold."""
    dtype = np.result_type(*arrays)
    cast = [array.astype(dtype) for array in arrays]
    for array, own in zip(arrays, cast, strict=True):
        if not np.array_equal(own.astype(array.dtype), array, equal_nan=array.dtype.kind in "mM"):
            raise ValueError(f"dates from {array.min()} to {array.max()} do not fit {dtype}")
    return cast


def place_entries(
    name: str, codes: np.ndarray, entries: np.ndarray, labels: Sequence[Any] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Renumber a column's `codes` by the given labels, and return both; -1 marks a missing entry.

    A ValueError refuses labels that repeat, and entries that are not among them.
    """
    kind = type(labels).__name__
    if not isinstance(labels, np.ndarray) and np.asarray(labels).dtype.kind in "SU":
        labels = np.array(list(labels), object)  # NumPy turns numbers beside texts into texts
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"labels[{name!r}] is a {kind} of shape {labels.shape}, expected a list")
    known = labels
    if entries.dtype.kind in "mM" and labels.dtype.kind not in "mM":
        with contextlib.suppress(ValueError):  # dates of Python, or text
            known = np.array(labels.tolist(), f"{entries.dtype.kind}8")
    places = find_places(known, known)
    if (is_repeated := (places >= 0) & (places < np.arange(places.size))).any():
        label = labels.tolist()[int(np.argmax(is_repeated))]
        raise ValueError(f"labels[{name!r}] holds {label!r} twice, expected distinct ones")
    places = np.append(find_places(entries, known), -1)[codes]
    is_unknown = (places < 0) & (codes >= 0)
    if is_unknown.any():
        row = int(np.argmax(is_unknown))
        example = f", such as {_show(labels[0])}" if labels.size else ""
        raise ValueError(
            f"column {name!r} is {_show(entries[codes[row]])} in row {row}, expected one of its "
            f"{labels.size} labels{example}; drop such rows, or extend the labels"
        )
    return places, labels


def _show(entry: Any) -> str:
    """Show an entry so that text differs from a number or date; others without NumPy's names."""
    return repr(str(entry)) if isinstance(entry, str) else str(entry)


# Text files


def interpret_text(column: Any) -> Any:
    """Return a column of text, with null for missing, as numbers or times if it is spelt so.

    Else it stays text. Then no two different texts become one label, but for 0.0 and -0.0, and
    times that differ in their offsets from UTC only: these are local times, as written.
    """
    import pyarrow as pa

    column = column.combine_chunks().dictionary_encode()
    texts = column.dictionary
    for read in (_read_integers, _read_floats, read_times):
        values = read(texts)
        if values is not None:
            return pa.DictionaryArray.from_arrays(column.indices, values)
    return column


def _match_all(texts: Any, pattern: str) -> bool:
    import pyarrow.compute as pc

    return len(texts) > 0 and pc.all(pc.match_substring_regex(texts, pattern)).as_py()


def _read_integers(texts: Any) -> Any:
    import pyarrow as pa

    if _match_all(texts, _INTEGER):
        for dtype in (pa.int64(), pa.uint64()):
            try:
                return texts.cast(dtype)
            except pa.ArrowInvalid:
                continue
    return None


def _read_floats(texts: Any) -> Any:
    import pyarrow as pa

    if not _match_all(texts, _NUMBER):
        return None
    spelt = texts.to_pylist()
    numbers = [float(text) for text in spelt]
    is_exact = all(
        decimal.Decimal(text) == decimal.Decimal(repr(number))
        for text, number in zip(spelt, numbers, strict=True)
    )
    is_distinct = np.unique(np.array(numbers).view(np.int64)).size == len(spelt)
    return pa.array(numbers) if is_exact and is_distinct else None


def read_times(texts: Any, are_distinct: bool = True) -> Any:
    """Return texts as times, as written, without a zone; None if one is no time, or two are one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _match_all(texts, _TIME + _OFFSET):
        texts = pc.replace_substring_regex(texts, _OFFSET, "")
    if not _match_all(texts, _TIME + "$"):
        return None
    for unit in ("s", "ms", "us", "ns"):
        try:
            times = texts.cast(pa.timestamp(unit))
        except pa.ArrowInvalid:
            continue
        is_distinct = len(times.unique()) == len(texts.unique())
        return times if is_distinct or not are_distinct else None
    return None
