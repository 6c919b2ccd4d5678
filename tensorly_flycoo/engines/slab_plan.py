"""How many slabs a tensor has, and which of them stay on the device."""

from __future__ import annotations

import logging

from ..format.slab_layout import SlabLayout

_logger = logging.getLogger("tensorly_flycoo")

#: A tensor with more nonzeros is cut into slabs, so that 4 bytes number those of each.
MAX_SLAB_NNZ = 2**32

#: Bytes of the records, of one mode, of a slab that is streamed: enough that they are copied as
#: fast as the link allows, and so few that two slabs take little of the device.
STREAMED_NBYTES = 2**30


def choose_num_slabs(nnz: int, num_devices: int = 1, streamed_nbytes: int | None = None) -> int:
    """Choose as few slabs as `MAX_SLAB_NNZ` allows, but one for each device.

    If records of `streamed_nbytes` are streamed, a slab has at most `STREAMED_NBYTES` of them, and
    there are at least two, so that one is copied while the other is computed.
    """
    num_slabs = max(num_devices, -(-nnz // MAX_SLAB_NNZ))
    if streamed_nbytes is None:
        return num_slabs
    return max(2, num_slabs, -(-nnz * streamed_nbytes // STREAMED_NBYTES))


def count_resident_slabs(
    nbytes: int, peak_nbytes: int, num_slabs: int, free_nbytes: int | None
) -> int:
    """Count the slabs that fit in half of the free memory; the rest is for factors.

    `nbytes` and `peak_nbytes` are those of all slabs, and while they are built.
    """
    if free_nbytes is None:
        return 0
    building_nbytes = peak_nbytes - nbytes
    return max(0, (free_nbytes // 2 - building_nbytes) * num_slabs // max(nbytes, 1))


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
