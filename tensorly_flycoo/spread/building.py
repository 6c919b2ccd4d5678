"""Building the slabs of a tensor, wherever its nonzeros are.

1. The given nonzeros of each row of the longest mode are counted, and the mode is cut into buckets
   with equally many of them.
2. The nonzeros are distributed to the buckets, in the sequence in which they are given.
3. Each bucket is sorted, its duplicates summed and its zeros dropped; what is left is counted.
4. These counts give groups of modes, and the edges of slabs of records from one to three buckets.
5. Each slab's prefixes are numbered. Then its layout is arranged, which may be chosen by them.

Meanwhile the nonzeros are in memory (`MemoryBuilder`), on disk (`io.slab_folder.DiskBuilder`) or on
the workers of a cluster (`dask.cluster_layout.ClusterBuilder`). The slabs have the same bits.
"""

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy, move
from ..base.checks import check_sums
from ..base.devices import Devices, assign_homes
from ..format.groups import find_groups, find_longest_mode
from ..format.layout import Layout
from ..format.layouts import LAYOUT_CLASSES
from ..format.ordering import (
    drop_zeros,
    merge_duplicates,
    number_records,
    pack_again,
    sort_records,
    take_marked,
)
from ..format.packing import Cut, Groups, RecordFormat
from ..format.primitives import Primitives
from ..format.replicated import number_prefixes

#: Nonzeros that are counted at a time, since CuPy copies their rows as int64.
_COUNT_BLOCK = 2**24

#: Edges among fewer rows are found on the host: for a GPU, CuPy compiles each function first.
_MANY_ROWS = 2**20

#: Nonzeros that a device packs and distributes at a time: a few parts for each thread that copies.
BLOCK_NNZ = 2**25


class SlabBuilder(ABC):
    """Sorts nonzeros, then builds slabs of them, each on its device."""

    record_format: RecordFormat  # of the whole tensor
    bucket_format: RecordFormat  # the same, or with the groups for nonzeros that are not canonical
    num_numbered: int | None = 0  # in each slab: see `Cut`

    def __init__(self, num_slabs: int, primitives: Primitives, devices: Devices) -> None:
        self.num_slabs = num_slabs
        self.primitives = primitives
        self.devices = devices
        # The rows of each bucket, its device and its sorted records.
        self.buckets: list[tuple[range, int, Any]] = []

    @abstractmethod
    def count_rows(self) -> Array:
        """Count the given nonzeros of each row of the longest mode, int64 (size,)."""

    @abstractmethod
    def split(self, buckets: Sequence[range]) -> None:
        """Distribute the nonzeros to buckets: ranges of rows that follow each other."""

    @abstractmethod
    def sort_bucket(self, home: int, number: int, rows: range) -> tuple[Any, Any]:
        """Sort a bucket on its device; return its records and row counts, or references to them."""

    def read(self, records: Any) -> Array:
        """Return the records that `sort_bucket` has returned, where they are."""
        return records

    def sort(self) -> list[range]:
        """Sort all nonzeros; return the rows of each slab."""
        devices = self.devices
        buckets = list_rows(find_edges(self.count_rows(), self.num_slabs))
        given = self.bucket_format = self.record_format
        self.split(buckets)
        homes = assign_homes(len(buckets), devices.count)
        found = devices.map(self.sort_bucket, homes, range(len(buckets)), buckets)
        records, counts = zip(*found, strict=True)
        self.buckets = list(zip(buckets, homes, records, strict=True))
        collected = devices.collect(counts)
        counted = array_module(collected[0]).concatenate(collected)
        if self.num_numbered is None:
            sizes = (given.shape, int(counted.sum()), self.num_slabs)
            groups, self.num_numbered = find_groups("auto", *sizes)
            self.record_format = RecordFormat.of(given.shape, given.dtype, given.word_dtype, groups)
        return list_rows(find_edges(counted, self.num_slabs))

    def order(self, home: int, rows: range) -> Any:
        """Order a slab on its device; return its records and cut, or a reference to them."""
        devices = self.devices
        given = self.bucket_format
        pieces = []
        for own, source, records in self.buckets:
            if own.start < rows.stop and rows.start < own.stop:
                records = self.read(records)
                taken = devices.run(source, take_rows, records, own, rows, given)
                pieces.append(devices.bring(taken, home))
        options = (rows, given, self.record_format.groups, self.num_numbered, self.primitives)
        return devices.run(home, order_slab, pieces, *options)


class MemoryBuilder(SlabBuilder):
    """Builds slabs of coords (ndim, nnz) and values (nnz,), on the host or the first device.

    Each device packs its share of the nonzeros of the host. Between the steps records stay on the
    devices, or wait on the host with `waits_on_host`; then a device has a slab's share at a time.
    """

    def __init__(
        self, coords: Array, values: Array, cut: Cut, waits_on_host: bool, *options: Any
    ) -> None:
        super().__init__(*options)
        self.record_format = cut.record_format
        self.num_numbered = cut.num_numbered
        self._coords = coords
        self._values = values
        self._waits_on_host = waits_on_host
        num_shares = 1 if is_cupy(values) else self.devices.count
        nnz = values.shape[0]
        num_parts = max(num_shares, self.num_slabs if waits_on_host else 1)
        size = max(1, min(BLOCK_NNZ, -(-nnz // num_parts)))
        self._starts = range(0, max(1, nnz), size)
        self._homes = assign_homes(len(self._starts), num_shares)
        self._blocks: list[Array] = []  # packed
        self._parts: list[list[Array]] = []  # of each bucket, one from each block
        self._counts: dict[int, Array] = {}  # of rows, by device

    def count_rows(self) -> Array:
        self._blocks = self.devices.map(self._pack, self._homes, self._starts)
        return functools.reduce(operator.add, self.devices.collect(list(self._counts.values())))

    def _pack(self, home: int, start: int) -> Array:
        """Pack a block of nonzeros, and count those of each row."""
        record_format = self.record_format
        own = slice(start, start + self._starts.step)
        records, *_ = self.primitives.pack(self._coords[:, own], self._values[own], record_format)
        mode = find_longest_mode(record_format.shape)
        xp = self.primitives.xp
        counts = count_rows(record_format.rows(records, mode, xp), record_format.shape[mode])
        self._counts[home] = self._counts.get(home, 0) + counts
        return self._wait(records)

    def split(self, buckets: Sequence[range]) -> None:
        def split_block(home: int, number: int) -> list[Array]:
            records, self._blocks[number] = self._blocks[number], None  # freed once it is cut
            parts = split_records(move(records, self.primitives.xp), buckets, self.record_format)
            return [self._wait(part) for part in parts]

        found = self.devices.map(split_block, self._homes, range(len(self._blocks)))
        self._parts = [list(parts) for parts in zip(*found, strict=True)]

    def sort_bucket(self, home: int, number: int, rows: range) -> tuple[Array, Array]:
        parts = self._parts[number]
        self._parts[number] = []
        there = [move(part, self.primitives.xp) for part in parts]
        del parts
        (records,) = self.devices.gather([(there, home)])
        del there
        records, counts = sort_bucket(records, rows, self.record_format, self.primitives)
        return self._wait(records), counts

    def order(self, home: int, rows: range) -> tuple[Array, Cut]:
        records, cut = super().order(home, rows)
        return self._wait(records), cut

    def _wait(self, records: Array) -> Array:
        return move(records, np) if self._waits_on_host else records


# The rows of slabs depend on the nonzeros and the number of slabs only, not on what holds them


def find_slab_shape(shape: Sequence[int], num_rows: int) -> tuple[int, ...]:
    """Return the shape of a slab with `num_rows` rows of the longest mode."""
    mode = find_longest_mode(shape)
    return (*shape[:mode], num_rows, *shape[mode + 1 :])


def count_rows(rows: Array, size: int) -> Array:
    """Count the nonzeros of each row from 0 to size - 1, int64 (size,)."""
    return count_in_blocks([rows], size, array_module(rows))


def count_in_blocks(blocks: Iterable[Array], size: int, xp: ModuleType) -> Array:
    """Count the nonzeros of each row, as `count_rows` does, if their rows come in blocks."""
    # Not by `bincount`, for which CuPy would compile for seconds; its `add.at` knows no int64.
    counts = xp.zeros(size, np.uint64)
    for rows in blocks:
        for start in range(0, rows.shape[0], _COUNT_BLOCK):
            xp.add.at(counts, rows[start : start + _COUNT_BLOCK], np.uint64(1))
    return counts.view(np.int64)


def find_edges(counts: Array, num_slabs: int) -> tuple[int, ...]:
    """Find the rows (num_slabs + 1,) at which slabs begin and end, from the rows' nonzeros.

    Each edge is the row before which the number of nonzeros is nearest to its share. Rows are not
    split. Empty rows belong to the slab of the next row with nonzeros; those at the end to the last
    slab that has rows. Equal neighbours enclose a slab without rows: there are some if rows or
    nonzeros are fewer than slabs, or if a row has more nonzeros than a slab should. More slabs than
    nonzeros divide the rows as that many do, and only so many edges are returned.
    """
    if counts.shape[0] < _MANY_ROWS:
        counts = move(counts, np)
    xp = array_module(counts)
    size = counts.shape[0]
    # ends[r]: nonzeros in rows 0 to r. What follows is as long as the number of slabs: on the host.
    ends = xp.cumsum(counts)
    nnz = int(ends[-1]) if size else 0
    if nnz == 0:
        return (0, size)
    num_slabs = min(num_slabs, nnz)
    slabs = np.arange(num_slabs)
    share, more_by_one = divmod(nnz, num_slabs)
    shares = slabs * share + slabs * more_by_one // num_slabs

    def find_rows(numbers: np.ndarray) -> np.ndarray:
        """Find the first rows that have so many nonzeros before them."""
        rows = move(xp.searchsorted(ends, xp.asarray(numbers)), np) + 1
        return np.where(numbers > 0, rows, 0)

    def count_before(rows: np.ndarray) -> np.ndarray:
        """Count the nonzeros before some rows."""
        counted = move(ends[xp.asarray(np.maximum(rows - 1, 0))], np)
        return np.where(rows > 0, counted, 0)

    above = find_rows(shares)
    more = count_before(above)
    less = count_before(above - 1)
    nearest = np.where(more - shares < shares - less, more, less)
    *edges, last = (int(row) for row in find_rows(np.append(nearest, nnz)))
    # No slab begins after the last nonzero.
    return (*(edge if edge < last else size for edge in edges), size)


def list_rows(edges: Sequence[int]) -> list[range]:
    """List the rows of each slab that has some."""
    return [range(start, stop) for start, stop in pairwise(edges) if start < stop]


# Steps, on the device of a bucket or a slab


def split_records(
    records: Array, buckets: Sequence[range], record_format: RecordFormat
) -> list[Array]:
    """Copy the records of each bucket, in the given sequence."""
    if len(buckets) == 1:
        return [records]
    xp = array_module(records)
    firsts = xp.asarray(np.array([rows.start for rows in buckets[1:]], np.uint32))
    rows = record_format.rows(records, find_longest_mode(record_format.shape), xp)
    numbers = xp.searchsorted(firsts, rows, "right")
    numbers = numbers.astype(np.min_scalar_type(len(buckets)))  # NumPy sorts these by digits
    order = xp.argsort(numbers, kind="stable")
    counts = count_rows(numbers, len(buckets))
    return [records[own] for own in xp.split(order, np.cumsum(move(counts, np))[:-1].tolist())]


def sort_bucket(
    records: Array, rows: range, record_format: RecordFormat, primitives: Primitives
) -> tuple[Array, Array]:
    """Make a bucket's records canonical on the current device; count each row's there."""
    records = drop_zeros(move(records, primitives.xp), record_format)
    records = sort_records(records, record_format, primitives)
    records = merge_duplicates(records, record_format, primitives)
    check_sums(record_format.values(records))
    numbers = record_format.rows(records, find_longest_mode(record_format.shape), primitives.xp)
    numbers -= numbers.dtype.type(rows.start)
    return records, count_rows(numbers, len(rows))


def take_rows(records: Array, own: range, rows: range, record_format: RecordFormat) -> Array:
    """Return the records with one of `rows`, of a bucket with the rows `own`."""
    if rows.start <= own.start and own.stop <= rows.stop:
        return records
    mode = find_longest_mode(record_format.shape)
    numbers = record_format.rows(records, mode, array_module(records))
    return take_marked(records, (numbers >= rows.start) & (numbers < rows.stop))


def order_slab(
    pieces: Sequence[Array],
    rows: range,
    given: RecordFormat,
    groups: Groups,
    num_numbered: int | None,
    primitives: Primitives,
) -> tuple[Array, Cut]:
    """Return a slab's records on the current device, with numbered prefixes, and its cut.

    `pieces` are records of the whole tensor in the format `given`; the slab's rows begin at 0.
    """
    xp = primitives.xp
    records = xp.concatenate([move(piece, xp) for piece in pieces])
    cut = primitives.choose_cut(find_slab_shape(given.shape, len(rows)), given.dtype, groups)
    own = cut.record_format
    shift = (find_longest_mode(given.shape), -rows.start)
    records = pack_again(records, given, own, primitives, shift=shift)
    if len(pieces) > 1:
        records = sort_records(records, own, primitives)
    return number_records(records, cut._replace(num_numbered=num_numbered), primitives)


def arrange_slab(ordered: tuple[Array, Cut], name: str, primitives: Primitives) -> Layout:
    """Arrange a slab of `order_slab` on the current device in the layout `name`."""
    records, cut = ordered
    layout = LAYOUT_CLASSES[name].arrange(move(records, primitives.xp), cut, primitives)
    number_prefixes(layout, primitives)
    return layout
