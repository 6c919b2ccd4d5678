"""Tensors whose slabs are on the workers of a Dask cluster.

Examples
--------
With a folder that `tensorly_flycoo.save_slabs` wrote, which all workers see:

>>> import tensorly as tl
>>> import tensorly_flycoo.dask
>>> from distributed import Client
>>> client = Client("tcp://...", direct_to_workers=True)  # doctest: +SKIP
>>> x = tensorly_flycoo.dask.open_slabs("reddit.flycoo")  # doctest: +SKIP
>>> cp = tl.decomposition.parafac(x, 32)  # doctest: +SKIP
"""

try:
    import distributed  # noqa: F401
except ImportError as error:
    raise ImportError(
        'tensorly_flycoo.dask needs distributed: pip install "tensorly-flycoo[dask]"'
    ) from error

from .cluster_tensor import ClusterTensor
from .readers import from_dask_dataframe, open_slabs, read_parquet, read_tns
from .waiting import WorkerLost

__all__ = [
    "ClusterTensor",
    "WorkerLost",
    "from_dask_dataframe",
    "open_slabs",
    "read_parquet",
    "read_tns",
]


def __dir__() -> list[str]:
    return __all__
