"""What workers do with partitions until they are slabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..array_modules import move
from ..checks import check_sums
from ..format.layouts import LAYOUT_CLASSES
from ..format.ordering import make_canonical_records
from ..format.packing import RecordFormat
from ..format.partition import count_rows, find_longest_mode
from ..format.slab_layout import build_slab
from .partitions import Partition
from .site import Site, SlabFacts, load_slab

if TYPE_CHECKING:
    from ..format.layout import Layout

#: The labels of each mode, sorted, or None for indices.
Labels = Sequence[np.ndarray] | None


class LoadSpec(NamedTuple):
    """What all workers know."""

    record_format: RecordFormat  # of the whole tensor
    labels: Labels
    firsts: np.ndarray  # uint32: the first row of the cut mode of each bucket but the first

    @property
    def cut_mode(self) -> int:
        return find_longest_mode(self.record_format.shape)


def count_partitions(site: Site, mode: int, size: int, labels: Labels) -> np.ndarray:
    """Count the nonzeros of each row of a mode."""
    counts = np.zeros(size, np.int64)
    for partition in site.partitions.values():
        counts += count_rows(_place(partition, mode, labels), size)
    return counts


def _place(partition: Partition, mode: int, labels: Labels) -> np.ndarray:
    """Return the indices of a mode: entries are numbered anew."""
    rows = partition.coords[mode]
    if labels is None or partition.entries is None:
        return rows
    own, known = partition.entries[mode], labels[mode]
    if own.shape == known.shape and (own == known).all():
        return rows
    return np.searchsorted(known, own).astype(rows.dtype)[rows]


def keep_nonzeros(site: Site, number: int, coords: np.ndarray, values: np.ndarray) -> None:
    """Take coords (ndim, n) and values (n,) as a partition."""
    shape = tuple(int(rows.max(initial=0)) + 1 for rows in coords)
    site.partitions[number] = Partition(coords.astype(np.uint32), values, shape, None)


def forget_partitions(site: Site) -> None:
    """Free what a call that has failed may have left."""
    site.partitions.clear()


def keep_buckets(site: Site, spec: LoadSpec, buckets: Sequence[int]) -> None:
    """Forget the nonzeros that are in other buckets."""
    for number, partition in site.partitions.items():
        rows = _place(partition, spec.cut_mode, spec.labels)
        is_kept = np.isin(np.searchsorted(spec.firsts, rows, "right"), buckets)
        coords, values = partition.coords[:, is_kept], partition.values[is_kept]
        site.partitions[number] = partition._replace(coords=coords, values=values)


def split_partitions(site: Site, spec: LoadSpec) -> list[np.ndarray]:
    """Distribute the nonzeros to buckets of rows; forget the partitions.

    Returns for each bucket its records, partition by partition; then for each bucket a table (n, 2)
    of the partitions and how many of the records are theirs.
    """
    num_buckets = spec.firsts.size + 1
    records: list[list[np.ndarray]] = [[] for _ in range(num_buckets)]
    tables: list[list[tuple[int, int]]] = [[] for _ in range(num_buckets)]
    for number in sorted(site.partitions):
        own, counts = _sort(site.partitions.pop(number), spec)
        for bucket, part in enumerate(np.split(own, np.cumsum(counts)[:-1])):
            if part.size:
                records[bucket].append(part.copy())
                tables[bucket].append((number, part.shape[0]))
    empty, joined = _make_empty(spec.record_format), []
    for bucket in range(num_buckets):
        joined.append(np.concatenate([empty, *records[bucket]]))
        records[bucket] = []
    return [*joined, *(np.array(table, np.int64).reshape(-1, 2) for table in tables)]


def _sort(partition: Partition, spec: LoadSpec) -> tuple[np.ndarray, np.ndarray]:
    """Pack a partition bucket by bucket, each in the given sequence; count those of each."""
    record_format, num_buckets = spec.record_format, spec.firsts.size + 1
    if partition.values.size == 0:
        return _make_empty(record_format), np.zeros(num_buckets, np.int64)
    modes = range(record_format.ndim)
    coords = np.stack([_place(partition, mode, spec.labels) for mode in modes])
    numbers = np.searchsorted(spec.firsts, coords[spec.cut_mode], "right")
    numbers = numbers.astype(np.min_scalar_type(num_buckets))  # NumPy sorts these by digits
    records = record_format.pack(coords, partition.values.astype(record_format.dtype))
    counts = np.bincount(numbers, minlength=num_buckets)
    return records[np.argsort(numbers, kind="stable")], counts


def _make_empty(record_format: RecordFormat) -> np.ndarray:
    return np.empty((0, record_format.num_words), record_format.word_dtype)


def merge_buckets(
    site: Site,
    spec: LoadSpec,
    rows: range,
    records: Sequence[np.ndarray],
    tables: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Make the records of a bucket canonical; count those of each of its rows.

    Values at repeated coordinates are added in the sequence of the partitions.
    """
    segments: list[tuple[int, np.ndarray]] = []
    for own, table in zip(records, tables, strict=True):
        parts = np.split(own, np.cumsum(table[:, 1])[:-1])
        segments += zip(table[:, 0].tolist(), parts, strict=False)
    record_format, ordered = spec.record_format, sorted(segments, key=lambda pair: pair[0])
    given = np.concatenate([_make_empty(record_format), *(part for _, part in ordered)])
    del segments, ordered, records
    coords, values = record_format.coords(given), record_format.values(given).copy()
    del given
    canonical = make_canonical_records(coords, values, record_format, site.engine)
    canonical = move(canonical, np)
    check_sums(record_format.values(canonical))
    numbers = record_format.rows(canonical, spec.cut_mode)
    numbers -= numbers.dtype.type(rows.start)
    return canonical, count_rows(numbers, len(rows))


def take_rows(spec: LoadSpec, records: np.ndarray, rows: range) -> np.ndarray:
    """Return the records with one of `rows`."""
    found = spec.record_format.rows(records, spec.cut_mode)
    if found.size and rows.start <= found.min() and found.max() < rows.stop:
        return records
    return records[(found >= rows.start) & (found < rows.stop)]


def build(
    site: Site, spec: LoadSpec, layout: str, rows: range, records: Sequence[np.ndarray]
) -> tuple[Layout, SlabFacts]:
    """Build a slab."""
    engine = site.engine

    def make(site: Site, number: int) -> Layout:
        arguments = (rows, spec.record_format, engine.choose_cut, engine)
        return build_slab(LAYOUT_CLASSES[layout], np.concatenate(records), *arguments)

    return load_slab(site, make, 0)
