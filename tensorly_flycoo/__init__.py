"""Factorise big sparse tensors with TensorLy: `tl.set_backend("flycoo")`.

Importing this package registers the backend "flycoo" with TensorLy. With that backend,
`tensorly.decomposition.parafac` takes a `sparse.COO` or a `FlycooTensor` and computes every MTTKRP
by the FLYCOO algorithm. The tensor is never made dense.

Examples
--------
>>> import numpy as np, sparse, tensorly as tl
>>> import tensorly_flycoo
>>> x = sparse.random((30, 40, 50), density=0.01, random_state=0)
>>> with tl.backend_context("flycoo"):
...     cp = tl.decomposition.parafac(x, rank=3, n_iter_max=5, init="random", random_state=0)
>>> [factor.shape for factor in cp.factors]
[(30, 3), (40, 3), (50, 3)]
"""

from .backend import register
from .base.checks import DensifyError
from .base.fit_record import FitRecord
from .base.versions import show_versions
from .base.watching import set_progress
from .engines import set_device
from .io import load, open_slabs, read_tns, save, save_slabs, write_tns
from .io.dataframe import from_dataframe
from .io.labelled_arrays import from_anndata, from_xarray
from .loop.precision import set_precision
from .models.stats import ModeStats, TensorStats, stats
from .ops.cp_entries import cp_to_entries
from .ops.mttkrp import mttkrp, mttkrps
from .ops.ragged import RaggedTensor
from .ops.residual import ResidualTensor, center
from .spread.memory import MemoryEstimate, estimate_memory
from .tensor.labelled import LabelledTensor
from .tensor.tensor import FlycooTensor

__all__ = [
    "DensifyError",
    "FitRecord",
    "FlycooCP",
    "FlycooTensor",
    "LabelledCP",
    "LabelledTensor",
    "MemoryEstimate",
    "ModeStats",
    "Progress",
    "RaggedTensor",
    "ResidualTensor",
    "TensorStats",
    "anomaly_scores",
    "best_of",
    "center",
    "core_consistency",
    "coupled_parafac",
    "cp_fit",
    "cp_to_entries",
    "diagnose",
    "estimate_memory",
    "evaluate",
    "factor_match_score",
    "fold_in",
    "from_anndata",
    "from_dataframe",
    "from_xarray",
    "load",
    "mttkrp",
    "mttkrps",
    "observed_parafac",
    "open_slabs",
    "profile",
    "read_tns",
    "recommend",
    "replicability",
    "save",
    "save_slabs",
    "select_rank",
    "set_device",
    "set_precision",
    "set_progress",
    "show_versions",
    "stats",
    "uncertainty",
    "write_tns",
]

__version__ = "0.2.0"


def __dir__() -> list[str]:
    return [*__all__, "decomposition", "models"]


def load_ipython_extension(_: object) -> None:
    """Set the backend: ``%load_ext tensorly_flycoo``."""
    import tensorly

    tensorly.set_backend("flycoo")


def unload_ipython_extension(_: object) -> None:
    """Go back to TensorLy's default backend."""
    import tensorly

    tensorly.set_backend("numpy")


register()

# Last, since they import TensorLy: `.backend` has to import it first, without a warning.
from .decomposition import coupled_parafac, observed_parafac  # noqa: E402
from .models import (  # noqa: E402
    FlycooCP,
    LabelledCP,
    anomaly_scores,
    best_of,
    core_consistency,
    cp_fit,
    diagnose,
    evaluate,
    factor_match_score,
    fold_in,
    recommend,
    replicability,
    select_rank,
    uncertainty,
)
from .models.profiling import profile  # noqa: E402
from .models.progress import Progress  # noqa: E402
