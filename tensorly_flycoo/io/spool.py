"""Nonzeros on disk while they are sorted: as they come, and by the rows of the cut mode."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ..format.packing import RecordFormat
from ..format.partition import find_longest_mode
from .parts import BLOCK_NNZ, Block

#: The type of an index in a file; values are stored as float64, which holds float32 too.
_INDEX, _VALUE = np.dtype(np.uint32), np.dtype(np.float64)


class Spool:
    """Nonzeros in the sequence in which they came: a file for each mode, and one for the values.

    Attributes
    ----------
    nnz : int
    shape : tuple of int
        The given shape, or the smallest that holds all nonzeros and the shapes of all files.
    dtype : numpy.dtype
        float32 if all values were, else float64.
    """

    def __init__(
        self, folder: Path, blocks: Iterator[Block], shape: tuple[int, ...] | None
    ) -> None:
        self._folder = folder
        self.nnz = 0
        self.shape = shape or ()
        self.dtype: np.dtype = np.dtype(np.float32)
        files: list[IO[bytes]] = []
        with contextlib.ExitStack() as stack:
            for block in blocks:
                if not files:
                    names = [self._name(n) for n in range(len(block.shape) + 1)]
                    files = [stack.enter_context(open(name, "xb")) for name in names]
                self._add(block, files)
        if not self.shape:
            raise ValueError("parts has no nonzeros and no shape, expected some: give shape=")
        if not files:
            self.dtype = np.dtype(np.float64)

    def _name(self, number: int) -> Path:
        return self._folder / f"column-{number}"

    def _add(self, block: Block, files: Sequence[IO[bytes]]) -> None:
        ndim = len(self.shape or block.shape)
        if len(block.shape) != ndim:
            raise ValueError(f"parts have {ndim} and {len(block.shape)} modes, expected one number")
        sizes = zip(self.shape or block.shape, block.shape, strict=True)
        self.shape = tuple(max(pair) for pair in sizes)
        self.dtype = np.result_type(self.dtype, block.values.dtype)
        self.nnz += block.values.size
        for rows, file in zip(block.coords, files, strict=False):
            rows.astype(_INDEX).tofile(file)
        block.values.astype(_VALUE).tofile(files[-1])

    def count_rows(self, mode: int) -> np.ndarray:
        """Count the nonzeros of each row of a mode, int64 (size,)."""
        counts = np.zeros(self.shape[mode], np.int64)
        if self.nnz == 0:
            return counts
        with open(self._name(mode), "rb") as file:
            for _ in range(0, self.nnz, BLOCK_NNZ):
                np.add.at(counts, np.fromfile(file, _INDEX, BLOCK_NNZ), 1)
        return counts

    def iterate(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield coords, uint32 (ndim, n), and values, float64 (n,), block by block."""
        if self.nnz == 0:
            return
        names = [self._name(n) for n in range(len(self.shape) + 1)]
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(name, "rb")) for name in names]
            for _ in range(0, self.nnz, BLOCK_NNZ):
                coords = [np.fromfile(file, _INDEX, BLOCK_NNZ) for file in files[:-1]]
                yield np.stack(coords), np.fromfile(files[-1], _VALUE, BLOCK_NNZ)

    def remove(self) -> None:
        """Delete the files."""
        for n in range(len(self.shape) + 1):
            self._name(n).unlink(missing_ok=True)


class Buckets:
    """Records in a file, those of each range of rows together.

    Attributes
    ----------
    path : pathlib.Path
        The file.
    rows : list of range
        The rows of the cut mode that each bucket has, ascending.
    longest : int
        The number of records given to the longest one.
    """

    def __init__(
        self,
        path: Path,
        record_format: RecordFormat,
        rows: Sequence[range],
        counts: np.ndarray,
    ) -> None:
        """Make room for ``counts[row]`` records of each row."""
        self.rows = rows
        self.path = path
        self._format = record_format
        sizes = [int(counts[own.start : own.stop].sum()) for own in rows]
        self.longest = max(sizes)
        self._starts = [0, *itertools.accumulate(sizes)]
        self._sizes = [0] * len(rows)
        self.path.touch()

    def fill(self, blocks: Iterator[tuple[np.ndarray, np.ndarray]]) -> None:
        """Write nonzeros to their buckets, each in the sequence in which they come."""
        mode, dtype = find_longest_mode(self._format.shape), self._format.dtype
        firsts = np.array([rows.start for rows in self.rows[1:]], _INDEX)
        number_dtype = np.min_scalar_type(len(self.rows))  # NumPy sorts short ones by their digits
        with open(self.path, "r+b") as file:
            for coords, values in blocks:
                numbers = np.searchsorted(firsts, coords[mode], "right").astype(number_dtype)
                order = np.argsort(numbers, kind="stable")
                records = self._format.pack(coords, values.astype(dtype))[order]
                counts = np.bincount(numbers, minlength=len(self.rows))
                stops = np.cumsum(counts)
                for number in np.flatnonzero(counts).tolist():
                    own = records[stops[number] - counts[number] : stops[number]]
                    self._write(file, number, own)

    def _write(self, file: IO[bytes], number: int, records: np.ndarray) -> None:
        place = self._starts[number] + self._sizes[number]
        file.seek(place * self._format.record_nbytes)
        records.tofile(file)
        self._sizes[number] += records.shape[0]

    def read(self, number: int) -> np.ndarray:
        """Return the records (n, num_words) of a bucket."""
        nbytes, count = self._format.record_nbytes, self._sizes[number] * self._format.num_words
        place = self._starts[number] * nbytes
        records = np.fromfile(self.path, self._format.word_dtype, count, offset=place)
        return records.reshape(-1, self._format.num_words)

    def replace(self, number: int, records: np.ndarray) -> None:
        """Replace the records of a bucket by as many or fewer."""
        self._sizes[number] = 0
        with open(self.path, "r+b") as file:
            self._write(file, number, records)

    def map_buckets(self, function: Callable[[np.ndarray, range], np.ndarray]) -> None:
        """Replace the records of each bucket by ``function(records, rows)``."""
        for number, rows in enumerate(self.rows):
            self.replace(number, function(self.read(number), rows))

    def take(self, rows: range) -> np.ndarray:
        """Return the records with one of `rows`, one bucket's after the other's."""
        mode, taken = find_longest_mode(self._format.shape), []
        for number, own in enumerate(self.rows):
            if own.start < rows.stop and rows.start < own.stop:
                records = self.read(number)
                found = self._format.rows(records, mode)
                taken.append(records[(found >= rows.start) & (found < rows.stop)])
        return np.concatenate(taken)
