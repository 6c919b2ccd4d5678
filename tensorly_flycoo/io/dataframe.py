"""Make a tensor from a table: columns become modes, entries indices."""

import contextlib
import inspect
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.checks import MAX_MODE_SIZE, check_choice, check_values, num_cells, warn
from ..base.watching import watched
from ..engines import select_engine
from ..tensor.labelled import LabelledTensor, Labels
from ..tensor.tensor import FlycooTensor, group_cells
from ..tensor.unknown import Unknown, make_mask
from .absent_blocks import (
    NEARLY_FULL,
    describe_absent,
    describe_single_gaps,
    find_absent,
    suspect_absent,
)
from .entries import (
    CodedColumn,
    ColumnLabels,
    convert_column,
    drop_unused,
    find_places,
    list_ordered,
    number_entries,
    place_entries,
    require_pyarrow,
    unite_labels,
)
from .files import name_errors

AGGREGATES = ("sum", "mean", "last", "max", "count")
MISSING = ("raise", "drop")
ZEROS = ("raise", "drop", "keep")

_DROP_ADVICE = 'drop or fill the missing ones, or pass missing="drop"'

#: Names of columns that an error lists.
_MOST_LISTED = 20

#: What is stored for a 0 that is kept, relative to the largest value: below its rounding error.
_KEPT_ZERO = 2.0**-64

#: A mode of a table with at least so many rows should not have a label for every second row.
_MANY_ROWS = 1000

_logger = logging.getLogger(__name__)


@watched
def from_dataframe(
    df: Any,
    modes: Iterable[str],
    values: str | None = None,
    *,
    labels: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    aggregate: str | None = None,
    missing: str | Iterable[str] | None = None,
    zeros: str | None = None,
    **options: Any,
) -> LabelledTensor:
    """Make a tensor from a table, with one mode per given column.

    The distinct entries of a column (numbers, text or dates) are sorted and numbered; whatever
    library holds a table, its labels are the same. Ordered categories keep their order, and those
    that do not occur are left out. Times with a time zone become its local times, periods their
    starts, and intervals text. `labels` numbers entries as another tensor does, so that new data
    fits a model of old data; labels that do not occur are kept.

    Parameters
    ----------
    df : DataFrame or LazyFrame of pandas or polars, pyarrow.Table, or DuckDB relation
        Or whatever has Arrow's stream interface (``__arrow_c_stream__``); of that and of a
        LazyFrame, only the named columns are read. Or a table in parts, of which one at a time is
        in memory: a list or iterator of tables, such as ``pandas.read_csv(path, chunksize=10**6)``,
        or a data set of Arrow, ``pyarrow.dataset.dataset(folder)``.
    modes : sequence of str
        The column of each mode.
    values : str, optional
        The column of the values; by default, each row has the value 1.
    labels : dict of str to sequence, optional
        For some columns of `modes`, the label of each index, such as the `labels` of another
        `LabelledTensor`.
    aggregate : {"sum", "mean", "last", "max", "count"}, optional
        How to merge the values of rows with the same entries in all `modes`; by default "sum", and
        a warning if there are such rows.
    missing : {"raise", "drop", "unknown"} or sequence of str, optional
        What is missing. Whether a row without an entry or its value is an error, or left out, while
        cells without a row are zeros. Or which of these cells are unknown, as `unknown` of the
        result: all, with those of rows without a value; or, for some of `modes`, the cells of each
        combination of their labels that no row has. By default "raise", and a warning if most
        combinations have rows, in many of their cells, and others have none.
    zeros : {"raise", "drop", "keep"}, optional
        What to do with a value of 0, or values that add up to 0: raise an error; take it as if its
        row were not there; or store it, so that its 0 is known: as ``2**-64`` times the largest
        value, which no rounded sum tells from 0. By default "keep" if all cells without a row are
        unknown, else "raise".
    **options : those of `FlycooTensor`, such as ``dtype``, ``layout`` and ``device``

    Returns
    -------
    LabelledTensor
        A named tuple of `tensor` and `labels`.

    Raises
    ------
    ImportError
        If pyarrow is missing.
    TypeError
        If `df` is not such a table, its parts have labels of different kinds, `modes` is a single
        text, `labels` is not a dict, the entries of a column are neither numbers, text nor dates,
        or the values are not numbers.
    ValueError
        If a column does not exist, or occurs more than once in `df` or in `modes`; no row is left;
        an entry or value is missing, a value is not finite, an integer that float64 does not hold,
        or a cell is 0; `labels` names other
        columns, or repeats a label, or an entry is not among them; `aggregate`, `missing` or
        `zeros` is none of the above; or `missing` names one mode, of which `labels` gives no label
        without rows, or modes with more than 2**26 combinations.

    Warns
    -----
    UserWarning
        If the values of several rows are added in a cell, and `aggregate` is not given; or whole
        blocks of cells have no row, and `missing` is not given, or "drop".

    Notes
    -----
    Warnings in the log say how many rows are left out, and which modes have nearly as many labels
    as the table has rows: rounded times (``df["time"].dt.floor("D")``) make better modes.

    Needs pyarrow. Beside coords and values, this takes two temporary columns of 8 bytes per row; of
    a table in parts, another copy of the coords. Labels do not depend on the parts.
    All aggregates but "sum" and "count" sort the rows, and so does a warning of added values.

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
    # Check the options.
    modes = check_modes(modes)
    check_choice(aggregate or "sum", "aggregate", AGGREGATES)
    if isinstance(values, list | tuple):
        raise TypeError(f"values is {values!r}, expected the name of one column")
    _check_options(options)
    row_rule, blocks = _check_missing(missing, modes)
    if not zeros:
        zeros = "raise"
        if row_rule == "unknown":
            zeros = "keep"
    check_choice(zeros, "zeros", ZEROS)
    given_labels = _check_labels(labels, modes)

    # Number the entries of each mode.
    advice = _DROP_ADVICE
    hint = ', or missing="unknown" if cells without a row are'
    if missing is not None and missing not in MISSING:  # it says what is unknown already
        hint = ""
        advice = "drop or fill such rows first, as by df.dropna(subset=[{name!r}])"
    coded, numbers = _read_tables(df, modes, values, given_labels, row_rule, advice, hint)
    coords = np.stack([column.codes for column in coded.values()])
    mode_labels = {name: column.labels.entries for name, column in coded.items()}
    shape = [entries.size for entries in mode_labels.values()]
    has_values = numbers is not None and aggregate != "count"
    num_rows = coords.shape[1]
    if not given_labels:
        _warn_of_many_labels(mode_labels, num_rows)

    # Which cells without a row are unknown?
    if has_values and missing in (None, "drop"):
        _warn_of_absent_blocks(coords, shape, modes)
    unknown: Unknown = None
    if row_rule == "unknown":
        unknown = "all"
    elif blocks:  # before rows of zeros are dropped: their cells are known
        unknown = _mask_blocks(coords, shape, modes, blocks, given_labels)

    # From rows to cells.
    if numbers is not None and zeros == "drop" and not numbers.all():
        is_nonzero = numbers != 0
        coords = coords[:, is_nonzero]
        numbers = numbers[is_nonzero]
    if numbers is None or aggregate == "count":
        numbers = np.ones(coords.shape[1])
    num_repeated = 0
    if _must_merge(numbers, aggregate, zeros):
        coords, numbers, num_repeated = _merge(coords, numbers, shape, aggregate)
    if zeros == "raise":
        hint = ', missing="unknown" if they are unknown'
        if blocks:
            hint = ', or zeros="keep" to store them'
        refuse_zeros(numbers, values, hint)
    elif zeros == "keep":
        numbers = keep_zeros(numbers)
    tensor = FlycooTensor(coords, numbers, shape, **options)
    if blocks and has_values and zeros != "drop":
        _warn_of_single_gaps(tensor, modes, blocks, unknown)
    if has_values and aggregate is None:
        if tensor.nnz < coords.shape[1]:  # it has added some: count the cells of these
            coords, _, num_repeated = _merge(coords, numbers, shape, aggregate)
        _warn_of_added_values(num_repeated, coords.shape[1])

    ordered = [*list_ordered(coded), *getattr(labels, "ordered", ())]
    labels_of_modes = Labels(mode_labels, ordered=ordered)
    value_column = values if has_values else None
    return LabelledTensor(tensor, labels_of_modes, unknown, value_column)


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that `FlycooTensor` does not take."""
    known = [*inspect.signature(FlycooTensor).parameters][3:]  # behind coords, values and shape
    for name in options:
        if name not in known:
            raise TypeError(f"from_dataframe has no argument {name!r}; further ones are {known}")


def _check_labels(labels: Any, modes: Sequence[str]) -> Mapping[str, Any]:
    """Return the labels that the user gives, by column; refuse those of other columns."""
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        raise TypeError(f"labels is a {type(labels).__name__}, expected a dict by column")
    strangers = [name for name in labels if name not in modes]
    if strangers:
        raise ValueError(f"labels has {strangers}, expected only columns of modes: {modes}")
    return labels


def _warn_of_absent_blocks(coords: np.ndarray, shape: Sequence[int], modes: Sequence[str]) -> None:
    """Warn if whole blocks of cells seem not to have been measured."""
    absent = suspect_absent(coords, shape)
    if absent is not None:
        warn(describe_absent(absent, modes))


def _warn_of_single_gaps(
    tensor: FlycooTensor, modes: Sequence[str], blocks: Sequence[str], unknown: Any
) -> None:
    """Warn if the blocks that have rows lack so few cells that these were hardly zeros."""
    num_blocks = num_cells(tensor.shape[modes.index(name)] for name in blocks)
    block_size = num_cells(tensor.shape) // num_blocks
    num_measured = (num_blocks - unknown.nnz) * block_size
    if NEARLY_FULL * num_measured <= tensor.nnz < num_measured:
        warn(describe_single_gaps(tensor.nnz, num_measured, blocks))


def _read_tables(
    df: Any,
    modes: Sequence[str],
    values: str | None,
    labels: Mapping[str, Any],
    missing: str,
    advice: str,
    hint: str,
) -> tuple[dict[str, CodedColumn], np.ndarray | None]:
    """Do as `read_rows` with a table, or with all parts of one, read one after the other."""
    num_rows = 0  # of the table: incomplete rows are left out of the parts
    parts: list[dict[str, CodedColumn]] = []
    part_values: list[np.ndarray] = []
    are_parts, tables = _list_tables(df, list_columns(modes, values))
    for number, table in enumerate(tables):
        place: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if are_parts:
            place = name_errors(f"part {number} of df")
        with place:
            columns = open_table(table, modes, values)
            coded, numbers = read_rows(columns, modes, values, labels, missing, advice, hint)
        num_rows += len(columns[modes[0]])
        parts.append(coded)
        if numbers is not None:
            part_values.append(numbers)
    num_complete = sum(part[modes[0]].codes.size for part in parts)
    if num_complete == 0:
        reason = "no rows"
        if num_rows:
            reason = "no row without a missing entry"
        raise ValueError(f"df has {reason}, expected at least one")
    if len(parts) == 1:
        return coded, numbers  # of the only part
    united = {}
    for name in modes:
        columns_of_parts = [part[name] for part in parts]
        united[name] = _unite_columns(columns_of_parts, name, has_own_labels=name not in labels)
    if values is None:
        return united, None
    return united, np.concatenate(part_values)


def _unite_columns(parts: Sequence[CodedColumn], name: str, has_own_labels: bool) -> CodedColumn:
    """Join the parts of a column, each with labels of its own or all with those of the caller."""
    labels = parts[0].labels
    if has_own_labels:
        labels = unite_labels([part.labels for part in parts], name)
    codes = []
    for part in parts:
        if part.codes.size:
            places = find_places(part.labels.entries, labels.entries)
            codes.append(places[part.codes])
    return CodedColumn(np.concatenate(codes), labels)


def _list_tables(df: Any, columns: Sequence[str]) -> tuple[bool, Iterable[Any]]:
    """Return whether `df` is a table in parts, and these; a table in one piece is the only part."""
    if isinstance(df, list | tuple | Iterator) and not hasattr(df, "__arrow_c_stream__"):
        return True, df
    if hasattr(df, "to_batches") and hasattr(df, "scanner"):  # a data set of Arrow
        pa = require_pyarrow()
        check_columns(columns, df.schema.names, "df")
        schema = pa.schema([df.schema.field(name) for name in columns])
        batches = df.to_batches(columns=list(columns))
        parts = (pa.Table.from_batches([batch], schema) for batch in batches)
        # A first part without rows has the types of the columns, also if there are no batches.
        empty_part = schema.empty_table()
        return True, itertools.chain([empty_part], parts)
    return False, [df]


def _check_missing(
    missing: str | Iterable[str] | None, modes: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the rule for incomplete rows (see `read_rows`), and the modes of unknown blocks.

    A list of all modes means "unknown": a block of all modes is a cell.
    """
    if missing is None or isinstance(missing, str):
        if missing not in (None, "unknown", *MISSING):
            expected = '"raise", "drop", "unknown", or a list of modes'
            raise ValueError(f"missing is {missing!r}, expected {expected}")
        return missing or "raise", []
    blocks = [*missing]
    distinct = {*blocks}
    has_repeated = len(distinct) < len(blocks)
    if not blocks or has_repeated or not distinct <= {*modes}:
        raise ValueError(f"missing is {blocks}, expected distinct ones of the modes {[*modes]}")
    if len(blocks) == len(modes):
        return "unknown", []
    return "raise", blocks


def _warn_of_many_labels(mode_labels: Mapping[str, np.ndarray], num_rows: int) -> None:
    """Log which modes have nearly as many labels as the table has rows."""
    if num_rows < _MANY_ROWS:
        return
    for name, entries in mode_labels.items():
        if 2 * entries.size > num_rows:
            advice = "leave rare labels out, bin numbers (pandas.cut), or parse dates that are text"
            if entries.dtype.kind in "mM":
                advice = f"round times (--modes {name}:day, or .dt.floor('D') in pandas)"
            text = "column %r has %d labels in %d rows, too many to find patterns: %s"
            _logger.warning(text, name, entries.size, num_rows, advice)


def _mask_blocks(
    coords: np.ndarray,
    shape: Sequence[int],
    modes: Sequence[str],
    blocks: Sequence[str],
    labels: Mapping[str, Any],
) -> Unknown:
    """Return the mask of the combinations of labels in the modes `blocks` that no row has."""
    block_modes = sorted(modes.index(name) for name in blocks)
    block_shape = [shape[mode] for mode in block_modes]
    absent = find_absent(coords[block_modes], block_shape, blocks)
    is_one_mode = len(blocks) == 1
    if not absent.size and is_one_mode and blocks[0] not in labels:
        raise ValueError(
            f"missing is {[*blocks]}, but each label of one mode has rows: name several modes, "
            f"such as {[*modes][:2]}, or give labels={{{blocks[0]!r}: ...}} with those without rows"
        )
    # The mask has size 1 in the other modes: it holds for all of their indices.
    num_absent = absent.shape[1]
    cells = np.zeros((len(shape), num_absent), np.int64)
    cells[block_modes] = absent
    mask_shape = [1] * len(shape)
    for mode in block_modes:
        mask_shape[mode] = shape[mode]
    return make_mask(cells, mask_shape)


def read_rows(
    columns: Mapping[str, Any],
    modes: Sequence[str],
    values: str | None,
    labels: Mapping[str, Sequence[Any] | np.ndarray],
    missing: str,
    advice: str = _DROP_ADVICE,
    hint: str = "",
) -> tuple[dict[str, CodedColumn], np.ndarray | None]:
    """Return the coded column of each mode of an open table, and the values, or None.

    `missing` "drop" leaves out incomplete rows, and "unknown" those that lack the value only; other
    incomplete rows are refused. The error ends with the `advice`, in which {name} is the column,
    and for values with the `hint`.
    """
    check_choice(missing, "missing", (*MISSING, "unknown"))
    coded = {name: number_entries(columns[name], name) for name in modes}
    for name, given_labels in labels.items():
        column = coded[name]
        codes, entries = place_entries(name, column.codes, column.labels.entries, given_labels)
        new_labels = ColumnLabels(entries, column.labels.zone)
        coded[name] = CodedColumn(codes, new_labels)
    numbers = None
    if values is not None:
        numbers = read_values(columns[values], values)

    is_missing = {name: column.codes < 0 for name, column in coded.items()}
    if numbers is not None and values is not None:
        has_no_entry = is_missing.get(values, False)  # a column may be both a mode and the values
        is_missing[values] = np.isnan(numbers) | has_no_entry
    gaps = {name: rows for name, rows in is_missing.items() if rows.any()}
    _refuse_gaps(gaps, values, missing, advice, hint)
    if not gaps:
        return coded, numbers

    is_incomplete = np.logical_or.reduce(list(gaps.values()))
    is_kept = ~is_incomplete
    for name, column in coded.items():
        codes = column.codes[is_kept]
        if name in labels:  # all labels of the caller are kept
            coded[name] = CodedColumn(codes, column.labels)
        else:
            coded[name] = drop_unused(codes, column.labels)
    if numbers is not None:
        numbers = numbers[is_kept]
    num_dropped = int(is_incomplete.sum())
    text = "left out %d of %d rows: an entry or value is missing"
    _logger.warning(text, num_dropped, is_incomplete.size)
    return coded, numbers


def _refuse_gaps(
    gaps: Mapping[str, np.ndarray], values: str | None, missing: str, advice: str, hint: str
) -> None:
    """Refuse rows without an entry or a value, if `missing` does not allow to leave them out."""
    if missing == "drop":
        return
    for name, rows in gaps.items():
        kind = "entry"
        if name == values:
            if missing == "unknown":
                continue
            kind = "value"
            advice += hint
        first_row = int(np.argmax(rows))
        raise ValueError(
            f"column {name!r} has no {kind} in row {first_row}, expected one in every row; "
            f"{advice.format(name=name)}"
        )


def refuse_zeros(numbers: np.ndarray, values: str | None, hint: str = "") -> None:
    """Refuse values of 0, which a sparse tensor does not store; `hint` names other ways out."""
    num_zeros = numbers.size - np.count_nonzero(numbers)
    if num_zeros:
        raise ValueError(
            f"{num_zeros} of {numbers.size} values of column {values!r} are 0: pass "
            f'zeros="drop" if cells without a row are 0 too{hint}'
        )


def keep_zeros(numbers: np.ndarray) -> np.ndarray:
    """Return values with a number in place of each 0 that is stored and hardly differs from 0.

    Examples
    --------
    >>> keep_zeros(np.array([0.0, 4.0])) == [2**-62, 4]
    array([ True,  True])
    """
    largest = abs(numbers).max(initial=0) or 1.0
    kept_zero = _KEPT_ZERO * largest
    return np.where(numbers == 0, kept_zero, numbers)


def check_modes(modes: Iterable[str]) -> list[str]:
    """Return the names of columns as a list; refuse a single string, and repeated names."""
    if isinstance(modes, str):
        raise TypeError(f"modes is {modes!r}, expected a list of column names, like [{modes!r}]")
    modes = list(modes)
    if not modes or len(set(modes)) < len(modes):
        raise ValueError(f"modes is {modes}, expected distinct column names, at least one")
    return modes


def list_columns(modes: Iterable[str], values: str | None) -> list[str]:
    """List the columns to read, each once."""
    columns = dict.fromkeys(modes)
    if values is not None:
        columns[values] = None
    return list(columns)


def check_columns(columns: Iterable[str], names: Sequence[str], table: Any, hint: str = "") -> None:
    """Refuse columns that are not exactly once among the `names` of a table."""
    all_names = list(names)
    for name in columns:
        count = all_names.count(name)
        if count != 1:
            count_text = "no column"
            if count:
                count_text = f"{count} columns"
            listed = str(all_names[:_MOST_LISTED])
            if len(all_names) > _MOST_LISTED:
                listed = f"its {len(all_names):,} columns, such as {all_names[:3]}"
            raise ValueError(f"{table} has {count_text} {name!r}, expected one of {listed}{hint}")


def open_table(df: Any, modes: Sequence[str], values: str | None = None) -> dict[str, Any]:
    """Read columns of a table as Arrow arrays; raise if `df` is no table, or lacks one of them."""
    columns = list_columns(modes, values)
    if hasattr(df, "collect_schema"):  # of polars
        check_columns(columns, df.collect_schema().names(), "df")
        frame = df.lazy().select(columns).collect()
        return {name: convert_column(frame[name], name) for name in columns}
    is_pandas = hasattr(df, "iloc")  # also a series, which is no table
    if is_pandas and hasattr(df, "columns"):
        names = list(df.columns)
        advice = _advise(df, modes, values, names)
        check_columns(columns, names, "df", advice)
        return {name: convert_column(df[name], name) for name in columns}
    if hasattr(df, "__arrow_c_stream__") and not is_pandas:
        return _read_stream(df, columns)
    expected = "a table of pandas, polars, Arrow or DuckDB"
    if is_pandas:
        expected += ": pass df.reset_index()"
    raise TypeError(f"df is a {type(df).__name__}, expected {expected}")


def _read_stream(df: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Read some columns of an object with Arrow's stream interface, batch by batch."""
    pa = require_pyarrow()
    reader = pa.RecordBatchReader.from_stream(df)
    check_columns(columns, reader.schema.names, "df")
    schema = pa.schema([reader.schema.field(name) for name in columns])
    batches = (batch.select(columns) for batch in reader)  # the rest of a batch is freed
    table = pa.Table.from_batches(batches, schema)
    return {name: table[name] for name in columns}


def _advise(df: Any, modes: Sequence[str], values: str | None, names: Sequence[str]) -> str:
    """Say what to call on a pandas frame that lacks columns: it is a pivot, or has an index."""
    absent = [name for name in modes if name not in names]
    index_names = df.index.names
    # A pivot has a column for each label of one mode.
    pivoted = [name for name in absent if name in df.columns.names]
    if not pivoted and values is not None and values not in names:
        pivoted = [name for name in absent if name not in index_names]
    if pivoted:
        id_columns = [name for name in modes if name != pivoted[0]]
        frame = "df"
        if not {*id_columns}.isdisjoint(index_names):
            frame = "df.reset_index()"
        value_name = values or "value"
        call = f"melt({id_columns}, var_name={pivoted[0]!r}, value_name={value_name!r})"
        return f"; if the columns are labels of {pivoted[0]!r}, pass {frame}.{call}.dropna()"
    if not {*absent}.isdisjoint(index_names):
        return "; pass df.reset_index()"
    return ""


def _must_merge(numbers: np.ndarray, aggregate: str | None, zeros: str) -> bool:
    """Return whether rows of one cell are merged here; else the tensor adds their values."""
    if numbers.size == 0 or aggregate == "count":
        return False
    if aggregate in ("mean", "last", "max"):
        return True
    if zeros == "drop":
        return False
    # A tensor drops a sum of 0 without a word, which only values of both signs can have.
    has_both_signs = numbers.min() < 0 < numbers.max()
    return bool(has_both_signs)


def _warn_of_added_values(num_repeated: int, num_cells: int) -> None:
    """Warn if the values of several rows were added in some cells, which nobody has asked for."""
    if num_repeated:
        warn(
            f"{num_repeated:,} of {num_cells:,} cells have several rows, whose values "
            'are added: pass aggregate="sum" if that is meant, else "mean", "last", "max" or '
            '"count"'
        )


def _merge(
    coords: np.ndarray, numbers: np.ndarray, shape: Sequence[int], aggregate: str | None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Merge the values of each cell; return also how many cells have several."""
    cells, grouped, starts = group_cells(coords, numbers, shape, select_engine("cpu"))
    ends = np.append(starts[1:], grouped.size)
    counts = ends - starts  # of the rows of each cell
    num_repeated = int(np.count_nonzero(counts > 1))
    if aggregate == "last":
        last_values = grouped[ends - 1]
        return cells, last_values, num_repeated
    if aggregate == "max":
        maxima = np.maximum.reduceat(grouped, starts)
        return cells, maxima, num_repeated
    sums = np.add.reduceat(grouped, starts, dtype=np.float64)  # also of float32: fewer roundings
    if aggregate == "mean":
        sums /= counts
    return cells, sums.astype(grouped.dtype), num_repeated


def read_indices(column: Any, name: str) -> np.ndarray:
    """Return the integers of a column of Arrow as int64; refuse other entries, and missing ones."""
    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} missing entries, expected none")
    indices = _decode(column).to_numpy(zero_copy_only=False)
    if indices.dtype.kind not in "iu":
        raise TypeError(
            f"column {name!r} is of {indices.dtype}, expected integers without missing ones; other "
            "labels are numbered by tensorly_flycoo.from_dataframe, on a cluster by "
            "tensorly_flycoo.dask.read_parquet without indices=True"
        )
    largest = indices.max(initial=0)
    if largest >= MAX_MODE_SIZE:  # uint64 may not fit int64
        raise ValueError(f"column {name!r} holds the index {largest}, expected less than 2**32")
    return indices.astype(np.int64, copy=False)


def _find_no_number(column: Any) -> str | None:
    """Return the first text of a column that is no number, or else the last; None without any."""
    last = None
    for scalar in column:
        text = scalar.as_py()
        if text is None:
            continue
        last = text
        try:
            float(text)
        except ValueError:
            break
    return last


def read_values(column: Any, name: str) -> np.ndarray:
    """Return the numbers of a column of Arrow, nan if missing; refuse others, and infinite ones."""
    types = require_pyarrow().types
    column = _decode(column)
    is_number = (
        types.is_floating(column.type)
        or types.is_integer(column.type)
        or types.is_boolean(column.type)
        or types.is_decimal(column.type)
        or types.is_null(column.type)  # all are missing
    )
    if not is_number:
        contents = f"entries of type {column.type}, expected numbers"
        if "string" in str(column.type):
            example = _find_no_number(column)
            contents = "text"
            if example is not None:
                contents = f"text, such as {example!r}"
            contents += (
                ", expected numbers; convert it, as by "
                'pandas.to_numeric(column, errors="coerce"), which makes nan of what is no number'
            )
        raise TypeError(f"column {name!r} holds {contents}")
    if types.is_integer(column.type):
        _refuse_rounding(column, name)
    if not types.is_floating(column.type):  # decimals are rounded
        column = column.cast("float64", safe=False)
    values = column.to_numpy(zero_copy_only=False)  # null becomes nan
    is_infinite = np.isinf(values)
    if is_infinite.any():
        row = int(np.argmax(is_infinite))
        raise ValueError(f"column {name!r} is {values[row]} in row {row}, expected finite numbers")
    return check_values(values, values.size)


def _refuse_rounding(column: Any, name: str) -> None:
    """Refuse integers of Arrow that float64 does not hold: some of those above 2**53."""
    integers = column.fill_null(0).to_numpy(zero_copy_only=False)
    largest = int(integers.max(initial=0))
    least = int(integers.min(initial=0))
    if max(largest, -least) <= 2**53:
        return
    floats = integers.astype(np.float64)
    # Floats beyond the integers' type cast back to anything, perhaps even to the integer.
    limit = float(np.iinfo(integers.dtype).max)
    is_outside = floats >= limit
    with np.errstate(invalid="ignore"):
        cast_back = floats.astype(integers.dtype)
    is_rounded = is_outside | (cast_back != integers)
    if is_rounded.any():
        row = int(np.argmax(is_rounded))
        raise ValueError(
            f"column {name!r} is {integers[row]} in row {row}, which float64 does not hold: "
            "expected integers up to 2**53; pass numbers of float64 if they may be rounded"
        )


def _decode(column: Any) -> Any:
    """Decode an Arrow column of a dictionary type."""
    entry_type = getattr(column.type, "value_type", column.type)
    if entry_type is column.type:
        return column
    return column.cast(entry_type)
