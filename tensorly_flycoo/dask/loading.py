"""Load a tensor from partitions, read by tasks or made of other tensors: actors build slabs."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from distributed import Client, Future

from ..base.array_modules import Array, move
from ..base.checks import check_count, check_dtype, check_keep, check_shape
from ..engines.protocol import Engine
from ..format.groups import choose_groups, find_groups, find_longest_mode
from ..format.layouts import LAYOUT_CLASSES
from ..format.packing import RecordFormat
from ..io.entries import find_places, unite_labels
from ..spread.building import SlabBuilder, count_rows, sort_records, split_nonzeros
from ..spread.choosing import TensorSizes, choose_layout
from .cluster import Cluster, RemoteObject, Workers
from .cluster_engine import ClusterLayout, WorkerDevices
from .cluster_tensor import (
    ENGINE_HERE,
    fetch_layouts,
    find_format,
    list_held,
    make_layout,
    replace_lost,
)
from .machine import Site
from .messages import ENGINE, SITE
from .partitions import Partition, Summary, keep_partition

#: The labels of each mode, sorted, or None for indices.
Labels: TypeAlias = Sequence[np.ndarray] | None

#: The most nonzeros of a slab, by default, and the fewest slabs: results depend on their number, so
#: it depends on the data only.
_SLAB_NNZ, _FEWEST_SLABS = 2**25, 8

#: Seconds between looks whether the workers that read are there.
_CHECK_INTERVAL = 0.02

_CHANGED = "the data are not those that were loaded: load the tensor anew"


@dataclass
class PartitionedData:
    """Data in partitions, and how a tensor is made of them."""

    parts: Sequence[Any]  # what `reader` takes, or objects of Dask that become such
    reader: Any
    shape: tuple[int, ...] | None = None
    num_slabs: int | None = None
    dtype: Any = None
    layout: str | None = None
    labels: Labels = None  # once they are known
    ordered: Sequence[str] = ()  # the columns of ordered categories

    def __post_init__(self) -> None:
        self.num_slabs = None if self.num_slabs is None else check_count(self.num_slabs, "slabs")
        self.dtype = None if self.dtype is None else check_dtype(self.dtype)
        self.layout = check_keep("device", self.layout)

    def place(self, client: Client, workers: Workers) -> ClusterLayout:
        cluster = Cluster(client, workers)
        nnz, shape, dtype, self.labels = self._read(cluster)
        num_slabs = self.num_slabs or max(_FEWEST_SLABS, -(-nnz // _SLAB_NNZ))
        groups = choose_groups(shape, nnz, num_slabs)
        args = (ENGINE, self.layout, TensorSizes(nnz, shape, dtype, groups))
        (layout,) = cluster.fetch(cluster.run(cluster.workers[0], choose_layout, *args))
        sizes = (shape, dtype, num_slabs, layout, self.labels)
        return ClusterBuilder(cluster, *sizes).distribute()

    def restore(self, client: Client, workers: Workers, layout: ClusterLayout) -> ClusterLayout:
        """Read all data again, but keep only the nonzeros of lost slabs."""
        cluster, record_format = Cluster(client, workers), layout.record_format
        _, shape, dtype, labels = self._read(cluster)
        is_same = (shape, dtype) == (record_format.shape, record_format.dtype)
        if not is_same or not all(map(np.array_equal, labels or [], self.labels or [])):
            raise RuntimeError(_CHANGED)
        return rebuild_lost(cluster, layout, labels)

    def _read(self, cluster: Cluster) -> tuple[int, tuple[int, ...], np.dtype, Labels]:
        """Have tasks read the data; return the tensor's rows, shape, dtype and labels."""
        forget_partitions(cluster)
        client, keys = cluster.client, {w.address: w.peer.key for w in cluster.workers}
        options: dict[str, Any] = {"workers": list(keys), "allow_other_workers": False}
        futures: list[Future] = []
        for number, part in enumerate(self.parts):
            if hasattr(part, "__dask_graph__"):
                part = client.compute(part, **options)
            arguments = (part, number, self.reader, keys)
            futures.append(client.submit(keep_partition, *arguments, pure=False, **options))
        try:
            states: set[str | None] = {"pending"}
            while "pending" in states and not states & {"error", "lost", "cancelled"}:
                cluster.check_there()
                time.sleep(_CHECK_INTERVAL)
                states = {future.status for future in futures}
            summaries: list[Summary] = client.gather(futures)
        finally:
            client.cancel(futures)
        return self.unite(summaries)

    def unite(self, summaries: Iterable[Summary]) -> tuple[int, tuple[int, ...], np.dtype, Labels]:
        """Return the number of rows, shape, dtype and labels that all partitions have together."""
        found = [summary for summary in summaries if summary.shape]
        nnz = sum(summary.nnz for summary in found)
        if nnz == 0:
            raise ValueError("the data have no rows, expected at least one")
        ndims = sorted({len(summary.shape) for summary in found})
        if len(ndims) > 1:
            raise ValueError(f"partitions have {ndims} modes, expected one number")
        dtype = np.result_type(*(summary.dtype for summary in found if summary.nnz))
        dtype = check_dtype(dtype if self.dtype is None else self.dtype)
        shape = tuple(max(sizes) for sizes in zip(*(s.shape for s in found), strict=True))
        entries = [summary.entries for summary in found if summary.entries is not None]
        labels = None
        if entries:
            modes = zip(self.reader.modes, zip(*entries, strict=True), strict=True)
            united = {name: unite_labels(of_mode, name) for name, of_mode in modes}
            self.ordered = [name for name, of in united.items() if of.categories is not None]
            labels = [of.entries for of in united.values()]
            shape = tuple(of_mode.size for of_mode in labels)
        elif self.shape is not None:
            if len(self.shape) != len(shape) or any(map(int.__gt__, shape, self.shape)):
                raise ValueError(f"shape is {self.shape}, expected at least {shape}")
            shape = self.shape
        return nnz, check_shape(shape), dtype, labels


#: Held while workers have partitions that were made of other tensors' slabs.
_lock = threading.Lock()


def load_parts(builder: ClusterBuilder, parts: Iterable[RemoteObject]) -> ClusterLayout:
    """Build a tensor of coords and values that are on workers, as if they were new data."""
    with _lock:
        forget_partitions(builder.cluster)
        for number, part in enumerate(parts):
            args = [SITE, number, part]
            builder.cluster.call(part.worker, keep_nonzeros, args, num_results=0)
            del part, args
        return builder.distribute()


def forget_partitions(cluster: Cluster) -> None:
    """Have the workers forget the partitions of a call that has failed, and wait until they do."""
    cluster.fetch([x for w in cluster.workers for x in cluster.run(w, clear_partitions, SITE)])


def rebuild_lost(cluster: Cluster, layout: ClusterLayout, labels: Labels) -> ClusterLayout:
    """Build the slabs that no worker holds, of all partitions; refuse those that have changed."""
    record_format, num_slabs = layout.record_format, layout.num_slabs
    rows = [range(slab.rows.start, slab.rows.stop) for slab in layout.slabs]
    lost, (homes, held) = list_held(layout), replace_lost(layout, cluster.workers)
    missing = sorted(homes.keys() - held.keys())
    sizes = (record_format.shape, record_format.dtype, num_slabs, layout.name, labels)
    builder, made = ClusterBuilder(cluster, *sizes), []
    builder.record_format = record_format
    builder.split(rows, missing)
    for number in missing:
        own, home = rows[number], homes[number]
        builder.num_numbered = lost[number].record_format.num_numbered
        builder.buckets = [(own, home, builder.sort_bucket(number, own, home)[0])]
        made.append(builder.build(own, home))
    builder.buckets.clear()
    for number, slab in zip(missing, fetch_layouts(cluster, made), strict=True):
        if slab.facts != lost[number].facts:
            raise RuntimeError(_CHANGED)
        held[number] = slab
    return make_layout(cluster, rows, record_format, num_slabs, held)


class ClusterBuilder(SlabBuilder):
    """Builds slabs of the partitions that workers hold; `labels` number the tensor's entries."""

    devices: WorkerDevices

    def __init__(
        self,
        cluster: Cluster,
        shape: tuple[int, ...],
        dtype: np.dtype,
        num_slabs: int,
        layout: str,
        labels: Labels = None,
        groups: object = "auto",
    ) -> None:
        devices = WorkerDevices(cluster)
        super().__init__(LAYOUT_CLASSES[layout], num_slabs, ENGINE_HERE, devices)
        self.cluster, self._shape, self._dtype = cluster, shape, dtype
        # In a tuple, which a worker does not bring to its GPU.
        self._labels = None if labels is None else tuple(labels)
        self._groups = groups
        # For each bucket, each worker's records and their table.
        self._parts: dict[int, list[list[RemoteObject]]] = {}

    def distribute(self) -> ClusterLayout:
        """Build slabs of the partitions that the workers hold."""
        slabs = self.sort()
        made = [self.build(rows, home) for rows, home in slabs]
        self.buckets.clear()
        options = (self.record_format, self.num_slabs, fetch_layouts(self.cluster, made))
        return make_layout(self.cluster, [rows for rows, _ in slabs], *options)

    def count_rows(self) -> np.ndarray:
        cluster, mode = self.cluster, find_longest_mode(self._shape)
        args = [SITE, mode, self._shape[mode], self._labels]
        there = [x for w in cluster.workers for x in cluster.run(w, count_partitions, *args)]
        counts = np.sum(cluster.fetch(there), axis=0)
        sizes = (self._shape, int(counts.sum()), self.num_slabs)
        groups, self.num_numbered = find_groups(self._groups, *sizes)
        self.record_format = find_format(cluster, self._shape, self._dtype, groups)
        return counts

    def split(self, buckets: Sequence[range], wanted: Sequence[int] | None = None) -> None:
        """Distribute the nonzeros to buckets; forget those that are in no wanted one."""
        cluster, wanted = self.cluster, range(len(buckets)) if wanted is None else wanted
        args = [SITE, self.record_format, self._labels, buckets, wanted]
        for worker in cluster.workers:
            found = cluster.run(worker, split_partitions, *args, num_results=2 * len(wanted))
            for number, *parts in zip(wanted, found[::2], found[1::2], strict=True):
                self._parts.setdefault(number, []).append(parts)

    def sort_bucket(self, number: int, rows: range, home: int) -> tuple[RemoteObject, RemoteObject]:
        bring, parts = self.devices.bring, self._parts.pop(number)
        records, tables = ([bring(x, home) for x in own] for own in zip(*parts, strict=True))
        args = [ENGINE, self.record_format, rows, records, tables]
        worker = self.cluster.workers[home]
        merged, counts = self.cluster.run(worker, merge_bucket, *args, num_results=2)
        return merged, counts


# On the workers


def keep_nonzeros(site: Site, number: int, nonzeros: tuple[Array, Array]) -> None:
    """Take coords (ndim, n) and values (n,) as a partition."""
    coords, values = (move(array, np) for array in nonzeros)
    shape = tuple(int(rows.max(initial=0)) + 1 for rows in coords)
    site.partitions[number] = Partition(coords.astype(np.uint32), values, shape, None)


def clear_partitions(site: Site) -> None:
    """Free what a call that has failed may have left."""
    site.partitions.clear()


def count_partitions(site: Site, mode: int, size: int, labels: Labels) -> np.ndarray:
    counts = np.zeros(size, np.int64)
    for partition in site.partitions.values():
        counts += count_rows(_place(partition, mode, labels), size)
    return counts


def _place(partition: Partition, mode: int, labels: Labels) -> np.ndarray:
    """Return the indices of a mode: entries are numbered anew."""
    rows = partition.coords[mode]
    if labels is None or partition.entries is None:
        return rows
    return find_places(partition.entries[mode].entries, labels[mode]).astype(rows.dtype)[rows]


def split_partitions(
    site: Site,
    record_format: RecordFormat,
    labels: Labels,
    buckets: Sequence[range],
    wanted: Sequence[int],
) -> list[np.ndarray]:
    """Distribute the nonzeros to buckets of rows; forget the partitions.

    Returns for each wanted bucket its records, partition by partition, and a table (n, 2) of the
    partitions and how many of the records are theirs; the first is -1, which has none.
    """
    nothing = np.empty((0, record_format.num_words), record_format.word_dtype)
    found = {number: [nothing] for number in wanted}
    tables = {number: [(-1, 0)] for number in wanted}
    for number in sorted(site.partitions):
        partition = site.partitions.pop(number)
        if partition.values.size == 0:
            continue
        modes = range(record_format.ndim)
        coords = np.stack([_place(partition, mode, labels) for mode in modes])
        parts = split_nonzeros(coords, partition.values, buckets, record_format)
        for bucket in wanted:
            if parts[bucket].size:
                found[bucket].append(parts[bucket].copy())
                tables[bucket].append((number, parts[bucket].shape[0]))
    results = []
    for bucket in wanted:
        results += [np.concatenate(found.pop(bucket)), np.array(tables[bucket], np.int64)]
    return results


def merge_bucket(
    engine: Engine,
    record_format: RecordFormat,
    rows: range,
    records: Sequence[Array],
    tables: Sequence[Array],
) -> tuple[np.ndarray, np.ndarray]:
    """Make a bucket's records canonical, in the sequence of the partitions; count each row's."""
    segments: list[tuple[int, np.ndarray]] = []
    for own, table in zip(records, (move(table, np) for table in tables), strict=True):
        parts = np.split(move(own, np), np.cumsum(table[:, 1])[:-1])
        segments += zip(table[:, 0].tolist(), parts, strict=True)
    sorted_parts = [part for _, part in sorted(segments, key=operator.itemgetter(0))]
    return sort_records(np.concatenate(sorted_parts), rows, record_format, engine)
