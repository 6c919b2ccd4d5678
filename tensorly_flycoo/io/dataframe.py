"""Make a tensor from a table: columns become modes, entries indices."""

import datetime
import logging
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from ..base.checks import MAX_MODE_SIZE, check_choice, check_values
from ..engines import select_engine
from ..tensor.coo_cache import library_of
from ..tensor.labelled import LabelledTensor, Labels, is_ordered
from ..tensor.tensor import FlycooTensor, find_extremes, group_cells

_AGGREGATES = ("sum", "mean", "last", "max", "count")
MISSING = ("raise", "drop")

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
    """Make a tensor from a table, with one mode per given column.

    The distinct entries of a column (numbers, text or dates) are sorted and numbered. Times with a
    time zone become UTC, periods their starts, and intervals text. `labels` numbers entries as
    another tensor does, so that new data fits a model of old data; so do the categories of a pandas
    categorical or a polars Enum. Labels that do not occur are kept.

    Parameters
    ----------
    df : DataFrame or LazyFrame of pandas or polars, pyarrow.Table, or DuckDB relation
        Or whatever has Arrow's stream interface (``__arrow_c_stream__``); of that and of a
        LazyFrame, only the named columns are read.
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
    Warnings in the log say how many rows are left out, how many values are 0, and which modes have
    nearly as many labels as the table has rows: rounded times (``df["time"].dt.floor("D")``) make
    better modes.

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
    check_choice(aggregate, "aggregate", _AGGREGATES)
    if not isinstance(given, Mapping):
        raise TypeError(f"labels is a {type(given).__name__}, expected a dict by column")
    if others := [name for name in given if name not in modes]:
        raise ValueError(f"labels has {others}, expected only columns of modes: {modes}")
    df = open_table(df, modes, values)
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
    for name, (_, entries) in coded.items():
        if not given and 2 * entries.size > coords.shape[1] >= _MANY_ROWS:
            advice = "leave rare labels out, or bin numbers (pandas.cut)"
            if entries.dtype.kind in "mM":
                advice = f"round times (--modes {name}:day, or .dt.floor('D') in pandas)"
            text = "column %r has %d labels in %d rows, too many to find patterns: %s"
            _logger.warning(text, name, entries.size, coords.shape[1], advice)
    if aggregate in ("mean", "last", "max"):
        coords, numbers = _merge(coords, numbers, shape, aggregate)
    tensor = FlycooTensor(coords, numbers, shape, **options)
    ordered = [*(name for name in modes if is_ordered(df[name])), *getattr(labels, "ordered", ())]
    of_modes = {name: entries for name, (_, entries) in coded.items()}
    return LabelledTensor(tensor, Labels(of_modes, ordered=ordered))


def read_rows(
    df: Any,
    modes: Sequence[str],
    values: str | None,
    labels: Mapping[str, Sequence[Any] | np.ndarray],
    missing: str,
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], np.ndarray | None]:
    """Return each mode's codes of the rows of an open table, and entries; the values, or None."""
    check_choice(missing, "missing", MISSING)
    columns = {name: df[name] for name in modes}
    coded = {name: number_entries(column, name) for name, column in columns.items()}
    for name, of_column in labels.items():
        coded[name] = place_entries(name, *coded[name], of_column)
    numbers = None if values is None else read_values(df[values], values)
    gaps = {name: codes < 0 for name, (codes, _) in coded.items()}
    if numbers is not None and values is not None:
        gaps[values] = np.isnan(numbers) | gaps.get(values, False)
    gaps = {name: is_missing for name, is_missing in gaps.items() if is_missing.any()}
    if gaps and missing == "raise":
        name, is_missing = next(iter(gaps.items()))
        kind = "value" if name == values else "entry"
        raise ValueError(
            f"column {name!r} has no {kind} in row {int(np.argmax(is_missing))}, expected one in "
            'every row; drop or fill the missing ones, or pass missing="drop"'
        )
    if gaps:
        kept = ~np.logical_or.reduce(list(gaps.values()))
        numbers = None if numbers is None else numbers[kept]
        for name, (codes, entries) in coded.items():
            is_fixed = name in labels or _kind_of(columns[name]) in ("CategoricalDtype", "Enum")
            coded[name] = (codes[kept], entries) if is_fixed else drop_unused(codes[kept], entries)
        num_left = kept.size - int(kept.sum())
        _logger.warning("left out %d of %d rows: an entry or value is missing", num_left, kept.size)
    return coded, numbers


def check_modes(modes: Iterable[str]) -> list[str]:
    """Return the names of columns as a list; refuse a single string, and repeated names."""
    if isinstance(modes, str):
        raise TypeError(f"modes is {modes!r}, expected a list of column names, like [{modes!r}]")
    modes = list(modes)
    if not modes or len(set(modes)) < len(modes):
        raise ValueError(f"modes is {modes}, expected distinct column names, at least one")
    return modes


def open_table(df: Any, modes: Sequence[str], values: str | None = None) -> Any:
    """Return a table that gives these columns by name; refuse what is no table, or lacks one."""
    columns = list(dict.fromkeys([*modes, *([] if values is None else [values])]))
    is_lazy = hasattr(df, "collect") and hasattr(df, "collect_schema")  # of polars
    is_stream = hasattr(df, "__arrow_c_stream__") and not is_lazy
    kind: type = type(df)
    if any(library_of(base) in ("pandas", "polars", "pyarrow") for base in kind.__mro__):
        is_stream &= not hasattr(df, "__getitem__")
    if is_stream:
        import pyarrow

        df = pyarrow.RecordBatchReader.from_stream(df)
        names = df.schema.names
    elif is_lazy:
        names = df.collect_schema().names()
    else:
        names = getattr(df, "column_names", getattr(df, "columns", None))
        if names is None or not hasattr(df, "__getitem__"):
            expected = "a table of pandas, polars, Arrow or DuckDB"
            raise TypeError(f"df is a {kind.__name__}, expected {expected}")
        names = list(names)
    for name in columns:
        if (count := names.count(name)) != 1:
            found = f"{count} columns {name!r}" if count else f"no column {name!r}"
            raise ValueError(f"df has {found}, expected one of {names}")
    if is_stream:
        schema = pyarrow.schema([df.schema.field(name) for name in columns])
        return pyarrow.Table.from_batches((batch.select(columns) for batch in df), schema)
    return df.select(columns).collect() if is_lazy else df


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


def _kind_of(column: Any) -> str:
    return type(column.dtype).__name__ if hasattr(column, "dtype") else ""


def number_entries(column: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct entries of a column, called `name` in errors.

    Returns the number of each row's entry, int64, -1 if it is missing; and the entries, sorted, or
    all categories of a pandas categorical or a polars Enum, in their order: numbers, text, or dates
    of NumPy in the coarsest unit that keeps them. A TypeError refuses others.
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
    return codes, coarsen(entries) if entries.dtype.kind == "M" else entries


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
    try:
        return _number_arrow_entries(column.to_arrow())  # several times as fast
    except ImportError:
        codes = (column.rank("dense").cast(int) - 1).fill_null(-1)
        return codes.to_numpy(), column.drop_nulls().unique().sort().to_numpy()


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


def coarsen(dates: np.ndarray) -> np.ndarray:
    """Return dates in the coarsest unit that keeps them: days print without a time."""
    for unit in ("D", "s", "ms"):
        coarse = dates.astype(f"M8[{unit}]")
        if np.array_equal(coarse, dates, equal_nan=True):
            return coarse
    return dates


def _number_arrow_entries(column: Any) -> tuple[np.ndarray, np.ndarray]:
    import pyarrow.compute

    column = _decode(column)  # a dictionary may have unused entries
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


def _decode(column: Any) -> Any:
    """Decode an Arrow column of a dictionary type."""
    import pyarrow

    is_dictionary = pyarrow.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if is_dictionary else column


def drop_unused(codes: np.ndarray, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Renumber `codes`, all of at least 0, without the entries that do not occur."""
    is_used = np.bincount(codes, minlength=entries.size) > 0
    return (np.cumsum(is_used) - 1)[codes], entries[is_used]


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
    known, given = labels, entries
    if entries.dtype.kind in "mM":  # the units of dates and spans of time may differ
        is_same = labels.dtype.kind == entries.dtype.kind
        dtype = np.promote_types(labels.dtype, entries.dtype) if is_same else entries.dtype
        known, given = labels.astype(dtype), entries.astype(dtype)
    numbers: dict[Any, int] = {}
    for number, label in enumerate(known.tolist()):
        if numbers.setdefault(label, number) != number:
            raise ValueError(f"labels[{name!r}] holds {label!r} twice, expected distinct ones")
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


def read_indices(column: Any, name: str) -> np.ndarray:
    """Return the integers of a column as int64; refuse other entries, and missing ones."""
    is_arrow = hasattr(column, "dictionary_encode")
    if is_arrow and column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} missing entries, expected none")
    indices = _decode(column).to_numpy(zero_copy_only=False) if is_arrow else column.to_numpy()
    if indices.dtype.kind not in "iu":
        raise TypeError(
            f"column {name!r} is of {indices.dtype}, expected integers without missing ones; other "
            "labels are numbered by tensorly_flycoo.from_dataframe, on a cluster by "
            "tensorly_flycoo.dask.read_parquet without indices=True"
        )
    if (most := indices.max(initial=0)) >= MAX_MODE_SIZE:  # uint64 may not fit int64
        raise ValueError(f"column {name!r} holds the index {most}, expected less than 2**32")
    return indices.astype(np.int64, copy=False)


def read_values(column: Any, name: str) -> np.ndarray:
    """Return the numbers of a column, with nan for missing ones; refuse other and infinite ones."""
    if hasattr(column, "dictionary_encode"):
        values = _decode(column).to_numpy(zero_copy_only=False)
    else:
        if str(kind := column.dtype).endswith("Int128"):  # of polars
            raise TypeError(f"column {name!r} is of {kind}, expected numbers: cast it to Int64")
        values = column.to_numpy()
        if values.dtype == object and getattr(column.dtype, "kind", "O") in "biuf":
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)  # pandas' nullable numbers
    if values.dtype == object and {*map(type, values)} <= {bool, float, Decimal, type(None)}:
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
