"""What singular vectors of unfoldings need of a cluster: room, and matrices with few columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ..array_modules import Array
from ..checks import SURELY_FREE_NBYTES
from ..ops.slab_gram import build_in_slabs, check_memory, refuse_excess
from ..ops.svd_memory import count_cluster_nbytes
from ..tensor.tensor import FlycooTensor
from .engine import ClusterEngine, ClusterLayout
from .handles import RemoteObject
from .loading import keep_nonzeros, load_again
from .messages import SITE
from .remote_array import call_method

if TYPE_CHECKING:
    from .site import Site


@check_memory.register
def _(layout: ClusterLayout, x: FlycooTensor, mode: int) -> None:
    sizes = (x._engine, x.shape, x.nnz, x.dtype, mode, 1, x.slabs, layout.devices.count)
    here, there = count_cluster_nbytes(*sizes)
    refuse_excess(x._engine, mode, here, "the client")
    if there <= SURELY_FREE_NBYTES:
        return
    task = f"computing singular vectors of mode {mode} for init='svd' (init='random' takes none)"
    devices = layout.devices
    check = (call_method, SITE, "check_room", there, task)
    devices.collect([devices.run(home, *check) for home in range(devices.count)])


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
