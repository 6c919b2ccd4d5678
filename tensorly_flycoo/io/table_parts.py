"""Tables larger than memory: each part is read once, and its entries are numbered as they come."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.checks import require
from .entries import (
    ColumnLabels,
    Vocabulary,
    encode_columns,
    is_plain_text,
    require_pyarrow,
)
from .files import name_errors
from .table_rows import (
    DROP_ADVICE,
    check_columns,
    find_complete,
    list_columns,
    log_dropped,
    number_column,
    open_stream,
    open_table,
    read_rows,
    read_values,
)

#: Rows that DuckDB hands on at a time.
_BATCH_ROWS = 2**20


class NumberedRows(NamedTuple):
    """The complete rows of a part."""

    codes: list[np.ndarray]  # of each mode: the numbers (n,) of its labels, as they came, uint32
    values: np.ndarray | None


class SortedLabels(NamedTuple):
    """The labels of a mode, in their final order."""

    labels: ColumnLabels
    #: Of each number that `NumberedRows` have, the label's index, uint32; None if it is the number.
    indices: np.ndarray | None


class TableParts:
    """A table, in one piece or in parts, of which one at a time is in memory.

    `iterate` reads it once. Since only the last part completes the labels, they are numbered as
    they come; `sort_labels` says afterwards which index each number has.
    """

    def __init__(
        self,
        df: Any,
        modes: Sequence[str],
        values: str | None,
        labels: Mapping[str, Any],
        missing: str,
        *,
        advice: str = DROP_ADVICE,
        hint: str = "",
        argument: str = "df",
    ) -> None:
        """Take the arguments of `table_rows.read_rows`; `argument` names `df` in errors."""
        self._df = df
        self._modes = modes
        self._values = values
        self._given_labels = labels
        self._missing = missing
        self._advice = advice
        self._hint = hint
        self._argument = argument
        self._vocabularies = {name: Vocabulary(name) for name in modes if name not in labels}
        self._known_labels: dict[str, ColumnLabels] = {}  # of a whole table, or given
        self._num_rows = 0  # that have been read, incomplete ones too
        self._num_complete = 0

    def iterate(self) -> Iterator[NumberedRows]:
        """Yield the rows of each part; a ValueError refuses a table without any."""
        columns = list_columns(self._modes, self._values)
        parts = list_parts(self._df, columns, self._argument)
        if parts is None:
            yield self._read_whole()
        else:  # `map` holds no part while the next one is made
            yield from map(self._read_part, itertools.count(), parts)
        log_dropped(self._num_rows - self._num_complete, self._num_rows)
        self._require_rows()

    def _read_whole(self) -> NumberedRows:
        """Read a table in one piece, whose labels are known at once."""
        columns = open_table(self._df, self._modes, self._values, self._argument)
        self._num_rows = len(columns[self._modes[0]])
        coded, values = read_rows(
            columns,
            self._modes,
            self._values,
            self._given_labels,
            self._missing,
            self._advice,
            self._hint,
        )
        self._known_labels = {name: column.labels for name, column in coded.items()}
        codes = [column.codes.view(np.uint32) for column in coded.values()]
        self._num_complete = codes[0].size
        return NumberedRows(codes, values)

    def _read_part(self, number: int, table: Any) -> NumberedRows:
        """Read one part; its errors name it."""
        with name_errors(f"part {number} of {self._argument}"):
            return self._number_rows(table)

    def _number_rows(self, table: Any) -> NumberedRows:
        """Read the rows of a part, and number them."""
        columns = open_table(table, self._modes, self._values, "it")
        self._num_rows += len(columns[self._modes[0]])
        values = None
        if self._values is not None:
            values = read_values(columns[self._values], self._values)
        mode_columns = {name: columns[name] for name in self._modes}
        mode_columns = encode_columns(mode_columns, is_plain_text)
        codes = {name: self._number(name, mode_columns.pop(name)) for name in self._modes}
        is_kept = find_complete(
            codes, values, self._values, self._missing, self._advice, self._hint
        )
        if is_kept is not None:
            codes = {name: rows[is_kept] for name, rows in codes.items()}
            if values is not None:
                values = values[is_kept]
        for name, vocabulary in self._vocabularies.items():
            vocabulary.mark_used(codes[name], is_kept is None)
        numbered = [rows.view(np.uint32) for rows in codes.values()]
        self._num_complete += numbered[0].size
        return NumberedRows(numbered, values)

    def _number(self, name: str, column: Any) -> np.ndarray:
        """Number the rows of a mode's column: int32, -1 if an entry is missing."""
        if name in self._vocabularies:
            return self._vocabularies[name].number(column)
        codes, self._known_labels[name] = number_column(column, name, self._given_labels)
        return codes

    def _require_rows(self) -> None:
        """Refuse a table of which no row is left."""
        if self._num_complete:
            return
        reason = "no rows"
        hint = ""
        if self._num_rows:
            reason = "no row without a missing entry"
        elif isinstance(self._df, Iterator):
            kind = type(self._df).__name__
            hint = f": a {kind} gives its parts once, and may have been read before"
        raise ValueError(f"{self._argument} has {reason}, expected at least one{hint}")

    def sort_labels(self) -> dict[str, SortedLabels]:
        """Return the labels of each mode; called once, after all parts have been read."""
        sorted_labels = {}
        for name in self._modes:
            if name in self._known_labels:
                sorted_labels[name] = SortedLabels(self._known_labels[name], None)
            else:
                vocabulary = self._vocabularies.pop(name)  # its memory is freed
                sorted_labels[name] = SortedLabels(*vocabulary.sort())
        return sorted_labels


def list_parts(df: Any, columns: Sequence[str], argument: str) -> Iterable[Any] | None:
    """Return the parts of a table, or None if it is in one piece, or no table."""
    is_stream = hasattr(df, "__arrow_c_stream__")
    if isinstance(df, list | tuple | Iterator) and not is_stream:
        return df
    if hasattr(df, "to_batches") and hasattr(df, "scanner"):
        return scan(df, columns, argument)
    # Frames of pandas and polars, and tables and batches of Arrow.
    is_in_memory = any(hasattr(df, name) for name in ("iloc", "collect_schema", "num_rows"))
    if is_stream and not is_in_memory:
        return _read_stream(df, columns, argument)
    return None


def scan(dataset: Any, columns: Sequence[str], argument: str) -> Iterator[Any]:
    """Yield some columns of a data set of Arrow, some rows at a time.

    Of .parquet files a row group is read when it is asked for: Arrow's own scan reads ahead, and
    holds all of a file up to its end.
    """
    check_columns(columns, dataset.schema.names, argument)
    names = list(columns)
    row_groups = _list_row_groups(dataset)
    if row_groups is None:
        batches = dataset.to_batches(columns=names, batch_readahead=1, fragment_readahead=1)
        return _take_columns(batches, names)
    return (group.to_table(dataset.schema, columns=names) for group in row_groups)


def _list_row_groups(dataset: Any) -> Iterator[Any] | None:
    """Return the row groups of .parquet files; None of other files, and if rows are filtered."""
    arrow = require("pyarrow.dataset", "")  # it is there: the data set is its own
    file_format = getattr(dataset, "format", None)  # data sets in memory have none
    if not isinstance(file_format, arrow.ParquetFileFormat):
        return None
    try:
        files = dataset.get_fragments()
    except ValueError:  # Arrow's: there is a filter
        return None
    return (group for file in files for group in file.split_by_row_group())


def _read_stream(df: Any, columns: Sequence[str], argument: str) -> Iterator[Any]:
    """Yield some columns of an object with Arrow's stream interface, batch by batch."""
    require_pyarrow()  # before DuckDB does, whose error says less
    if hasattr(df, "project") and hasattr(df, "fetch_record_batch"):  # of DuckDB
        check_columns(columns, df.columns, argument)
        quoted = ['"{}"'.format(name.replace('"', '""')) for name in columns]
        relation = df.project(", ".join(quoted))
        read = getattr(relation, "to_arrow_reader", relation.fetch_record_batch)  # as of DuckDB 1
        df = read(_BATCH_ROWS)
    return _take_columns(open_stream(df, columns, argument), list(columns))


def _take_columns(batches: Iterable[Any], names: list[str]) -> Iterator[Any]:
    """Yield a table of some columns for each batch."""
    pa = require_pyarrow()

    def take(batch: Any) -> Any:
        return pa.Table.from_batches([batch.select(names)])

    return map(take, batches)  # it holds no batch while the next one is made
