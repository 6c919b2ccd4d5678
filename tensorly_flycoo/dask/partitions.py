"""The partitions of a data set, read by tasks on the workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from distributed import get_worker

from ..base.checks import check_inside, check_shape
from ..io.entries import ColumnLabels, require_pyarrow
from ..io.files import name_errors
from ..io.parts import Reading, find_least_shape
from ..io.places import list_files, open_parquet
from ..io.table_rows import (
    check_columns,
    list_columns,
    log_dropped,
    open_table,
    read_indices,
    read_rows,
    refuse_zeros,
)

#: Rows of a partition of a .parquet file, at least, but for the last: whole row groups.
_PARTITION_ROWS = 2**21

#: An index or the number of an entry.
_INDEX = np.dtype(np.uint32)


class Partition(NamedTuple):
    """Nonzeros of one part of the data."""

    coords: np.ndarray  # uint32 (ndim, n): indices, or numbers of entries
    values: np.ndarray  # (n,)
    shape: tuple[int, ...]  # the least that holds the indices, and what a file's header says
    entries: tuple[ColumnLabels, ...] | None  # the distinct ones of each mode; None with indices


class Summary(NamedTuple):
    """Facts of a partition that the client keeps."""

    nnz: int
    dtype: np.dtype
    shape: tuple[int, ...]
    entries: tuple[ColumnLabels, ...] | None


@dataclass(frozen=True)
class TableReader:
    """Reads partitions of tables."""

    modes: tuple[str, ...]  # the columns of the modes
    values: str | None  # the column of the values; None counts rows
    are_indices: bool  # whether columns of modes hold indices, not labels
    missing: str  # as of `from_dataframe`
    zeros: str = "raise"  # the same

    def __call__(self, part: Any) -> Partition:
        """Read a partition: row groups of a file, or a table that a task of Dask has computed."""
        table = part
        if isinstance(part, ParquetPart):
            table = _read_row_groups(part, self)
        columns = open_table(table, self.modes, self.values)
        entries = None
        if self.are_indices:
            _, values = read_rows(columns, (), self.values, {}, "raise")
            coords = np.stack([read_indices(columns[name], name) for name in self.modes])
            shape = find_least_shape(coords)
            check_inside(coords, check_shape(shape))
        else:
            coded, values = read_rows(columns, self.modes, self.values, {}, self.missing)
            coords = np.stack([column.codes for column in coded.values()])
            num_rows = len(columns[self.modes[0]])
            log_dropped(num_rows - coords.shape[1], num_rows)
            entries = tuple(column.labels for column in coded.values())
            shape = tuple(labels.entries.size for labels in entries)
        if values is None:
            values = np.ones(coords.shape[1])
        if self.zeros == "raise":
            refuse_zeros(values, self.values)
        return Partition(coords.astype(_INDEX), values, shape, entries)


def _read_row_groups(part: ParquetPart, reader: TableReader) -> Any:
    """Read the columns that a reader wants of some row groups of a .parquet file."""
    dataset = open_parquet(part.path)
    file = next(dataset.get_fragments()).subset(row_group_ids=part.groups)
    return file.to_table(dataset.schema, columns=list_columns(reader.modes, reader.values))


def read_tns_file(reading: Reading, path: str) -> Partition:
    """Read a .tns file; see `read_tns`."""
    coords, values, shape = reading.read_tns([path])
    return Partition(coords.astype(_INDEX), values, shape, None)


class ParquetPart(NamedTuple):
    """Some row groups of a .parquet file."""

    path: str
    groups: tuple[int, ...]
    nbytes: int  # of its nonzeros, as they are read


def list_parquet_parts(path: Any, reader: TableReader) -> list[ParquetPart]:
    """Divide .parquet files into partitions, of neighbouring row groups with enough rows.

    Columns that `reader` cannot take are refused here, by the files' footers.
    """
    parts = []
    row_nbytes = _INDEX.itemsize * len(reader.modes) + 8
    for name in list_files(path):
        with name_errors(name):
            dataset = open_parquet(name)
            columns = list_columns(reader.modes, reader.values)
            check_columns(columns, dataset.schema.names, "the file")
            groups = next(dataset.get_fragments()).row_groups
            if not any(group.num_rows for group in groups):  # types do not count either
                continue
            reader(dataset.schema.empty_table())
            numbers: list[int] = []  # of the row groups of the next partition
            num_rows = 0
            for group in groups:
                numbers.append(group.id)
                num_rows += group.num_rows
                if num_rows >= _PARTITION_ROWS or group is groups[-1]:
                    parts.append(ParquetPart(name, tuple(numbers), num_rows * row_nbytes))
                    numbers = []
                    num_rows = 0
    return parts


def estimate_nbytes(part: Any) -> int:
    """Return the least that a part takes of its worker's memory, 0 if that is unknown."""
    if isinstance(part, ParquetPart):
        return 2 * part.nbytes  # as it is read, and as records for others
    if isinstance(part, str) and os.path.isfile(part):
        # A line of n indices has at most about 11 n + 26 bytes. Its nonzero takes 4 n + 8, twice,
        # which is more than half.
        return os.path.getsize(part) // 2
    return 0


def keep_partition(part: Any, number: int, reader: Any, actor_keys: dict[str, str]) -> Summary:
    """Read a partition, in a task, and leave it with the actor on the same worker."""
    worker = get_worker()
    place = f"partition {number}"
    if isinstance(part, str):
        place += f" of {part}"
    elif isinstance(part, ParquetPart):
        place += f" of {part.path}"
    with name_errors(place):
        partition = reader(part)
    if isinstance(reader, TableReader):  # else Arrow keeps more memory than the partition takes
        require_pyarrow().default_memory_pool().release_unused()
    actor: Any = worker.state.actors[actor_keys[worker.address]]
    actor.keep(number, partition)
    return Summary(
        nnz=partition.values.size,
        dtype=partition.values.dtype,
        shape=partition.shape,
        entries=partition.entries,
    )
