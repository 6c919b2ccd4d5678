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
import threading
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
        bucket_rows = list_rows(find_edges(self.count_rows(), self.num_slabs))
        numbers = range(len(bucket_rows))
        homes = assign_homes(len(bucket_rows), devices.count)
        self.bucket_format = self.record_format
        self.split(bucket_rows)
        sorted_buckets = devices.map(self.sort_bucket, homes, numbers, bucket_rows)
        records, counts = zip(*sorted_buckets, strict=True)
        self.buckets = list(zip(bucket_rows, homes, records, strict=True))
        collected = devices.collect(counts)
        row_counts = array_module(collected[0]).concatenate(collected)
        if self.num_numbered is None:
            self._choose_groups(int(row_counts.sum()))
        return list_rows(find_edges(row_counts, self.num_slabs))

    def _choose_groups(self, nnz: int) -> None:
        """Choose the groups of modes by the number of canonical nonzeros."""
        old = self.bucket_format
        groups, self.num_numbered = find_groups("auto", old.shape, nnz, self.num_slabs)
        self.record_format = RecordFormat.of(old.shape, old.dtype, old.word_dtype, groups)

    def order(self, home: int, rows: range) -> Any:
        """Order a slab on its device; return its records and cut, or a reference to them."""
        devices = self.devices
        record_format = self.bucket_format
        pieces = []
        for bucket_rows, source, records in self.buckets:
            if bucket_rows.stop <= rows.start or rows.stop <= bucket_rows.start:
                continue  # no row in common
            piece = devices.run(
                source, take_rows, self.read(records), bucket_rows, rows, record_format
            )
            pieces.append(devices.bring(piece, home))
        groups = self.record_format.groups
        return devices.run(
            home,
            order_slab,
            pieces,
            rows,
            record_format,
            groups,
            self.num_numbered,
            self.primitives,
        )


class MemoryBuilder(SlabBuilder):
    """Builds slabs of coords (ndim, nnz) and values (nnz,), on the host or the first device.

    Each device packs its share of the nonzeros of the host. Between the steps records stay on the
    devices, or wait on the host with `waits_on_host`; then a device has a slab's share at a time.
    """

    def __init__(
        self,
        coords: Array,
        values: Array,
        cut: Cut,
        waits_on_host: bool,
        num_slabs: int,
        primitives: Primitives,
        devices: Devices,
    ) -> None:
        super().__init__(num_slabs, primitives, devices)
        self.record_format = cut.record_format
        self.num_numbered = cut.num_numbered
        self._coords = coords
        self._values = values
        self._waits_on_host = waits_on_host
        nnz = values.shape[0]
        num_shares = devices.count
        if is_cupy(values):  # a GPU's own nonzeros stay there
            num_shares = 1
        num_blocks = num_shares * devices.num_at_once
        if waits_on_host:  # so that a device has a slab's share at a time
            num_blocks = max(num_shares, num_slabs)
        share = -(-nnz // num_blocks)
        block_nnz = max(1, min(BLOCK_NNZ // devices.num_at_once, share))
        self._starts = range(0, max(1, nnz), block_nnz)
        self._homes = assign_homes(len(self._starts), num_shares)
        self._blocks: list[Array] = []  # packed
        self._parts: list[list[Array]] = []  # of each bucket, one from each block
        self._counts: dict[int, Array] = {}  # of rows, by device
        self._lock = threading.Lock()  # held while they are changed

    def count_rows(self) -> Array:
        self._blocks = self.devices.map(self._pack, self._homes, self._starts)
        counts = self.devices.collect(list(self._counts.values()))
        return functools.reduce(operator.add, counts)

    def _pack(self, home: int, start: int) -> Array:
        """Pack a block of nonzeros, and count those of each row."""
        record_format = self.record_format
        block = slice(start, start + self._starts.step)
        coords = self._coords[:, block]
        records, *_ = self.primitives.pack(coords, self._values[block], record_format)
        mode = find_longest_mode(record_format.shape)
        rows = record_format.rows(records, mode, self.primitives.xp)
        counts = count_rows(rows, record_format.shape[mode])
        with self._lock:
            self._counts[home] = self._counts.get(home, 0) + counts
        return self._wait(records)

    def split(self, buckets: Sequence[range]) -> None:
        bucket_of_row = number_buckets(buckets)

        def split_block(home: int, number: int) -> list[Array]:
            records = move(self._blocks[number], self.primitives.xp)
            self._blocks[number] = None  # so that the block is freed once it is cut
            parts = split_records(records, bucket_of_row, self.record_format)
            return [self._wait(part) for part in parts]

        parts_of_blocks = self.devices.map(split_block, self._homes, range(len(self._blocks)))
        self._parts = [list(parts) for parts in zip(*parts_of_blocks, strict=True)]

    def sort_bucket(self, home: int, number: int, rows: range) -> tuple[Array, Array]:
        parts = [move(part, self.primitives.xp) for part in self._parts[number]]
        self._parts[number] = []
        (records,) = self.devices.gather([(parts, home)])
        del parts  # before memory is needed to sort them
        records, counts = sort_bucket(records, rows, self.record_format, self.primitives)
        return self._wait(records), counts

    def order(self, home: int, rows: range) -> tuple[Array, Cut]:
        records, cut = super().order(home, rows)
        return self._wait(records), cut

    def _wait(self, records: Array) -> Array:
        """Return records where they wait for the next step."""
        if self._waits_on_host:
            return move(records, np)
        return records


# The rows of slabs depend on the nonzeros and the number of slabs only, not on what holds them


def find_slab_shape(shape: Sequence[int], num_rows: int) -> tuple[int, ...]:
    """Return the shape of a slab with `num_rows` rows of the longest mode.

    >>> find_slab_shape((4, 9, 9), 2)
    (4, 2, 9)
    """
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
    nonzeros divide the rows as ``nnz`` slabs do, and only ``nnz + 1`` edges are returned.

    >>> find_edges(np.array([2, 1, 0, 1, 2, 0]), 3)
    (0, 1, 4, 6)
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
    share, remainder = divmod(nnz, num_slabs)
    # How many nonzeros should be before each slab. Not slabs * nnz // num_slabs: it may overflow.
    wanted = slabs * share + slabs * remainder // num_slabs

    def find_rows(numbers: np.ndarray) -> np.ndarray:
        """Find the first rows that have so many nonzeros before them."""
        rows = move(xp.searchsorted(ends, xp.asarray(numbers)), np) + 1
        return np.where(numbers > 0, rows, 0)

    def count_before(rows: np.ndarray) -> np.ndarray:
        """Count the nonzeros before some rows."""
        last_rows = xp.asarray(np.maximum(rows - 1, 0))
        counted = move(ends[last_rows], np)
        return np.where(rows > 0, counted, 0)

    rows_above = find_rows(wanted)
    counts_above = count_before(rows_above)
    counts_below = count_before(rows_above - 1)
    is_above_nearer = counts_above - wanted < wanted - counts_below
    nearest = np.where(is_above_nearer, counts_above, counts_below)
    *starts, end = find_rows(np.append(nearest, nnz)).tolist()
    # No slab begins after the last nonzero: those that would are empty ones at the end.
    edges = [start if start < end else size for start in starts]
    return (*edges, size)


def list_rows(edges: Sequence[int]) -> list[range]:
    """List the rows of each slab that has some.

    >>> list_rows((0, 1, 1, 4))
    [range(0, 1), range(1, 4)]
    """
    return [range(start, stop) for start, stop in pairwise(edges) if start < stop]


def number_buckets(buckets: Sequence[range]) -> np.ndarray:
    """Return the number of the bucket that each row is in, in the narrowest type.

    >>> number_buckets([range(2), range(2, 3), range(3, 6)])
    array([0, 0, 1, 2, 2, 2], dtype=uint8)
    """
    # Numbers of 8 and 16 bits are sorted by digits.
    numbers = np.arange(len(buckets), dtype=np.min_scalar_type(len(buckets)))
    return np.repeat(numbers, [len(rows) for rows in buckets])


# Steps, on the device of a bucket or a slab


def split_records(
    records: Array, bucket_of_row: np.ndarray, record_format: RecordFormat
) -> list[Array]:
    """Copy the records of each bucket, in the given sequence."""
    num_buckets = int(bucket_of_row[-1]) + 1
    if num_buckets == 1:
        return [records]
    xp = array_module(records)
    rows = record_format.rows(records, find_longest_mode(record_format.shape), xp)
    numbers = xp.asarray(bucket_of_row)[rows]
    places = xp.argsort(numbers, kind="stable")
    counts = move(count_rows(numbers, num_buckets), np)
    ends = np.cumsum(counts).tolist()
    # NumPy's `take` is five times as fast as ``records[own]``.
    return [records.take(own, axis=0) for own in xp.split(places, ends[:-1])]


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


def take_rows(
    records: Array, bucket_rows: range, rows: range, record_format: RecordFormat
) -> Array:
    """Return the records of a bucket that have one of `rows`."""
    if rows.start <= bucket_rows.start and bucket_rows.stop <= rows.stop:
        return records
    mode = find_longest_mode(record_format.shape)
    numbers = record_format.rows(records, mode, array_module(records))
    return take_marked(records, (numbers >= rows.start) & (numbers < rows.stop))


def order_slab(
    pieces: Sequence[Array],
    rows: range,
    piece_format: RecordFormat,
    groups: Groups,
    num_numbered: int | None,
    primitives: Primitives,
) -> tuple[Array, Cut]:
    """Return a slab's records on the current device, with numbered prefixes, and its cut.

    `pieces` are records of the whole tensor in `piece_format`; the slab's rows begin at 0.
    """
    xp = primitives.xp
    moved = [move(piece, xp) for piece in pieces]
    records = moved[0]
    if len(moved) > 1:
        records = xp.concatenate(moved)
    slab_shape = find_slab_shape(piece_format.shape, len(rows))
    cut = primitives.choose_cut(slab_shape, piece_format.dtype, groups)
    slab_format = cut.record_format
    shift = (find_longest_mode(piece_format.shape), -rows.start)
    records = pack_again(records, piece_format, slab_format, primitives, shift=shift)
    if len(pieces) > 1:  # buckets follow each other only in the longest mode
        records = sort_records(records, slab_format, primitives)
    return number_records(records, cut._replace(num_numbered=num_numbered), primitives)


def arrange_slab(ordered: tuple[Array, Cut], name: str, primitives: Primitives) -> Layout:
    """Arrange a slab of `order_slab` on the current device in the layout `name`."""
    records, cut = ordered
    layout = LAYOUT_CLASSES[name].arrange(move(records, primitives.xp), cut, primitives)
    number_prefixes(layout, primitives)
    return layout
