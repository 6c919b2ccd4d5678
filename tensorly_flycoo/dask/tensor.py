"""The tensor whose slabs are on workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from distributed import Client

from ..devices import assign_homes
from ..format.packing import RecordFormat
from ..format.slab_layout import Slab
from ..tensor.tensor import FlycooTensor
from .cluster import Cluster, RemoteObject, WorkerHandle
from .engine import ClusterEngine, ClusterLayout, RemoteLayout, WorkerDevices
from .messages import SITE, Free
from .site import LoadSlab, SlabFacts, choose_format, load_slab
from .starting import start_workers

#: What computes here, for all tensors on clusters.
ENGINE_HERE = ClusterEngine()


class Held(NamedTuple):
    """A slab on a worker."""

    slab: RemoteObject
    facts: SlabFacts


class Placed(NamedTuple):
    """A tensor's slabs on workers.

    Attributes
    ----------
    cluster : Cluster
    record_format : RecordFormat
        Of the whole tensor, for the workers' kernels.
    num_slabs, cut_mode : int
    rows : sequence of range
        Of each slab, in the cut mode.
    homes : dict of int to int
        The worker of each slab.
    held : dict of int to Held
    """

    cluster: Cluster
    record_format: RecordFormat
    num_slabs: int
    cut_mode: int
    rows: Sequence[range]
    homes: dict[int, int]
    held: dict[int, Held]

    def make_layout(self) -> ClusterLayout:
        """Make the layout of the whole tensor."""
        slabs = []
        for number, rows in enumerate(self.rows):
            layout: Any = RemoteLayout(self.cluster, *self.held[number])
            slabs.append(Slab(slice(rows.start, rows.stop), layout, self.homes[number]))
        norm = math.hypot(*(slab.layout.norm for slab in slabs))
        arguments = (self.record_format, self.num_slabs, self.cut_mode, slabs, norm, ENGINE_HERE)
        return ClusterLayout(*arguments, WorkerDevices(self.cluster))


class Source(Protocol):
    """Where a tensor comes from."""

    def place(self, client: Client, workers: Sequence[WorkerHandle]) -> Placed:
        """Load all slabs on workers, neighbours together."""


@dataclass(frozen=True)
class SlabSource:
    """Slabs that can be loaded one by one.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    num_slabs, cut_mode : int
    rows : sequence of range
        The rows of the cut mode of each slab.
    load : callable
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    num_slabs: int
    cut_mode: int
    rows: Sequence[range]
    load: LoadSlab

    def place(self, client: Client, workers: Sequence[WorkerHandle]) -> Placed:
        workers = workers[: len(self.rows)]
        homes = dict(enumerate(assign_homes(len(self.rows), len(workers))))
        return self.load_missing(client, workers, homes, {})

    def load_missing(
        self,
        client: Client,
        workers: Sequence[WorkerHandle],
        homes: dict[int, int],
        held: dict[int, Held],
    ) -> Placed:
        """Load the slabs that are not held."""
        cluster, new = Cluster(client, workers), {}
        for number in sorted(homes.keys() - held.keys()):
            worker = workers[homes[number]]
            keys = cluster.call(worker, load_slab, [SITE, self.load, number], num_results=2)
            new[number] = [RemoteObject(worker, key) for key in keys]
        record_format = fetch_format(cluster, self.shape, self.dtype)
        found = cluster.fetch([facts for _, facts in new.values()])
        for (number, (slab, _)), facts in zip(new.items(), found, strict=True):
            held[number] = Held(slab, facts)
        arguments = (record_format, self.num_slabs, self.cut_mode, self.rows)
        return Placed(cluster, *arguments, homes, held)


def fetch_format(cluster: Cluster, shape: tuple[int, ...], dtype: np.dtype) -> RecordFormat:
    """Ask a worker for the format of records of a tensor; all have the same kind of device."""
    worker = cluster.workers[0]
    (key,) = cluster.call(worker, choose_format, [SITE, shape, dtype])
    return cluster.fetch([RemoteObject(worker, key)])[0]


class ClusterTensor(FlycooTensor):
    """A sparse tensor whose slabs are on the workers of a Dask cluster.

    The functions of this module make it. `parafac`, its non-negative and constrained relatives,
    Tucker, Poisson losses, masks, `mttkrp`, `Progress`, elementwise functions and sums of all
    elements take it as any other tensor; operations that would gather its nonzeros raise a
    TypeError.

    Attributes
    ----------
    workers : tuple of str
        The addresses of the workers that hold it.

    Notes
    -----
    Several threads may use it, and wait for each other. It belongs to the process and the client
    that made it: when the last reference to it and to its factors is gone, the workers free it.

    Elementwise functions give a `FlycooTensor` on the same workers, without `recover`: compute it
    again from this one.
    """

    _source: Source
    _client: Client
    _device: str | None
    _placed: Placed

    @classmethod
    def load(
        cls, source: Source, client: Client, addresses: Sequence[str], device: str | None = None
    ) -> ClusterTensor:
        """Load a tensor on workers."""
        x = object.__new__(cls)
        x._source, x._client, x._device = source, client, device
        x._take(source.place(client, start_workers(client, addresses, device)))
        return x

    def __repr__(self) -> str:
        return (
            f"<ClusterTensor: shape={self.shape}, dtype={self.dtype}, nnz={self.nnz}, "
            f"layout={self.layout!r}, slabs={self.slabs}, workers={len(self.workers)}>"
        )

    def _take(self, placed: Placed) -> None:
        self._placed = placed
        self._set(ENGINE_HERE, placed.make_layout())

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(worker.address for worker in self._cluster.workers)

    @property
    def _cluster(self) -> Cluster:
        return self._placed.cluster

    def recover(self) -> None:
        """Load the slabs of workers that are gone on the others, from where they came.

        Slabs of a folder are loaded one by one, and those on workers that are there stay. From
        other sources all of the data is loaded again. Factors that were on a lost worker are lost:
        start from a checkpoint (`Progress.resume`), which leads to the same bits, or anew.

        Raises
        ------
        WorkerLost
            If another worker is lost meanwhile: call it again.
        RuntimeError
            If no worker is left, and the client has no others.
        """
        workers = [worker for worker in self._cluster.workers if worker.is_there]
        if not workers:
            workers = start_workers(self._client, list_workers(self._client), self._device)
        if isinstance(self._source, SlabSource):
            self._take(self._reload(self._source, workers))
            return
        for own in self._placed.held.values():  # room for those to come
            own.slab.worker.queue.append(Free(own.slab.key))
        self._take(self._source.place(self._client, workers))

    def _reload(self, source: SlabSource, workers: list[WorkerHandle]) -> Placed:
        """Load the lost slabs where the fewest nonzeros are."""
        known = self._placed.held
        held = {n: own for n, own in known.items() if own.slab.worker in workers}
        homes = {n: workers.index(own.slab.worker) for n, own in held.items()}
        loads = dict.fromkeys(range(len(workers)), 0)
        for number in [*held, *sorted(known.keys() - held.keys())]:
            if number not in held:
                homes[number] = min(loads, key=lambda n: loads[n])
            loads[homes[number]] += known[number].facts.nnz
        return source.load_missing(self._client, workers, homes, held)


def list_workers(client: Client) -> list[str]:
    """List the addresses of a client's workers.

    Raises
    ------
    RuntimeError
        If there are none.
    """
    addresses = sorted(client.nthreads())
    if not addresses:
        raise RuntimeError(
            "the client has no workers, expected at least one: wait for them by "
            "client.wait_for_workers(1)"
        )
    return addresses
