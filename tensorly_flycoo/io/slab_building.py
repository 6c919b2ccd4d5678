"""Build a tensor's slabs one after the other from nonzeros on disk, in bounded memory."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..array_modules import move
from ..checks import check_sums
from ..format.layout import Layout
from ..format.layouts import LAYOUT_CLASSES
from ..format.ordering import make_canonical_records
from ..format.packing import RecordFormat
from ..format.partition import count_rows, find_edges, find_longest_mode, list_rows
from ..format.slab_layout import build_slab
from ..reporting import report
from ..tensor.memory import attempt
from .parts import BLOCK_NNZ, Block

if TYPE_CHECKING:
    from ..engines.protocol import Engine


#: The type of an index in a file; values are stored as float64, which holds float32 too.
_INDEX, _VALUE = np.dtype(np.uint32), np.dtype(np.float64)


class Spool:
    """Nonzeros in the sequence in which they came: a file for each mode, and one for the values.

    `shape` is the given one, or the smallest that holds all nonzeros and the shapes of all files;
    `dtype` is float32 if that of all values is, else float64.
    """

    def __init__(
        self, folder: Path, blocks: Iterator[Block], shape: tuple[int, ...] | None
    ) -> None:
        self._folder, self.nnz, self.shape = folder, 0, shape or ()
        dtypes = set()
        for block in blocks:
            sizes = self.shape or block.shape
            if len(block.shape) != len(sizes):
                raise ValueError(
                    f"parts have {len(sizes)} and {len(block.shape)} modes, expected one number"
                )
            self.shape = tuple(max(pair) for pair in zip(sizes, block.shape, strict=True))
            self.nnz += block.values.size
            dtypes.add(block.values.dtype)
            columns = [*(rows.astype(_INDEX) for rows in block.coords), block.values.astype(_VALUE)]
            for number, column in enumerate(columns):
                with open(self._name(number), "ab") as file:
                    column.tofile(file)
        if not self.shape:
            raise ValueError("parts has no nonzeros and no shape, expected some: give shape=")
        self.dtype = np.result_type(*dtypes or {_VALUE})

    def _name(self, number: int) -> Path:
        return self._folder / f"column-{number}"

    def _read(self, number: int, dtype: np.dtype, start: int) -> np.ndarray:
        offset = start * dtype.itemsize
        return np.fromfile(self._name(number), dtype, BLOCK_NNZ, offset=offset)

    def count_rows(self, mode: int) -> np.ndarray:
        """Count the nonzeros of each row of a mode, int64 (size,)."""
        counts = np.zeros(self.shape[mode], np.int64)
        for start in range(0, self.nnz, BLOCK_NNZ):
            np.add.at(counts, self._read(mode, _INDEX, start), 1)
        return counts

    def iterate(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield coords, uint32 (ndim, n), and values, float64 (n,), block by block."""
        ndim = len(self.shape)
        for start in range(0, self.nnz, BLOCK_NNZ):
            coords = np.stack([self._read(mode, _INDEX, start) for mode in range(ndim)])
            yield coords, self._read(ndim, _VALUE, start)

    def remove(self) -> None:
        """Delete the files."""
        for number in range(len(self.shape) + 1):
            self._name(number).unlink(missing_ok=True)


class Buckets:
    """Records in files, one for each range of rows of the cut mode; `rows` ascend."""

    def __init__(self, folder: Path, record_format: RecordFormat, rows: Sequence[range]) -> None:
        self.rows, self._folder, self._format = rows, folder, record_format

    def _name(self, number: int) -> Path:
        return self._folder / f"bucket-{number}"

    def fill(self, blocks: Iterator[tuple[np.ndarray, np.ndarray]]) -> None:
        """Write nonzeros to their buckets, each in the sequence in which they come."""
        mode, dtype = find_longest_mode(self._format.shape), self._format.dtype
        firsts = np.array([rows.start for rows in self.rows[1:]], _INDEX)
        number_dtype = np.min_scalar_type(len(self.rows))  # NumPy sorts short ones by their digits
        for number in range(len(self.rows)):
            self._name(number).touch()
        for coords, values in blocks:
            numbers = np.searchsorted(firsts, coords[mode], "right").astype(number_dtype)
            order = np.argsort(numbers, kind="stable")
            records = self._format.pack(coords, values.astype(dtype))[order]
            counts = np.bincount(numbers, minlength=len(self.rows))
            stops = np.cumsum(counts)
            for number in np.flatnonzero(counts).tolist():
                with open(self._name(number), "ab") as file:
                    records[stops[number] - counts[number] : stops[number]].tofile(file)

    def read(self, number: int) -> np.ndarray:
        """Return the records (n, num_words) of a bucket."""
        records = np.fromfile(self._name(number), self._format.word_dtype)
        return records.reshape(-1, self._format.num_words)

    def replace(self, number: int, records: np.ndarray) -> None:
        """Replace the records of a bucket."""
        records.tofile(self._name(number))

    def take(self, rows: range) -> np.ndarray:
        """Return the records with one of `rows`, one bucket's after the other's."""
        mode, taken = find_longest_mode(self._format.shape), []
        for number, own in enumerate(self.rows):
            if own.start < rows.stop and rows.start < own.stop:
                records = self.read(number)
                found = self._format.rows(records, mode)
                taken.append(records[(found >= rows.start) & (found < rows.stop)])
        return np.concatenate(taken)


class SlabBuilder:
    """Makes the slabs that `SlabLayout.build` would, with the bits that they have there.

    Buckets of rows with equally many of the given nonzeros are sorted one by one, then cut again
    where the slabs begin that have equally many of the canonical ones. `record_format` is for
    records of the whole tensor.
    """

    def __init__(self, folder: Path, spool: Spool, num_slabs: int, engine: "Engine") -> None:
        """Distribute the nonzeros to buckets, files in `folder`; remove those of `spool`."""
        self.record_format = engine.choose_cut(spool.shape, spool.dtype).record_format
        self.num_slabs = num_slabs
        self.cut_mode = find_longest_mode(spool.shape)
        self._engine = engine
        report(f"distributing {spool.nnz:,} nonzeros to {num_slabs} slabs")
        counts = spool.count_rows(self.cut_mode)
        rows = list_rows(find_edges(counts, num_slabs))
        self._longest = max(int(counts[own.start : own.stop].sum()) for own in rows)
        del counts
        self._buckets = Buckets(folder, self.record_format, rows)
        self._buckets.fill(spool.iterate())
        spool.remove()

    def build(self, layout: str) -> Iterator[tuple[range, Layout]]:
        """Yield the rows and the layout of each slab."""
        task = (
            f"building a slab of {self._longest:,} nonzeros (give more slabs than "
            f"{self.num_slabs}; rows of mode {self.cut_mode}, the longest, are not split)"
        )
        exact = list_rows(attempt(task, self._sort))
        for number, rows in enumerate(exact):
            report(f"building slab {number + 1} of {len(exact)}")
            yield rows, attempt(task, functools.partial(self._build_slab, layout, rows))

    def _build_slab(self, layout: str, rows: range) -> Layout:
        records, engine = self._buckets.take(rows), self._engine
        arguments = (rows, self.record_format, engine.choose_cut, engine)
        return build_slab(LAYOUT_CLASSES[layout], records, *arguments)

    def _sort(self) -> tuple[int, ...]:
        """Make the records of each bucket canonical; return the edges of the slabs."""
        counts, record_format = [], self.record_format
        for number, rows in enumerate(self._buckets.rows):
            records = self._buckets.read(number)
            coords, values = record_format.coords(records), record_format.values(records).copy()
            records = make_canonical_records(coords, values, record_format, self._engine)
            records = move(records, np)
            check_sums(record_format.values(records))
            numbers = record_format.rows(records, self.cut_mode)
            numbers -= numbers.dtype.type(rows.start)
            counts.append(count_rows(numbers, len(rows)))
            self._buckets.replace(number, records)
        return find_edges(np.concatenate(counts), self.num_slabs)
