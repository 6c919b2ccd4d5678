"""Which rows of a matrix are where."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from ..array_modules import Array


class Devices(Protocol):
    """What several devices of one kind can do for each other; they are numbered from 0."""

    def use(self, device: int) -> AbstractContextManager[object]:
        """Make a device current: what is computed inside is computed there."""

    def bring(self, array: Array, device: int) -> Array:
        """Return an array that is on `device`; copy it if it is elsewhere."""

    def fetch(self, array: Array) -> np.ndarray:
        """Return an array in host memory."""


class HostDevices:
    """ "Devices" that are all the host, for tests and for a single device."""

    def use(self, device: int) -> AbstractContextManager[object]:
        return nullcontext()

    def bring(self, array: Array, device: int) -> Array:
        return array

    def fetch(self, array: Array) -> np.ndarray:
        return array


@dataclass(frozen=True)
class Sharding:
    """Blocks of consecutive rows of a matrix, and the device that holds each.

    Results depend on the blocks, never on the devices.

    Attributes
    ----------
    edges : tuple of int (num_blocks + 1,)
        The rows at which blocks begin and end: ascending, from 0 to the number of rows.
    homes : tuple of int (num_blocks,)
        The device of each block. That of the first one also holds results of all blocks.
    devices : Devices
    """

    edges: tuple[int, ...]
    homes: tuple[int, ...]
    devices: Devices

    @classmethod
    def of(cls, edges: Sequence[int], num_devices: int, devices: Devices) -> "Sharding":
        """Give each device equally many neighbouring blocks.

        Examples
        --------
        >>> Sharding.of((0, 3, 5, 9), 2, HostDevices()).homes
        (0, 0, 1)
        """
        num_blocks = len(edges) - 1
        homes = tuple(block * num_devices // num_blocks for block in range(num_blocks))
        return cls(tuple(edges), homes, devices)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.edges[-1]

    def scatter(self, array: Array) -> list[Array]:
        """Copy the rows of a matrix to their devices."""
        blocks = []
        for (start, stop), home in zip(pairwise(self.edges), self.homes, strict=True):
            with self.devices.use(home):
                blocks.append(self.devices.bring(array[start:stop], home).copy())
        return blocks


def cut_evenly(num_rows: int, num_blocks: int) -> tuple[int, ...]:
    """Return edges of blocks with equally many rows, the last ones with fewer.

    Equal blocks let devices exchange them in one all-gather.

    Examples
    --------
    >>> cut_evenly(10, 4), cut_evenly(2, 4)
    ((0, 3, 6, 9, 10), (0, 1, 2, 2, 2))
    """
    length = -(-num_rows // num_blocks)
    return tuple(min(block * length, num_rows) for block in range(num_blocks + 1))
