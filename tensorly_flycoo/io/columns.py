"""The columns of pandas, polars and Arrow tables: number their entries, read their values."""

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
        Sorted; of a pandas categorical or a polars Enum all categories, in their order.

    Raises
    ------
    TypeError
        If pandas cannot hash an entry, such as a list.
    """
    kind = _kind_of(column)
    if kind == "CategoricalDtype":
        codes, entries = column.cat.codes, column.dtype.categories.to_numpy()
    elif kind == "Enum":
        codes = column.to_physical().cast(int).fill_null(-1).to_numpy()
        entries = column.dtype.categories.to_numpy()
    elif hasattr(column, "factorize"):  # pandas
        try:
            codes, entries = column.factorize(sort=True)
        except TypeError as error:
            raise TypeError(f"column {name!r}: {error}, expected numbers, text or dates") from None
        entries = entries.to_numpy()
    elif hasattr(column, "dictionary_encode"):
        codes, entries = _number_arrow_entries(column)
    else:
        codes, entries = _number_polars_entries(column)
    codes, entries = np.asarray(codes, np.int64), np.asarray(entries)
    if entries.dtype.kind in "fmM":  # missing floats and dates are nan and NaT
        is_missing = np.append(np.isnan(entries), True)
        if is_missing[:-1].any():
            codes = np.where(is_missing[codes], -1, codes)
    return codes, entries


def _number_arrow_entries(column: Any) -> tuple[np.ndarray, np.ndarray]:
    import pyarrow.compute

    if hasattr(column.type, "value_type"):  # already a dictionary, perhaps with unused entries
        column = column.cast(column.type.value_type)
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy()
    order = pyarrow.compute.sort_indices(encoded.dictionary)
    entries = encoded.dictionary.take(order).to_numpy(zero_copy_only=False)
    places = np.append(np.argsort(order.to_numpy()), -1)  # code -1 (missing) selects the last
    return places[codes], entries


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
        values = column.to_numpy(zero_copy_only=False)
    else:
        values = column.to_numpy()
        if values.dtype == object and getattr(column.dtype, "kind", "O") in "biuf":
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)  # pandas' nullable numbers
    try:
        values = check_values(values, values.size)
    except (TypeError, ValueError) as error:
        raise type(error)(f"column {name!r}: {error}") from None
    is_infinite = np.isinf(values)
    if is_infinite.any():
        row = int(np.argmax(is_infinite))
        raise ValueError(f"column {name!r} is {values[row]} in row {row}, expected finite numbers")
    return values
