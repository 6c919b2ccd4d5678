"""Plain factors as row-sharded ones, and row-sharded ones as plain arrays."""

from collections.abc import Sequence
from typing import Any

from ..base.array_modules import Array, share
from .row_shards import RowShards, gather_each
from .sharding import find_sharding
from .slab_layout import SlabLayout


def scatter_all(layout: SlabLayout, factors: Sequence[Array | RowShards]) -> list[RowShards]:
    """Return factors sharded as a tensor's MTTKRP shards its results."""
    return [
        factor
        if isinstance(factor, RowShards)
        else RowShards.scatter(factor, find_sharding(layout, n))
        for n, factor in enumerate(factors)
    ]


def gather(array: Any) -> Any:
    """Return a row-sharded matrix as a plain one, on the first device; else the array itself."""
    if not isinstance(array, RowShards):
        return array
    devices = array.sharding.devices
    with devices.use(0):
        (whole,) = devices.collect([gather_each([array], devices, [0])[0][0]])
    return whole


def take_model(cp_tensor: Any) -> tuple[Array | None, list[Array]]:
    """Return the weights and factors of a CP model as plain arrays of NumPy or CuPy.

    Arrays of other libraries are shared, row-sharded factors gathered.
    """
    weights, factors = cp_tensor
    return share(weights), [share(gather(factor)) for factor in factors]
