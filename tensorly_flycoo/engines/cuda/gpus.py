"""Several GPUs of one process."""

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...base.array_modules import copy_parts, is_cupy
from ...base.devices import Devices, Request
from .exchange import copy_blocks

#: Copies to a GPU with fewer bytes in all are made by a kernel; the driver's take the host longer.
SMALL_NBYTES = 2**24

#: Memory of CuPy that peer access covers.
_READABLE = (cupy.cuda.Memory, cupy.cuda.memory.PooledMemory)

_logger = logging.getLogger("tensorly_flycoo")


class CudaDevices(Devices):
    """The GPUs 0 to count - 1, numbered as CuPy does.

    Copies go straight from GPU to GPU, over NVLink or PCIe where GPUs can read each other's memory.
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

    def empty(self, device: int, shape: tuple[int, int], dtype: np.dtype) -> Array:
        with self.use(device):
            return cupy.empty(shape, dtype)

    def run(self, device: int, function: Callable[..., Any], *args: Any) -> Any:
        with self.use(device):
            return function(*args)

    def map(self, function: Callable[..., Any], homes: Iterable[int], *columns: Iterable) -> list:
        def call(home: int, *items: Any) -> Any:
            """Call it on the default stream, the thread's own, after the work of all streams."""
            with cupy.cuda.Device(home) as device:
                device.synchronize()
                result = function(home, *items)
                device.synchronize()
            return result

        pools = [ThreadPoolExecutor(1, "tensorly-flycoo-gpu") for _ in range(self.count)]
        calls = [
            pools[items[0]].submit(copy_context().run, call, *items)
            for items in zip(homes, *columns, strict=True)
        ]
        for pool in pools:
            pool.shutdown()
        return [call.result() for call in calls]

    def gather(self, requests: Sequence[Request]) -> list[Array]:
        found: list[Any] = [arrays[0] for arrays, _ in requests]
        wanted: dict[int, list[int]] = {}  # the requests of each device
        for number, (arrays, device) in enumerate(requests):
            if len(arrays) > 1 or not is_cupy(arrays[0]) or arrays[0].data.device_id != device:
                wanted.setdefault(device, []).append(number)
        targets = [_Copies(device) for device in wanted]
        for target in targets:
            with cupy.cuda.Device(target.device):
                for number in wanted[target.device]:
                    found[number] = target.allocate(requests[number][0])
        if targets:
            self._launch([target for target in targets if target.pairs])
        return found

    def _launch(self, targets: Sequence["_Copies"]) -> None:
        """Launch copies together, when the memory for all is allocated.

        They wait for earlier work on both GPUs' current streams, and later work there waits for
        them, since it may use the copies, or the memory of what was copied. If kernels of each GPU
        can read the memory of all, a kernel of the target makes small copies, all at once. Others
        between GPUs run on a stream of the target's own: on the default stream they would wait for
        all work on both.
        """
        copied: dict[int, Array] = {}
        suit = [t for t in targets if t.nbytes <= SMALL_NBYTES and t.suits_kernel]
        small = suit if self._lets_kernels_read else []
        large = [t for t in targets if t not in small]
        for target in large:
            target.make_contiguous(copied)
        gpus = {gpu for t in targets if t.homes for gpu in (t.device, *t.homes)}
        links = {gpu: self._get_link(gpu) for gpu in sorted(gpus)}
        awaited = {gpu for t in targets for gpu in t.homes} | {t.device for t in large}
        try:
            for gpu in links.keys() & awaited:
                with cupy.cuda.Device(gpu):
                    links[gpu].ready.record(cupy.cuda.get_current_stream())
            for target in large:
                target.launch_copies(links)
            for target in small:
                target.launch_kernel(links)
            for gpu in links:
                with cupy.cuda.Device(gpu):
                    stream = cupy.cuda.get_current_stream()
                    for target in targets:
                        if gpu in target.homes:
                            stream.wait_event(links[target.device].copied)
        except BaseException:
            for gpu, link in links.items():  # what is freed now must not be in use by copies
                with cupy.cuda.Device(gpu):
                    cupy.cuda.get_current_stream().synchronize()
                    link.copies.synchronize()
            raise

    def _get_link(self, device: int) -> "_Link":
        """Return the stream and events of copies to a device; a thread's own: events are reused."""
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

    def fetch(self, matrices: Sequence[Array]) -> np.ndarray:
        edges = list(itertools.accumulate(map(len, matrices), initial=0))
        whole = np.empty((edges[-1], *matrices[0].shape[1:]), matrices[0].dtype)
        parts = [whole[start:stop] for start, stop in itertools.pairwise(edges)]
        homes = [matrix.device.id for matrix in matrices]
        self.map(lambda _, matrix, part: copy_parts(matrix, part), homes, matrices, parts)
        return whole


class _Link:
    """A stream for copies to the current GPU from others, and events.

    `ready` occurs when the GPU's own arrays are complete, and the memory for new ones is unused;
    `copied` when all is copied to this GPU. Events are reused: a wait refers to the last record.
    """

    def __init__(self) -> None:
        self.copies = cupy.cuda.Stream(non_blocking=True)
        self.ready, self.copied = (cupy.cuda.Event(disable_timing=True) for _ in range(2))


class _Copies:
    """Copies to one GPU."""

    def __init__(self, device: int) -> None:
        self.device = device
        # addresses there, and what is copied to them
        self.pairs: list[tuple[cupy.cuda.MemoryPointer, Array]] = []
        self.homes: list[int] = []  # other GPUs from which arrays come
        self.nbytes = 0
        self.suits_kernel = True  # whether `copy_blocks` can read all arrays

    def allocate(self, arrays: Sequence[Array]) -> Array:
        """Return what will have the rows of `arrays`, on the current GPU, which is this one."""
        first, shape = arrays[0], arrays[0].shape
        if len(arrays) > 1:
            shape = (sum([array.shape[0] for array in arrays]), *shape[1:])
        elif not is_cupy(first):
            return cupy.asarray(first)
        whole = cupy.empty(shape, first.dtype)
        target = whole.data
        for array in arrays:
            if array.size:
                self.pairs.append((target, array))
                target = target + array.nbytes
                self.suits_kernel = self.suits_kernel and _suits_kernel(array)
                home = array.data.device_id
                if home != self.device and home not in self.homes:
                    self.homes.append(home)
        self.nbytes += whole.nbytes
        return whole

    def make_contiguous(self, copied: dict[int, Array]) -> None:
        """Replace arrays by ones without gaps, on the same GPUs; `copied` has those of others."""
        for n, (target, array) in enumerate(self.pairs):
            if array.flags.c_contiguous:
                continue
            if id(array) not in copied:
                with cupy.cuda.Device(array.data.device_id):
                    copied[id(array)] = cupy.ascontiguousarray(array)
            self.pairs[n] = (target, copied[id(array)])

    def launch_kernel(self, links: dict[int, _Link]) -> None:
        """Launch one kernel for all copies."""
        with cupy.cuda.Device(self.device):
            stream = cupy.cuda.get_current_stream()
            for home in self.homes:
                stream.wait_event(links[home].ready)
            copy_blocks(self.pairs)
            if self.homes:
                links[self.device].copied.record(stream)

    def launch_copies(self, links: dict[int, _Link]) -> None:
        """Launch a copy for each array, on a stream for those of other GPUs.

        The next GPU is read first: if all copy from all, each is read by one other at a time.
        """
        with cupy.cuda.Device(self.device):
            stream = cupy.cuda.get_current_stream()
            if self.homes:
                link = links[self.device]
                link.copies.wait_event(link.ready)
                for home in sorted(self.homes, key=lambda home: (home < self.device, home)):
                    link.copies.wait_event(links[home].ready)
                    self._launch_from(home, link.copies)
                link.copied.record(link.copies)
            self._launch_from(self.device, stream)
            if self.homes:
                stream.wait_event(link.copied)

    def _launch_from(self, home: int, stream: cupy.cuda.Stream) -> None:
        for target, array in self.pairs:
            if array.data.device_id == home:
                target.copy_from_device_async(array.data, array.nbytes, stream)


def _suits_kernel(array: Array) -> bool:
    """Return whether kernels of all GPUs, and `copy_blocks`, can read an array.

    It has words of 4 bytes, rows without gaps, and memory that no asynchronous allocator gave.
    """
    has_rows = array.ndim == 2 and array.strides[1] == array.itemsize and array.strides[0] > 0
    has_words = array.itemsize % 4 == 0 and (has_rows or array.flags.c_contiguous)
    return has_words and isinstance(array.data.mem, _READABLE)


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
