"""Load a tensor from partitions: tasks read them, actors exchange the nonzeros and build slabs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client, Future

from ..checks import check_dtype, check_shape
from ..devices import assign_homes
from ..format.partition import find_edges, find_longest_mode, list_rows
from . import exchange
from .cluster import Cluster
from .engine import ClusterLayout, bring
from .exchange import Labels, LoadSpec
from .handles import RemoteObject, WorkerHandle
from .messages import SITE
from .partitions import Summary, keep_partition
from .tensor import PlacedSlab, find_format, list_held, make_layout, replace_lost

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
    layout: str = "replicated"
    labels: list[np.ndarray] | None = None  # of each mode, once they are known

    def place(self, client: Client, workers: Sequence[WorkerHandle]) -> ClusterLayout:
        cluster = Cluster(client, workers)
        forget_partitions(cluster)
        summaries = self._read(client, cluster)
        shape, dtype, self.labels = self._merge(summaries)
        num_slabs = self.num_slabs or max(
            _FEWEST_SLABS, -(-sum(summary.nnz for summary in summaries) // _SLAB_NNZ)
        )
        return distribute(cluster, shape, dtype, num_slabs, self.layout, self.labels)

    def restore(
        self, client: Client, workers: Sequence[WorkerHandle], layout: ClusterLayout
    ) -> ClusterLayout:
        """Read all data again, but keep only the nonzeros of lost slabs."""
        cluster = Cluster(client, workers)
        forget_partitions(cluster)
        shape, dtype, labels = self._merge(self._read(client, cluster))
        record_format = layout.record_format
        if (shape, dtype) != (record_format.shape, record_format.dtype) or not _are_same(
            labels, self.labels
        ):
            raise RuntimeError(_CHANGED)
        return rebuild_lost(cluster, layout, labels)

    def _read(self, client: Client, cluster: Cluster) -> list[Summary]:
        keys = {worker.address: worker.peer.key for worker in cluster.workers}
        options: dict[str, Any] = {"workers": list(keys), "allow_other_workers": False}
        futures: list[Future] = []
        for number, part in enumerate(self.parts):
            if hasattr(part, "__dask_graph__"):
                part = client.compute(part, **options)
            arguments = (part, number, self.reader, keys)
            futures.append(client.submit(keep_partition, *arguments, pure=False, **options))
        try:
            while _is_under_way(futures):
                cluster.check_there()
                time.sleep(_CHECK_INTERVAL)
            return client.gather(futures)
        finally:
            client.cancel(futures)

    def _merge(
        self, summaries: Sequence[Summary]
    ) -> tuple[tuple[int, ...], np.dtype, list[np.ndarray] | None]:
        """Find the shape, the dtype and the labels of the whole tensor."""
        found = [summary for summary in summaries if summary.shape]
        if sum(summary.nnz for summary in found) == 0:
            raise ValueError("the data have no rows, expected at least one")
        ndims = sorted({len(summary.shape) for summary in found})
        if len(ndims) > 1:
            raise ValueError(f"partitions have {ndims} modes, expected one number")
        dtype = np.result_type(*(summary.dtype for summary in found))
        dtype = check_dtype(dtype if self.dtype is None else self.dtype)
        shape = tuple(max(sizes) for sizes in zip(*(s.shape for s in found), strict=True))
        entries = [summary.entries for summary in found if summary.entries is not None]
        labels = None
        if entries:
            labels = [_unite(of_mode) for of_mode in zip(*entries, strict=True)]
            shape = tuple(of_mode.size for of_mode in labels)
        elif self.shape is not None:
            if len(self.shape) != len(shape) or any(map(int.__gt__, shape, self.shape)):
                raise ValueError(f"shape is {self.shape}, expected at least {shape}")
            shape = self.shape
        return check_shape(shape), dtype, labels


def _is_under_way(futures: Sequence[Future]) -> bool:
    """Return whether some futures are pending and none has failed."""
    states = {future.status for future in futures}
    return "pending" in states and not states & {"error", "lost", "cancelled"}


def _are_same(labels: Labels, others: Labels) -> bool:
    if labels is None or others is None:
        return labels is others
    return all(map(np.array_equal, labels, others))


def _unite(entries: Sequence[np.ndarray]) -> np.ndarray:
    """Return all entries: in their order if it is the same everywhere, else sorted."""
    first = entries[0]
    if all(own.shape == first.shape and (own == first).all() for own in entries):
        return first
    return np.unique(np.concatenate(entries))


#: Held while workers have partitions that were made of other tensors' slabs.
_lock = threading.Lock()


def load_again(
    cluster: Cluster,
    calls: Iterable[tuple[WorkerHandle, Callable[..., None], Sequence[Any]]],
    shape: tuple[int, ...],
    dtype: np.dtype,
    num_slabs: int,
    layout: str,
) -> ClusterLayout:
    """Build a tensor of nonzeros that the workers hold: what they make of other tensors.

    `calls` are workers, functions and arguments: a function gets the worker's site, the number of a
    partition and the arguments, and keeps that partition.
    """
    with _lock:
        forget_partitions(cluster)
        for number, (worker, function, args) in enumerate(calls):
            cluster.call(worker, function, [SITE, number, *args], num_results=0)
            del args
        return distribute(cluster, shape, dtype, num_slabs, layout)


def forget_partitions(cluster: Cluster) -> None:
    """Have the workers forget the partitions of a call that has failed, and wait until they do."""
    forget = exchange.forget_partitions
    cluster.fetch([x for worker in cluster.workers for x in cluster.run(worker, forget, SITE)])


def distribute(
    cluster: Cluster,
    shape: tuple[int, ...],
    dtype: np.dtype,
    num_slabs: int,
    layout: str,
    labels: list[np.ndarray] | None = None,
) -> ClusterLayout:
    """Build slabs of the partitions that the workers hold."""
    mode, workers = find_longest_mode(shape), cluster.workers
    args = [SITE, mode, shape[mode], labels]
    there = [x for w in workers for x in cluster.run(w, exchange.count_partitions, *args)]
    record_format, *counts = cluster.fetch([find_format(cluster, shape, dtype), *there])
    rows = list_rows(find_edges(np.sum(counts, axis=0), num_slabs))
    spec = LoadSpec(record_format, labels, _list_firsts(rows))
    canonical, edges = _sort(cluster, spec, rows, num_slabs)
    spec = spec._replace(labels=None)
    held, homes = _build(cluster, spec, rows, canonical, edges, layout)
    arguments = (spec.record_format, num_slabs, mode, list_rows(edges))
    return make_layout(cluster, *arguments, homes, held)


def rebuild_lost(cluster: Cluster, layout: ClusterLayout, labels: Labels) -> ClusterLayout:
    """Build the slabs that no worker holds, of partitions with the data of the whole tensor.

    Raises a RuntimeError if one differs from that which was lost.
    """
    workers = cluster.workers
    rows = [range(slab.rows.start, slab.rows.stop) for slab in layout.slabs]
    lost, (homes, held) = list_held(layout), replace_lost(layout, workers)
    missing = sorted(homes.keys() - held.keys())
    spec = LoadSpec(layout.record_format, labels, _list_firsts(rows))
    for worker in workers:
        cluster.call(worker, exchange.keep_buckets, [SITE, spec, missing], num_results=0)
    split, made = _split(cluster, spec), {}
    spec = spec._replace(labels=None)
    for number in missing:
        worker = workers[homes[number]]
        records, _ = _merge(cluster, spec, split, number, rows[number], worker)
        args = [SITE, spec, layout.name, rows[number], [records]]
        made[number] = cluster.run(worker, exchange.build, *args, num_results=2)
    facts = cluster.fetch([own for _, own in made.values()])
    for (number, (slab, _)), own in zip(made.items(), facts, strict=True):
        if own != lost[number].facts:
            raise RuntimeError(_CHANGED)
        held[number] = PlacedSlab(slab, own)
    arguments = (layout.record_format, layout.num_slabs, layout.cut_mode, rows)
    return make_layout(cluster, *arguments, homes, held)


def _list_firsts(rows: Sequence[range]) -> np.ndarray:
    return np.array([own.start for own in rows[1:]], np.uint32)


def _sort(
    cluster: Cluster, spec: LoadSpec, rows: Sequence[range], num_slabs: int
) -> tuple[list[RemoteObject], tuple[int, ...]]:
    """Exchange the nonzeros; return each bucket's canonical records, and the edges of the slabs."""
    split, workers = _split(cluster, spec), cluster.workers
    spec, canonical, counts = spec._replace(labels=None), [], []
    for bucket, home in enumerate(assign_homes(len(rows), len(workers))):
        merged, counted = _merge(cluster, spec, split, bucket, rows[bucket], workers[home])
        canonical.append(merged)
        counts.append(counted)
    return canonical, find_edges(np.concatenate(cluster.fetch(counts)), num_slabs)


def _split(cluster: Cluster, spec: LoadSpec) -> list[list[Any]]:
    """Have each worker distribute its nonzeros to buckets: records, then tables."""
    split, count = exchange.split_partitions, 2 * (spec.firsts.size + 1)
    return [cluster.run(w, split, SITE, spec, num_results=count) for w in cluster.workers]


def _merge(
    cluster: Cluster,
    spec: LoadSpec,
    split: list[list[Any]],
    bucket: int,
    rows: range,
    worker: WorkerHandle,
) -> list[RemoteObject]:
    """Have a worker make a bucket's records canonical; return also the counts of its rows."""
    places = (bucket, spec.firsts.size + 1 + bucket)
    records, tables = ([bring(cluster, own[n], worker) for own in split] for n in places)
    for own in split:  # so that each is freed as soon as it is used
        own[places[0]] = own[places[1]] = None
    args = [SITE, spec, rows, records, tables]
    return cluster.run(worker, exchange.merge_buckets, *args, num_results=2)


def _build(
    cluster: Cluster,
    spec: LoadSpec,
    rows: Sequence[range],
    canonical: list[RemoteObject],
    edges: Sequence[int],
    layout: str,
) -> tuple[dict[int, PlacedSlab], dict[int, int]]:
    """Build the slabs, each of records of one to three buckets."""
    exact, workers, made = list_rows(edges), cluster.workers, []
    homes = dict(enumerate(assign_homes(len(exact), len(workers))))
    for number, own in enumerate(exact):
        worker, pieces = workers[homes[number]], []
        for bucket, given in enumerate(rows):
            if given.start < own.stop and own.start < given.stop:
                source = canonical[bucket]
                (taken,) = cluster.run(source.worker, exchange.take_rows, spec, source, own)
                pieces.append(bring(cluster, taken, worker))
        args = [SITE, spec, layout, own, pieces]
        made.append(cluster.run(worker, exchange.build, *args, num_results=2))
        del pieces
    canonical.clear()
    facts = cluster.fetch([facts for _, facts in made])
    return dict(enumerate(map(PlacedSlab, [slab for slab, _ in made], facts))), homes
