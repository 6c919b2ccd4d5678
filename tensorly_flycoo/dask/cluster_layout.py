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
from ..io.parts import find_least_shape
from ..spread.building import (
    SlabBuilder,
    arrange_slab,
    count_in_blocks,
    number_buckets,
    sort_bucket,
    split_records,
)
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

#: The error of data that are read again, and have changed.
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
        layout: Any = slab.layout
        mapped = self.devices.run(slab.home, call_method, layout, "map_values", function, scale)
        mapped_facts = layout.facts._replace(norm=layout.norm * scale)
        mapped_layout: Any = RemoteLayout(mapped, mapped_facts)
        return slab._replace(layout=mapped_layout)

    def build_elsewhere(
        self,
        parts: Iterable[RemoteObject],
        name: str,
        shape: Sequence[int],
        dtype: np.dtype,
        groups: Groups | str | None = "auto",
    ) -> ClusterLayout:
        """Make a layout of `parts`, pairs (coords, values) that workers hold and then forget."""
        cluster = self.devices.cluster
        builder = ClusterBuilder(cluster, tuple(shape), dtype, self.num_slabs, name, groups=groups)
        with _lock:
            forget_partitions(cluster)
            for number, part in enumerate(parts):
                args = [SITE, number, part]
                cluster.call(part.worker, keep_nonzeros, args, num_results=0)
                del part, args  # so that the worker frees it
            return builder.distribute()


def fetch_layouts(cluster: Cluster, slabs: Sequence[RemoteObject]) -> list[RemoteLayout]:
    """Wait until slabs are made; return their layouts."""
    facts_of_slabs = _fetch_of_each(cluster, describe_slab, slabs)
    return list(map(RemoteLayout, slabs, facts_of_slabs))


def _fetch_of_each(
    cluster: Cluster, function: Callable[[Any], Any], objects: Sequence[RemoteObject]
) -> list[Any]:
    """Call a function of each object where that is; return the results, all fetched at once."""
    results = []
    for remote in objects:
        results += cluster.run(remote.worker, function, remote)
    return cluster.fetch(results)


def make_layout(
    cluster: Cluster,
    rows: Sequence[range],
    record_format: RecordFormat,
    num_slabs: int,
    layouts: Mapping[int, RemoteLayout] | Sequence[RemoteLayout],
) -> ClusterLayout:
    """Make the layout of a tensor from its slabs' rows, and their layouts by number."""
    slabs = []
    for number, slab_rows in enumerate(rows):
        layout: Any = layouts[number]
        home = cluster.workers.index(layout.held.worker)
        row_slice = slice(slab_rows.start, slab_rows.stop)
        slabs.append(Slab(row_slice, layout, home))
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
    slabs = list_held(layout)
    fair_share = -(-len(slabs) // len(workers))
    kept = dict[int, RemoteLayout]()
    homes = dict[int, int]()
    counts = [0] * len(workers)  # of slabs
    loads = [0] * len(workers)  # nonzeros
    for number, slab in enumerate(slabs):
        worker = slab.held.worker
        if worker not in workers:
            continue
        home = workers.index(worker)
        if counts[home] < fair_share:
            kept[number] = slab
            homes[number] = home
            counts[home] += 1
            loads[home] += slab.nnz
    for number, slab in enumerate(slabs):
        if number not in kept:
            home = loads.index(min(loads))
            homes[number] = home
            loads[home] += slab.nnz
    return homes, kept


def find_format(
    cluster: Cluster, shape: Sequence[int], dtype: np.dtype, groups: Groups
) -> RecordFormat:
    """Have a worker choose the format of a whole tensor; all have the same kind of device."""
    worker = cluster.workers[0]
    remote_cut = cluster.run(worker, call_method, ENGINE, "choose_cut", tuple(shape), dtype, groups)
    (cut,) = cluster.fetch(remote_cut)
    return cut.record_format


def forget_partitions(cluster: Cluster) -> None:
    """Have the workers forget the partitions of a call that has failed, and wait until they do."""
    remote_results = run_everywhere(cluster, clear_partitions, SITE)
    cluster.fetch(remote_results)


def run_everywhere(
    cluster: Cluster, function: Callable[..., Any], *args: Any
) -> list[RemoteObject]:
    """Have each worker call a function; return the results, which they hold."""
    return [cluster.run(worker, function, *args)[0] for worker in cluster.workers]


def rebuild_lost(cluster: Cluster, layout: ClusterLayout, labels: Labels) -> ClusterLayout:
    """Build the slabs that no worker holds, from all partitions, if these have not changed."""
    record_format = layout.record_format
    rows = [range(slab.rows.start, slab.rows.stop) for slab in layout.slabs]
    old_slabs = list_held(layout)
    homes, slabs = replace_lost(layout, cluster.workers)
    missing = sorted(homes.keys() - slabs.keys())
    builder = ClusterBuilder(
        cluster, record_format.shape, record_format.dtype, layout.num_slabs, layout.name, labels
    )
    # The buckets are the slabs themselves, with their rows.
    builder.record_format = builder.bucket_format = record_format
    builder.split(rows, missing)
    made = []
    for number in missing:
        home = homes[number]
        slab_rows = rows[number]
        builder.num_numbered = old_slabs[number].record_format.num_numbered
        # No other name holds the bucket, which the worker frees as soon as it is forgotten here.
        builder.buckets = [(slab_rows, home, builder.sort_bucket(home, number, slab_rows)[0])]
        # Nor the ordered records, for the same reason.
        made.append(builder.arrange(home, builder.order(home, slab_rows), layout.name))
    builder.buckets.clear()
    for number, slab in zip(missing, fetch_layouts(cluster, made), strict=True):
        if slab.facts != old_slabs[number].facts:
            raise RuntimeError(CHANGED)
        slabs[number] = slab
    return make_layout(cluster, rows, record_format, layout.num_slabs, slabs)


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
        self._nnz = 0  # `count_rows` counts them
        self._layout = layout
        self.cluster = cluster
        self._shape = shape
        self._dtype = dtype
        self._labels: Labels = None
        if labels is not None:
            self._labels = tuple(labels)  # a worker brings arrays in lists to its GPU
        self._groups = groups
        # For each bucket, each worker's records and their table; see `split_partitions`.
        self._parts: dict[int, list[tuple[RemoteObject, RemoteObject]]] = {}

    def distribute(self) -> ClusterLayout:
        """Build slabs of the partitions that the workers hold."""
        self.cluster.report(f"exchanging and sorting nonzeros for {self.num_slabs} slabs")
        rows = self.sort()
        homes = assign_homes(len(rows), self.devices.count)
        ordered = list(map(self.order, homes, rows))
        self.buckets.clear()
        name = self._choose_layout(ordered)
        # Popped, so that workers free the ordered records of one slab before they make the next.
        made = [self.arrange(home, ordered.pop(0), name) for home in homes]
        layouts = fetch_layouts(self.cluster, made)
        return make_layout(self.cluster, rows, self.record_format, self.num_slabs, layouts)

    def arrange(self, home: int, ordered: RemoteObject, name: str) -> RemoteObject:
        """Have a worker make the layout of a slab of its ordered records."""
        return self.devices.run(home, arrange_slab, ordered, name, self.primitives)

    def _choose_layout(self, ordered: Sequence[RemoteObject]) -> str:
        """Have a worker choose the layout, once the slabs' cuts are known."""
        cluster = self.cluster
        sizes = TensorSizes(self._nnz, self._shape, self._dtype, self.record_format.groups)
        get_cut = operator.itemgetter(1)  # of `order`'s result
        cuts = _fetch_of_each(cluster, get_cut, ordered)
        worker = cluster.workers[0]  # any one: all have the same kind of device
        remote_name = cluster.run(worker, choose_common, ENGINE, self._layout, sizes, cuts)
        (name,) = cluster.fetch(remote_name)
        return name

    def count_rows(self) -> np.ndarray:
        """Count the nonzeros of each row of the longest mode; then choose groups and format."""
        cluster = self.cluster
        mode = find_longest_mode(self._shape)
        size = self._shape[mode]
        remote_counts = run_everywhere(cluster, count_partitions, SITE, mode, size, self._labels)
        counts_of_workers = cluster.fetch(remote_counts)
        counts = np.sum(counts_of_workers, axis=0)
        self._nnz = int(counts.sum())
        groups, self.num_numbered = find_groups(
            self._groups, self._shape, self._nnz, self.num_slabs
        )
        self.record_format = find_format(cluster, self._shape, self._dtype, groups)
        return counts

    def split(self, buckets: Sequence[range], wanted: Sequence[int] | None = None) -> None:
        """Distribute the nonzeros to buckets; forget those that are in no wanted one."""
        cluster = self.cluster
        if wanted is None:
            wanted = range(len(buckets))
        args = [SITE, self.record_format, self._labels, buckets, wanted]
        num_results = 2 * len(wanted)  # of each bucket its records, then their table
        for worker in cluster.workers:
            results = cluster.run(worker, split_partitions, *args, num_results=num_results)
            pairs = zip(results[::2], results[1::2], strict=True)
            for bucket, (records, table) in zip(wanted, pairs, strict=True):
                parts = self._parts.setdefault(bucket, [])
                parts.append((records, table))

    def sort_bucket(self, home: int, number: int, rows: range) -> tuple[RemoteObject, RemoteObject]:
        """Have a worker merge what all have of a bucket; return its records, and rows' counts."""
        parts = self._parts.pop(number)
        records = [self.devices.bring(records, home) for records, _ in parts]
        tables = [self.devices.bring(table, home) for _, table in parts]
        args = [ENGINE, self.record_format, rows, records, tables]
        worker = self.cluster.workers[home]
        merged, counts = self.cluster.run(worker, merge_bucket, *args, num_results=2)
        return merged, counts


# On the workers


def keep_nonzeros(site: Site, number: int, nonzeros: tuple[Array, Array]) -> None:
    """Take coords (ndim, n) and values (n,) as a partition."""
    coords, values = (move(array, np) for array in nonzeros)
    indices = coords.astype(np.uint32)
    shape = find_least_shape(coords)
    site.partitions[number] = Partition(indices, values, shape, entries=None)


def clear_partitions(site: Site) -> None:
    """Free the partitions that a failed call may have left."""
    site.partitions.clear()


def count_partitions(site: Site, mode: int, size: int, labels: Labels) -> np.ndarray:
    """Count the nonzeros of each row of a mode that this worker has."""
    blocks = (_place(partition, mode, labels) for partition in site.partitions.values())
    return count_in_blocks(blocks, size, np)


def _place(partition: Partition, mode: int, labels: Labels) -> np.ndarray:
    """Return a partition's indices of a mode: entries are numbered anew, by the tensor's labels."""
    indices = partition.coords[mode]
    if labels is None or partition.entries is None:
        return indices
    # The indices number the partition's own entries; `places` has the tensor's number of each.
    entries = partition.entries[mode].entries
    places = find_places(entries, labels[mode]).astype(indices.dtype)
    return places[indices]


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
    no_records = np.empty((0, record_format.num_words), record_format.word_dtype)
    records = {bucket: [no_records] for bucket in wanted}
    tables = {bucket: [(-1, 0)] for bucket in wanted}
    bucket_of_row = number_buckets(buckets)
    for number in sorted(site.partitions):
        partition = site.partitions.pop(number)
        if partition.values.size == 0:
            continue
        coords = np.stack([_place(partition, mode, labels) for mode in range(record_format.ndim)])
        packed, *_ = site.engine.pack(coords, partition.values, record_format)
        parts = split_records(move(packed, np), bucket_of_row, record_format)
        for bucket in wanted:
            part = parts[bucket]
            if part.size:
                records[bucket].append(part.copy())  # not a view: the packed records are freed
                tables[bucket].append((number, part.shape[0]))
    results = []
    for bucket in wanted:
        results.append(np.concatenate(records.pop(bucket)))  # popped, so that the parts are freed
        results.append(np.array(tables[bucket], np.int64))
    return results


def merge_bucket(
    engine: Engine,
    record_format: RecordFormat,
    rows: range,
    records: Sequence[Array],
    tables: Sequence[Array],
) -> tuple[np.ndarray, np.ndarray]:
    """Make a bucket's records canonical, in the sequence of the partitions; count each row's."""
    segments: list[tuple[int, np.ndarray]] = []  # a partition's number, and its records
    for worker_records, worker_table in zip(records, tables, strict=True):
        numbers, sizes = move(worker_table, np).T
        starts = np.cumsum(sizes)[:-1]  # of all parts but the first
        parts = np.split(move(worker_records, np), starts)
        segments += zip(numbers.tolist(), parts, strict=True)
    segments.sort(key=operator.itemgetter(0))
    in_sequence = np.concatenate([part for _, part in segments])
    merged, counts = sort_bucket(in_sequence, rows, record_format, engine)
    return move(merged, np), move(counts, np)
