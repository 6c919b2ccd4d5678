"""The columns of pandas, polars and Arrow tables: number their entries, read their values."""

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..checks import check_values


def list_columns(df: Any) -> list[str]:
    """Return the names of a table's columns.

    Raises
    ------
    TypeError
        If `df` is not a table.
    """
    names = getattr(df, "column_names", None)
    is_lazy = hasattr(df, "collect") and hasattr(df, "collect_schema")
    if names is None and not is_lazy:
        names = getattr(df, "columns", None)
    if names is None or not hasattr(df, "__getitem__"):
        hint = ": call df.collect() first" if is_lazy else ""
        raise TypeError(
            f"df is a {type(df).__name__}, expected a pandas, polars or Arrow table{hint}"
        )
    return list(names)


def has_categories(column: Any) -> bool:
    """Return whether a column's type lists its possible entries: a categorical or an enum."""
    return _kind_of(column) in ("CategoricalDtype", "Enum")


def _kind_of(column: Any) -> str:
    return type(column.dtype).__name__ if hasattr(column, "dtype") else ""


def number_entries(column: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct entries of a column, called `name` in errors.

    Returns
    -------
    codes : int64 array (num_rows,)
        The number of each row's entry; -1 if it is missing.
    entries : array
        Sorted; of a pandas categorical or a polars Enum all categories, in their order. Numbers,
        text, or dates of NumPy in the coarsest unit that keeps them. Times with a time zone are in
        UTC, periods are their starts, and intervals are text.

    Raises
    ------
    TypeError
        If an entry is none of these, such as a list, bytes or a Decimal.
    """
    expected = "expected numbers, text or dates: convert the others, for instance to text"
    try:
        codes, entries = _number_entries(column)
    except (TypeError, ValueError, NotImplementedError) as error:  # also Arrow's
        raise TypeError(f"column {name!r}: {error}, {expected}") from None
    codes, entries = np.asarray(codes, np.int64), np.asarray(entries)
    types = {type(entry) for entry in entries.tolist()} if entries.dtype == object else set()
    if entries.dtype.kind not in "biufmMUO" or not (types <= {str} or types == {datetime.date}):
        kinds = " and ".join(sorted(of.__name__ for of in types)) or entries.dtype
        raise TypeError(f"column {name!r} holds {kinds}, {expected}")
    if entries.dtype.kind in "fmM":  # missing floats and dates are nan and NaT
        is_missing = np.append(np.isnan(entries), True)
        if is_missing[:-1].any():
            codes = np.where(is_missing[codes], -1, codes)
    return codes, _coarsen(entries) if entries.dtype.kind == "M" else entries


def _number_entries(column: Any) -> tuple[Any, Any]:
    kind = _kind_of(column)
    if kind == "CategoricalDtype":
        return column.cat.codes, _take_pandas_entries(column.dtype.categories)
    if kind == "Enum":
        codes = column.to_physical().cast(int).fill_null(-1).to_numpy()
        return codes, column.dtype.categories.to_numpy()
    if hasattr(column, "factorize"):  # pandas
        codes, entries = column.factorize(sort=True)
        return codes, _take_pandas_entries(entries)
    if hasattr(column, "dictionary_encode"):
        return _number_arrow_entries(column)
    if kind == "Object":  # which Arrow would take as pointers
        raise TypeError("its dtype is Object")
    return _number_polars_entries(column)


def _take_pandas_entries(entries: Any) -> np.ndarray:
    import pandas

    entries = pandas.Index(entries.to_numpy()).infer_objects()
    kind = type(entries.dtype).__name__
    if kind == "DatetimeTZDtype":
        entries = entries.tz_convert(None)
    elif kind == "PeriodDtype":
        entries = entries.to_timestamp()
    elif kind == "IntervalDtype":
        entries = entries.astype(str)
    return entries.to_numpy()


def _coarsen(dates: np.ndarray) -> np.ndarray:
    """Return dates in the coarsest unit that keeps them: days print without a time."""
    for unit in ("D", "s", "ms"):
        coarse = dates.astype(f"M8[{unit}]")
        if np.array_equal(coarse, dates, equal_nan=True):
            return coarse
    return dates


def _number_arrow_entries(column: Any) -> tuple[np.ndarray, np.ndarray]:
    import pyarrow.compute

    column = decode(column)  # a dictionary may have unused entries
    if str(column.type) == "string_view":
        column = column.cast(pyarrow.large_string())
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy()
    order = pyarrow.compute.sort_indices(encoded.dictionary)
    entries = encoded.dictionary.take(order).to_numpy(zero_copy_only=False)
    places = np.append(np.argsort(order.to_numpy()), -1)  # code -1 (missing) selects the last
    return places[codes], entries


def decode(column: Any) -> Any:
    """Decode an Arrow column of a dictionary type."""
    import pyarrow

    is_dictionary = pyarrow.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if is_dictionary else column


def _number_polars_entries(column: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        return _number_arrow_entries(column.to_arrow())  # several times as fast
    except ImportError:
        codes = (column.rank("dense").cast(int) - 1).fill_null(-1)
        return codes.to_numpy(), column.drop_nulls().unique().sort().to_numpy()


def drop_unused(codes: np.ndarray, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Renumber `codes`, all of at least 0, without the entries that do not occur.

    Examples
    --------
    >>> drop_unused(np.array([2, 0, 2]), np.array(["a", "b", "c"]))
    (array([1, 0, 1]), array(['a', 'c'], dtype='<U1'))
    """
    is_used = np.bincount(codes, minlength=entries.size) > 0
    return (np.cumsum(is_used) - 1)[codes], entries[is_used]


def place_entries(
    name: str, codes: np.ndarray, entries: np.ndarray, labels: Sequence[Any] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Renumber a column's `codes` by the given labels.

    Returns
    -------
    codes : int64 array (num_rows,)
        The place of each row's entry in `labels`; -1 if it is missing.
    labels : array

    Raises
    ------
    ValueError
        If labels repeat, or an entry is not among them.

    Examples
    --------
    >>> place_entries("shop", np.array([1, 0, -1]), np.array(["a", "b"]), ["c", "b", "a"])
    (array([ 1,  2, -1]), array(['c', 'b', 'a'], dtype=object))
    """
    kind = type(labels).__name__
    labels = np.asarray(labels if isinstance(labels, np.ndarray) else _as_objects(labels))
    if labels.ndim != 1:
        raise ValueError(
            f"labels[{name!r}] is a {kind} of shape {labels.shape}, expected a list or array of "
            "one dimension"
        )
    known, given = labels, entries
    if entries.dtype.kind in "mM":  # the units of dates and spans of time may differ
        is_same = labels.dtype.kind == entries.dtype.kind
        dtype = np.promote_types(labels.dtype, entries.dtype) if is_same else entries.dtype
        known, given = labels.astype(dtype), entries.astype(dtype)
    numbers: dict[Any, int] = {}
    for number, label in enumerate(known.tolist()):
        if numbers.setdefault(label, number) != number:
            raise ValueError(f"labels[{name!r}] holds {label!r} twice, expected distinct labels")
    found = [numbers.get(entry, -1) for entry in given.tolist()]
    places = np.array([*found, -1], np.int64)[codes]
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


def _as_objects(labels: Sequence[Any]) -> Any:
    array = np.asarray(labels)
    # NumPy turns a list of numbers and texts into texts.
    return np.array(list(labels), object) if array.dtype.kind in "SU" else array


def read_values(column: Any, name: str) -> np.ndarray:
    """Return the numbers of a column, with nan for missing ones.

    Raises
    ------
    TypeError
        If they are not numbers.
    ValueError
        If one is infinite, or too large an integer for float64.
    """
    if hasattr(column, "dictionary_encode"):
        column = decode(column)
        values, kind = column.to_numpy(zero_copy_only=False), str(column.type)
    else:
        values, kind = column.to_numpy(), str(column.dtype)
        if values.dtype == object and getattr(column.dtype, "kind", "O") in "biuf":
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)  # pandas' nullable numbers
    if values.dtype == object and kind.lower().startswith(("bool", "decimal")):
        values = values.astype(np.float64)  # missing ones become nan
    if values.dtype == object:
        found = next((entry for entry in values if entry is not None), None)
        held = "text" if isinstance(found, str) else f"entries of type {type(found).__name__}"
        raise TypeError(f"column {name!r} holds {held}, expected numbers")
    try:
        values = check_values(values, values.size)
    except (TypeError, ValueError) as error:
        raise type(error)(f"column {name!r}: {error}") from None
    is_infinite = np.isinf(values)
    if is_infinite.any():
        row = int(np.argmax(is_infinite))
        raise ValueError(f"column {name!r} is {values[row]} in row {row}, expected finite numbers")
    return values
