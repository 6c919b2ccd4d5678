"""Several GPUs of one process."""

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...base.array_modules import copy_parts, is_cupy
from ...base.devices import Devices, Request
from ...format.tree import Tree
from .exchange import MAX_ARRAYS, add_arrays, copy_blocks

#: Memory of CuPy that peer access covers.
_READABLE = (cupy.cuda.Memory, cupy.cuda.memory.PooledMemory)

_logger = logging.getLogger("tensorly_flycoo")


class CudaDevices(Devices):
    """The GPUs 0 to count - 1, numbered as CuPy does.

    Copies go straight from GPU to GPU, over NVLink or PCIe where GPUs can read each other's memory.
    """

    #: One GPU updates smaller factors faster than the host can launch updates on several [H100].
    least_nbytes = 2**25

    def __init__(self, count: int) -> None:
        self.count = count
        self.others = range(1, count)
        self._of_thread = threading.local()  # a thread's events: see `_get_event`
        pairs = itertools.permutations(range(count), 2)
        unconnected = [(reader, owner) for reader, owner in pairs if not _let_read(reader, owner)]
        self._lets_kernels_read = not unconnected
        if unconnected:
            _logger.warning(
                "GPUs %s cannot read each other's memory, so copies between them pass through the "
                "host, about ten times as slowly",
                unconnected,
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

    def can_lend(self, array: Array) -> bool:
        return self._lets_kernels_read and isinstance(array.data.mem, _READABLE)

    @contextlib.contextmanager
    def lend(
        self, arrays: Sequence[Array], homes: Sequence[int], owners: Sequence[int] = (0,)
    ) -> Iterator[Sequence[Array]]:
        owners = sorted(set(owners))
        users = [home for home in sorted(set(homes)) if owners != [home]]
        with self._order_work(users, owners):
            yield arrays

    def in_order(self) -> AbstractContextManager[None]:
        if not self.others:
            return contextlib.nullcontext()
        return self._order_work([0], self.others)

    def map(self, function: Callable[..., Any], homes: Iterable[int], *columns: Iterable) -> list:
        """Implement `Devices.map` by a thread for each GPU."""

        def call(home: int, *items: Any) -> Any:
            """Call it on the default stream, the thread's own, after the work of all streams."""
            with cupy.cuda.Device(home) as device:
                device.synchronize()
                result = function(home, *items)
                device.synchronize()
            return result

        pools = [ThreadPoolExecutor(1, "tensorly-flycoo-gpu") for _ in range(self.count)]
        futures = [
            pools[home].submit(copy_context().run, call, home, *items)
            for home, *items in zip(homes, *columns, strict=True)
        ]
        for pool in pools:
            pool.shutdown()
        return [future.result() for future in futures]

    def gather(self, requests: Sequence[Request]) -> list[Array]:
        """Implement `Devices.gather`: the GPU that wants an array copies it there."""
        copies_to: dict[int, _Copies] = {}  # by device
        gathered = []
        for arrays, device in requests:
            if len(arrays) == 1 and is_cupy(arrays[0]) and arrays[0].data.device_id == device:
                gathered.append(arrays[0])
                continue
            if device not in copies_to:
                copies_to[device] = _Copies(device, self._lets_kernels_read)
            with cupy.cuda.Device(device):
                gathered.append(copies_to[device].allocate(arrays))
        if not copies_to:
            return gathered
        readers = [device for device, copies in copies_to.items() if copies.homes]
        owners = sorted({home for copies in copies_to.values() for home in copies.homes})
        with self._order_work(readers, owners):
            for device, copies in copies_to.items():
                with cupy.cuda.Device(device):
                    copies.launch()
        return gathered

    def add(
        self, requests: Sequence[Request], tree: Tree, add_parts: Callable[..., Array]
    ) -> list[Array]:
        """Implement `Devices.add`: the GPU that wants a sum reads the arrays where they are."""
        arrays: list[Any] = [array for parts, _ in requests for array in parts]
        if not self._lets_kernels_read or not _suit_addition(arrays, len(requests)):
            return super().add(requests, tree, add_parts)
        owners = sorted({array.data.device_id for array in arrays})
        added = []
        with self._order_work([home for _, home in requests], owners):
            for parts, home in requests:
                with cupy.cuda.Device(home):
                    added.append(add_arrays(parts, tree))
        return added

    @contextlib.contextmanager
    def _order_work(self, users: Sequence[int], owners: Sequence[int]) -> Iterator[None]:
        """Let the kernels that a block launches on `users` use memory of `owners`.

        They wait for earlier work of the owners, and later work of the owners waits for them.
        """
        try:
            self._wait(users, owners)
            yield
            self._wait(owners, users)
        except BaseException:
            for gpu in {*users, *owners}:  # memory freed now must not be in use by others
                with cupy.cuda.Device(gpu):
                    cupy.cuda.get_current_stream().synchronize()
            raise

    def _wait(self, waiting: Sequence[int], awaited: Sequence[int]) -> None:
        """Have later work in the current streams of some GPUs wait for work so far in others'."""
        for gpu in awaited:
            with cupy.cuda.Device(gpu):
                self._get_event(gpu).record(cupy.cuda.get_current_stream())
        for gpu in waiting:
            with cupy.cuda.Device(gpu):
                stream = cupy.cuda.get_current_stream()
                for peer in awaited:
                    if peer != gpu:
                        stream.wait_event(self._get_event(peer))

    def _get_event(self, device: int) -> cupy.cuda.Event:
        """Return this thread's event of a device, used again: a wait is for its last record."""
        events: dict[int, cupy.cuda.Event] = vars(self._of_thread).setdefault("events", {})
        if device not in events:
            with cupy.cuda.Device(device):
                events[device] = cupy.cuda.Event(disable_timing=True)
        return events[device]

    def collect(self, arrays: Sequence[Array]) -> list[Array]:
        """Implement `Devices.collect`; arrays on the host stay there."""
        gathered = iter(self.gather([((array,), 0) for array in arrays if is_cupy(array)]))
        return [next(gathered) if is_cupy(array) else array for array in arrays]

    def fetch(self, matrices: Sequence[Array]) -> np.ndarray:
        """Implement `Devices.fetch`: each GPU's thread copies to its rows of the result."""
        first_rows = list(itertools.accumulate(map(len, matrices), initial=0))
        whole = np.empty((first_rows[-1], *matrices[0].shape[1:]), matrices[0].dtype)
        parts = [whole[start:stop] for start, stop in itertools.pairwise(first_rows)]
        homes = [matrix.device.id for matrix in matrices]
        self.map(lambda _, matrix, part: copy_parts(matrix, part), homes, matrices, parts)
        return whole


class _Copies:
    """Copies to one GPU, each of an array to an address there: by one kernel, or by the driver."""

    def __init__(self, device: int, lets_kernels_read: bool) -> None:
        self.device = device
        self.homes: list[int] = []  # other GPUs from which arrays come
        self._by_kernel: list[tuple[cupy.cuda.MemoryPointer, Array]] = []
        self._by_driver: list[tuple[cupy.cuda.MemoryPointer, Array]] = []
        self._lets_kernels_read = lets_kernels_read

    def allocate(self, arrays: Sequence[Array]) -> Array:
        """Return a new array for the rows of `arrays`, on the current GPU, which is this one."""
        first = arrays[0]
        if len(arrays) == 1 and not is_cupy(first):
            return cupy.asarray(first)
        shape = first.shape
        if len(arrays) > 1:
            shape = (sum([array.shape[0] for array in arrays]), *first.shape[1:])
        whole = cupy.empty(shape, first.dtype)
        target = whole.data
        for array in arrays:
            if array.size:
                self._add(target, array)
                target = target + array.nbytes
        return whole

    def _add(self, target: cupy.cuda.MemoryPointer, array: Array) -> None:
        """Note the copy of an array to an address."""
        home = array.data.device_id
        if home != self.device and home not in self.homes:
            self.homes.append(home)
        if self._lets_kernels_read and _suits_kernel(array):
            self._by_kernel.append((target, array))
        else:
            with cupy.cuda.Device(home):
                self._by_driver.append((target, cupy.ascontiguousarray(array)))

    def launch(self) -> None:
        """Launch all copies, on this GPU, which is current."""
        if self._by_kernel:
            copy_blocks(self._by_kernel)
        stream = cupy.cuda.get_current_stream()
        for target, array in self._by_driver:
            target.copy_from_device_async(array.data, array.nbytes, stream)


def _suits_kernel(array: Array) -> bool:
    """Return whether kernels of all GPUs, and `copy_blocks`, can read an array.

    It has words of 4 bytes, fewer than 2**31, rows without gaps, and memory that no asynchronous
    allocator gave.
    """
    has_rows = array.ndim == 2 and array.strides[1] == array.itemsize and array.strides[0] > 0
    has_words = array.itemsize % 4 == 0 and array.nbytes < 2**33
    is_readable = isinstance(array.data.mem, _READABLE)
    return is_readable and has_words and (has_rows or array.flags.c_contiguous)


def _suit_addition(arrays: Sequence[Array], num_sums: int) -> bool:
    """Return whether `add_arrays` of all GPUs can add arrays, equally many for each sum."""
    are_readable = all(
        isinstance(array.data.mem, _READABLE) and array.flags.c_contiguous for array in arrays
    )
    return are_readable and len(arrays) <= MAX_ARRAYS * num_sums


def _let_read(reader: int, owner: int) -> bool:
    """Let a GPU read another one's memory; return whether it can."""
    runtime = cupy.cuda.runtime
    if not runtime.deviceCanAccessPeer(reader, owner):
        return False
    with cupy.cuda.Device(reader):
        try:
            runtime.deviceEnablePeerAccess(owner)
        except runtime.CUDARuntimeError as error:
            if "PeerAccessAlreadyEnabled" not in str(error):
                raise
    return True
