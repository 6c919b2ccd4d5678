"""Tensors on the workers of a Dask cluster."""

try:
    import distributed  # noqa: F401
except ImportError as error:
    raise ImportError(
        'tensorly_flycoo.dask needs distributed: pip install "tensorly-flycoo[dask]"'
    ) from error

from .errors import WorkerLost
from .folders import open_slabs
from .tensor import ClusterTensor

__all__ = ["ClusterTensor", "WorkerLost", "open_slabs"]
