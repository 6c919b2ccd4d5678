"""How many slabs a tensor is cut into, if its user does not say so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..format.slab_layout import SlabLayout

if TYPE_CHECKING:
    from .protocol import Engine

_logger = logging.getLogger("tensorly_flycoo")

#: Bytes that are taken to be free: asking takes longer than building a tensor this small.
_SURELY_FREE = 2**28

#: The most slabs that are tried, as a multiple of the fewest ones.
_MOST = 64


def fit_num_slabs(
    engine: Engine, name: str, nnz: int, shape: Sequence[int], dtype: np.dtype, least: int
) -> int:
    """Choose the fewest slabs with which a layout can be built in the free memory.

    Returns
    -------
    int
        `least` times a power of two; `least` if nothing fits, or the free memory is unknown.
    """

    def count_nbytes(num_slabs: int) -> int:
        return engine.estimate_layout(name, nnz, shape, dtype, num_slabs)[1]

    is_host = engine.staging_size is None
    given = nnz * (8 * len(shape) + dtype.itemsize) if is_host else 0  # there already
    if count_nbytes(least) <= _SURELY_FREE:
        return least
    free = engine.count_free_nbytes()
    num_slabs = least
    while free is not None and num_slabs <= _MOST * least:
        if count_nbytes(num_slabs) <= free + given:
            if num_slabs > least:
                _logger.info("cut into %d slabs, to be built in %d free bytes", num_slabs, free)
            return num_slabs
        num_slabs *= 2
    return least


def share_nbytes(engine: Engine, nbytes: int, num_slabs: int) -> int:
    """Return how many of the bytes that `num_slabs` slabs take are on the fullest device."""
    if engine.devices is None:
        return nbytes
    return -(-nbytes * -(-num_slabs // engine.devices.count) // num_slabs)


def warn_of_long_slabs(layout: SlabLayout) -> None:
    """Log a warning if a slab is much longer than its share."""
    share = -(-layout.nnz // layout.num_slabs)
    longest = max(slab.layout.nnz for slab in layout.slabs)
    if longest > 2 * share:
        _logger.warning(
            "a slab has %s nonzeros where its share is %s: a row of mode %d, which is not split, "
            "is longer than a slab; fewer slabs do as well",
            *(f"{longest:,}", f"{share:,}", layout.cut_mode),
        )
