"""One GPU of this process, among those of other processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...base.devices import LinkBroken

try:
    from cupy.cuda import nccl
except ImportError:  # NCCL is not installed
    nccl = None

#: Seconds between looks whether a link is still needed and works.
_POLL_SECONDS = 2.0

#: Seconds between looks whether GPUs have been connected.
_CONNECT_SECONDS = 0.001

#: Seconds for which a link that is closed lets a thread finish what it launches.
_LAUNCH_SECONDS = 5.0


def list_gpus() -> list[str]:
    """List the UUIDs of this process's GPUs, in CuPy's order."""
    runtime = cupy.cuda.runtime
    numbers = range(runtime.getDeviceCount())
    return [bytes(runtime.getDeviceProperties(n)["uuid"]).hex() for n in numbers]


def has_nccl() -> bool:
    """Return whether NCCL is installed, where CuPy finds it."""
    return nccl is not None and bool(nccl.available)


class ThreadStream:
    """A GPU, and a stream of its own there, that are current in one thread.

    The stream does not wait for those of other threads, so that one exchange between processes
    cannot wait for another one that the peers begin in another order.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._stream: cupy.cuda.Stream | None = None  # CuPy only refers to it

    def use(self) -> None:
        """Make the GPU and the stream current in this thread."""
        cupy.cuda.Device(self.number).use()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()


class NcclLink:
    """Connects the current GPU to those of other processes, by NCCL.

    NCCL only moves bytes. A thread connects the GPUs, which takes as long as the slowest process,
    and later disconnects them, whatever they do. Work that waits then goes on, with any numbers.

    This is process `number` of `count`; `name` is what `make_name` has returned in process 0.
    Another thread calls `is_needed` every 2 s, which returns False when the link should be closed.
    """

    def __init__(
        self, number: int, count: int, name: np.ndarray, is_needed: Callable[[], bool]
    ) -> None:
        self._number = number
        self._count = count
        self._name = name.tobytes()
        self._is_needed = is_needed
        self._gpu = cupy.cuda.runtime.getDevice()
        self._lock = threading.Lock()
        self._is_connected = threading.Event()  # set too if connecting has failed
        self._is_closing = threading.Event()
        self._error: Exception | None = None  # of the link's thread
        self._connection: Any = None  # of class NcclCommunicator
        threading.Thread(target=self._run, name="tensorly_flycoo link", daemon=True).start()

    @staticmethod
    def make_name() -> np.ndarray:
        """Return NCCL's unique id, which process 0 sends the others."""
        return np.frombuffer(nccl.get_unique_id(), np.uint8)

    # In the link's thread

    def _run(self) -> None:
        """Connect the GPUs, watch the link while it is needed, and disconnect them."""
        stream = ThreadStream(self._gpu)
        stream.use()
        try:
            self._connect()
            self._is_connected.set()
            while self._is_needed() and not self._is_closing.wait(_POLL_SECONDS):
                self._connection.check_async_error()
        except Exception as error:
            self._error = error
            self._is_connected.set()
        self._disconnect()

    def _connect(self) -> None:
        """Connect the GPUs, and wait until all have, or the link is not needed any more."""
        self._connection = nccl.NcclCommunicator(self._count, self._name, self._number)
        # NCCL connects a pair when it first exchanges something, and waits for the peer.
        peers = [peer for peer in range(self._count) if peer != self._number]
        sent, received = cupy.zeros((2, self._count), np.int32)
        self._launch(
            [(sent[peer], peer) for peer in peers], [(received[peer], peer) for peer in peers]
        )
        while not cupy.cuda.get_current_stream().done and self._is_needed():
            time.sleep(_CONNECT_SECONDS)

    def _disconnect(self) -> None:
        """End all exchanges, even if the peers never take part in them."""
        self._is_closing.set()
        # Lets a thread finish what it launches, unless that hangs.
        has_lock = self._lock.acquire(timeout=_LAUNCH_SECONDS)
        if self._connection is not None:
            self._connection.abort()
        if has_lock:
            self._lock.release()

    # In other threads

    def wait(self, seconds: float) -> bool:
        """Wait for some seconds at most; return whether all are connected; `check` the link."""
        is_connected = self._is_connected.wait(seconds)
        self.check()
        return is_connected

    def check(self) -> None:
        """Raise a `LinkBroken` if the link is broken."""
        if self._error is not None:
            raise LinkBroken(
                f"NCCL cannot connect the GPUs of the workers: {self._error}. NCCL_DEBUG=INFO in "
                "the workers' environment shows why"
            )

    def close(self) -> None:
        """Ask for the GPUs to be disconnected, and return at once."""
        self._is_closing.set()

    def exchange(
        self, sent: Sequence[tuple[Array, int]], received: Sequence[tuple[Array, int]]
    ) -> None:
        """Send contiguous arrays to processes and receive others, on the current stream.

        Between two processes they are received in the order of sending. Does not wait for them.
        """
        with self._lock:
            if not self._is_closing.is_set():
                self._launch(sent, received)

    def _launch(
        self, sent: Sequence[tuple[Array, int]], received: Sequence[tuple[Array, int]]
    ) -> None:
        """Exchange arrays, all at once: one after the other, processes would wait in a circle."""
        connection = self._connection
        stream = cupy.cuda.get_current_stream().ptr
        nccl.groupStart()
        try:
            for array, peer in sent:
                connection.send(array.data.ptr, array.nbytes, nccl.NCCL_INT8, peer, stream)
            for array, peer in received:
                connection.recv(array.data.ptr, array.nbytes, nccl.NCCL_INT8, peer, stream)
        finally:
            nccl.groupEnd()

    def synchronize(self) -> None:
        """Wait for all work on the current stream."""
        cupy.cuda.get_current_stream().synchronize()
