"""Launches that are recorded once as a CUDA graph, and then launched together."""

from collections.abc import Callable
from typing import Any, TypeVar

import cupy
import numpy as np

_Result = TypeVar("_Result")

#: What recording raises if the driver or the memory does not allow it.
RECORDING_ERRORS = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.memory.OutOfMemoryError)


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
    """A CUDA graph, and the memory pool of its own that keeps what it reads and writes."""

    def __init__(self, graph: Any, pool: cupy.cuda.MemoryPool) -> None:
        self._pool = pool
        #: Launches all on CuPy's current stream; no bytecode of Python runs in it.
        self.launch: Callable[[], object] = graph.launch


def record(work: Callable[[], _Result]) -> tuple[Graph, _Result]:
    """Record the launches of a function, which can then be launched again and again.

    Returns what the function returns too. Whatever it allocates keeps its address while the graph
    lives; what it frees serves later launches of the graph alone.
    """
    pool = cupy.cuda.MemoryPool()
    stream = cupy.cuda.Stream(non_blocking=True)
    with cupy.cuda.using_allocator(pool.malloc), stream:
        # Relaxed: the pool may ask the driver for memory, which is no work of the stream.
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
        try:
            result = work()
        finally:
            graph = stream.end_capture()
    graph.upload()
    return Graph(graph, pool), result


class Recorder:
    """Records graphs that are launched one after the other, never two at once.

    So they share the memory of what is not kept from one launch to the next, and a later recording
    need not ask the driver for it.
    """

    def __init__(self) -> None:
        self._pool = cupy.cuda.MemoryPool()
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def record(self, work: Callable[[], _Result]) -> tuple[Graph, _Result]:
        """Record the launches of a function; return what it returns too, as `record` does."""
        with cupy.cuda.using_allocator(self._pool.malloc), self._stream as stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
            try:
                result = work()
            finally:
                graph = stream.end_capture()
        graph.upload()
        return Graph(graph, self._pool), result
