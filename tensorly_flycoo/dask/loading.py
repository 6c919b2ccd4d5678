"""Load a tensor from partitions that tasks read: actors build slabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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

#: The most nonzeros of a slab, by default.
_MOST_NNZ = 2**25

#: The least nonzeros of a slab, by default, if there are more than two: each slab takes commands.
_LEAST_NNZ = 2**17

#: The number of slabs, by default, of data that are large enough for it and not too large.
_USUAL_SLABS = 8


def choose_num_slabs(nnz: int) -> int:
    """Choose the default number of slabs: results depend on it, so it depends on the data only.

    Examples
    --------
    >>> [choose_num_slabs(nnz) for nnz in (100, 2**19, 2**22, 2**30)]
    [2, 4, 8, 32]
    """
    return max(2, min(_USUAL_SLABS, nnz // _LEAST_NNZ), -(-nnz // _MOST_NNZ))


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
    ordered: list[str] = field(default_factory=list)  # the columns of ordered categories

    def __post_init__(self) -> None:
        if self.num_slabs is not None:
            self.num_slabs = check_count(self.num_slabs, "slabs")
        if self.dtype is not None:
            self.dtype = check_dtype(self.dtype)
        self.layout = check_keep("device", self.layout)

    def place(self, client: Client, workers: Workers) -> ClusterLayout:
        """Read all data on the workers, which then build the slabs."""
        cluster = Cluster(client, workers)
        nbytes = sum(map(estimate_nbytes, self.parts))  # 0 if that is unknown
        if nbytes:
            share = nbytes // len(workers)
            check_limits(client, [worker.address for worker in workers], share, "its share")
        nnz, shape, dtype, self.labels = self._read(cluster)
        num_slabs = self.num_slabs or choose_num_slabs(nnz)
        builder = ClusterBuilder(cluster, shape, dtype, num_slabs, self.layout, self.labels)
        return builder.distribute()

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
        actor_keys = {worker.address: worker.key for worker in cluster.workers}
        addresses = list(actor_keys)
        futures: list[Future] = []
        for number, part in enumerate(self.parts):
            task_input = part
            if hasattr(part, "__dask_graph__"):  # of a dask DataFrame, not computed yet
                task_input = client.compute(part, workers=addresses, allow_other_workers=False)
            future = client.submit(
                keep_partition,
                task_input,
                number,
                self.reader,
                actor_keys,
                workers=addresses,
                allow_other_workers=False,
                pure=False,
            )
            futures.append(future)
        try:
            summaries = wait_for_tasks(client, futures, addresses, cluster.check_there)
        finally:
            client.cancel(futures)
        return self.unite(summaries)

    def unite(self, summaries: Iterable[Summary]) -> tuple[int, tuple[int, ...], np.dtype, Labels]:
        """Return the number of rows, shape, dtype and labels that all partitions have together."""
        nonempty = [summary for summary in summaries if summary.shape]  # not of empty files
        nnz = sum(summary.nnz for summary in nonempty)
        if nnz == 0:
            raise ValueError("the data have no rows, expected at least one")
        dtype = self.dtype
        if dtype is None:
            dtype = np.result_type(*(summary.dtype for summary in nonempty if summary.nnz))
        shape = unite_shapes(summary.shape for summary in nonempty)
        labels = self._unite_labels(nonempty)
        if labels is not None:
            shape = tuple(mode_labels.size for mode_labels in labels)
        elif self.shape is not None:
            if len(self.shape) != len(shape) or any(map(int.__gt__, shape, self.shape)):
                raise ValueError(f"shape is {self.shape}, expected at least {shape}")
            shape = self.shape
        return nnz, check_shape(shape), check_dtype(dtype), labels

    def _unite_labels(self, summaries: Sequence[Summary]) -> Labels:
        """Unite the labels of each mode, and note which are ordered; None with indices."""
        parts = [summary.entries for summary in summaries if summary.entries is not None]
        if not parts:
            return None
        self.ordered = []
        labels = []
        for name, mode_parts in zip(self.reader.modes, zip(*parts, strict=True), strict=True):
            united = unite_labels(mode_parts, name)
            labels.append(united.entries)
            if united.categories is not None:
                self.ordered.append(name)
        return labels
