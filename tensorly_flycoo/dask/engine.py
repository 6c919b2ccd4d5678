"""Slabs and devices that are workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from ..array_modules import Array
from ..devices import Request
from ..engines import slabs
from ..engines.cpu.engine import CpuEngine
from ..format.slab_layout import AnyLayout, Slab, SpreadLayout
from ..format.tree import Tree, add_parts, count_parts
from ..shards.row_shards import RowShards
from ..shards.sharding import find_sharding
from ..shards.whole_factors import scatter_all
from .cluster import Cluster
from .handles import RemoteObject
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

    def run(self, device: int, function: Callable[..., Any], *args: Any) -> RemoteObject:
        worker = self.cluster.workers[device]
        return self.cluster.run(worker, function, *map(as_reference, args))[0]

    def launch(self, results: Iterator[Any]) -> list[Any]:
        return list(results)

    def bring(self, array: Array, device: int) -> RemoteObject:
        return self.gather([((array,), device)])[0]

    def gather(self, requests: Sequence[Request]) -> list[RemoteObject]:
        wanted = [
            (self._take(array, device), self.cluster.workers[device])
            for arrays, device in requests
            for array in arrays
        ]
        there = iter(send_all(self.cluster, wanted))
        gathered: list[RemoteObject] = []
        for arrays, device in requests:
            own = [next(there) for _ in arrays]
            gathered.append(own[0] if len(own) == 1 else self._join(own, device))
        return gathered

    def _join(self, arrays: list[Any], device: int) -> RemoteObject:
        first = arrays[0]
        if not all(isinstance(array, RemoteArray) for array in arrays):
            return self.run(device, np.concatenate, arrays)
        (key,) = self.cluster.call(first.worker, call_method, [SITE, "join", arrays])
        shape = (sum(x.shape[0] for x in arrays), *first.shape[1:])
        return RemoteArray(self.cluster, first.worker, key, shape, first.dtype)

    def _take(self, array: Array, device: int) -> RemoteObject:
        """Return an array that is on any worker; copy one that is here."""
        if isinstance(array, RemoteObject):
            return array
        worker = self.cluster.workers[device]
        if isinstance(array, Replicated):
            return array.compute_on(self.cluster, worker)
        return RemoteArray.put(self.cluster, worker, np.asarray(array))

    def collect(self, arrays: Sequence[Array]) -> list[np.ndarray]:
        there = [array for array in arrays if isinstance(array, RemoteObject)]
        found = iter(self.cluster.fetch(there)) if there else iter(())
        return [next(found) if isinstance(x, RemoteObject) else x for x in arrays]

    def replicate(self, arrays: Sequence[Array], function: Callable[..., Array]) -> Replicated:
        return Replicated.of(self.cluster, arrays, function)

    def fetch(self, arrays: Sequence[Array]) -> list[np.ndarray]:
        return self.collect(arrays)


class RemoteLayout:
    """The layout of a slab that a worker holds.

    Has those members of `Layout` that do not need the nonzeros here.
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
        return self._cluster.run(self.held.worker, function, *args)[0]

    def fetch(self, function: Callable[..., Any], *args: Any) -> Any:
        """Wait for the result of `call`, and return it."""
        return self._cluster.fetch([self.call(function, *args)])[0]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TypeError(
            "the nonzeros of this tensor are on a cluster, and this operation would gather them: "
            "parafac, its relatives, tucker, generalized_parafac, select_rank, masks, elementwise "
            "functions, slices, transposes and sums do not; or open the tensor in one process "
            "(tensorly_flycoo.open_slabs)"
        )


def as_reference(x: Any) -> Any:
    """Return what stands for an engine or a slab's layout in commands."""
    if isinstance(x, RemoteLayout):
        return x.held
    return ENGINE if isinstance(x, ClusterEngine) else x


class ClusterLayout(SpreadLayout):
    """Slabs on workers."""

    devices: WorkerDevices

    def get_copies(self) -> list[np.ndarray]:
        return [np.empty(0)]  # none that is here

    def _map_slab(self, slab: Slab, function: Callable[[Array], Array], scale: float) -> Slab:
        own: Any = slab.layout
        mapped = own.call(call_method, own.held, "map_values", function, scale)
        facts = own.facts._replace(norm=own.norm * scale)
        layout: Any = RemoteLayout(self.devices.cluster, mapped, facts)
        return slab._replace(layout=layout)

    def _bring(self, array: Array) -> np.ndarray:
        return self.devices.fetch([array])[0]


class ClusterEngine(CpuEngine):
    """Computes on the workers what belongs to slabs, and the rest here."""

    name = "dask"
    local_device = CpuEngine.name

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

    def mttkrp_of_ratios(
        self,
        layout: AnyLayout,
        factors: Sequence[Array],
        mode: int,
        out: Array,
        smallest: float,
        *,
        wants_logs: bool = False,
        stays: bool = False,
    ) -> Array | None:
        assert isinstance(layout, ClusterLayout)
        engine, sharded = cast("Engine", _WorkerEngine(layout)), scatter_all(layout, factors)
        product, log_sum = slabs.mttkrp_of_ratios_shards(
            engine, layout, sharded, mode, smallest, wants_logs=wants_logs, stays=stays
        )
        out[...] = product.to_numpy()
        return log_sum

    def ttmc(
        self,
        layout: AnyLayout,
        mode: int,
        inputs: Mapping[int, Array],
        out: Array,
        slots: Array | None = None,
    ) -> None:
        assert isinstance(layout, ClusterLayout)
        engine = cast("Engine", _WorkerEngine(layout))
        sharded = {n: RowShards.scatter(x, find_sharding(layout, n)) for n, x in inputs.items()}
        product = slabs.ttmc_shards(engine, layout, mode, sharded, out.shape, slots).to_numpy()
        if mode == layout.cut_mode and slots is not None:
            numbers = np.delete(np.arange(slots.size), layout.find_empty_rows(mode))
            out[slots[numbers]] = product[numbers]
        else:
            out[...] = product


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

    def mttkrp_of_ratios(
        self,
        layout: RemoteLayout,
        factors: list[RemoteArray],
        mode: int,
        out: RemoteArray,
        smallest: float,
        **options: bool,
    ) -> RemoteArray:
        args = [ENGINE, "mttkrp_of_ratios", layout.held, factors, mode, out, smallest]
        (key,) = self._cluster.call(out.worker, call_method, args, options)
        return RemoteArray(self._cluster, out.worker, key, (), np.float64)

    def ttmc(
        self,
        layout: RemoteLayout,
        mode: int,
        inputs: Mapping[int, RemoteArray],
        out: RemoteArray,
        slots: RemoteArray | None,
    ) -> None:
        args = [ENGINE, layout.held, mode, list(inputs), list(inputs.values()), out, slots]
        self._cluster.call(out.worker, _compute_ttmc, args, num_results=0)

    def add_rows(self, rows: RemoteArray, others: RemoteArray) -> None:
        args = [ENGINE, "add_rows", rows, others]
        self._cluster.call(rows.worker, call_method, args, num_results=0)

    def add_parts(self, rows: RemoteArray, tree: Tree) -> RemoteArray:
        (key,) = self._cluster.call(rows.worker, add_parts, [rows, tree])
        shape = (rows.shape[0] // count_parts(tree), *rows.shape[1:])
        return RemoteArray(self._cluster, rows.worker, key, shape, rows.dtype)


def _compute_ttmc(
    engine: Engine,
    layout: Layout,
    mode: int,
    modes: list[int],
    factors: list[Array],
    out: Array,
    slots: Array | None,
) -> None:
    engine.ttmc(layout, mode, dict(zip(modes, factors, strict=True)), out, slots)
