"""Records that visit the GPU: copied from host memory while others are computed."""

import contextlib
import threading
from collections.abc import Iterator

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...base.array_modules import copy_parts

#: An array that is used, and the next one, which is copied at the same time.
_NUM_SLOTS = 2


class CudaStager:
    """Brings arrays from the host to the current GPU, the next one while this one is used.

    Arrays in pinned memory are copied at the speed of the link. Others, such as those of files, are
    read to pinned memory by several threads first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: list[_Slot] = []
        self._nbytes = 0
        self._copies = cupy.cuda.Stream(non_blocking=True)

    def put_aside(self, array: Array) -> np.ndarray:
        """Copy an array of the GPU to pinned memory; one of the host stays where it is."""
        self._nbytes = max(self._nbytes, array.nbytes)
        if isinstance(array, np.ndarray):
            return array
        waiting = _empty_pinned(array.shape, array.dtype)
        array.get(out=waiting)
        return waiting

    @contextlib.contextmanager
    def take(self, array: np.ndarray, following: np.ndarray | None) -> Iterator[Array]:
        """Yield a copy on the GPU; afterwards begin to copy the array that is taken next."""
        stream = cupy.cuda.get_current_stream()
        slot = self._bring(array, is_needed=True)
        assert slot is not None
        try:
            stream.wait_event(slot.complete)
            yield cupy.ndarray(array.shape, array.dtype, memptr=slot.memory)
        finally:
            used = stream.record()
            with self._lock:
                slot.used.append(used)
                slot.num_users -= 1
        if following is not None:
            self._bring(following, is_needed=False)

    def _bring(self, array: np.ndarray, is_needed: bool) -> "_Slot | None":
        """Return the slot with an array; if it is needed, nothing replaces it until it is released.

        Return None if it is not needed and all slots are in use.
        """
        with self._lock:
            slot = next((slot for slot in self._slots if slot.array is array), None)
            if slot is None:
                slot = self._find_slot(array.nbytes, is_needed)
                if slot is None:
                    return None
                self._fill(slot, array)
            slot.num_users += is_needed
            return slot

    def _find_slot(self, nbytes: int, is_needed: bool) -> "_Slot | None":
        free = [n for n, slot in enumerate(self._slots) if slot.num_users == 0]
        if len(self._slots) < _NUM_SLOTS:
            self._slots.append(_Slot(max(nbytes, self._nbytes)))
            return self._slots[-1]
        if free:
            slot = self._slots.pop(free[0])
            if slot.nbytes < nbytes:
                self._copies.synchronize()  # one may be under way to the memory that is freed
                slot = _Slot(nbytes)
            self._slots.append(slot)  # the one that was filled first is replaced next
            return slot
        return _Slot(nbytes) if is_needed else None

    def _fill(self, slot: "_Slot", array: np.ndarray) -> None:
        for event in slot.used:
            self._copies.wait_event(event)
        slot.used.clear()
        slot.array = None
        if isinstance(array, _PinnedArray):
            slot.memory.copy_from_host_async(array.ctypes.data, array.nbytes, self._copies)
        else:
            with self._copies:
                copy_parts(array, cupy.ndarray(array.shape, array.dtype, memptr=slot.memory))
        slot.complete = self._copies.record()
        slot.array = array

    def __del__(self) -> None:
        # Neither the slots nor what is copied to them may be freed before copies are complete.
        with contextlib.suppress(Exception):
            self._copies.synchronize()


class _Slot:
    """Memory for one array on the GPU.

    `array` is the one that has been copied here, `complete` occurs when it is copied. `num_users`
    have taken it and not released it. The events `used` occur when nothing uses the memory.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = cupy.cuda.alloc(nbytes)
        self.array: np.ndarray | None = None
        self.num_users = 0
        # The pool may give out memory that earlier work on this stream still uses.
        self.used = [cupy.cuda.get_current_stream().record()]
        self.complete = self.used[0]


class _PinnedArray(np.ndarray):
    """An array in pinned memory."""


def _empty_pinned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array in pinned memory, which is freed with it."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(max(nbytes, 1)), 0)
    return np.frombuffer(memory, dtype, nbytes // dtype.itemsize).reshape(shape).view(_PinnedArray)
