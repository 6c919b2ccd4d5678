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

A column in parts gets the labels that one table with all rows would have. Blocks of a coupled
decomposition that share a mode are joined by another rule, in order of appearance: see
`loop.coupled_blocks.join_labels`.
"""

import contextlib
import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from ..base.checks import require, warn
from ..base.host_threads import map_in_threads
from ..tensor.labelled import as_labels
from .integers import Integers, IntegerTable, make_table, number_integers

_EXPECTED = "expected numbers, text or dates: convert the others, for instance to text"

#: A number without needless signs and zeros, but for a last ".0".
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.(0|[0-9]*[1-9]))?(e[+-]?[0-9]+)?$"

#: The end of a time with an offset from UTC.
_OFFSET = r"(:[0-9.]+)(Z|[+-][0-9]{2}:?[0-9]{2})$"

#: Units of dates and times, from the coarsest on.
_COARSE_UNITS = ("D", "s", "ms")


class ColumnLabels(NamedTuple):
    """The labels of a column, or of one part of its rows, and facts by which parts are compared."""

    entries: np.ndarray  # those that occur; text as objects, dates in the coarsest unit
    zone: str | None = None  # the zone whose wall times they are
    categories: np.ndarray | None = None  # if they are ordered: all, also those that do not occur


#: Texts that are Python's at a time.
_TEXT_BLOCK = 2**15

#: Arrow's types of text whose rows are encoded ahead, in threads; the others are rare.
_ENCODED_TYPES = ("string", "large_string")

#: What is known of labels that are text, or integers.
_TEXT = ColumnLabels(np.array([""], object))
_INTEGERS = ColumnLabels(np.array([0]))


class CodedColumn(NamedTuple):
    """A column whose entries are numbered."""

    codes: np.ndarray  # int32: the number of each row's label, -1 if its entry is missing
    labels: ColumnLabels


def require_pyarrow() -> Any:
    """Import pyarrow, or say what to install."""
    need = 'tables need pyarrow: pip install "tensorly-flycoo[tables]"'
    require("pyarrow.compute", need)
    return require("pyarrow", need)


def convert_column(column: Any, name: str) -> Any:
    """Return a column of pandas or polars as one of Arrow; periods are starts, intervals text."""
    dtype = column.dtype
    try:
        if hasattr(column, "to_arrow"):  # of polars
            return column.to_arrow()
        return require_pyarrow().array(_simplify(column), from_pandas=True)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"column {name!r} has text with half a surrogate pair, {error.object!r}, which is not "
            f"Unicode: replace it, as by df[{name!r}].str.encode('utf-8', 'replace').str.decode("
            "'utf-8')"
        ) from None
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise TypeError(f"column {name!r} of {dtype}: {error}, {_EXPECTED}") from None


def _simplify(column: Any) -> Any:
    """Give a column of pandas a type that Arrow converts as we mean it."""
    import pandas

    if column.dtype == object:
        column = _convert_objects(column)
    if isinstance(column.dtype, pandas.IntervalDtype | pandas.PeriodDtype):
        # As ordered categories: their order is not that of their text.
        column = column.astype(pandas.CategoricalDtype(ordered=True))
    if isinstance(column.dtype, pandas.CategoricalDtype):
        categories = column.dtype.categories
        if isinstance(categories.dtype, pandas.PeriodDtype):
            return column.cat.rename_categories(categories.to_timestamp())
        if isinstance(categories.dtype, pandas.IntervalDtype):
            return column.cat.rename_categories(categories.astype(str))
    elif isinstance(column.dtype, pandas.SparseDtype):
        return column.sparse.to_dense()
    return column


def _convert_objects(column: Any) -> Any:
    """Give objects a type if they have one; refuse what pandas or Arrow would cut or merge."""
    import pandas

    kind = pandas.api.types.infer_dtype(column, skipna=True)
    if kind == "integer":
        largest = column.dropna().max()
        if largest >= 2**63:
            return column.astype("UInt64")
        return column.astype("Int64")
    if kind in ("date", "mixed", "mixed-integer"):  # a date may be a time, too
        type_names = {type(entry).__name__ for entry in column.dropna()}
        if len(type_names) > 1:
            raise TypeError(f"it holds {' and '.join(sorted(type_names))}")
    elif kind in ("datetime", "period", "interval"):
        column = column.infer_objects()
        if column.dtype == object and column.notna().any():
            raise TypeError(f"it holds {kind}s of several kinds or zones")
    return column


def encode_columns(columns: Mapping[str, Any], is_chosen: Callable[[Any], bool]) -> dict[str, Any]:
    """Return columns of Arrow, the chosen ones with a dictionary of their distinct entries.

    Hashing the rows takes most of the time of numbering them: each column has a thread for it.
    """
    names = [name for name, column in columns.items() if is_chosen(column)]
    encoded = map_in_threads(lambda name: columns[name].dictionary_encode(), names)
    return {**columns, **dict(zip(names, encoded, strict=True))}


def as_integers(column: Any) -> Any:
    """Return a column of Arrow as `Integers`, if all rows are integers; else as it is.

    So the smallest and the largest integer are looked for once, however often it is called.
    """
    if isinstance(column, Integers):
        return column
    is_integer = require_pyarrow().types.is_integer(column.type)
    if is_integer and len(column) > 0 and not column.null_count:
        return Integers(column)
    return column


def is_plain_text(column: Any) -> bool:
    """Return whether a column of Arrow is text without a dictionary, of a type that gets one."""
    return str(column.type) in _ENCODED_TYPES


def is_hashed(column: Any) -> bool:
    """Return whether a column of Arrow is plain text, or integers that a table would not number."""
    column = as_integers(column)
    if isinstance(column, Integers):
        return not column.are_near
    return is_plain_text(column)


def number_entries(column: Any, name: str) -> CodedColumn:
    """Number the distinct entries of a column of Arrow, or `Integers`, called `name` in errors.

    A TypeError refuses entries that cannot be labels.
    """
    pa = require_pyarrow()
    column = as_integers(column)
    if isinstance(column, Integers):
        numbered = number_integers(column)
        if numbered is not None:
            codes, integers = numbered
            return CodedColumn(codes, ColumnLabels(integers))
        column = column.column
    # The categories of a column that comes encoded need not all occur.
    all_occur = not pa.types.is_dictionary(column.type)
    try:
        encoded, is_ordered = _encode(column)
        if len(encoded) == 0:  # Arrow does not sort empty columns of all types
            return CodedColumn(np.empty(0, np.int32), ColumnLabels(np.empty(0, object)))
        # Different entries of the dictionary may be one label, such as 0.0 and -0.0.
        distinct = _normalise(encoded.dictionary).dictionary_encode()
        _warn_of_merged_times(encoded.dictionary, distinct, name)
        if is_ordered:
            order = np.arange(len(distinct.dictionary))
        else:
            order = pa.compute.sort_indices(distinct.dictionary).to_numpy()
        sorted_entries = distinct.dictionary.take(order)
        entries = coarsen(sorted_entries.to_numpy(zero_copy_only=False))
        if entries.dtype == object:
            types = {*map(type, entries.tolist())}
            if types - {str}:
                raise TypeError(f"it holds {type(entries[0]).__name__}")
    except (TypeError, ValueError, NotImplementedError) as error:  # also Arrow's
        raise TypeError(f"column {name!r}: {error}, {_EXPECTED}") from None
    # From each row's code to its distinct entry, and from that to its label, in sorted order.
    label_of_distinct = np.argsort(order)
    label_of_code = _look_up(label_of_distinct, distinct.indices)
    codes = _look_up(label_of_code, encoded.indices)
    zone = getattr(encoded.type.value_type, "tz", None)
    labels = ColumnLabels(entries, zone)
    if is_ordered:
        labels = labels._replace(categories=entries)
    if all_occur:
        return CodedColumn(codes, labels)
    return drop_unused(codes, labels)


def _encode(column: Any) -> tuple[Any, bool]:
    """Return a column of Arrow with one dictionary, and whether that has an order to keep."""
    pa = require_pyarrow()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    is_ordered = column.type.ordered
    if isinstance(column, pa.ChunkedArray) and len(column):
        dictionaries = [chunk.dictionary for chunk in column.chunks if len(chunk)]
        # Chunks with categories in different orders have no order together.
        is_ordered &= all(dictionary.equals(dictionaries[0]) for dictionary in dictionaries)
        column = column.combine_chunks()
    return column, is_ordered


def _look_up(labels: np.ndarray, codes: Any) -> np.ndarray:
    """Return the label that each of Arrow's codes points to, -1 for null; as int32."""
    numbers = codes.cast("int32").fill_null(-1).to_numpy()
    return _append_missing(labels)[numbers]


def _append_missing(numbers: np.ndarray) -> np.ndarray:
    """Append -1, to which the code -1 then points, that of a missing entry; as int32."""
    return np.append(numbers, -1).astype(np.int32)


def _normalise(values: Any) -> Any:
    """Give equal entries one spelling, and missing ones none."""
    pa = require_pyarrow()
    pc = pa.compute
    if str(values.type) in ("null", "string_view"):  # which few functions take
        return values.cast("large_string")
    if pa.types.is_floating(values.type):
        no_negative_zeros = pc.add(values, pa.scalar(0.0, values.type))
        return pc.if_else(pc.is_nan(values), None, no_negative_zeros)
    if pa.types.is_integer(values.type):
        values = cast_all(values, "int64", values.type)  # some of uint64 do not fit
    return take_wall_times(values)


def _warn_of_merged_times(instants: Any, local: Any, name: str) -> None:
    """Warn if different times of a zone are one `local` time, as when the clock is set back."""
    zone = getattr(instants.type, "tz", None)
    if not zone or len(local.dictionary) == len(instants):
        return
    # Sorted by local time, instants of one time are neighbours.
    codes = local.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    is_equal_to_next = ordered[:-1] == ordered[1:]
    is_present = ordered[:-1] >= 0
    is_repeated = is_equal_to_next & is_present
    if not is_repeated.any():  # the dictionary has a missing time instead
        return
    # Show the first pair, in UTC, which tells them apart.
    pa = require_pyarrow()
    utc = pa.timestamp(instants.type.unit, "UTC")
    place = int(np.argmax(is_repeated))
    wall_time = local.dictionary[int(ordered[place])]
    pair = instants.take(order[place : place + 2])
    earlier, later = sorted(pair.cast("int64").to_pylist())
    first = pa.scalar(earlier, utc)
    second = pa.scalar(later, utc)
    num_repeated = int(is_repeated.sum())
    rest = ""
    if num_repeated > 1:
        rest = f" ({num_repeated - 1} more are)"
    warn(
        f"column {name!r}: {wall_time} in {zone} is one label of two times{rest}, "
        f"{first} and {second}, as the clock was set back; to keep them apart, take UTC, as by "
        f"df[{name!r}].dt.tz_convert('UTC')"
    )


def take_wall_times(times: Any) -> Any:
    """Return the local times of an Arrow array with a zone; others as they are."""
    pa = require_pyarrow()
    zone = (getattr(times.type, "tz", None) or "").replace(":", "")
    if not zone:
        return times
    if not zone.startswith(("+", "-")):
        return pa.compute.local_timestamp(times)
    # An offset such as +0530, which older versions of Arrow do not know.
    sign = zone[0]
    hours = int(sign + zone[1:3])
    minutes = int(sign + zone[3:])
    unit = times.type.unit
    utc = times.cast(pa.timestamp(unit))  # without a zone
    offset = pa.scalar(datetime.timedelta(hours=hours, minutes=minutes), pa.duration(unit))
    return pa.compute.add(utc, offset)


def coarsen(dates: np.ndarray) -> np.ndarray:
    """Return dates in the coarsest unit that keeps them, as days print without a time.

    Examples
    --------
    >>> coarsen(np.array(["2024-02-01T00:00:00"], "M8[ns]"))
    array(['2024-02-01'], dtype='datetime64[D]')
    """
    if dates.dtype.kind != "M":
        return dates
    for unit in _COARSE_UNITS:
        coarse = dates.astype(f"M8[{unit}]")
        if np.array_equal(coarse, dates, equal_nan=True):
            return coarse
    return dates


def drop_unused(codes: np.ndarray, labels: ColumnLabels) -> CodedColumn:
    """Renumber `codes` without the entries that do not occur; -1 stays.

    Examples
    --------
    >>> codes, labels = drop_unused(np.array([2, -1, 0]), ColumnLabels(np.array([5, 6, 7])))
    >>> codes, labels.entries
    (array([ 1, -1,  0], dtype=int32), array([5, 7]))
    """
    is_used = np.zeros(labels.entries.size + 1, bool)
    is_used[codes] = True  # -1 marks the last one, which is no entry's
    is_used = is_used[:-1]
    if is_used.all():
        return CodedColumn(codes, labels)
    code_of_used = np.cumsum(is_used) - 1
    new_codes = _append_missing(code_of_used)
    used_labels = labels._replace(entries=labels.entries[is_used])
    return CodedColumn(new_codes[codes], used_labels)


def list_ordered(labels: Mapping[str, ColumnLabels]) -> list[str]:
    """List the columns of ordered categories."""
    return [name for name, column in labels.items() if column.categories is not None]


def unite_labels(parts: Iterable[ColumnLabels], name: str) -> ColumnLabels:
    """Return the labels of a column from those of its parts, of which there is one at least.

    A `Vocabulary` has them all: see there.
    """
    vocabulary = Vocabulary(name)
    for part in parts:
        vocabulary.add(part)
    labels, _ = vocabulary.sort()
    return labels


class Vocabulary:
    """The labels of a column that comes in parts, numbered in the order in which they come.

    So the rows of a part can be numbered before the next part is read; `sort` says at the end which
    index each number has. Labels are united exactly; empty parts do not count. Numbers of different
    types are united as numbers. The order of categories is kept if it is the same in all parts.

    A text takes some 120 bytes, another label 12; a table of integers up to 128 MB.
    """

    def __init__(self, name: str) -> None:
        self._name = name  # of the column, for errors
        self._facts: ColumnLabels | None = None  # of the first part that is not empty, if any is
        # Which labels occur: all with smaller numbers, or, once rows were left out, those marked.
        self._num_used = 0
        self._is_used: np.ndarray | None = None
        self._number_of_text: dict[str, int] = {}
        # Other labels are sorted, and each has its number. Integers may have a table of these.
        self._entries = np.empty(0, object)
        self._numbers = np.empty(0, np.int32)
        self._table: IntegerTable | None = None

    @property
    def _size(self) -> int:
        if self._table is not None:
            return self._table.size
        return len(self._number_of_text) + self._entries.size  # one of them is empty

    def number(self, column: Any) -> np.ndarray:
        """Number the rows of an Arrow column: int32 (n,), -1 if an entry is missing.

        The labels of rows that are left out are numbered too: `mark_used` names the others.
        """
        if len(column) and _is_text(column):
            encoded, is_ordered = _encode(column)
            if not is_ordered and not encoded.dictionary.null_count:
                self._compare(_TEXT)
                numbers = self._add_arrow_texts(encoded.dictionary)
                return _look_up(numbers, encoded.indices)
        column = as_integers(column)
        if isinstance(column, Integers):
            self._compare(_INTEGERS)
            self._choose_table(column)
            if self._table is not None:
                return self._table.number(column)
        coded = number_entries(column, self._name)
        numbers = self.add(coded.labels)
        return _append_missing(numbers)[coded.codes]

    def add(self, part: ColumnLabels) -> np.ndarray:
        """Return the number of each label of a part: int32, in the order of the part's labels.

        A TypeError refuses labels of another kind, such as text beside numbers, or times of another
        zone, and numbers or dates that no type holds exactly.
        """
        self._compare(part)
        if not part.entries.size:
            return np.empty(0, np.int32)
        if part.entries.dtype == object:
            return np.array(self._add_texts(part.entries), np.int32)
        return self._add_sortable(part.entries)

    def _compare(self, part: ColumnLabels) -> None:
        """Refuse labels of another kind; forget an order of categories that they do not have."""
        if self._facts is None or not self._facts.entries.size:
            self._facts = part._replace(entries=part.entries[:1].copy())
            self._entries = part.entries[:0]
            return
        if not part.entries.size:
            return
        kinds = {_describe(self._facts), _describe(part)}
        if len(kinds) > 1:
            raise TypeError(
                f"column {self._name!r} holds {' and '.join(sorted(kinds))} in different parts, "
                "expected one"
            )
        if not _have_same_order(self._facts.categories, part.categories):
            self._facts = self._facts._replace(categories=None)

    def _add_texts(self, texts: np.ndarray) -> list[int]:
        """Return the numbers of texts."""
        number_of = self._number_of_text
        return [number_of.setdefault(text, len(number_of)) for text in texts.tolist()]

    def _add_arrow_texts(self, texts: Any) -> np.ndarray:
        """Return the numbers of Arrow's texts, of which some at a time become Python's."""
        numbers = np.empty(len(texts), np.int32)
        for start in range(0, len(texts), _TEXT_BLOCK):
            block = texts.slice(start, _TEXT_BLOCK).to_numpy(zero_copy_only=False)
            numbers[start : start + _TEXT_BLOCK] = self._add_texts(block)
        return numbers

    def _choose_table(self, integers: Integers) -> None:
        """Have a table for these integers and those before them, if it is short; else sort them."""
        if self._table is not None and self._table.has_places(integers):
            return
        self._leave_table()
        if self._entries.dtype == np.int64:
            self._table = make_table(integers, self._entries, self._numbers)
        if self._table is not None:
            self._entries = self._entries[:0]

    def _leave_table(self) -> None:
        """Sort the labels of a table, if there is one."""
        if self._table is not None:
            self._entries, self._numbers = self._table.list_labels()
            self._table = None

    def _add_sortable(self, entries: np.ndarray) -> np.ndarray:
        """Return the numbers of labels of a type that NumPy sorts."""
        self._leave_table()
        if entries.dtype != self._entries.dtype:
            entries = self._share_type(entries)
        places = np.searchsorted(self._entries, entries)
        is_new = np.ones(entries.size, bool)
        is_within = places < self._entries.size
        is_new[is_within] = self._entries[places[is_within]] != entries[is_within]
        if is_new.any():
            new = np.sort(entries[is_new])
            new_numbers = np.arange(new.size, dtype=np.int32) + np.int32(self._entries.size)
            new_places = np.searchsorted(self._entries, new)
            self._entries = np.insert(self._entries, new_places, new)
            self._numbers = np.insert(self._numbers, new_places, new_numbers)
            places = np.searchsorted(self._entries, entries)
        return self._numbers[places]

    def _share_type(self, entries: np.ndarray) -> np.ndarray:
        """Give the labels so far and further ones a type that holds all; return the latter."""
        try:
            united = _unite(self._entries, entries)
        except ValueError as error:
            raise TypeError(f"column {self._name!r} in parts: {error}, store one type") from None
        self._entries = united[find_places(self._entries, united)]
        return united[find_places(entries, united)]

    def mark_used(self, codes: np.ndarray, are_all: bool) -> None:
        """Mark the labels with these numbers as ones that occur, beside those of other calls.

        `are_all` says that they are those of all rows since the last call.
        """
        if self._is_used is None and are_all:
            self._num_used = self._size
            return
        if self._is_used is None:
            self._is_used = np.ones(self._num_used, bool)
        num_new = self._size - self._is_used.size
        if num_new:
            self._is_used = np.append(self._is_used, np.zeros(num_new, bool))
        self._is_used[codes] = True

    def sort(self) -> tuple[ColumnLabels, np.ndarray]:
        """Return the sorted labels that occur, and the index of each one's number: uint32."""
        if self._facts is None:
            raise ValueError(f"column {self._name!r} has no parts, expected one at least")
        self._leave_table()
        entries = self._entries
        numbers: np.ndarray = self._numbers
        if self._number_of_text:
            pa = require_pyarrow()
            texts = pa.array(self._number_of_text, "large_string")
            numbers = pa.compute.sort_indices(texts).to_numpy()  # twice as fast as NumPy
            entries = np.array(list(self._number_of_text), object)[numbers]
        if self._is_used is not None:
            is_kept = self._is_used[numbers]
            entries = entries[is_kept]
            numbers = numbers[is_kept]
        if self._facts.categories is not None:
            places = find_places(entries, self._facts.categories)
            in_order = np.argsort(places)
            entries = entries[in_order]
            numbers = numbers[in_order]
        indices = np.zeros(self._size, np.uint32)
        indices[numbers] = np.arange(numbers.size, dtype=np.uint32)
        return self._facts._replace(entries=coarsen(entries)), indices


def _is_text(column: Any) -> bool:
    """Return whether the entries of an Arrow column are text."""
    entry_type = getattr(column.type, "value_type", column.type)  # of a dictionary
    return str(entry_type) in ("string", "large_string", "string_view")


def _have_same_order(left: np.ndarray | None, right: np.ndarray | None) -> bool:
    """Return whether two parts have ordered categories, and the same."""
    if left is None or right is None:
        return False
    return np.array_equal(left, right)


def _describe(part: ColumnLabels) -> str:
    """Say of which kind the labels of a part are: only those of one kind can be united."""
    times = f"times of {part.zone or 'no zone'}"
    kinds = {"b": "booleans", "O": "text", "m": "spans of time", "M": times}
    return kinds.get(part.entries.dtype.kind, "numbers")


def _unite(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Unite numbers of two types, or dates in two units, sorted.

    Examples
    --------
    >>> _unite(np.array([1, 3]), np.array([2.5]))
    array([1. , 2.5, 3. ])
    """
    if left.dtype.kind in "mM":
        times = _share_unit([left, right])
        return np.unique(np.concatenate(times))
    # NumPy would round integers beside floats; Python compares them exactly.
    entries = sorted({*left.tolist(), *right.tolist()})
    for dtype in (np.int64, np.uint64, np.float64):  # the first that holds all
        with contextlib.suppress(OverflowError, ValueError):
            united = np.array(entries, dtype)
            if united.tolist() == entries:
                return united
    raise ValueError(f"no type has all numbers from {entries[0]} to {entries[-1]} exactly")


def find_places(entries: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the number of each entry in an array of distinct labels, -1 for others.

    Examples
    --------
    >>> find_places(np.array([7, 5, 6]), np.array([5, 9, 7]))
    array([ 2,  0, -1])
    """
    if {entries.dtype.kind, labels.dtype.kind} in ({"m"}, {"M"}):
        entries, labels = _share_unit([entries, labels])
    is_sortable = entries.dtype == labels.dtype != object
    if is_sortable and labels.size:
        order = np.argsort(labels)
        ranks = np.searchsorted(labels, entries, sorter=order)
        ranks = np.minimum(ranks, labels.size - 1)  # of entries above all labels
        candidates = order[ranks]  # the only labels that may be equal
        is_equal = labels[candidates] == entries
        return np.where(is_equal, candidates, -1)
    # Text, or numbers of two types, which Python compares exactly.
    numbers = {label: number for number, label in enumerate(labels.tolist())}
    places = [numbers.get(entry, -1) for entry in entries.tolist()]
    return np.array(places, np.int64)


def _share_unit(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return dates or spans of time in one unit; refuse those that it cannot hold."""
    dtype = np.result_type(*arrays)
    return [_cast_exactly(array, dtype) for array in arrays]


def _cast_exactly(times: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Cast times to a finer unit; refuse those that overflow there."""
    with contextlib.suppress(OverflowError):  # NumPy 2.5 raises it, older ones wrap around
        cast = times.astype(dtype)
        cast_back = cast.astype(times.dtype)
        if np.array_equal(cast_back, times, equal_nan=True):
            return cast
    raise ValueError(f"times from {times.min()} to {times.max()} do not fit {dtype}")


def place_entries(
    name: str, codes: np.ndarray, entries: np.ndarray, labels: Sequence[Any] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Renumber a column's `codes` by the given labels, and return both; -1 marks a missing entry.

    A ValueError refuses entries that are not among the labels.
    """
    checked = _check_labels(name, labels)
    comparable = checked
    if entries.dtype.kind in "mM" and checked.dtype.kind not in "mM":
        with contextlib.suppress(ValueError):  # labels may be dates of Python, or text
            comparable = np.array(checked.tolist(), f"{entries.dtype.kind}8")
    place_of_entry = find_places(entries, comparable)
    places = _append_missing(place_of_entry)[codes]
    is_unknown = (places < 0) & (codes >= 0)
    if is_unknown.any():
        row = int(np.argmax(is_unknown))
        example = ""
        if checked.size:
            example = f", such as {_show(checked[0])}"
        advice = "drop such rows, or extend the labels, those of a model by its `extend`"
        if entries.dtype == object and checked.dtype.kind == "M":
            advice = "these are dates: convert the text, as by pandas.to_datetime"
        raise ValueError(
            f"column {name!r} is {_show(entries[codes[row]])} in row {row}, expected one of its "
            f"{checked.size} labels{example}; {advice}"
        )
    return places, checked


def _check_labels(name: str, labels: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return the labels that a user gives for a column as an array of one axis."""
    kind = type(labels).__name__
    if not isinstance(labels, np.ndarray) and np.asarray(labels).dtype.kind in "SU":
        labels = np.array(list(labels), object)  # NumPy turns numbers beside texts into texts
    checked = as_labels(labels)
    if checked.ndim != 1:
        raise ValueError(f"labels[{name!r}] is a {kind} of shape {checked.shape}, expected a list")
    return checked


def _show(entry: Any) -> str:
    """Show an entry so that text differs from a number or date; others without NumPy's names.

    Examples
    --------
    >>> _show("7"), _show(np.int64(7))
    ("'7'", '7')
    """
    text = str(entry)
    if isinstance(entry, str):
        return repr(text)
    return text


def interpret_text(column: Any) -> Any:
    """Return an encoded column of text as numbers or times, if each entry is spelt so, else as is.

    No two different texts become one label, but for 0.0 and -0.0, and for times that differ only in
    their offset from UTC: these are local times, as written.
    """
    pa = require_pyarrow()
    column = column.combine_chunks()
    texts = column.dictionary
    values = _read_integers(texts)
    if values is None:
        values = _read_floats(texts)
    if values is None:
        values = read_times(texts)
    if values is None:
        return column
    # Do different texts, such as "1e2" and "100.0", mean one value?
    num_texts = len(_drop_offsets(texts).unique())
    if len(values.unique()) < num_texts:
        return column
    return pa.DictionaryArray.from_arrays(column.indices, values)


def cast_all(values: Any, *types: Any) -> Any:
    """Return values as the first of these types of Arrow that takes all of them, or None."""
    for arrow_type in types:
        with contextlib.suppress(ValueError):  # Arrow's, too
            return values.cast(arrow_type)
    return None


def _read_integers(texts: Any) -> Any:
    """Return texts as integers, or None if one is not spelt as its integer prints."""
    integers = cast_all(texts, "int64", "uint64")
    if integers is None:
        return None
    spellings = integers.cast(texts.type)
    if not spellings.equals(texts):  # such as "07"
        return None
    return integers


def _read_floats(texts: Any) -> Any:
    """Return texts as floats, or None if one has needless zeros, or more digits than a float."""
    pc = require_pyarrow().compute
    floats = cast_all(texts, "float64")
    if floats is None:
        return None
    are_spelt_well = pc.match_substring_regex(texts, _NUMBER)
    if not pc.all(are_spelt_well).as_py():
        return None
    for text, number in zip(texts.to_pylist(), floats.to_pylist(), strict=True):
        if Decimal(text) != Decimal(repr(number)):
            return None
    return floats


def read_times(texts: Any) -> Any:
    """Return texts as times, as written, without offsets from UTC, or None if one is no time."""
    units = ("timestamp[s]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]")
    return cast_all(_drop_offsets(texts), *units)


def _drop_offsets(texts: Any) -> Any:
    """Return times without their offsets from UTC, if all have one; other texts as they are."""
    pc = require_pyarrow().compute
    have_offsets = pc.match_substring_regex(texts, _OFFSET)
    if not pc.all(have_offsets).as_py():
        return texts
    return pc.replace_substring_regex(texts, _OFFSET, r"\1")
