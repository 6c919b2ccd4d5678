"""Tensors on the workers of a Dask cluster."""

from .errors import WorkerLost
from .folders import open_slabs
from .tensor import ClusterTensor

__all__ = ["ClusterTensor", "WorkerLost", "open_slabs"]
