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
from .cluster import Cluster, RemoteObject, WorkerHandle
from .engine import bring
from .exchange import Plan
from .messages import SITE
from .partitions import Summary, keep_partition
from .tensor import Held, Placed, fetch_format

#: The most nonzeros of a slab, by default, and the fewest slabs: results depend on their number, so
#: it depends on the data only.
_SLAB_NNZ, _FEWEST_SLABS = 2**25, 8

#: Seconds between looks whether the workers that read are there.
_CHECK_INTERVAL = 0.02


@dataclass
class Parts:
    """Data in partitions, and how a tensor is made of them.

    Attributes
    ----------
    parts : list
        What `reader` takes, or objects of Dask that become such.
    reader : callable
    shape : tuple of int or None
    num_slabs : int or None
    dtype : numpy.dtype or None
    layout : str
    labels : list of array or None
        Those of each mode, once they are known.
    """

    parts: Sequence[Any]
    reader: Any
    shape: tuple[int, ...] | None = None
    num_slabs: int | None = None
    dtype: Any = None
    layout: str = "replicated"
    labels: list[np.ndarray] | None = None

    def place(self, client: Client, workers: Sequence[WorkerHandle]) -> Placed:
        """Load all slabs, neighbours together."""
        cluster = Cluster(client, workers)
        forget_partitions(cluster)
        summaries = self._read(client, cluster)
        shape, dtype = self._merge(summaries)
        num_slabs = self.num_slabs or max(
            _FEWEST_SLABS, -(-sum(summary.nnz for summary in summaries) // _SLAB_NNZ)
        )
        return distribute(cluster, shape, dtype, num_slabs, self.layout, self.labels)

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

    def _merge(self, summaries: Sequence[Summary]) -> tuple[tuple[int, ...], np.dtype]:
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
        if entries:
            self.labels = [_unite(of_mode) for of_mode in zip(*entries, strict=True)]
            shape = tuple(of_mode.size for of_mode in self.labels)
        elif self.shape is not None:
            if len(self.shape) != len(shape) or any(map(int.__gt__, shape, self.shape)):
                raise ValueError(f"shape is {self.shape}, expected at least {shape}")
            shape = self.shape
        return check_shape(shape), dtype


def _is_under_way(futures: Sequence[Future]) -> bool:
    """Return whether some futures are pending and none has failed."""
    states = {future.status for future in futures}
    return "pending" in states and not states & {"error", "lost", "cancelled"}


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
) -> Placed:
    """Build a tensor of nonzeros that the workers hold: what they make of other tensors.

    Parameters
    ----------
    calls : iterable
        Workers, functions and arguments: a function gets the worker's site, the number of a
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
    args = [SITE]
    cluster.fetch([_call(w, cluster, exchange.forget_partitions, args) for w in cluster.workers])


def distribute(
    cluster: Cluster,
    shape: tuple[int, ...],
    dtype: np.dtype,
    num_slabs: int,
    layout: str,
    labels: list[np.ndarray] | None = None,
) -> Placed:
    """Build slabs of the partitions that the workers hold."""
    mode, workers = find_longest_mode(shape), cluster.workers
    args = [SITE, mode, shape[mode], labels]
    found = [_call(worker, cluster, exchange.count_partitions, args) for worker in workers]
    counts = np.sum(cluster.fetch(found), axis=0)
    rows = list_rows(find_edges(counts, num_slabs))
    firsts = np.array([own.start for own in rows[1:]], np.uint32)
    plan = Plan(fetch_format(cluster, shape, dtype), labels, firsts)
    canonical, edges = _sort(cluster, plan, rows, num_slabs)
    plan = plan._replace(labels=None)
    held, homes = _build(cluster, plan, rows, canonical, edges, layout)
    return Placed(cluster, plan.record_format, num_slabs, mode, list_rows(edges), homes, held)


def _call(worker: WorkerHandle, cluster: Cluster, function: Any, args: list[Any]) -> RemoteObject:
    (key,) = cluster.call(worker, function, args)
    return RemoteObject(worker, key)


def _call_many(
    worker: WorkerHandle, cluster: Cluster, function: Any, args: list[Any], num_results: int
) -> list[RemoteObject]:
    keys = cluster.call(worker, function, args, num_results=num_results)
    return [RemoteObject(worker, key) for key in keys]


def _sort(
    cluster: Cluster, plan: Plan, rows: Sequence[range], num_slabs: int
) -> tuple[list[RemoteObject], tuple[int, ...]]:
    """Exchange the nonzeros; return each bucket's canonical records, and the edges of the slabs."""
    count, workers = len(rows), cluster.workers
    split = [
        _call_many(worker, cluster, exchange.split_partitions, [SITE, plan], 2 * count)
        for worker in workers
    ]
    plan, canonical, counts = plan._replace(labels=None), [], []
    for bucket, home in enumerate(assign_homes(count, len(workers))):
        worker = workers[home]
        records = [bring(cluster, own[bucket], worker) for own in split]
        tables = [bring(cluster, own[count + bucket], worker) for own in split]
        for own in split:  # so that each is freed as soon as it is used
            own[bucket] = own[count + bucket] = None  # type: ignore[call-overload]
        args = [SITE, plan, rows[bucket], records, tables]
        merged, counted = _call_many(worker, cluster, exchange.merge_buckets, args, 2)
        canonical.append(merged)
        counts.append(counted)
    return canonical, find_edges(np.concatenate(cluster.fetch(counts)), num_slabs)


def _build(
    cluster: Cluster,
    plan: Plan,
    rows: Sequence[range],
    canonical: list[RemoteObject],
    edges: Sequence[int],
    layout: str,
) -> tuple[dict[int, Held], dict[int, int]]:
    """Build the slabs, each of records of one to three buckets."""
    exact, workers, made = list_rows(edges), cluster.workers, []
    homes = dict(enumerate(assign_homes(len(exact), len(workers))))
    for number, own in enumerate(exact):
        worker, pieces = workers[homes[number]], []
        for bucket, given in enumerate(rows):
            if given.start < own.stop and own.start < given.stop:
                source = canonical[bucket]
                taken = _call(source.worker, cluster, exchange.take_rows, [plan, source, own])
                pieces.append(bring(cluster, taken, worker))
        args = [SITE, plan, layout, own, pieces]
        made.append(_call_many(worker, cluster, exchange.build, args, 2))
        del pieces
    canonical.clear()
    facts = cluster.fetch([facts for _, facts in made])
    held = {n: Held(slab, own) for n, ((slab, _), own) in enumerate(zip(made, facts, strict=True))}
    return held, homes
