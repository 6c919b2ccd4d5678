"""Make a tensor from a table: columns become modes, and their entries become indices."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..tensor.labelled import LabelledTensor
from ..tensor.tensor import FlycooTensor


def from_dataframe(
    df: Any, modes: Iterable[str], values: str | None = None, **options: Any
) -> LabelledTensor:
    """Make a tensor from a pandas, polars or Arrow table, with one mode per given column.

    The distinct entries of a column (numbers, text or dates) are sorted and numbered. A pandas
    categorical column keeps the order of its categories. Values of rows with the same entries in
    all `modes` are added up; without `values`, such rows are counted.

    Parameters
    ----------
    df : pandas.DataFrame, polars.DataFrame or pyarrow.Table
    modes : sequence of str
        The column of each mode.
    values : str, optional
        The column of the values; by default, each row has the value 1.
    **options
        ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    LabelledTensor
        A named tuple of `tensor` and `labels`.

    Raises
    ------
    TypeError
        If `df` is not such a table, or the values are not numbers.
    ValueError
        If a column does not exist, occurs more than once in `df` or in `modes`, the table has no
        rows, an entry of a mode is missing, or a value is missing or not finite.

    Notes
    -----
    The table's own library numbers the entries. Beside coords and values, this takes two temporary
    columns of 8 bytes per row.

    Examples
    --------
    >>> import pandas as pd
    >>> from tensorly_flycoo import from_dataframe
    >>> sales = pd.DataFrame({"shop": ["b", "a", "b", "b"], "day": [7, 9, 7, 9]})
    >>> x, labels = from_dataframe(sales, ["shop", "day"])
    >>> x.to_coo().todense()
    array([[0., 1.],
           [2., 1.]])
    >>> labels["shop"].tolist(), labels["day"].tolist()
    (['a', 'b'], [7, 9])
    """
    modes = list(modes)
    if not modes or len(set(modes)) < len(modes):
        raise ValueError(f"modes is {modes}, expected distinct column names, at least one")
    names = _list_columns(df)
    coded = [_number_entries(_take_column(df, name, names), name) for name in modes]
    coords = np.stack([codes for codes, _ in coded])
    if coords.shape[1] == 0:
        raise ValueError("df has no rows, expected at least one")
    if values is None:
        numbers = np.ones(coords.shape[1])
    else:
        numbers = _to_numpy(_take_column(df, values, names))
    labels = {name: entries for name, (_, entries) in zip(modes, coded, strict=True)}
    shape = [entries.size for entries in labels.values()]
    return LabelledTensor(FlycooTensor(coords, numbers, shape, **options), labels)


def _list_columns(df: Any) -> list[str]:
    names = getattr(df, "column_names", None) or getattr(df, "columns", None)
    if names is None or not hasattr(df, "__getitem__"):
        raise TypeError(f"df is a {type(df).__name__}, expected a pandas, polars or Arrow table")
    return list(names)


def _take_column(df: Any, name: str, names: list[str]) -> Any:
    if names.count(name) != 1:
        raise ValueError(f"df has {names.count(name)} columns {name!r}, expected one of {names}")
    return df[name]


def _number_entries(column: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's index into the sorted distinct entries, and these entries."""
    if hasattr(column, "factorize"):  # pandas
        codes, entries = column.factorize(sort=True)
        entries = entries.to_numpy()
    elif hasattr(column, "dictionary_encode"):
        codes, entries = _number_arrow_entries(column)
    else:
        codes, entries = _number_polars_entries(column)
    codes, entries = np.asarray(codes, np.int64), np.asarray(entries)
    is_missing = codes < 0
    if entries.dtype.kind in "fmM":  # floats and dates mark missing entries with nan or NaT
        is_missing |= np.append(np.isnan(entries), True)[codes]
    if is_missing.any():
        raise ValueError(
            f"column {name!r} has no entry in row {int(np.argmax(is_missing))}, expected one in "
            "every row; drop or fill the missing ones"
        )
    return codes, entries


def _number_arrow_entries(column: Any) -> tuple[np.ndarray, np.ndarray]:
    if hasattr(column.type, "value_type"):  # already a dictionary, perhaps with unused entries
        column = column.cast(column.type.value_type)
    encoded = column.combine_chunks().dictionary_encode()
    codes, entries = encoded.indices.fill_null(-1).to_numpy(), _to_numpy(encoded.dictionary)
    order = np.argsort(entries)
    places = np.append(np.argsort(order), -1)  # code -1 (missing) selects the last place
    return places[codes], entries[order]


def _number_polars_entries(column: Any) -> tuple[np.ndarray, np.ndarray]:
    codes = (column.rank("dense").cast(int) - 1).fill_null(-1)
    return codes.to_numpy(), column.drop_nulls().unique().sort().to_numpy()


def _to_numpy(column: Any) -> np.ndarray:
    if hasattr(column, "dictionary_encode"):
        return column.to_numpy(zero_copy_only=False)
    return column.to_numpy()
