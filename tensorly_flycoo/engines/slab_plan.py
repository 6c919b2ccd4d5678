"""How many slabs a tensor has, and which of them stay on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..devices import Devices
from ..format.layout import Layout
from ..format.replicated import ReplicatedLayout
from ..format.slab_layout import KeepAside, SlabLayout
from ..format.streamed import Stager, StreamedLayout

if TYPE_CHECKING:
    from .protocol import Engine

_logger = logging.getLogger("tensorly_flycoo")

#: A tensor with more nonzeros is cut into slabs, so that 4 bytes number those of each.
MAX_SLAB_NNZ = 2**32

#: Bytes of the records, of one mode, of a slab that is streamed: enough that they are copied as
#: fast as the link allows, and so few that two slabs take little of the device.
STREAMED_NBYTES = 2**30


#: Bytes that are taken to be free: asking takes longer than building a tensor this small.
_SURELY_FREE = 2**28

#: The most slabs that are tried, as a multiple of the fewest ones.
_MOST = 64


def choose_num_slabs(
    nnz: int, devices: Devices | None = None, streamed_nbytes: int | None = None
) -> int:
    """Choose as few slabs as `MAX_SLAB_NNZ` allows, but one for each device.

    If records of `streamed_nbytes` are streamed, a slab has at most `STREAMED_NBYTES` of them, and
    there are at least two, so that one is copied while the other is computed.
    """
    num_slabs = max(1 if devices is None else devices.count, -(-nnz // MAX_SLAB_NNZ))
    if streamed_nbytes is None:
        return num_slabs
    return max(2, num_slabs, -(-nnz * streamed_nbytes // STREAMED_NBYTES))


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


def plan_streaming(
    engine: Engine,
    name: str,
    nnz: int,
    shape: Sequence[int],
    dtype: np.dtype,
    num_slabs: int | None = None,
) -> tuple[int, int]:
    """Do what `Engine.plan_streaming` does."""
    record_nbytes = engine.choose_cut(shape, dtype).record_format.record_nbytes
    num_slabs = num_slabs or choose_num_slabs(nnz, engine.devices, record_nbytes)
    estimate = engine.estimate_layout(name, nnz, shape, dtype, num_slabs)
    num_resident = count_resident_slabs(*estimate, num_slabs, engine.count_free_nbytes())
    return num_slabs, num_resident


def count_resident_slabs(
    nbytes: int, peak_nbytes: int, num_slabs: int, free_nbytes: int | None
) -> int:
    """Count the slabs that fit in half of the free memory; the rest is for factors.

    Parameters
    ----------
    nbytes, peak_nbytes : int
        Of all slabs, and while they are built.
    num_slabs : int
    free_nbytes : int or None
    """
    if free_nbytes is None:
        return 0
    building_nbytes = peak_nbytes - nbytes
    return max(0, (free_nbytes // 2 - building_nbytes) * num_slabs // max(nbytes, 1))


def make_keep_aside(make_stager: Callable[[], Stager], num_resident: int) -> KeepAside:
    """Return what puts aside all slabs but the first `num_resident` of each device."""
    stagers: dict[int, Stager] = {}
    num_built: dict[int, int] = {}

    def keep_aside(layout: Layout, home: int) -> Layout:
        num_built[home] = num_built.get(home, 0) + 1
        if num_built[home] <= num_resident:
            return layout
        if home not in stagers:
            stagers[home] = make_stager()
            _logger.info("records of slabs from %d on stay on the host", num_built[home] - 1)
        assert isinstance(layout, ReplicatedLayout)
        return StreamedLayout.of(layout, stagers[home])

    return keep_aside


def warn_of_long_slabs(layout: SlabLayout) -> None:
    """Warn if a row is so long that its slab has more than twice its share."""
    share = -(-layout.nnz // layout.num_slabs)
    longest = max(slab.layout.nnz for slab in layout.slabs)
    if longest > 2 * share:
        _logger.warning(
            "a slab has %s nonzeros where its share is %s: a row of mode %d, which is not split, "
            "is longer than a slab; fewer slabs do as well",
            *(f"{longest:,}", f"{share:,}", layout.cut_mode),
        )
