"""Several GPUs of one process."""

import itertools
import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import cupy
import numpy as np

from ...array_modules import Array, is_cupy, move

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
        if not is_cupy(array):
            with cupy.cuda.Device(device):
                return cupy.asarray(array)
        if array.device.id == device:
            return array
        with cupy.cuda.Device(device):
            copy = cupy.empty(array.shape, array.dtype)
        self._copy(array, copy)
        return copy

    def concatenate(self, arrays: Sequence[Array], device: int) -> Array:
        num_rows = sum(array.shape[0] for array in arrays)
        with cupy.cuda.Device(device):
            whole = cupy.empty((num_rows, *arrays[0].shape[1:]), arrays[0].dtype)
        start = 0
        for array in arrays:
            stop = start + array.shape[0]
            self._copy(array, whole[start:stop])
            start = stop
        return whole

    def _copy(self, array: Array, target: Array) -> None:
        """Copy an array to a contiguous one of the same shape, on any two devices."""
        home, device = array.device, target.device
        if home.id == device.id:
            with device:
                array = cupy.ascontiguousarray(array)
                stream = cupy.cuda.get_current_stream()
                target.data.copy_from_device_async(array.data, array.nbytes, stream)
            return
        with home:
            array = cupy.ascontiguousarray(array)
            source_stream, source = cupy.cuda.get_current_stream(), self._get_link(home.id)
            source.complete.record(source_stream)
        with device:
            stream, link = cupy.cuda.get_current_stream(), self._get_link(device.id)
            link.free.record(stream)
            # On a stream of its own: copies between GPUs on the default one wait for all work on
            # both. They must wait for the array to be complete and for the target to be unused.
            link.copies.wait_event(source.complete)
            link.copies.wait_event(link.free)
            target.data.copy_from_device_async(array.data, array.nbytes, link.copies)
            link.copied.record(link.copies)
            stream.wait_event(link.copied)
        with home:  # the array's memory must not be used again before it is copied
            source_stream.wait_event(link.copied)

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
        return [self.bring(array, 0) if is_cupy(array) else array for array in arrays]

    def fetch(self, array: Array) -> np.ndarray:
        with array.device:
            return move(array, np)


class _Link:
    """A stream for copies to the current GPU, and events.

    A wait for an event is for its last record before the wait, so events can be recorded again.
    """

    def __init__(self) -> None:
        self.copies = cupy.cuda.Stream(non_blocking=True)
        self.complete, self.free, self.copied = (
            cupy.cuda.Event(disable_timing=True) for _ in range(3)
        )


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
