"""Make a tensor from a table: columns become modes, entries indices."""

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.checks import check_choice, num_cells, warn
from ..base.host_threads import map_in_threads
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
from .entries import ColumnLabels, list_ordered
from .table_parts import NumberedRows, TableParts
from .table_rows import DROP_ADVICE, MISSING, check_modes, refuse_zeros

AGGREGATES = ("sum", "mean", "last", "max", "count")
ZEROS = ("raise", "drop", "keep")

#: What is stored for a 0 that is kept, relative to the largest value: below its rounding error.
_KEPT_ZERO = 2.0**-64

#: A mode of a table with at least so many rows should not have a label for every second row.
_MANY_ROWS = 1000

#: Rows that a thread writes at a time.
_BLOCK_ROWS = 2**18

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
    df : DataFrame or LazyFrame of pandas or polars, or pyarrow.Table
        Of a LazyFrame only the named columns are read. Or a table in parts, of which one at a time
        is in memory: a list or iterator of tables, such as
        ``pandas.read_csv(path, chunksize=10**6)``; a pyarrow.RecordBatchReader, a DuckDB relation,
        or whatever else has Arrow's stream interface (``__arrow_c_stream__``), batch by batch; or a
        data set of Arrow, ``pyarrow.dataset.dataset(folder)``, of .parquet files by row groups.
        Iterators and readers are read once.
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
        If `df`, or a part of it, is not such a table, its parts have labels of different kinds,
        `modes` is a single text, `labels` is not a dict, the entries of a column are neither
        numbers, text nor dates, or the values are not numbers.
    ValueError
        If a column does not exist, or occurs more than once in `df` or in `modes`; no row is left,
        or an iterator has been read before;
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

    Needs pyarrow. Beside the tensor and what building it takes, memory holds ``12 * ndim + 16``
    bytes per row, some 120 per label that is text, and of a table in parts one part, about as
    much again while it is numbered, and up to 128 MB for each mode of integers. Labels do not
    depend on the parts; errors name the part.
    `save_slabs` takes the same tables if the tensor itself is larger than memory.
    All aggregates but "sum" and "count" sort the rows, and so do values of both signs.

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

    The same from parts, of which one at a time is in memory:

    >>> parts = (sales[start : start + 2] for start in (0, 2))
    >>> from_dataframe(parts, ["shop", "day"]).to_coo().todense()
    array([[0., 1.],
           [2., 1.]])

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
    given_labels = check_labels(labels, modes)

    # Number the entries of each mode.
    advice = DROP_ADVICE
    hint = ', or missing="unknown" if cells without a row are'
    if missing is not None and missing not in MISSING:  # it says what is unknown already
        hint = ""
        advice = "drop or fill such rows first, as by df.dropna(subset=[{name!r}])"
    table = TableParts(df, modes, values, given_labels, row_rule, advice=advice, hint=hint)
    coords, numbers, column_labels = _collect(table)
    mode_labels = {name: column.entries for name, column in column_labels.items()}
    shape = [entries.size for entries in mode_labels.values()]
    has_values = numbers is not None and aggregate != "count"
    if not given_labels:
        warn_of_many_labels(mode_labels, coords.shape[1])

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
    num_rows = numbers.size
    are_added = has_values and aggregate in (None, "sum")
    may_cancel = are_added and _have_both_signs(numbers)
    # A tensor adds values too, but drops a sum of 0 without a word.
    must_merge = aggregate in ("mean", "last", "max") or (may_cancel and zeros != "drop")
    if num_rows and must_merge:
        coords, numbers = _merge(coords, numbers, shape, aggregate)
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
        num_cells = tensor.nnz
        if may_cancel and num_cells < numbers.size:  # also those of which nothing is left
            num_cells = _merge(coords, numbers, shape, aggregate)[1].size
        _warn_of_added_values(num_rows - num_cells, num_rows)

    ordered = [*list_ordered(column_labels), *getattr(labels, "ordered", ())]
    labels_of_modes = Labels(mode_labels, ordered=ordered)
    value_column = values if has_values else None
    return LabelledTensor(tensor, labels_of_modes, unknown, value_column)


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that `FlycooTensor` does not take."""
    known = [*inspect.signature(FlycooTensor).parameters][3:]  # behind coords, values and shape
    for name in options:
        if name not in known:
            raise TypeError(f"from_dataframe has no argument {name!r}; further ones are {known}")


def check_labels(labels: Any, modes: Sequence[str]) -> Mapping[str, Any]:
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


def _collect(
    table: TableParts,
) -> tuple[np.ndarray, np.ndarray | None, dict[str, ColumnLabels]]:
    """Read a table; return its coords, its values, and the labels of each mode."""
    parts = list(table.iterate())
    sorted_labels = table.sort_labels()
    num_rows = sum(part.codes[0].size for part in parts)
    coords = np.empty((len(sorted_labels), num_rows), np.int64)
    all_indices = [column.indices for column in sorted_labels.values()]

    def write(block: list[np.ndarray], target: np.ndarray) -> None:
        """Write the indices of some rows, whose labels have these numbers, to their coords."""
        for own, codes, indices in zip(target, block, all_indices, strict=True):
            own[...] = codes if indices is None else indices[codes]

    blocks = _cut_codes(parts)
    stops = np.cumsum([block[0].size for block in blocks])
    map_in_threads(write, blocks, np.split(coords, stops[:-1], axis=1))
    labels = {name: column.labels for name, column in sorted_labels.items()}
    part_values = [part.values for part in parts if part.values is not None]
    if not part_values:
        return coords, None, labels
    return coords, np.concatenate(part_values), labels


def _cut_codes(parts: Sequence[NumberedRows]) -> list[list[np.ndarray]]:
    """Cut all rows into blocks, which are each mode's numbers of some rows."""
    return [
        [codes[first : first + _BLOCK_ROWS] for codes in part.codes]
        for part in parts
        for first in range(0, part.codes[0].size, _BLOCK_ROWS)
    ]


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


def warn_of_many_labels(mode_labels: Mapping[str, np.ndarray], num_rows: int) -> None:
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


def _have_both_signs(numbers: np.ndarray) -> bool:
    """Return whether some values are below 0, and some above."""
    return numbers.size > 0 and bool(numbers.min() < 0 < numbers.max())


def _warn_of_added_values(num_added: int, num_rows: int) -> None:
    """Warn if values of rows were added to those of others, which nobody has asked for."""
    if num_added:
        warn(
            f"{num_added:,} of {num_rows:,} rows fall into the cell of an earlier one, and the "
            'values are added: pass aggregate="sum" if that is meant, else "mean", "last", "max" '
            'or "count"'
        )


def _merge(
    coords: np.ndarray, numbers: np.ndarray, shape: Sequence[int], aggregate: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """Merge the values of each cell."""
    cells, grouped, starts = group_cells(coords, numbers, shape, select_engine("cpu"))
    ends = np.append(starts[1:], grouped.size)
    if aggregate == "last":
        last_values = grouped[ends - 1]
        return cells, last_values
    if aggregate == "max":
        maxima = np.maximum.reduceat(grouped, starts)
        return cells, maxima
    sums = np.add.reduceat(grouped, starts, dtype=np.float64)  # also of float32: fewer roundings
    if aggregate == "mean":
        sums /= ends - starts  # the rows of each cell
    return cells, sums.astype(grouped.dtype)
