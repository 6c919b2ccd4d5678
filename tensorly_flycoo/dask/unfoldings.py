"""Unfoldings on a cluster: matrices with few columns are built by the workers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..start.columns import build_in_slabs
from .engine import ClusterEngine, ClusterLayout
from .handles import RemoteObject
from .loading import ClusterBuilder, keep_nonzeros, load_again


@build_in_slabs.register
def _(
    layout: ClusterLayout,
    parts: Iterable[RemoteObject],
    shape: tuple[int, int],
    engine: ClusterEngine,
) -> ClusterLayout:
    """Build the matrix on the workers, as a tensor whose partitions are the parts."""
    calls = ((part.worker, keep_nonzeros, [part]) for part in parts)
    sizes = (shape, np.dtype(np.float64), layout.num_slabs, "replicated")
    return load_again(ClusterBuilder(layout.devices.cluster, *sizes), calls)
