"""The tensor whose slabs are on workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from distributed import Client

from ..devices import assign_homes
from ..format.slab_layout import Slab
from ..tensor.tensor import FlycooTensor
from .cluster import Cluster, RemoteObject, WorkerHandle, start_workers
from .engine import ClusterEngine, ClusterLayout, RemoteLayout, WorkerDevices
from .messages import SITE
from .site import LoadSlab, SlabFacts, load_slab

_ENGINE = ClusterEngine()


class Source(NamedTuple):
    """Where the slabs of a tensor come from.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    num_slabs, cut_mode : int
    rows : list of range
        The rows of the cut mode of each slab.
    load : callable
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    num_slabs: int
    cut_mode: int
    rows: Sequence[range]
    load: LoadSlab


class _Held(NamedTuple):
    """A slab on a worker."""

    slab: RemoteObject
    facts: SlabFacts


class ClusterTensor(FlycooTensor):
    """A sparse tensor whose slabs are on the workers of a Dask cluster.

    The functions of this module make it. Decompositions that need only its shape, its norm and
    MTTKRP take it as any other tensor; operations that read its nonzeros are refused.

    Attributes
    ----------
    workers : tuple of str
        The addresses of the workers that hold it.
    """

    _source: Source
    _client: Client
    _device: str | None
    _held: dict[int, _Held]

    @classmethod
    def load(
        cls, source: Source, client: Client, addresses: Sequence[str], device: str | None = None
    ) -> ClusterTensor:
        """Load slabs on workers, neighbours together."""
        x = object.__new__(cls)
        x._source, x._client, x._device = source, client, device
        workers = start_workers(client, addresses[: len(source.rows)], device)
        homes = assign_homes(len(source.rows), len(workers))
        x._place(workers, dict(enumerate(homes)), {})
        return x

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(worker.address for worker in self._cluster.workers)

    @property
    def _cluster(self) -> Cluster:
        devices = self._layout.devices  # type: ignore[union-attr]
        assert isinstance(devices, WorkerDevices)
        return devices.cluster

    def recover(self) -> None:
        """Load the slabs of workers that are gone on the others, from where they came.

        Factors that were on a lost worker are lost: start from a checkpoint
        (`Progress.resume`), which leads to the same bits, or anew. If no worker is left that held a
        slab, all workers that the client knows now take their place.

        Raises
        ------
        WorkerLost
            If another worker is lost meanwhile: call it again.
        RuntimeError
            If the client has no workers.

        Notes
        -----
        Slabs on workers that are there stay where they are.
        """
        workers = [worker for worker in self._cluster.workers if worker.is_there]
        held = {n: own for n, own in self._held.items() if own.slab.worker in workers}
        if not workers:
            addresses = list_workers(self._client)[: len(self._source.rows)]
            workers = start_workers(self._client, addresses, self._device)
        loads = dict.fromkeys(workers, 0)
        homes = {n: workers.index(own.slab.worker) for n, own in held.items()}
        for own in held.values():
            loads[own.slab.worker] += own.facts.nnz
        for number in range(len(self._source.rows)):
            if number not in held:
                worker = min(workers, key=lambda w: loads[w])
                homes[number] = workers.index(worker)
                loads[worker] += self._held[number].facts.nnz
        self._place(workers, homes, held)

    def _place(
        self, workers: list[WorkerHandle], homes: dict[int, int], held: dict[int, _Held]
    ) -> None:
        """Load the slabs that are not held, and take up all of them."""
        source, cluster, new = self._source, Cluster(self._client, workers), {}
        for number in sorted(homes.keys() - held.keys()):
            worker = workers[homes[number]]
            args = [SITE, source.load, number]
            keys = cluster.call(worker, load_slab, args, num_results=2)
            new[number] = [RemoteObject(worker, key) for key in keys]
        found = cluster.fetch([facts for _, facts in new.values()])
        for (number, (slab, _)), facts in zip(new.items(), found, strict=True):
            held[number] = _Held(slab, facts)
        slabs = []
        for number, rows in enumerate(source.rows):
            layout: Any = RemoteLayout(cluster, *held[number])
            slabs.append(Slab(slice(rows.start, rows.stop), layout, homes[number]))
        record_format = _ENGINE.choose_cut(source.shape, source.dtype).record_format
        norm = math.hypot(*(slab.layout.norm for slab in slabs))
        arguments = (record_format, source.num_slabs, source.cut_mode, slabs, norm, _ENGINE)
        self._set(_ENGINE, ClusterLayout(*arguments, WorkerDevices(cluster)))
        self._held = held


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
