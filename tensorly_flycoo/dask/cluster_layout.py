"""Slabs on workers, and how workers build them of the partitions that they hold."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from ..base.array_modules import Array, move
from ..base.devices import assign_homes
from ..engines.protocol import Engine
from ..format.groups import find_groups, find_longest_mode
from ..format.packing import Groups, RecordFormat
from ..io.entries import find_places
from ..spread.building import SlabBuilder, arrange_slab, count_in_blocks, sort_bucket, split_records
from ..spread.memory import TensorSizes, choose_common
from ..spread.row_shards import RowShards
from ..spread.slab_layout import Slab
from ..spread.spread_layout import SpreadLayout
from .cluster import Cluster, RemoteObject, Workers
from .cluster_engine import ENGINE_HERE, RemoteLayout, WorkerDevices
from .machine import Site, describe_slab
from .messages import ENGINE, SITE
from .partitions import Partition
from .remote_array import call_method

#: The labels of each mode, sorted, or None for indices.
Labels: TypeAlias = Sequence[np.ndarray] | None

CHANGED = "the data are not those that were loaded: load the tensor anew"

#: Held while workers have partitions that were made of other tensors' slabs.
_lock = threading.Lock()


class ClusterLayout(SpreadLayout):
    """Slabs on workers."""

    devices: WorkerDevices

    def _prepare_slabs(self, inputs: Mapping[int, Array | RowShards], *others: Any) -> Any:
        # Scattered and then gathered, each row of a plain factor leaves this process once.
        sharded = {n: self.scatter(x, n) for n, x in inputs.items()}
        return super()._prepare_slabs(sharded, *others)

    def get_copies(self) -> list[np.ndarray]:
        return [np.empty(0)]  # none that is here

    def _map_slab(self, slab: Slab, function: Callable[[Array], Array], scale: float) -> Slab:
        own: Any = slab.layout
        mapped = self.devices.run(slab.home, call_method, own, "map_values", function, scale)
        layout: Any = RemoteLayout(mapped, own.facts._replace(norm=own.norm * scale))
        return slab._replace(layout=layout)

    def build_elsewhere(
        self,
        parts: Iterable[RemoteObject],
        name: str,
        shape: Sequence[int],
        dtype: np.dtype,
        groups: Groups | str | None = "auto",
    ) -> ClusterLayout:
        sizes = (tuple(shape), dtype, self.num_slabs, name)
        cluster = self.devices.cluster
        builder = ClusterBuilder(cluster, *sizes, groups=groups)
        with _lock:
            forget_partitions(cluster)
            for number, part in enumerate(parts):
                args = [SITE, number, part]
                cluster.call(part.worker, keep_nonzeros, args, num_results=0)
                del part, args
            return builder.distribute()


def fetch_layouts(cluster: Cluster, slabs: Sequence[RemoteObject]) -> list[RemoteLayout]:
    """Wait until slabs are made; return their layouts."""
    facts = cluster.fetch([cluster.run(x.worker, describe_slab, x)[0] for x in slabs])
    return list(map(RemoteLayout, slabs, facts))


def make_layout(
    cluster: Cluster,
    rows: Sequence[range],
    record_format: RecordFormat,
    num_slabs: int,
    layouts: Mapping[int, RemoteLayout] | Sequence[RemoteLayout],
) -> ClusterLayout:
    slabs = []
    for number, own in enumerate(rows):
        layout: Any = layouts[number]
        home = cluster.workers.index(layout.held.worker)
        slabs.append(Slab(slice(own.start, own.stop), layout, home))
    return ClusterLayout(record_format, num_slabs, slabs, ENGINE_HERE, WorkerDevices(cluster))


def list_held(layout: ClusterLayout) -> list[RemoteLayout]:
    """List the slabs that the workers hold, or held before they were lost."""
    return [cast(RemoteLayout, slab.layout) for slab in layout.slabs]


def replace_lost(
    layout: ClusterLayout, workers: Workers
) -> tuple[dict[int, int], dict[int, RemoteLayout]]:
    """Choose a worker for each slab; return also the slabs that stay where they are held.

    Up to a fair share stay with each worker. The others go to the least loaded ones.
    """
    known = list_held(layout)
    held = dict[int, RemoteLayout]()
    homes = dict[int, int]()
    counts = [0] * len(workers)
    loads = [0] * len(workers)
    for number, own in enumerate(known):
        home = workers.index(own.held.worker) if own.held.worker in workers else None
        if home is not None and counts[home] < -(-len(known) // len(workers)):
            held[number], homes[number] = own, home
            counts[home] += 1
            loads[home] += own.nnz
    for number in sorted(set(range(len(known))) - held.keys()):
        homes[number] = loads.index(min(loads))
        loads[homes[number]] += known[number].nnz
    return homes, held


def find_format(
    cluster: Cluster, shape: Sequence[int], dtype: np.dtype, groups: Groups
) -> RecordFormat:
    """Have a worker choose the format of a whole tensor; all have the same kind of device."""
    args = (call_method, ENGINE, "choose_cut", tuple(shape), dtype, groups)
    return cluster.fetch(cluster.run(cluster.workers[0], *args))[0].record_format


def forget_partitions(cluster: Cluster) -> None:
    """Have the workers forget the partitions of a call that has failed, and wait until they do."""
    cluster.fetch([x for w in cluster.workers for x in cluster.run(w, clear_partitions, SITE)])


def rebuild_lost(cluster: Cluster, layout: ClusterLayout, labels: Labels) -> ClusterLayout:
    """Build the slabs that no worker holds, of all partitions; refuse those that have changed."""
    record_format = layout.record_format
    num_slabs = layout.num_slabs
    rows = [range(slab.rows.start, slab.rows.stop) for slab in layout.slabs]
    lost, (homes, held) = list_held(layout), replace_lost(layout, cluster.workers)
    missing = sorted(homes.keys() - held.keys())
    sizes = (record_format.shape, record_format.dtype, num_slabs, layout.name, labels)
    builder = ClusterBuilder(cluster, *sizes)
    made = []
    builder.record_format = builder.bucket_format = record_format
    builder.split(rows, missing)
    for number in missing:
        own = rows[number]
        home = homes[number]
        builder.num_numbered = lost[number].record_format.num_numbered
        builder.buckets = [(own, home, builder.sort_bucket(home, number, own)[0])]
        made.append(builder.arrange(home, builder.order(home, own), layout.name))
    builder.buckets.clear()
    for number, slab in zip(missing, fetch_layouts(cluster, made), strict=True):
        if slab.facts != lost[number].facts:
            raise RuntimeError(CHANGED)
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
        super().__init__(num_slabs, ENGINE_HERE, WorkerDevices(cluster))
        self._layout = layout
        self.cluster = cluster
        self._shape = shape
        self._dtype = dtype
        # In a tuple, which a worker does not bring to its GPU.
        self._labels = None if labels is None else tuple(labels)
        self._groups = groups
        # For each bucket, each worker's records and their table.
        self._parts: dict[int, list[list[RemoteObject]]] = {}

    def distribute(self) -> ClusterLayout:
        """Build slabs of the partitions that the workers hold."""
        self.cluster.report(f"exchanging and sorting nonzeros for {self.num_slabs} slabs")
        rows = self.sort()
        homes = assign_homes(len(rows), self.devices.count)
        ordered = list(map(self.order, homes, rows))
        self.buckets.clear()
        name = self._choose_layout(ordered)
        made = [self.arrange(home, ordered.pop(0), name) for home in homes]
        options = (self.record_format, self.num_slabs, fetch_layouts(self.cluster, made))
        return make_layout(self.cluster, rows, *options)

    def arrange(self, home: int, ordered: RemoteObject, name: str) -> RemoteObject:
        return self.devices.run(home, arrange_slab, ordered, name, self.primitives)

    def _choose_layout(self, ordered: Sequence[RemoteObject]) -> str:
        """Have a worker choose the layout, once the slabs' cuts are known."""
        cluster = self.cluster
        record_format = self.record_format
        there = [cluster.run(x.worker, operator.itemgetter(1), x)[0] for x in ordered]
        sizes = TensorSizes(self._nnz, self._shape, self._dtype, record_format.groups)
        args = (ENGINE, self._layout, sizes, cluster.fetch(there))
        return cluster.fetch(cluster.run(cluster.workers[0], choose_common, *args))[0]

    def count_rows(self) -> np.ndarray:
        cluster = self.cluster
        mode = find_longest_mode(self._shape)
        args = [SITE, mode, self._shape[mode], self._labels]
        there = [x for w in cluster.workers for x in cluster.run(w, count_partitions, *args)]
        counts = np.sum(cluster.fetch(there), axis=0)
        self._nnz = int(counts.sum())
        sizes = (self._shape, self._nnz, self.num_slabs)
        groups, self.num_numbered = find_groups(self._groups, *sizes)
        self.record_format = find_format(cluster, self._shape, self._dtype, groups)
        return counts

    def split(self, buckets: Sequence[range], wanted: Sequence[int] | None = None) -> None:
        """Distribute the nonzeros to buckets; forget those that are in no wanted one."""
        cluster = self.cluster
        wanted = range(len(buckets)) if wanted is None else wanted
        args = [SITE, self.record_format, self._labels, buckets, wanted]
        for worker in cluster.workers:
            found = cluster.run(worker, split_partitions, *args, num_results=2 * len(wanted))
            for number, *parts in zip(wanted, found[::2], found[1::2], strict=True):
                self._parts.setdefault(number, []).append(parts)

    def sort_bucket(self, home: int, number: int, rows: range) -> tuple[RemoteObject, RemoteObject]:
        bring = self.devices.bring
        parts = self._parts.pop(number)
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
    blocks = (_place(partition, mode, labels) for partition in site.partitions.values())
    return count_in_blocks(blocks, size, np)


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
        coords = np.stack([_place(partition, mode, labels) for mode in range(record_format.ndim)])
        packed, *_ = site.engine.pack(coords, partition.values, record_format)
        parts = split_records(move(packed, np), buckets, record_format)
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
    merged, counts = sort_bucket(np.concatenate(sorted_parts), rows, record_format, engine)
    return move(merged, np), move(counts, np)
