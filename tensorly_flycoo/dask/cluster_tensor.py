"""The tensor whose slabs are on workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from distributed import Client

from ..base.devices import assign_homes
from ..format.layout import Layout
from ..io.slab_folder import Index, load_slab
from ..tensor.tensor import FlycooTensor
from .actor import start_workers
from .cluster import Cluster, WorkerHandle, Workers
from .cluster_engine import ENGINE_HERE, RemoteLayout
from .cluster_layout import (
    ClusterLayout,
    fetch_layouts,
    find_format,
    list_held,
    make_layout,
    replace_lost,
)
from .loading import PartitionedData
from .machine import Site
from .messages import SITE, Free
from .waiting import WorkerLost, check_limits, free_after_error


class Pool(NamedTuple):
    """The workers that a tensor may be on."""

    client: Client
    device: str | None
    named: Sequence[str] | None  # their addresses; by default those of all that the client has

    def start(self, held: Workers = (), most: int = 2**31) -> list[WorkerHandle]:
        """Start an actor on each worker of the pool; return all, the `held` ones first.

        `held` have an actor already: then only workers that are not paused join them, up to `most`
        in all.
        """
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        addresses = sorted(workers) if self.named is None else list(self.named)
        if held:
            held_addresses = {worker.address for worker in held}
            running = {name for name, facts in workers.items() if facts["status"] == "running"}
            addresses = [name for name in addresses if name in running - held_addresses]
        elif not addresses:
            raise RuntimeError("the client has no workers: call client.wait_for_workers(1) first")
        addresses = addresses[: max(0, most - len(held))]
        while True:
            try:
                return start_workers(self.client, addresses, self.device, held)
            except WorkerLost as error:  # perhaps one whose loss the scheduler had not noticed
                rest = [address for address in addresses if address not in error.addresses]
                if not held or len(rest) == len(addresses):
                    raise
                addresses = rest


#: The origin of a tensor. `place` loads all slabs on workers, neighbours together; `restore` loads
#: those that none of these workers holds: some workers of its `layout` are lost.
Source: TypeAlias = "SlabSource | PartitionedData | Derived"


@dataclass(frozen=True)
class SlabSource:
    """A folder of slabs, which are loaded one by one."""

    folder: Path
    index: Index
    keep: str  # "device" or "file", as of `open_slabs`
    verify: bool  # whether to check all data of mapped files

    def load(self, site: Site, number: int) -> Layout:
        """Load a slab, on its worker."""
        if self.keep == "device":
            site.check_room(self.index.entries[number].nbytes, f"slab {number} of {self.folder}")
        slab = load_slab(self.folder, self.index, site.engine, self.keep, self.verify, number)
        if self.keep == "file":
            site.add_mapping(slab.get_copies()[0])
        return slab

    def place(self, client: Client, workers: Workers) -> ClusterLayout:
        """Load all slabs, neighbours on one worker."""
        num_slabs = len(self.index.entries)
        used_workers = workers[:num_slabs]
        homes = dict(enumerate(assign_homes(num_slabs, len(used_workers))))
        if not used_workers[0].gpus.uuids:  # on CPUs
            nbytes = [entry.nbytes for entry in self.index.entries]
            share = sum(nbytes) // len(used_workers)
            if self.keep == "file":  # mapped slabs are used one by one
                share = max(nbytes)
            check_limits(client, [worker.address for worker in used_workers], share, "its slabs")
        return self._load_missing(client, used_workers, homes, {})

    def restore(self, client: Client, workers: Workers, layout: ClusterLayout) -> ClusterLayout:
        """Load the slabs that no worker holds any more, and those that are to move."""
        homes, kept = replace_lost(layout, workers)
        return self._load_missing(client, workers, homes, kept)

    def _load_missing(
        self, client: Client, workers: Workers, homes: dict[int, int], kept: dict[int, RemoteLayout]
    ) -> ClusterLayout:
        """Load the slabs that are not `kept` where they are."""
        cluster = Cluster(client, workers)
        index = self.index
        missing = sorted(homes.keys() - kept.keys())
        cluster.report(f"loading {len(missing)} slabs on {len(workers)} workers")
        loaded = []
        for number in missing:
            (layout,) = cluster.run(workers[homes[number]], self.load, SITE, number)
            loaded.append(layout)
        slabs = kept | dict(zip(missing, fetch_layouts(cluster, loaded), strict=True))
        rows = [range(entry.start, entry.stop) for entry in index.entries]
        record_format = find_format(cluster, index.shape, np.dtype(index.dtype), index.groups)
        return make_layout(cluster, rows, record_format, index.num_slabs, slabs)


class Derived(NamedTuple):
    """A function of a tensor; it holds the tensor's source, to compute lost slabs again."""

    source: Source  # of the other tensor
    function: Callable[[FlycooTensor], FlycooTensor]
    pool: Pool

    def place(self, client: Client, workers: Workers) -> ClusterLayout:
        """Load the other tensor, and compute this one."""
        x = ClusterTensor.of(self.source, self.pool, self.source.place(client, workers))
        return cast(ClusterLayout, self.function(x)._layout)

    def restore(self, client: Client, workers: Workers, layout: ClusterLayout) -> ClusterLayout:
        """Load all of the other tensor again, and compute this one."""
        for slab in list_held(layout):  # make room for those to come
            slab.held.worker.queue.append(Free(slab.held.key))
        # New actors: the running ones may still hold the tensor that this one was computed from.
        addresses = [worker.address for worker in workers]
        return self.place(client, start_workers(client, addresses, self.pool.device))


class ClusterTensor(FlycooTensor):
    """A sparse tensor whose slabs are on the workers of a Dask cluster.

    The functions of this module make it. `parafac`, its non-negative and constrained relatives,
    Tucker, `generalized_parafac`, masks, `select_rank`, `mttkrp`, `Progress`, elementwise
    functions, slices, transposes and sums take it as any other tensor; operations that would gather
    its nonzeros raise a TypeError.

    Attributes
    ----------
    workers : tuple of str
        The addresses of the workers that hold it.

    Notes
    -----
    Several threads may use it, and wait for each other. It belongs to the process and the client
    that made it: when the last reference to it and to its factors is gone, the workers free it.

    What an operation makes of it, such as ``2 * x``, is another one on the same workers.
    """

    _source: Source
    _pool: Pool
    _layout: ClusterLayout

    @classmethod
    def of(cls, source: Source, pool: Pool, layout: ClusterLayout) -> ClusterTensor:
        """Make a tensor of a layout that has come from a source."""
        x = cls._of(ENGINE_HERE, layout)
        x._source = source
        x._pool = pool
        return x

    def __repr__(self) -> str:
        return (
            f"<ClusterTensor: shape={self.shape}, dtype={self.dtype}, nnz={self.nnz}, "
            f"layout={self.layout!r}, slabs={self.slabs}, workers={len(self.workers)}>"
        )

    @property
    def workers(self) -> tuple[str, ...]:
        """The addresses of the workers that hold the slabs."""
        return tuple(worker.address for worker in self._cluster.workers)

    @property
    def _cluster(self) -> Cluster:
        return self._layout.devices.cluster

    def _derive(self, function: Callable[[FlycooTensor], FlycooTensor]) -> FlycooTensor:
        source = Derived(self._source, function, self._pool)
        layout = cast(ClusterLayout, function(self)._layout)
        return ClusterTensor.of(source, self._pool, layout)

    def recover(self) -> None:
        """Load the slabs of workers that are gone on others, from where they came.

        Others are those that hold slabs, and all that the client has by now, or those of them that
        were named when the tensor was loaded: call ``client.wait_for_workers`` before, if new ones
        are to come. Slabs on workers that are there stay, up to a fair share. Those of a folder are
        loaded one by one. Other data are read again, but only the nonzeros of lost slabs are kept,
        exchanged and sorted. What an operation has made of another tensor is computed again from
        that one's data, all of which are loaded. Factors that were on a lost worker are lost: start
        from a checkpoint (`Progress.resume`), which leads to the same bits, or anew.

        If no worker is lost, nothing is done: see `rebalance`.

        Raises
        ------
        WorkerLost
            If another worker is lost meanwhile: call it again.
        MemoryError
            If workers have too little memory, or Dask has paused them.
        RuntimeError
            If no worker is left, and the client has no others; if the client is closed; or if the
            data are not those that were loaded.
        """
        if not all(worker.is_there for worker in self._cluster.workers):
            self.rebalance()

    def rebalance(self) -> None:
        """Spread the slabs evenly over all workers of the client, new ones included.

        Slabs that move are loaded as by `recover`, with its errors; bits stay the same. Copy
        existing factors to this process first (`tensorly.to_numpy`).
        """
        self._cluster.check_client()
        living_workers = [worker for worker in self._cluster.workers if worker.is_there]
        with free_after_error():
            pool = self._pool
            if not living_workers:  # take any workers that the client has, not only named ones
                pool = pool._replace(named=None)
            workers = pool.start(living_workers, len(self._layout.slabs))
            if workers == self._cluster.workers:
                return
            layout = self._source.restore(pool.client, workers, self._layout)
            self._set(ENGINE_HERE, layout)
