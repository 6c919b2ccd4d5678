"""Several devices of one kind, and the arrays that they exchange."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np

from .array_modules import Array, move

#: One or more arrays, and the device where they are wanted, their rows below each other.
Request: TypeAlias = tuple[Sequence[Array], int]


class LinkBroken(RuntimeError):
    """Devices of different processes are not connected any more: one of these may have ended."""


class Devices(Protocol):
    """Devices of one kind, numbered from 0. The first is the home device: it has all but slabs."""

    count: int
    others: Sequence[int] = ()  # besides the home device, if streams of this process serve them
    num_at_once: int = 1  # calls that `map` makes on one device at the same time
    least_nnz: int = 0  # tensors with fewer nonzeros are by default on the first one alone
    least_nbytes: int = 0  # as are the factors of all modes if they take fewer bytes

    def check_current(self) -> None:
        """Refuse a current device other than the home device."""

    def use(self, device: int) -> AbstractContextManager[object]:
        """Make a device current for the computations of a `with` block."""
        return nullcontext()  # arrays know their device

    def empty(self, device: int, shape: tuple[int, int], dtype: np.dtype) -> Array:
        """Allocate a matrix on a device."""

    def can_lend(self, array: Array) -> bool:
        """Return whether `lend` takes an array."""
        return False

    def lend(
        self, arrays: Sequence[Array], homes: Sequence[int], owners: Sequence[int] = (0,)
    ) -> AbstractContextManager[Sequence[Array]]:
        """Let each of some devices write to an array, inside a `with` block.

        The arrays are on the home device, or on the `owners`. The devices wait for what the owners
        were given before; what these are given later waits for them.
        """
        return nullcontext(arrays)

    def in_order(self) -> AbstractContextManager[object]:
        """Let the home device's work inside a `with` block wait for earlier work of all devices.

        Their later work waits for it.
        """
        return nullcontext()

    def run(self, device: int, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on a device; return its result, which stays there.

        For a device in another process the result is a stand-in, which `bring`, `gather`, `collect`
        and later calls take. An engine and a slab's layout are replaced by those of that process.
        """
        with self.use(device):
            return function(*args)

    def launch(self, results: Iterator[Any]) -> Iterable[Any]:
        """Return the results of an iterator that calls `run`.

        With devices in other processes all calls are made now, else each when it is asked for.
        """
        return results

    def map(self, function: Callable[..., Any], homes: Iterable[int], *columns: Iterable) -> list:
        """Return ``function(home, *items)`` for each home, a device, which is current meanwhile.

        All devices are at work at the same time, each on its own calls in sequence.
        """

        def call(home: int, *items: Any) -> Any:
            with self.use(home):
                return function(home, *items)

        return list(map(call, homes, *columns))

    def bring(self, array: Array, device: int) -> Array:
        """Return an array that is on `device`; copy it if it is elsewhere."""
        return self.gather([((array,), device)])[0]

    def gather(self, requests: Sequence[Request]) -> list[Array]:
        """Return an array for each request; launch all copies together.

        A single array that is there already is returned as it is. Several ones, which must be on
        devices, become a contiguous one.
        """

    def add(
        self, requests: Sequence[Request], tree: Any, add_parts: Callable[..., Array]
    ) -> list[Array]:
        """Return for each request the sum of its arrays along a tree of their places.

        The arrays have one shape, and are on devices. `add_parts` adds them there where they lie
        below each other.
        """
        added = []
        for stacked, (_, home) in zip(self.gather(requests), requests, strict=True):
            with self.use(home):
                added.append(add_parts(stacked, tree))
        return added

    def collect(self, arrays: Sequence[Array]) -> list[Array]:
        """Bring small arrays, from any devices, to the home device."""

    def replicate(self, arrays: Sequence[Array], function: Callable[..., Array]) -> Any:
        """Return ``function(*arrays)``, which adds small arrays of any devices, for all devices.

        The result may be a stand-in that only elementwise functions and `bring` take.
        """
        return function(*self.collect(arrays))

    def fetch(self, matrices: Sequence[Array]) -> np.ndarray:
        """Return matrices, from any devices, in host memory, their rows below each other."""
        return np.concatenate([move(matrix, np) for matrix in self.collect(matrices)])


class OneDevice(Devices):
    """ "Devices" that are all the current one, of the array module `xp`."""

    def __init__(self, xp: ModuleType = np, count: int = 1) -> None:
        self._xp = xp
        self.count = count

    def check_current(self) -> None:
        pass  # there is no other device

    def empty(self, device: int, shape: tuple[int, int], dtype: np.dtype) -> Array:
        return self._xp.empty(shape, dtype)

    def gather(self, requests: Sequence[Request]) -> list[Array]:
        return [self._join(arrays) for arrays, _ in requests]

    def _join(self, arrays: Sequence[Array]) -> Array:
        """Stack arrays below each other; a single array of `xp` is returned as it is."""
        if len(arrays) == 1:
            return move(arrays[0], self._xp)
        return self._xp.ascontiguousarray(self._xp.concatenate(arrays))

    def collect(self, arrays: Sequence[Array]) -> list[Array]:
        return list(arrays)


def bring_each(devices: Devices, arrays: Iterable[Array], homes: Iterable[int]) -> list[Array]:
    """Return each array on its device; launch all copies together."""
    requests = [((array,), home) for array, home in zip(arrays, homes, strict=True)]
    return devices.gather(requests)


def assign_homes(num_parts: int, num_devices: int) -> tuple[int, ...]:
    """Give each device equally many neighbouring parts; return the device of each.

    >>> assign_homes(5, 2)
    (0, 0, 0, 1, 1)
    """
    return tuple(part * num_devices // num_parts for part in range(num_parts))
