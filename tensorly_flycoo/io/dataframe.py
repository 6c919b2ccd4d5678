"""Make a tensor of a table: columns become modes, and what is in them indices."""

from typing import Any, NamedTuple

import numpy as np

from ..tensor.tensor import FlycooTensor


class LabelledTensor(NamedTuple):
    """A tensor, and what the indices of its modes stand for.

    Attributes
    ----------
    tensor : FlycooTensor
    labels : dict of str to array (I_n,)
        For the column of each mode, in the order of the modes, what each index stands for; so row i
        of factor n is that of ``labels[column][i]``.
    """

    tensor: FlycooTensor
    labels: dict[str, Any]


def from_dataframe(df, modes, values=None, **options):
    """Make a tensor of a pandas, polars or Arrow table: one mode for each of some columns.

    What is in a column, whether numbers, texts or dates, is sorted and numbered, or if the column
    is a category of pandas takes the order that these have. Rows with the same entries in all
    `modes` are summed, so without `values` they are counted.

    Parameters
    ----------
    df : pandas.DataFrame, polars.DataFrame or pyarrow.Table
    modes : sequence of str
        The column of each mode.
    values : str, optional
        The column of the values; by default each row counts 1.
    **options
        ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    LabelledTensor
        A pair of `tensor` and `labels`.

    Raises
    ------
    TypeError
        If `df` is something else, or the values are not numbers.
    ValueError
        If there is no such column, or more than one, a column is named twice, there is no row, an
        entry of a mode is missing, or a value is missing or not finite.

    Notes
    -----
    Entries are numbered by the library that the table is of. Two columns of 8 bytes per row are
    made at a time, besides coords and values.

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
        raise ValueError(f"modes is {modes}, expected different names of columns, at least one")
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


def _list_columns(df):
    names = getattr(df, "column_names", None) or getattr(df, "columns", None)
    if names is None or not hasattr(df, "__getitem__"):
        raise TypeError(f"df is a {type(df).__name__}, expected a pandas, polars or Arrow table")
    return list(names)


def _take_column(df, name, names):
    if names.count(name) != 1:
        raise ValueError(f"df has {names.count(name)} columns {name!r}, expected one of {names}")
    return df[name]


def _number_entries(column, name):
    """Return the number of each entry among all different ones, sorted, and these."""
    if hasattr(column, "factorize"):  # pandas
        codes, entries = column.factorize(sort=True)
        entries = entries.to_numpy()
    elif hasattr(column, "dictionary_encode"):
        codes, entries = _number_arrow_entries(column)
    else:
        codes, entries = _number_polars_entries(column)
    codes, entries = np.asarray(codes, np.int64), np.asarray(entries)
    is_missing = codes < 0
    if entries.dtype.kind in "fmM":  # which have a value of their own for what is missing
        is_missing |= np.append(np.isnan(entries), True)[codes]
    if is_missing.any():
        raise ValueError(
            f"column {name!r} has no entry in row {int(np.argmax(is_missing))}, expected one in "
            "every row; drop or fill those without"
        )
    return codes, entries


def _number_arrow_entries(column):
    if hasattr(column.type, "value_type"):  # a dictionary already, perhaps with entries not in use
        column = column.cast(column.type.value_type)
    encoded = column.combine_chunks().dictionary_encode()
    codes, entries = encoded.indices.fill_null(-1).to_numpy(), _to_numpy(encoded.dictionary)
    order = np.argsort(entries)
    places = np.append(np.argsort(order), -1)  # the last one for -1
    return places[codes], entries[order]


def _number_polars_entries(column):
    codes = (column.rank("dense").cast(int) - 1).fill_null(-1)
    return codes.to_numpy(), column.drop_nulls().unique().sort().to_numpy()


def _to_numpy(column):
    if hasattr(column, "dictionary_encode"):
        return column.to_numpy(zero_copy_only=False)
    return column.to_numpy()
