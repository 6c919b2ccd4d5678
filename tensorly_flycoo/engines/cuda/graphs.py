"""Launches that are recorded once as a CUDA graph, and then launched together."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import cupy
import numpy as np

_Result = TypeVar("_Result")

#: What recording raises if the driver, CuPy or the memory does not allow it.
RECORDING_ERRORS = (RuntimeError, cupy.cuda.memory.OutOfMemoryError)


#: Makes a pool that graphs can share.
make_pool = cupy.cuda.MemoryPool


class HostNumber:
    """A float64 in pinned memory of the host, which a kernel may write."""

    def __init__(self) -> None:
        self._memory = cupy.cuda.alloc_pinned_memory(8)
        self._array = np.frombuffer(self._memory, np.float64, 1)
        self.address = self._memory.ptr

    def read(self) -> float:
        """Return the number, once the kernel has ended."""
        return float(self._array[0])


class Graph:
    """A CUDA graph, and the memory pool that keeps what it reads and writes."""

    def __init__(self, graph: Any, pool: cupy.cuda.MemoryPool) -> None:
        self._pool = pool
        #: Launches all on CuPy's current stream; no bytecode of Python runs in it.
        self.launch: Callable[[], object] = graph.launch

    def note_end(self) -> cupy.cuda.Event:
        """Return an event that occurs when all that was launched so far has ended."""
        return cupy.cuda.get_current_stream().record()


def record(
    work: Callable[[], _Result],
    others: Iterable[int] = (),
    pool: cupy.cuda.MemoryPool | None = None,
) -> tuple[Graph, _Result]:
    """Record the launches of a function, which can then be launched again and again.

    It launches on the current GPU and on `others`; the graph's launches on these wait for what the
    current stream of the current GPU was given before, and what that is given later waits for them.

    Returns what the function returns too. Whatever it allocates keeps its address while the graph
    lives; what it frees serves later launches of the graph alone. Graphs can share a `pool` if they
    are launched one after the other, and what one has computed is used before the next launch.
    """
    if pool is None:
        pool = cupy.cuda.MemoryPool()
    with contextlib.ExitStack() as stack:
        stack.enter_context(cupy.cuda.using_allocator(pool.malloc))
        stream = stack.enter_context(_new_stream(cupy.cuda.runtime.getDevice()))
        other_streams = [stack.enter_context(_new_stream(gpu)) for gpu in others]
        # Relaxed: the pool may ask the driver for memory, which is no work of the stream.
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
        try:
            for other_stream in other_streams:
                _let_wait(other_stream, stream)
            result = work()
            for other_stream in other_streams:
                _let_wait(stream, other_stream)
        except BaseException:
            with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
                stream.end_capture()
            raise
        graph = stream.end_capture()
    graph.upload()
    return Graph(graph, pool), result


@contextlib.contextmanager
def _new_stream(gpu: int) -> Iterator[cupy.cuda.Stream]:
    """Make a new stream the current one of a GPU, inside a `with` block."""
    device = cupy.cuda.Device(gpu)
    with device:
        stream_before = cupy.cuda.get_current_stream()
        stream = cupy.cuda.Stream(non_blocking=True)
        stream.use()
    try:
        yield stream
    finally:
        with device:
            stream_before.use()


def _let_wait(stream: cupy.cuda.Stream, awaited: cupy.cuda.Stream) -> None:
    """Have later work of a stream wait for the work so far of another one, maybe of another GPU."""
    with cupy.cuda.Device(awaited.device_id):
        event = cupy.cuda.Event(disable_timing=True)
        event.record(awaited)
    stream.wait_event(event)
