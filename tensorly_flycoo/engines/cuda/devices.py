"""Several GPUs of one process."""

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import cupy
import numpy as np

from ...array_modules import Array, is_cupy, move
from ...devices import Request
from .copies import copy_blocks

#: Copies to a GPU with fewer bytes in all are made by a kernel; the driver's take the host longer.
SMALL_NBYTES = 2**20

_logger = logging.getLogger("tensorly_flycoo")


class CudaDevices:
    """GPUs, numbered as CuPy does; implements `tensorly_flycoo.devices.Devices`.

    Copies go straight from GPU to GPU, over NVLink or PCIe where GPUs can read each other's memory.

    Parameters
    ----------
    count : int
        The GPUs 0 to count - 1.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._of_thread = threading.local()
        pairs = itertools.permutations(range(count), 2)
        strangers = [pair for pair in pairs if not _let_read(*pair)]
        self._lets_kernels_read = not strangers
        if strangers:
            _logger.warning(
                "GPUs %s cannot read each other's memory, so copies between them pass through the "
                "host, about ten times as slowly",
                strangers,
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CudaDevices) and other.count == self.count

    def __hash__(self) -> int:
        return hash(self.count)

    def check_current(self) -> None:
        current = cupy.cuda.runtime.getDevice()
        if current != 0:
            raise ValueError(
                f"the current GPU is {current}, expected 0, which holds the small matrices of a "
                "tensor on several GPUs: compute inside `with cupy.cuda.Device(0):`"
            )

    def use(self, device: int) -> AbstractContextManager[Any]:
        return cupy.cuda.Device(device)

    def bring(self, array: Array, device: int) -> Array:
        return self.gather([((array,), device)])[0]

    def gather(self, requests: Sequence[Request]) -> list[Array]:
        exchange = _Exchange(self._lets_kernels_read)
        arrays = [exchange.add(parts, device) for parts, device in requests]
        exchange.launch(self._get_link)
        return arrays

    def _get_link(self, device: int) -> "_Link":
        """Return what copies to a device need; a thread's own, since events are used again."""
        if not hasattr(self._of_thread, "links"):
            self._of_thread.links = {}
        links: dict[int, _Link] = self._of_thread.links
        if device not in links:
            with cupy.cuda.Device(device):
                links[device] = _Link()
        return links[device]

    def collect(self, arrays: Sequence[Array]) -> list[Array]:
        there = iter(self.gather([((array,), 0) for array in arrays if is_cupy(array)]))
        return [next(there) if is_cupy(array) else array for array in arrays]

    def fetch(self, array: Array) -> np.ndarray:
        with array.device:
            return move(array, np)


class _Link:
    """A stream for copies to the current GPU from others, and events.

    A wait for an event is for its last record before the wait, so events can be recorded again.

    Attributes
    ----------
    copies : cupy.cuda.Stream
    ready : cupy.cuda.Event
        Occurs when the GPU's own arrays are complete, and the memory for new ones is unused.
    copied : cupy.cuda.Event
        Occurs when all is copied to this GPU.
    """

    def __init__(self) -> None:
        self.copies = cupy.cuda.Stream(non_blocking=True)
        self.ready, self.copied = (cupy.cuda.Event(disable_timing=True) for _ in range(2))


class _Exchange:
    """Copies that are launched together, when the memory for all is allocated.

    They wait for earlier work on both GPUs' current streams, and later work there waits for them,
    since it may use the copies, or the memory of what was copied. A kernel of the target makes
    small copies, all at once. Others between GPUs run on a stream of the target's own: on the
    default stream they would wait for all work on both.

    Parameters
    ----------
    lets_kernels_read : bool
        Whether kernels of each GPU can read the memory of all.
    """

    def __init__(self, lets_kernels_read: bool) -> None:
        self._lets_kernels_read = lets_kernels_read
        # For each target, the addresses on it and what is copied there.
        self._copies: dict[int, list[tuple[cupy.cuda.MemoryPointer, Array]]] = {}
        self._contiguous: dict[int, Array] = {}

    def add(self, arrays: Sequence[Array], device: int) -> Array:
        """Return the array on `device` that will have the rows of `arrays`."""
        first, shape = arrays[0], arrays[0].shape
        with cupy.cuda.Device(device):
            if not is_cupy(first):
                return cupy.asarray(first)
            if len(arrays) > 1:
                shape = (sum(array.shape[0] for array in arrays), *shape[1:])
            elif first.data.device_id == device:
                return first
            whole, offset = cupy.empty(shape, first.dtype), 0
        copies = self._copies.setdefault(device, [])
        for array in arrays:
            if array.size:
                copies.append((whole.data + offset, array))
                offset += array.nbytes
        return whole

    def _is_small(self, device: int) -> bool:
        """Return whether a kernel makes the copies to a GPU."""
        arrays = [array for _, array in self._copies[device]]
        is_small = sum(array.nbytes for array in arrays) <= SMALL_NBYTES
        return self._lets_kernels_read and is_small and all(map(_suits_kernel, arrays))

    def _make_contiguous(self, array: Array) -> Array:
        """Return an array without gaps, on the same GPU; it is copied once for all targets."""
        if array.flags.c_contiguous:
            return array
        if id(array) not in self._contiguous:
            with cupy.cuda.Device(array.data.device_id):
                self._contiguous[id(array)] = cupy.ascontiguousarray(array)
        return self._contiguous[id(array)]

    def launch(self, get_link: Callable[[int], _Link]) -> None:
        """Launch the copies."""
        small = {device for device in self._copies if self._is_small(device)}
        for device in self._copies.keys() - small:
            copies = self._copies[device]
            copies[:] = [(target, self._make_contiguous(array)) for target, array in copies]
        homes = {device: self._list_homes(device) for device in self._copies}
        gpus = {gpu for device, own in homes.items() if own for gpu in (device, *own)}
        links = {gpu: get_link(gpu) for gpu in sorted(gpus)}
        try:
            for gpu, link in links.items():
                with cupy.cuda.Device(gpu):
                    link.ready.record(cupy.cuda.get_current_stream())
            for device, own_homes in homes.items():
                copy_to = self._copy_small if device in small else self._copy_large
                copy_to(device, own_homes, links)
            for gpu in links:
                readers = [links[device].copied for device, own in homes.items() if gpu in own]
                _wait(gpu, readers)
        except BaseException:
            for gpu, link in links.items():  # what is freed now must not be in use by copies
                with cupy.cuda.Device(gpu):
                    cupy.cuda.get_current_stream().synchronize()
                    link.copies.synchronize()
            raise

    def _list_homes(self, device: int) -> list[int]:
        """List the GPUs from which others' arrays come to a GPU, beginning with the next one.

        If all copy from all, each is read by one other at a time.
        """
        homes = {array.data.device_id for _, array in self._copies[device]} - {device}
        return sorted(homes, key=lambda home: (home < device, home))

    def _copy_small(self, device: int, homes: Sequence[int], links: dict[int, _Link]) -> None:
        """Launch the copies to a GPU by a kernel; `homes` are the others that it copies from."""
        with cupy.cuda.Device(device):
            stream = cupy.cuda.get_current_stream()
            for home in homes:
                stream.wait_event(links[home].ready)
            copy_blocks(self._copies[device])
            if homes:
                links[device].copied.record(stream)

    def _copy_large(self, device: int, homes: Sequence[int], links: dict[int, _Link]) -> None:
        """Launch the copies to a GPU; `homes` are the others that it copies from, in order."""
        copies = self._copies[device]
        with cupy.cuda.Device(device):
            stream = cupy.cuda.get_current_stream()
            if homes:
                link = links[device]
                link.copies.wait_event(link.ready)
                for home in homes:
                    link.copies.wait_event(links[home].ready)
                    _launch(copies, home, link.copies)
                link.copied.record(link.copies)
            _launch(copies, device, stream)
            if homes:
                stream.wait_event(link.copied)


def _suits_kernel(array: Array) -> bool:
    """Return whether `copy_blocks` can read an array: words of 4 bytes, in rows without gaps."""
    has_rows = array.ndim == 2 and array.strides[1] == array.itemsize
    return array.itemsize % 4 == 0 and (has_rows or array.flags.c_contiguous)


def _launch(
    copies: Sequence[tuple[cupy.cuda.MemoryPointer, Array]], home: int, stream: cupy.cuda.Stream
) -> None:
    """Launch those copies that come from `home`."""
    for target, array in copies:
        if array.data.device_id == home:
            target.copy_from_device_async(array.data, array.nbytes, stream)


def _wait(gpu: int, events: Sequence[cupy.cuda.Event]) -> None:
    """Let later work on a GPU wait for events."""
    if events:
        with cupy.cuda.Device(gpu):
            stream = cupy.cuda.get_current_stream()
            for event in events:
                stream.wait_event(event)


def _let_read(device: int, other: int) -> bool:
    """Let a GPU read another one's memory; return whether it can."""
    runtime = cupy.cuda.runtime
    if not runtime.deviceCanAccessPeer(device, other):
        return False
    with cupy.cuda.Device(device):
        try:
            runtime.deviceEnablePeerAccess(other)
        except runtime.CUDARuntimeError as error:
            if "PeerAccessAlreadyEnabled" not in str(error):
                raise
    return True
