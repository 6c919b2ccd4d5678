"""Make a tensor from a table: columns become modes, and their entries become indices."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..engines import select_engine
from ..tensor.labelled import LabelledTensor, Labels, is_ordered
from ..tensor.reductions import find_extremes, group_cells
from ..tensor.tensor import FlycooTensor
from .columns import (
    drop_unused,
    has_categories,
    list_columns,
    number_entries,
    place_entries,
    read_values,
)

_AGGREGATES = ("sum", "mean", "last", "max", "count")
_MISSING = ("raise", "drop")

#: A mode of a table with at least so many rows should not have a label for every second row.
_MANY_ROWS = 1000

_logger = logging.getLogger(__name__)


def from_dataframe(
    df: Any,
    modes: Iterable[str],
    values: str | None = None,
    *,
    labels: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    aggregate: str = "sum",
    missing: str = "raise",
    **options: Any,
) -> LabelledTensor:
    """Make a tensor from a pandas, polars or Arrow table, with one mode per given column.

    The distinct entries of a column (numbers, text or dates) are sorted and numbered. Times with a
    time zone become UTC, periods their starts, and intervals text. `labels` numbers entries as
    another tensor does, so that new data fits a model of old data; so do the categories of a pandas
    categorical or a polars Enum. Labels that do not occur are kept.

    Parameters
    ----------
    df : pandas.DataFrame, polars.DataFrame or pyarrow.Table
    modes : sequence of str
        The column of each mode.
    values : str, optional
        The column of the values; by default, each row has the value 1.
    labels : dict of str to sequence, optional
        For some columns of `modes`, the label of each index, such as the `labels` of another
        `LabelledTensor`.
    aggregate : {"sum", "mean", "last", "max", "count"}
        How to merge the values of rows with the same entries in all `modes`.
    missing : {"raise", "drop"}
        Whether a row without an entry or its value is an error, or left out.
    **options
        ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    LabelledTensor
        A named tuple of `tensor` and `labels`.

    Raises
    ------
    TypeError
        If `df` is not such a table, `modes` is a single text, `labels` is not a dict, the entries
        of a column are neither numbers, text nor dates, or the values are not numbers.
    ValueError
        If a column does not exist, or occurs more than once in `df` or in `modes`; no row is left;
        an entry or value is missing, or a value is not finite; `labels` names other columns, or
        repeats a label, or an entry is not among them; or `aggregate` or `missing` is unknown.

    Notes
    -----
    Warnings in the log say how many rows are left out, how many values are 0, which a sparse tensor
    does not keep, and which modes have nearly as many labels as the table has rows, such as times
    to the second; rounded times make better modes: ``df["time"].dt.floor("D")``.

    The table's own library numbers the entries; polars is several times as fast where pyarrow is
    installed. Beside coords and values, this takes two temporary columns of 8 bytes per row. All
    aggregates but "sum" and "count" sort the rows.

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

    New sales, with the shops of the old:

    >>> new = pd.DataFrame({"shop": ["b", "b"], "day": [10, 11]})
    >>> y, _ = from_dataframe(new, ["shop", "day"], labels={"shop": labels["shop"]})
    >>> y.to_coo().todense()
    array([[0., 0.],
           [1., 1.]])
    """
    modes = check_modes(modes)
    given: Mapping[str, Any] = {} if labels is None else labels
    _check_options(modes, given, aggregate)
    coded, numbers = read_rows(df, modes, values, given, missing)
    coords = np.stack([codes for codes, _ in coded.values()])
    if coords.shape[1] == 0:
        reason = "no row without a missing entry" if len(df) else "no rows"
        raise ValueError(f"df has {reason}, expected at least one")
    if numbers is None or aggregate == "count":
        numbers = np.ones(coords.shape[1])
    elif num_zeros := numbers.size - np.count_nonzero(numbers):
        _logger.warning("%d of %d values are 0, and not kept", num_zeros, numbers.size)
    shape = [entries.size for _, entries in coded.values()]
    for name, size in zip(coded, shape, strict=True):
        if not given and 2 * size > coords.shape[1] >= _MANY_ROWS:
            _logger.warning(
                "column %r has %d labels in %d rows, too many to find patterns: round times "
                "(--modes %s:day, or .dt.floor('D') in pandas), or group other entries",
                name, size, coords.shape[1], name,
            )  # fmt: skip
    if aggregate in ("mean", "last", "max"):
        coords, numbers = _merge(coords, numbers, shape, aggregate)
    tensor = FlycooTensor(coords, numbers, shape, **options)
    ordered = {name for name in modes if is_ordered(df[name])}
    of_modes = {name: entries for name, (_, entries) in coded.items()}
    ordered.update(getattr(labels, "ordered", ()))
    return LabelledTensor(tensor, Labels(of_modes, ordered=ordered))


def read_rows(
    df: Any,
    modes: Sequence[str],
    values: str | None,
    labels: Mapping[str, Sequence[Any] | np.ndarray],
    missing: str,
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], np.ndarray | None]:
    """Number the entries of a table's modes and read its values, row by row; see `from_dataframe`.

    Returns
    -------
    coded : dict of str to (int64 array (num_rows,), array)
        For each mode, the number of each row's entry, and the entries.
    numbers : float array (num_rows,) or None
        None if `values` is.
    """
    check_missing(missing)
    names = list_columns(df)
    columns = {name: _take_column(df, name, names) for name in modes}
    coded = {name: number_entries(column, name) for name, column in columns.items()}
    for name, of_column in labels.items():
        coded[name] = place_entries(name, *coded[name], of_column)
    numbers = None if values is None else read_values(_take_column(df, values, names), values)
    kept = _find_complete(coded, numbers, values, missing)
    if kept is not None:
        numbers = None if numbers is None else numbers[kept]
        for name, (codes, entries) in coded.items():
            is_fixed = name in labels or has_categories(columns[name])
            coded[name] = (codes[kept], entries) if is_fixed else drop_unused(codes[kept], entries)
        num_left = kept.size - int(kept.sum())
        _logger.warning("left out %d of %d rows: an entry or value is missing", num_left, kept.size)
    return coded, numbers


def check_missing(missing: str) -> None:
    """Refuse an unknown treatment of rows without an entry or value."""
    if missing not in _MISSING:
        raise ValueError(f"missing is {missing!r}, expected one of {_MISSING}")


def check_modes(modes: Iterable[str]) -> list[str]:
    """Return the names of columns as a list; refuse a single string, and repeated names."""
    if isinstance(modes, str):
        raise TypeError(f"modes is {modes!r}, expected a list of column names, like [{modes!r}]")
    modes = list(modes)
    if not modes or len(set(modes)) < len(modes):
        raise ValueError(f"modes is {modes}, expected distinct column names, at least one")
    return modes


def _check_options(modes: list[str], labels: Mapping[str, Any], aggregate: str) -> None:
    if aggregate not in _AGGREGATES:
        raise ValueError(f"aggregate is {aggregate!r}, expected one of {_AGGREGATES}")
    if not isinstance(labels, Mapping):
        raise TypeError(f"labels is a {type(labels).__name__}, expected a dict by column")
    others = [name for name in labels if name not in modes]
    if others:
        raise ValueError(f"labels has {others}, expected only columns of modes: {modes}")


def _take_column(df: Any, name: str, names: list[str]) -> Any:
    if name not in names:
        raise ValueError(f"df has no column {name!r}, expected one of {names}")
    if names.count(name) > 1:
        raise ValueError(f"df has {names.count(name)} columns {name!r}, expected one: {names}")
    return df[name]


def _find_complete(
    coded: dict[str, tuple[np.ndarray, np.ndarray]],
    numbers: np.ndarray | None,
    values: str | None,
    missing: str,
) -> np.ndarray | None:
    """Return which rows have all entries and a value; None if all have."""
    gaps = {name: codes < 0 for name, (codes, _) in coded.items()}
    kinds = dict.fromkeys(gaps, "entry")
    if numbers is not None and values is not None:
        gaps[values] = np.isnan(numbers) | gaps.get(values, False)
        kinds[values] = "value"
    gaps = {name: is_missing for name, is_missing in gaps.items() if is_missing.any()}
    if missing == "raise":
        for name, is_missing in gaps.items():
            raise ValueError(
                f"column {name!r} has no {kinds[name]} in row {int(np.argmax(is_missing))}, "
                'expected one in every row; drop or fill the missing ones, or pass missing="drop"'
            )
    return ~np.logical_or.reduce(list(gaps.values())) if gaps else None


def _merge(
    coords: np.ndarray, numbers: np.ndarray, shape: Sequence[int], aggregate: str
) -> tuple[np.ndarray, np.ndarray]:
    """Merge the rows of each cell."""
    coords, numbers, starts = group_cells(coords, numbers, shape, select_engine("cpu"))
    ends = np.append(starts[1:], numbers.size)
    if aggregate == "last":
        return coords, numbers[ends - 1]
    if aggregate == "max":
        return coords, find_extremes(numbers, starts, "max", np)
    sums = np.add.reduceat(numbers, starts, dtype=np.float64)
    return coords, (sums / (ends - starts)).astype(numbers.dtype)
