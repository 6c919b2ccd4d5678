"""Launch kernels straight through the driver, with their arguments packed by `struct`.

Small tensors wait for the host, not for the GPU, and CuPy's call takes several times as long.
"""

import ctypes
import struct
import threading
from typing import Any

import cupy
from cupy.cuda import driver

#: The driver's names for the items of its argument `extra`.
_END, _BUFFER_POINTER, _BUFFER_SIZE = 0, 1, 2


class DirectKernel:
    """A kernel of the current device, loaded, with the format of its arguments.

    `formats` are the types of its arguments, members of structures included, as the module `struct`
    names them; these are aligned as in C. `shared_nbytes` is the dynamic shared memory of a block.
    """

    def __init__(self, kernel: cupy.RawKernel, formats: str, shared_nbytes: int = 0) -> None:
        if kernel.max_dynamic_shared_size_bytes < shared_nbytes:
            kernel.max_dynamic_shared_size_bytes = shared_nbytes
        self._function = kernel.kernel  # its module stays loaded while this lives
        self._arguments = struct.Struct(formats)
        self._shared_nbytes = shared_nbytes
        self._of_thread = threading.local()

    def __call__(self, grid: tuple[int, int], block_size: int, *values: Any) -> None:
        """Launch on CuPy's current stream; arrays are given as their addresses."""
        try:
            buffer, extra = self._of_thread.buffers
        except AttributeError:
            buffer, extra = self._of_thread.buffers = _make_buffers(self._arguments.size)
        self._arguments.pack_into(buffer, 0, *values)
        stream = cupy.cuda.get_current_stream().ptr
        sizes = (*grid, 1, block_size, 1, 1, self._shared_nbytes)
        driver.launchKernel(self._function.ptr, *sizes, stream, 0, extra.address)


class _Extra:
    """The driver's argument `extra`, which names a buffer of packed arguments and its size."""

    def __init__(self, buffer: Any) -> None:
        self._size = ctypes.c_size_t(len(buffer))
        addresses = ctypes.addressof(buffer), ctypes.addressof(self._size)
        items = (_BUFFER_POINTER, addresses[0], _BUFFER_SIZE, addresses[1], _END)
        self._items = (ctypes.c_void_p * len(items))(*items)
        self.address = ctypes.addressof(self._items)


def _make_buffers(nbytes: int) -> tuple[Any, _Extra]:
    """Make a buffer for packed arguments; the driver copies it at each launch."""
    buffer = ctypes.create_string_buffer(nbytes)
    return buffer, _Extra(buffer)
