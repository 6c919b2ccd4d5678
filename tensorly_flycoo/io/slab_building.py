"""Build a tensor's slabs one after the other from nonzeros on disk, in bounded memory."""

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

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
from ..tensor.memory import attempt, format_nbytes
from .parts import BLOCK_NNZ, Block

if TYPE_CHECKING:
    from ..engines.protocol import Engine


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
    where the slabs begin that have equally many of the canonical ones.

    Attributes
    ----------
    record_format : RecordFormat
        For records of the whole tensor.
    num_slabs, cut_mode : int
    """

    def __init__(self, folder: Path, spool: Spool, num_slabs: int, engine: "Engine") -> None:
        """Distribute the nonzeros to buckets in a file in `folder`; remove those in `spool`."""
        self.record_format = engine.choose_cut(spool.shape, spool.dtype).record_format
        self.num_slabs = num_slabs
        self.cut_mode = find_longest_mode(spool.shape)
        self._engine = engine
        report(f"distributing {spool.nnz:,} nonzeros to {num_slabs} slabs")
        counts = spool.count_rows(self.cut_mode)
        rows = list_rows(find_edges(counts, num_slabs))
        self._buckets = Buckets(folder / "buckets", self.record_format, rows, counts)
        del counts
        self._buckets.fill(spool.iterate())
        spool.remove()

    def build(self, layout: str) -> Iterator[tuple[range, Layout]]:
        """Yield the rows and the layout of each slab."""
        exact = list_rows(attempt(self._sort, self._explain))
        for number, rows in enumerate(exact):
            report(f"building slab {number + 1} of {len(exact)}")
            build_slab = functools.partial(self._build_slab, layout, rows)
            yield rows, attempt(build_slab, self._explain)

    def _build_slab(self, layout: str, rows: range) -> Layout:
        records, engine = self._buckets.take(rows), self._engine
        arguments = (rows, self.record_format, engine.choose_cut, engine)
        return build_slab(LAYOUT_CLASSES[layout], records, *arguments)

    def _explain(self) -> str:
        free_nbytes = self._engine.count_free_nbytes()
        free = "an unknown amount" if free_nbytes is None else format_nbytes(free_nbytes)
        return (
            f"building a slab of {self._buckets.longest:,} nonzeros on {self._engine.name!r} needs "
            f"more memory than there is ({free} is free): give more slabs than {self.num_slabs}; "
            f"rows of mode {self.cut_mode}, the longest, are not split"
        )

    def remove(self) -> None:
        """Delete the file of the buckets."""
        self._buckets.path.unlink()

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
