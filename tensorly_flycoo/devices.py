"""What several devices of one kind can do for each other."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Protocol

import numpy as np

from .array_modules import Array, array_module, move


class Devices(Protocol):
    """Devices of one kind, numbered from 0.

    Attributes
    ----------
    count : int
    """

    count: int

    def check_current(self) -> None:
        """Refuse a current device other than the first, where what belongs to no slab is."""

    def use(self, device: int) -> AbstractContextManager[object]:
        """Make a device current: what is computed inside is computed there."""

    def bring(self, array: Array, device: int) -> Array:
        """Return an array that is on `device`; copy it if it is elsewhere."""

    def concatenate(self, arrays: Sequence[Array], device: int) -> Array:
        """Put rows that are on any devices together on one device."""

    def collect(self, arrays: Sequence[Array]) -> list[Array]:
        """Bring small arrays, from any devices, to where what belongs to no slab is."""

    def fetch(self, array: Array) -> np.ndarray:
        """Return an array in host memory."""


class OneDevice:
    """ "Devices" that are all the current one, of the array module `xp`."""

    def __init__(self, xp: ModuleType = np, count: int = 1) -> None:
        self._xp = xp
        self.count = count

    def check_current(self) -> None:
        pass

    def use(self, device: int) -> AbstractContextManager[object]:
        return nullcontext()

    def bring(self, array: Array, device: int) -> Array:
        return move(array, self._xp)

    def concatenate(self, arrays: Sequence[Array], device: int) -> Array:
        return array_module(arrays[0]).concatenate(arrays)

    def collect(self, arrays: Sequence[Array]) -> list[Array]:
        return list(arrays)

    def fetch(self, array: Array) -> np.ndarray:
        return move(array, np)


def bring_to_each(devices: Devices, array: Array, homes: Iterable[int]) -> dict[int, Array]:
    """Return an array on each of some devices, which may repeat."""
    return {home: devices.bring(array, home) for home in dict.fromkeys(homes)}


def assign_homes(num_parts: int, num_devices: int) -> tuple[int, ...]:
    """Give each device equally many neighbouring parts; return the device of each.

    Examples
    --------
    >>> assign_homes(5, 2)
    (0, 0, 0, 1, 1)
    """
    return tuple(part * num_devices // num_parts for part in range(num_parts))
