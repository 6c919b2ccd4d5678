"""Unfoldings on a cluster: matrices with few columns are built by the workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ..base.array_modules import Array
from ..start.columns import build_in_slabs
from .engine import ClusterEngine, ClusterLayout
from .handles import RemoteObject
from .loading import keep_nonzeros, load_again

if TYPE_CHECKING:
    from .site import Site


@build_in_slabs.register
def _(
    layout: ClusterLayout,
    parts: Iterable[RemoteObject],
    shape: tuple[int, int],
    engine: ClusterEngine,
) -> ClusterLayout:
    """Build the matrix on the workers, as a tensor whose partitions are the parts."""
    calls = ((part.worker, keep_part, [part]) for part in parts)
    sizes = (shape, np.dtype(np.float64), layout.num_slabs, "replicated")
    return load_again(layout.devices.cluster, calls, *sizes)


def keep_part(site: Site, number: int, part: tuple[Array, Array]) -> None:
    """Take nonzeros as a partition, on a worker."""
    keep_nonzeros(site, number, *part)
