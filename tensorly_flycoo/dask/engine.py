"""Slabs and devices that are workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from ..array_modules import Array
from ..devices import OneDevice, Request
from ..engines import slabs
from ..engines.cpu.engine import CpuEngine
from ..format.slab_layout import AnyLayout, Slab, SlabLayout, SpreadLayout
from ..format.tree import Tree, add_parts, count_parts
from ..shards.row_shards import RowShards
from ..shards.whole_factors import scatter_all
from ..tensor.digest import sum_hashes
from .cluster import Cluster, RemoteObject
from .messages import ENGINE, SITE
from .remote_array import RemoteArray, RemoteModule, call_method, send_all
from .replicated import Replicated
from .site import SlabFacts

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.layout import Layout


class WorkerDevices:
    """The workers of a cluster; implements `tensorly_flycoo.devices.Devices`.

    What belongs to no slab is in the client's memory, as NumPy arrays.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.count = len(cluster.workers)

    def check_current(self) -> None:
        self.cluster.check()

    def use(self, device: int) -> AbstractContextManager[object]:
        return self.cluster.use(device)

    def bring(self, array: Array, device: int) -> RemoteArray:
        return self.gather([((array,), device)])[0]

    def gather(self, requests: Sequence[Request]) -> list[RemoteArray]:
        wanted = [
            (self._take(array, device), self.cluster.workers[device])
            for arrays, device in requests
            for array in arrays
        ]
        there = iter(send_all(self.cluster, wanted))
        gathered: list[RemoteArray] = []
        for arrays, _ in requests:
            own = [next(there) for _ in arrays]
            gathered.append(own[0] if len(own) == 1 else self._join(own))
        return gathered

    def _join(self, arrays: list[RemoteArray]) -> RemoteArray:
        first = arrays[0]
        (key,) = self.cluster.call(first.worker, call_method, [SITE, "join", arrays])
        shape = (sum(x.shape[0] for x in arrays), *first.shape[1:])
        return RemoteArray(self.cluster, first.worker, key, shape, first.dtype)

    def _take(self, array: Array, device: int) -> RemoteArray:
        """Return an array that is on any worker; copy one that is here."""
        if isinstance(array, RemoteArray):
            return array
        worker = self.cluster.workers[device]
        if isinstance(array, Replicated):
            return array.compute_on(self.cluster, worker)
        return RemoteArray.put(self.cluster, worker, np.asarray(array))

    def collect(self, arrays: Sequence[Array]) -> list[np.ndarray]:
        there = [array for array in arrays if isinstance(array, RemoteArray)]
        found = iter(self.cluster.fetch(there)) if there else iter(())
        return [next(found) if isinstance(x, RemoteArray) else x for x in arrays]

    def replicate(self, arrays: Sequence[Array], function: Callable[..., Array]) -> Replicated:
        return Replicated.of(self.cluster, arrays, function)

    def fetch(self, array: Array) -> np.ndarray:
        return self.collect([array])[0]


class RemoteLayout:
    """The layout of a slab that a worker holds.

    It has those members of `Layout` that do not need the nonzeros here.

    Attributes
    ----------
    held : RemoteObject
    facts : SlabFacts
    """

    def __init__(self, cluster: Cluster, held: RemoteObject, facts: SlabFacts) -> None:
        self._cluster = cluster
        self.held = held
        self.facts = facts
        self.name, self.nnz, self.norm, self.nbytes, self.record_format = facts

    def find_empty_rows(self, mode: int) -> np.ndarray:
        return self.fetch(call_method, self.held, "find_empty_rows", mode)

    def call(self, function: Callable[..., Any], *args: Any) -> RemoteObject:
        """Have the worker call a function of remote objects there."""
        (key,) = self._cluster.call(self.held.worker, function, args)
        return RemoteObject(self.held.worker, key)

    def fetch(self, function: Callable[..., Any], *args: Any) -> Any:
        """Wait for the result of `call`, and return it."""
        return self._cluster.fetch([self.call(function, *args)])[0]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TypeError(
            "the nonzeros of this tensor are on a cluster, and this operation reads them: of "
            "decompositions, take one of parafac's kind with init='random' or a start of your own; "
            "or open the tensor in one process (tensorly_flycoo.open_slabs)"
        )


class ClusterLayout(SpreadLayout):
    """Slabs on workers."""

    devices: WorkerDevices

    def get_copies(self) -> list[np.ndarray]:
        return [np.empty(0)]  # none that is here

    def _bring(self, array: Array) -> np.ndarray:
        return self.devices.fetch(array)


class ClusterEngine(CpuEngine):
    """Computes on the workers what belongs to slabs, and the rest here."""

    name = "dask"

    def mttkrp(
        self,
        layout: AnyLayout,
        factors: Sequence[Array],
        mode: int,
        out: Array,
        weights: Array | None = None,
    ) -> None:
        assert isinstance(layout, ClusterLayout)
        out[...] = self.mttkrp_shards(layout, factors, mode, weights).to_numpy()

    def count_workspace_nbytes(self, layout: AnyLayout, factors: Sequence[Array], mode: int) -> int:
        return 0  # here

    def mttkrp_shards(
        self,
        layout: SpreadLayout,
        factors: Sequence[Array | RowShards],
        mode: int,
        weights: Array | None = None,
    ) -> RowShards:
        # Scattered and then gathered, each row of a plain factor leaves this process once.
        sharded = scatter_all(layout, factors)
        engine = cast("Engine", _WorkerEngine(layout))
        return slabs.mttkrp_shards(engine, layout, sharded, mode, weights)


class _WorkerEngine:
    """What `engines.slabs` needs of an engine, done by the workers."""

    def __init__(self, layout: SpreadLayout) -> None:
        self._cluster = cast(WorkerDevices, layout.devices).cluster
        self.xp = RemoteModule(self._cluster)

    def mttkrp(
        self,
        layout: RemoteLayout,
        factors: list[RemoteArray],
        mode: int,
        out: RemoteArray,
        weights: RemoteArray | None,
    ) -> None:
        args = [ENGINE, "mttkrp", layout.held, factors, mode, out, weights]
        self._cluster.call(out.worker, call_method, args, num_results=0)

    def add_rows(self, rows: RemoteArray, others: RemoteArray) -> None:
        args = [ENGINE, "add_rows", rows, others]
        self._cluster.call(rows.worker, call_method, args, num_results=0)

    def add_parts(self, rows: RemoteArray, tree: Tree) -> RemoteArray:
        (key,) = self._cluster.call(rows.worker, add_parts, [rows, tree])
        shape = (rows.shape[0] // count_parts(tree), *rows.shape[1:])
        return RemoteArray(self._cluster, rows.worker, key, shape, rows.dtype)


@sum_hashes.register
def _(layout: ClusterLayout, engine: ClusterEngine) -> int:
    found = []
    for rows, own, _ in layout.slabs:
        assert isinstance(own, RemoteLayout)
        found.append(own.call(hash_slab, ENGINE, own.held, layout.cut_mode, rows))
    return sum(layout.devices.cluster.fetch(found)) % 2**64


def hash_slab(engine: Engine, layout: Layout, cut_mode: int, rows: slice) -> int:
    """Add the hashes of a slab's nonzeros, with the coordinates of the whole tensor."""
    devices, slabs_ = OneDevice(engine.xp), [Slab(rows, layout)]
    arguments = (layout.record_format, 1, cut_mode, slabs_, layout.norm, engine, devices)
    return sum_hashes(SlabLayout(*arguments), engine)
