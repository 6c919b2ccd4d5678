"""Devices that are workers of a cluster, and the engine that has them compute."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ..base.array_modules import Array
from ..base.devices import Devices, Request
from ..engines.cpu.engine import CpuEngine
from ..format.group_passes import FindRows, GroupRows
from ..format.layout import Layout
from ..format.primitives import Operation, Primitives
from ..format.tree import Tree, add_parts, count_parts
from .cluster import Cluster, RemoteObject
from .machine import SlabFacts
from .messages import ENGINE
from .remote_array import RemoteArray, Replicated, send_all


class WorkerDevices(Devices):
    """The workers of a cluster as `Devices`; the home device is the client, with NumPy arrays."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.count = len(cluster.workers)

    def check_current(self) -> None:
        self.cluster.check()

    def empty(self, device: int, shape: tuple[int, int], dtype: np.dtype) -> RemoteArray:
        return RemoteArray.empty(self.cluster, self.cluster.workers[device], shape, dtype)

    def run(self, device: int, function: Callable[..., Any], *args: Any) -> RemoteObject:
        worker = self.cluster.workers[device]
        (result,) = self.cluster.run(worker, function, *map(as_reference, args))
        return result

    def launch(self, results: Iterator[Any]) -> list[Any]:
        return list(results)

    def gather(self, requests: Sequence[Request]) -> list[Any]:
        wanted = []
        for arrays, device in requests:
            worker = self.cluster.workers[device]
            wanted += [(self._take(array, device), worker) for array in arrays]
        sent = iter(send_all(self.cluster, wanted))  # all at once
        return [self._join([next(sent) for _ in arrays], device) for arrays, device in requests]

    def _join(self, arrays: list[Any], device: int) -> RemoteObject:
        """Put arrays on one worker below each other."""
        if len(arrays) == 1:
            return arrays[0]
        if all(isinstance(array, RemoteArray) for array in arrays):
            return arrays[0].call_remotely(np.concatenate, arrays)
        return self.run(device, np.concatenate, arrays)

    def _take(self, array: Array, device: int) -> RemoteObject:
        """Return an array that is on any worker; copy one that is here."""
        if isinstance(array, RemoteObject):
            return array
        worker = self.cluster.workers[device]
        if isinstance(array, Replicated):
            return array.compute_on(self.cluster, worker)
        copied = np.array(array, order="C")  # the caller may write to it before it is sent
        (key,) = self.cluster.call(worker, np.copy, [copied])
        return RemoteArray(self.cluster, worker, key, copied.shape, copied.dtype)

    def collect(self, arrays: Sequence[Array]) -> list[np.ndarray]:
        there = [array for array in arrays if isinstance(array, RemoteObject)]
        if not there:  # so that nobody waits for the workers
            return list(arrays)
        fetched = iter(self.cluster.fetch(there))
        collected = []
        for array in arrays:
            if isinstance(array, RemoteObject):
                array = next(fetched)
            collected.append(array)
        return collected

    def replicate(self, arrays: Sequence[Any], function: Callable[..., Array]) -> Replicated:
        """Implement `Devices.replicate`: each worker sends its own arrays to all others."""
        dtype = function(*(np.empty(0, x.dtype) for x in arrays)).dtype
        workers = self.cluster.workers
        wanted = [(array, worker) for worker in workers for array in arrays]
        sent = iter(send_all(self.cluster, wanted))
        args_of_workers = {worker: [next(sent) for _ in arrays] for worker in workers}
        return Replicated(function, args_of_workers, arrays[0].shape, dtype)


class RemoteLayout:
    """Stands for a worker's layout of a slab, with all facts that need no nonzeros."""

    def __init__(self, held: RemoteObject, facts: SlabFacts) -> None:
        self.held = held
        self.facts = facts
        self.name, self.nnz, self.norm, self.nbytes, self.record_format = facts
        self.groups = facts.record_format.groups

    def apply(
        self,
        operation: Operation,
        engine: Primitives,
        inputs: Mapping[int, RemoteArray],
        mode: int,
        out: RemoteArray,
        *,
        find_rows: FindRows | None = None,
        **options: Any,
    ) -> RemoteArray | None:
        """Have the worker apply an operation to its slab; return the sum if `wants_sum` is given.

        See `Layout.apply`.
        """
        cluster = out.cluster
        worker = out.worker
        record_format = self.record_format
        number, _ = record_format.places[mode]
        group = record_format.groups[number]
        if find_rows is not None and len(group) > 1:
            # Only here it is known whether the last pass serves. Its result stays on the worker.
            shape = (record_format.merged.shape[number], out.shape[1])
            make = functools.partial(RemoteArray.empty, cluster, worker, shape, out.dtype)
            group_rows = find_rows(group, make)
            options |= {"rows": group_rows.rows, "is_known": group_rows.is_known}
            group_rows.is_known = True
        args = [self.held, operation, ENGINE, inputs, mode, out]
        if not options.get("wants_sum", False):
            cluster.call(worker, _apply, args, options, num_results=0)
            return None
        (key,) = cluster.call(worker, _apply, args, options)
        return RemoteArray(cluster, worker, key, (), np.float64)

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
    """Name an engine or a slab's layout as commands do; return anything else as it is."""
    if isinstance(x, RemoteLayout):
        return x.held
    if isinstance(x, ClusterEngine):
        return ENGINE
    return x


class ClusterEngine(CpuEngine):
    """Runs operations on slabs at the workers, and all others in this process."""

    name = "dask"
    local_device = CpuEngine.name

    def add_parts(self, rows: Any, tree: Tree, out: Any = None) -> RemoteArray:
        """Add the parts of rows along a tree, on their worker."""
        (key,) = rows.cluster.call(rows.worker, add_parts, [rows, tree])
        shape = (rows.shape[0] // count_parts(tree), *rows.shape[1:])
        return RemoteArray(rows.cluster, rows.worker, key, shape, rows.dtype)


def _apply(
    layout: Layout, *args: Any, rows: Array = None, is_known: bool = False, **options: Any
) -> Array | None:
    """Run an operation on the nonzeros of a slab, on its worker."""
    if rows is not None:
        options["find_rows"] = lambda *_: GroupRows(rows, is_known)
    return layout.apply(*args, **options)


#: The engine of this process, for all tensors on clusters.
ENGINE_HERE = ClusterEngine()
