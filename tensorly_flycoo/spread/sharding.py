"""Which rows of a matrix are where."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..base.array_modules import Array
from ..base.devices import Devices, assign_homes, bring_each
from .slab_layout import SlabLayout


@dataclass(frozen=True)
class Sharding:
    """Blocks of consecutive rows of a matrix, and the device that holds each.

    Results depend on the blocks, never on the devices.
    """

    edges: tuple[int, ...]  # of the blocks (num_blocks + 1,): ascending, from 0
    homes: tuple[int, ...]  # the device of each; the first one holds results of all blocks
    devices: Devices

    @classmethod
    def of(cls, edges: Sequence[int], devices: Devices) -> "Sharding":
        """Give each device equally many neighbouring blocks."""
        return cls(tuple(edges), assign_homes(len(edges) - 1, devices.count), devices)

    def cut(self, array: Array) -> list[Array]:
        """Return the blocks of a matrix on their devices."""
        blocks = [array[start:stop] for start, stop in pairwise(self.edges)]
        return bring_each(self.devices, blocks, self.homes)


def cut_evenly(num_rows: int, num_blocks: int) -> tuple[int, ...]:
    """Return edges of blocks with equally many rows, the last ones with fewer.

    Equal blocks let devices exchange them in one all-gather.

    >>> cut_evenly(10, 4), cut_evenly(2, 4)
    ((0, 3, 6, 9, 10), (0, 1, 2, 2, 2))
    """
    length = -(-num_rows // num_blocks)
    return tuple(min(block * length, num_rows) for block in range(num_blocks + 1))


def find_sharding(layout: SlabLayout, mode: int) -> Sharding:
    """Return how a factor is sharded: in the cut mode like the slabs, else in equal blocks."""
    if mode not in layout.shardings:
        size, devices = layout.record_format.shape[mode], layout.devices
        if mode != layout.cut_mode:
            found = Sharding.of(cut_evenly(size, layout.num_slabs), devices)
        else:
            edges = (0, *(slab.rows.stop for slab in layout.slabs))
            found = Sharding(edges, tuple(slab.home for slab in layout.slabs), devices)
        layout.shardings[mode] = found
    return layout.shardings[mode]
