"""Several GPUs of one process."""

from contextlib import AbstractContextManager
from typing import Any

import cupy
import numpy as np

from ...array_modules import Array, is_cupy, move


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
        for device in range(count):
            for other in range(count):
                _let_read(device, other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CudaDevices) and other.count == self.count

    def __hash__(self) -> int:
        return hash(self.count)

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
        self.copy(array, copy)
        return copy

    def copy(self, array: Array, target: Array) -> None:
        home = array.device
        with home:
            array = cupy.ascontiguousarray(array)
            complete = cupy.cuda.get_current_stream().record()
        # Streams of two GPUs do not wait for each other by themselves: the copy must wait for the
        # array to be complete, and the array's memory must not be used again before it is copied.
        with target.device:
            stream = cupy.cuda.get_current_stream()
            stream.wait_event(complete)
            target.data.copy_from_device_async(array.data, array.nbytes, stream)
            copied = stream.record()
        with home:
            cupy.cuda.get_current_stream().wait_event(copied)

    def fetch(self, array: Array) -> np.ndarray:
        with array.device:
            return move(array, np)


def _let_read(device: int, other: int) -> None:
    """Let a GPU read another one's memory, if it can."""
    runtime = cupy.cuda.runtime
    if device == other or not runtime.deviceCanAccessPeer(device, other):
        return
    with cupy.cuda.Device(device):
        try:
            runtime.deviceEnablePeerAccess(other)
        except runtime.CUDARuntimeError as error:
            if "PeerAccessAlreadyEnabled" not in str(error):
                raise
