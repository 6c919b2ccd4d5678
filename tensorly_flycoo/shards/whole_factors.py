"""Row-sharded factors as plain arrays, for functions that do not compute block by block."""

from collections.abc import Iterable
from typing import Any

from ..array_modules import Array, share
from .row_shards import RowShards


def gather(array: Any) -> Any:
    """Return a row-sharded matrix as a plain one, on the first device; else the array itself."""
    if not isinstance(array, RowShards):
        return array
    devices = array.sharding.devices
    with devices.use(0):
        (whole,) = devices.collect([array.gather(0)])
    return whole


def gather_all(factors: Iterable[Any]) -> list[Any]:
    """Return factors as plain arrays."""
    return [gather(factor) for factor in factors]


def take_model(cp_tensor: Any) -> tuple[Array | None, list[Array]]:
    """Return the weights and factors of a CP model as plain arrays of NumPy or CuPy.

    Arrays of other libraries are shared, row-sharded factors gathered.
    """
    weights, factors = cp_tensor
    return share(weights), [share(factor) for factor in gather_all(factors)]
