"""Building the slabs of a tensor, wherever its nonzeros are.

1. The given nonzeros of each row of the longest mode are counted, and the mode is cut into buckets
   with equally many of them.
2. The nonzeros are distributed to the buckets, in the sequence in which they are given.
3. Each bucket is sorted, its duplicates summed and its zeros dropped; what is left is counted.
4. These counts give the edges of the slabs, each of which takes records from one to three buckets.

Meanwhile the nonzeros are in memory (`MemoryBuilder`), on disk (`io.slab_folder.DiskBuilder`) or on
the workers of a cluster (`dask.cluster_layout.ClusterBuilder`). The slabs have the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_sums
from ..base.devices import Devices, assign_homes, bring_each
from ..format.groups import find_longest_mode
from ..format.layout import Layout
from ..format.ordering import make_canonical_records, take_marked
from ..format.packing import Cut, RecordFormat
from ..format.primitives import Primitives
from ..format.replicated import build_numbered

#: The fewest nonzeros that are counted at a time.
_COUNT_BLOCK = 2**24


class SlabBuilder(ABC):
    """Sorts nonzeros, then builds slabs of them, each on its device."""

    record_format: RecordFormat  # of the whole tensor
    num_numbered: int | None = 0  # in each slab: see `Cut`

    def __init__(
        self, layout_class: type[Layout], num_slabs: int, primitives: Primitives, devices: Devices
    ) -> None:
        self.layout_class = layout_class
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
    def sort_bucket(self, number: int, rows: range, home: int) -> tuple[Any, Any]:
        """Sort a bucket on its device; return its records and row counts, or references to them."""

    def read(self, records: Any) -> Array:
        """Return the records that `sort_bucket` has returned, where they are."""
        return records

    def sort(self) -> list[tuple[range, int]]:
        """Sort all nonzeros; return the rows and the device of each slab."""
        count, counts = self.devices.count, []
        buckets = list_rows(find_edges(self.count_rows(), self.num_slabs))
        self.split(buckets)
        for number, home in enumerate(assign_homes(len(buckets), count)):
            records, counted = self.sort_bucket(number, buckets[number], home)
            self.buckets.append((buckets[number], home, records))
            counts.append(counted)
        slabs = list_rows(find_edges(np.concatenate(self.devices.collect(counts)), self.num_slabs))
        return list(zip(slabs, assign_homes(len(slabs), count), strict=True))

    def build(self, rows: range, home: int) -> Any:
        """Build a slab's layout on its device; return it, or what stands for it."""
        devices, record_format, pieces = self.devices, self.record_format, []
        for own, source, records in self.buckets:
            if own.start < rows.stop and rows.start < own.stop:
                records = self.read(records)
                taken = devices.run(source, take_rows, records, own, rows, record_format)
                pieces.append(devices.bring(taken, home))
        options = (self.layout_class, rows, record_format, self.num_numbered, self.primitives)
        return devices.run(home, build_slab, pieces, *options)


class MemoryBuilder(SlabBuilder):
    """Builds slabs of checked coords (ndim, nnz) and values (nnz,), on the host or a device."""

    def __init__(self, coords: Array, values: Array, cut: Cut, *options: Any) -> None:
        super().__init__(*options)
        self.record_format, self.num_numbered = cut.record_format, cut.num_numbered
        self._coords, self._values = coords, values
        self._rows = coords[find_longest_mode(self.record_format.shape)]

    def count_rows(self) -> Array:
        return count_rows(self._rows, max(self.record_format.shape))

    def split(self, buckets: Sequence[range]) -> None:
        pass  # each bucket is taken from all nonzeros when it is sorted

    def sort_bucket(self, number: int, rows: range, home: int) -> tuple[Array, Array]:
        is_own = (self._rows >= rows.start) & (self._rows < rows.stop)
        own = [take_marked(numbers, is_own) for numbers in (*self._coords, self._values)]
        if array_module(self._values) is self.primitives.xp:  # else copied block by block
            own = bring_each(self.devices, own, [home] * len(own))
        return self.devices.run(home, self._sort, own, rows)

    def _sort(self, own: list[Array], rows: range) -> tuple[Array, Array]:
        coords = array_module(own[-1]).stack(own[:-1])
        return sort_nonzeros(coords, own[-1], rows, self.record_format, self.primitives)


# The rows of slabs depend on the nonzeros and the number of slabs only, not on what holds them


def find_slab_shape(shape: Sequence[int], num_rows: int) -> tuple[int, ...]:
    """Return the shape of a slab with `num_rows` rows of the longest mode."""
    mode = find_longest_mode(shape)
    return (*shape[:mode], num_rows, *shape[mode + 1 :])


def count_rows(rows: Array, size: int) -> Array:
    """Count the nonzeros of each row from 0 to size - 1, in blocks; int64 (size,)."""
    xp = array_module(rows)
    counts = xp.zeros(size, np.int64)
    # Each block costs a pass over the counts.
    block_size = max(_COUNT_BLOCK, 4 * size)
    for start in range(0, rows.shape[0], block_size):
        block = rows[start : start + block_size].astype(np.int64, copy=False)
        counts += xp.bincount(block, minlength=size)
    return counts


def find_edges(counts: Array, num_slabs: int) -> tuple[int, ...]:
    """Find the rows (num_slabs + 1,) at which slabs begin and end, from the rows' nonzeros.

    Each edge is the row before which the number of nonzeros is nearest to its share. Rows are not
    split. Empty rows belong to the slab of the next row with nonzeros; those at the end to the last
    slab that has rows. Equal neighbours enclose a slab without rows: there are some if rows or
    nonzeros are fewer than slabs, or if a row has more nonzeros than a slab should. More slabs than
    nonzeros divide the rows as that many do, and only so many edges are returned.
    """
    xp, size = array_module(counts), counts.shape[0]
    # before[r]: nonzeros in rows below r.
    before = xp.zeros(size + 1, np.int64)
    before[1:] = xp.cumsum(counts)
    nnz = int(before[-1])
    if nnz == 0:
        return (0, size)
    num_slabs = min(num_slabs, nnz)
    share, more_by_one = divmod(nnz, num_slabs)
    slabs = xp.arange(num_slabs)
    shares = slabs * share + slabs * more_by_one // num_slabs
    above = xp.searchsorted(before, shares)  # the first row that has the share before it
    more, less = before[above], before[xp.maximum(above - 1, 0)]
    nearest = xp.where(more - shares < shares - less, more, less)
    edges = [int(edge) for edge in xp.searchsorted(before, nearest)]
    # No slab begins after the last nonzero.
    last = int(xp.searchsorted(before, nnz))
    return (*(edge if edge < last else size for edge in edges), size)


def list_rows(edges: Sequence[int]) -> list[range]:
    """List the rows of each slab that has some."""
    return [range(start, stop) for start, stop in pairwise(edges) if start < stop]


# Steps, on the device of a bucket or a slab


def split_nonzeros(
    coords: np.ndarray, values: np.ndarray, buckets: Sequence[range], record_format: RecordFormat
) -> list[np.ndarray]:
    """Pack the nonzeros of each bucket, in the given sequence."""
    firsts = np.array([rows.start for rows in buckets[1:]], np.uint32)
    numbers = np.searchsorted(firsts, coords[find_longest_mode(record_format.shape)], "right")
    numbers = numbers.astype(np.min_scalar_type(len(buckets)))  # NumPy sorts these by digits
    records = record_format.pack(coords, values.astype(record_format.dtype))
    records = records[np.argsort(numbers, kind="stable")]
    return np.split(records, np.cumsum(np.bincount(numbers, minlength=len(buckets)))[:-1])


def sort_records(
    records: np.ndarray, rows: range, record_format: RecordFormat, primitives: Primitives
) -> tuple[np.ndarray, np.ndarray]:
    """Sort the records of a bucket as `sort_nonzeros` sorts nonzeros."""
    coords, values = record_format.coords(records), record_format.values(records).copy()
    del records
    return sort_nonzeros(coords, values, rows, record_format, primitives)


def sort_nonzeros(
    coords: Array, values: Array, rows: range, record_format: RecordFormat, primitives: Primitives
) -> tuple[Array, Array]:
    """Make a bucket's records canonical, where its nonzeros are; count, on the host, each row's."""
    records = make_canonical_records(coords, values, record_format, primitives)
    check_sums(record_format.values(records))
    numbers = record_format.rows(records, find_longest_mode(record_format.shape), primitives.xp)
    numbers -= numbers.dtype.type(rows.start)
    return move(records, array_module(values)), move(count_rows(numbers, len(rows)), np)


def take_rows(records: Array, own: range, rows: range, record_format: RecordFormat) -> Array:
    """Return the records with one of `rows`, of a bucket with the rows `own`."""
    if rows.start <= own.start and own.stop <= rows.stop:
        return records
    mode = find_longest_mode(record_format.shape)
    numbers = record_format.rows(records, mode, array_module(records))
    return take_marked(records, (numbers >= rows.start) & (numbers < rows.stop))


def build_slab(
    pieces: Sequence[Array],
    layout_class: type[Layout],
    rows: range,
    record_format: RecordFormat,
    num_numbered: int | None,
    primitives: Primitives,
) -> Layout:
    """Build a slab's layout on the current device; `pieces` are records of the whole tensor."""
    xp, shape = array_module(pieces[0]), record_format.shape
    records = xp.concatenate([move(piece, xp) for piece in pieces])
    coords = record_format.coords(records, xp)
    coords[find_longest_mode(shape)] -= rows.start
    values = record_format.values(records).copy()
    del records
    slab_shape = find_slab_shape(shape, len(rows))
    cut = primitives.choose_cut(slab_shape, values.dtype, record_format.groups)
    cut = cut._replace(num_numbered=num_numbered)
    return build_numbered(layout_class, coords, values, cut, primitives)
