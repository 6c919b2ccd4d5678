"""Load a tensor from partitions that tasks read: actors build slabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client, Future

from ..base.checks import check_count, check_dtype, check_keep, check_shape
from ..io.entries import unite_labels
from ..io.parts import unite_shapes
from .cluster import Cluster, Workers
from .cluster_layout import (
    CHANGED,
    ClusterBuilder,
    ClusterLayout,
    Labels,
    forget_partitions,
    rebuild_lost,
)
from .partitions import Summary, estimate_nbytes, keep_partition
from .waiting import check_limits, wait_for_tasks

#: The most nonzeros of a slab, by default, and the least if there are fewer than 8: each slab takes
#: commands. Results depend on the number of slabs, so it depends on the data only.
_MOST_NNZ = 2**25
_LEAST_NNZ = 2**17


@dataclass
class PartitionedData:
    """Data in partitions, and how a tensor is made of them."""

    parts: Sequence[Any]  # what `reader` takes, or objects of Dask that become such
    reader: Any
    shape: tuple[int, ...] | None = None
    num_slabs: int | None = None
    dtype: Any = None
    layout: Any = None
    labels: Labels = None  # once they are known
    ordered: Sequence[str] = ()  # the columns of ordered categories

    def __post_init__(self) -> None:
        self.num_slabs = None if self.num_slabs is None else check_count(self.num_slabs, "slabs")
        self.dtype = None if self.dtype is None else check_dtype(self.dtype)
        self.layout = check_keep("device", self.layout)

    def place(self, client: Client, workers: Workers) -> ClusterLayout:
        cluster = Cluster(client, workers)
        if nbytes := sum(map(estimate_nbytes, self.parts)):
            share = nbytes // len(workers)
            check_limits(client, [worker.address for worker in workers], share, "its share")
        nnz, shape, dtype, self.labels = self._read(cluster)
        num_slabs = self.num_slabs or max(2, min(8, nnz // _LEAST_NNZ), -(-nnz // _MOST_NNZ))
        sizes = (shape, dtype, num_slabs, self.layout, self.labels)
        return ClusterBuilder(cluster, *sizes).distribute()

    def restore(self, client: Client, workers: Workers, layout: ClusterLayout) -> ClusterLayout:
        """Read all data again, but keep only the nonzeros of lost slabs."""
        cluster = Cluster(client, workers)
        record_format = layout.record_format
        _, shape, dtype, labels = self._read(cluster)
        is_same = (shape, dtype) == (record_format.shape, record_format.dtype)
        if not is_same or not all(map(np.array_equal, labels or [], self.labels or [])):
            raise RuntimeError(CHANGED)
        return rebuild_lost(cluster, layout, labels)

    def _read(self, cluster: Cluster) -> tuple[int, tuple[int, ...], np.dtype, Labels]:
        """Have tasks read the data; return the tensor's rows, shape, dtype and labels."""
        forget_partitions(cluster)
        cluster.report(f"reading {len(self.parts)} parts on {len(cluster.workers)} workers")
        client = cluster.client
        keys = {w.address: w.key for w in cluster.workers}
        options: dict[str, Any] = {"workers": list(keys), "allow_other_workers": False}
        futures: list[Future] = []
        for number, part in enumerate(self.parts):
            if hasattr(part, "__dask_graph__"):
                part = client.compute(part, **options)
            arguments = (part, number, self.reader, keys)
            futures.append(client.submit(keep_partition, *arguments, pure=False, **options))
        try:
            summaries = wait_for_tasks(client, futures, list(keys), cluster.check_there)
        finally:
            client.cancel(futures)
        return self.unite(summaries)

    def unite(self, summaries: Iterable[Summary]) -> tuple[int, tuple[int, ...], np.dtype, Labels]:
        """Return the number of rows, shape, dtype and labels that all partitions have together."""
        found = [summary for summary in summaries if summary.shape]
        nnz = sum(summary.nnz for summary in found)
        if nnz == 0:
            raise ValueError("the data have no rows, expected at least one")
        shape = unite_shapes(summary.shape for summary in found)
        dtype = np.result_type(*(summary.dtype for summary in found if summary.nnz))
        dtype = check_dtype(dtype if self.dtype is None else self.dtype)
        entries = [summary.entries for summary in found if summary.entries is not None]
        labels = None
        if entries:
            modes = zip(self.reader.modes, zip(*entries, strict=True), strict=True)
            united = {name: unite_labels(of_mode, name) for name, of_mode in modes}
            self.ordered = [name for name, of in united.items() if of.categories is not None]
            labels = [of.entries for of in united.values()]
            shape = tuple(of_mode.size for of_mode in labels)
        elif self.shape is not None:
            if len(self.shape) != len(shape) or any(map(int.__gt__, shape, self.shape)):
                raise ValueError(f"shape is {self.shape}, expected at least {shape}")
            shape = self.shape
        return nnz, check_shape(shape), dtype, labels
