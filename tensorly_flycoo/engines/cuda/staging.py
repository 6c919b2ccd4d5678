"""Records that visit the GPU: copied from host memory while others are computed."""

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...base.array_modules import copy_parts
from ...format.packed_records import PackedRecords
from ...format.packing import RecordOrder
from .packed_records import pack, unpack

#: An array that is used, and the next one, which is copied at the same time.
_NUM_SLOTS = 2


class CudaStager:
    """Brings records from the host to the current GPU, the next ones while these are used.

    They are arrays, or `PackedRecords`, which are unpacked when they are used. What is in pinned
    memory is copied at the speed of the link. Other arrays, such as those of files, are read to
    pinned memory by several threads first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: list[_Slot] = []  # the one that was filled first comes first
        self._largest_nbytes = 0  # of all arrays so far: a slot is made large enough for these
        self._copies = cupy.cuda.Stream(non_blocking=True)

    def put_aside(
        self, records: Array | PackedRecords, order: RecordOrder | None = None
    ) -> np.ndarray | PackedRecords:
        """Copy records of the GPU to pinned memory; those of the host stay where they are.

        If their order is known, and they would take less, they are packed.
        """
        if isinstance(records, PackedRecords):  # in a file: only the tables go to the GPU
            self._keep(records.words)
            return records.move_tables(cupy)
        if isinstance(records, np.ndarray):
            return self._keep(records)
        if order is not None and len(records) > 0:
            packed = pack(records, order)
            if packed is not None:
                words = self._keep(_copy_to_pinned(packed.words))
                return packed.replace_words(words)
        return self._keep(_copy_to_pinned(records))

    def _keep(self, array: np.ndarray) -> np.ndarray:
        """Take notice of an array that will be brought."""
        self._largest_nbytes = max(self._largest_nbytes, array.nbytes)
        return array

    @contextlib.contextmanager
    def take(
        self, copy: np.ndarray | PackedRecords, following: np.ndarray | PackedRecords | None
    ) -> Iterator[Array]:
        """Yield records on the GPU; begin to bring the following ones as soon as there is room."""
        if isinstance(copy, PackedRecords):
            with self._hold(copy.words) as words:
                records = unpack(copy, words)
            self._announce(following)
            yield records
        else:
            with self._hold(copy) as records:
                yield records
            self._announce(following)

    def _announce(self, following: np.ndarray | PackedRecords | None) -> None:
        """Begin to bring what is taken next, if anything is."""
        array: Any = following
        if isinstance(following, PackedRecords):
            array = following.words
        if array is not None:
            self._bring(array, is_needed=False)

    @contextlib.contextmanager
    def _hold(self, array: np.ndarray) -> Iterator[Array]:
        """Yield a copy of an array on the GPU, for work on the current stream."""
        stream = cupy.cuda.get_current_stream()
        slot = self._bring(array, is_needed=True)
        assert slot is not None
        try:
            stream.wait_event(slot.complete)
            yield cupy.ndarray(array.shape, array.dtype, memptr=slot.memory)
        finally:
            end_of_use = stream.record()
            with self._lock:
                slot.used.append(end_of_use)
                slot.num_users -= 1

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
        """Return a slot that nobody uses; if there is none, one for this use alone if needed."""
        if len(self._slots) < _NUM_SLOTS:
            slot = _Slot(max(nbytes, self._largest_nbytes))
            self._slots.append(slot)
            return slot
        free = next((slot for slot in self._slots if slot.num_users == 0), None)
        if free is None:
            return _Slot(nbytes) if is_needed else None
        self._slots.remove(free)
        if free.nbytes < nbytes:
            self._copies.synchronize()  # one may be under way to the memory that is freed
            free = _Slot(nbytes)
        self._slots.append(free)
        return free

    def _fill(self, slot: "_Slot", array: np.ndarray) -> None:
        """Begin to copy an array to a slot, once nothing uses the slot's memory any more."""
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
    """Memory for one array on the GPU."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = cupy.cuda.alloc(nbytes)
        self.array: np.ndarray | None = None  # of the host: the one that is copied here
        self.num_users = 0  # how many have taken it and not released it
        # Events that occur when nothing uses the memory any more: the pool may give out memory
        # that earlier work on this stream still uses.
        self.used = [cupy.cuda.get_current_stream().record()]
        self.complete = self.used[0]  # the event that occurs when the array is copied


def _copy_to_pinned(array: Array) -> np.ndarray:
    """Copy an array of the GPU to pinned memory."""
    pinned = _empty_pinned(array.shape, array.dtype)
    array.get(out=pinned)
    return pinned


class _PinnedArray(np.ndarray):
    """An array in pinned memory."""


def _empty_pinned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array in pinned memory, which is freed with it."""
    size = math.prod(shape)
    nbytes = max(1, size * dtype.itemsize)
    memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(nbytes), 0)
    array = np.frombuffer(memory, dtype, size).reshape(shape)
    return array.view(_PinnedArray)
