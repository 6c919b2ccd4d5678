"""Load or compile specialisations of the kernels when they are first used, and launch them.

A wheel brings common ones as machine code (`cubins.py`). The others are compiled one after another:
threads do not help, since NVRTC lets them take turns (101 kernels took 15.8 s on one thread, 13.6 s
on 16).

With the environment variable TENSORLY_FLYCOO_ASSERTIONS set to 1 they are debug builds, which stop
if an id is out of range or rows do not ascend, and refuse arrays whose items do not have the size
that the kernel reads.
"""

import ctypes
import functools
import os
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
from cupy import RawKernel
from cupy.cuda import driver

from ...base.array_modules import GpuArray as Array
from ...base.reporting import add_compiled
from . import cubins, tuning
from .source import check_arguments, specialise

_HAS_ASSERTIONS = os.environ.get("TENSORLY_FLYCOO_ASSERTIONS") == "1"
_OPTIONS = (*cubins.OPTIONS, *(["-DASSERTIONS"] if _HAS_ASSERTIONS else []))

#: The most tiles of one launch.
MAX_GRID = 2**31 - 1

#: The driver's names for the items of its argument `extra`.
_END = 0
_BUFFER_POINTER = 1
_BUFFER_SIZE = 2


@functools.cache
def get_kernel(file: str, name: str, **macros: Any) -> RawKernel:
    """Return the kernel `name` of `file`, with the macros that `source.specialise` defines.

    It is loaded from the package, if it is a common one of a wheel, or from CuPy's cache on disk;
    else CuPy compiles it now.
    """
    text = specialise(file, macros)
    return _load_kernel(text, name) or _compile_kernel(text, name)


def _load_kernel(text: str, name: str) -> RawKernel | None:
    """Return a kernel of the package's machine code; None if it has none, or none that runs."""
    major = _find_major_capability()
    path = None if major is None else cubins.find_cubin(text, _OPTIONS, major)
    if path is None:
        return None
    kernel = cupy.RawModule(path=str(path)).get_function(name)
    try:
        kernel.compile()  # loads it
    except driver.CUDADriverError:  # the driver is older than the machine code
        return None
    return kernel


@functools.cache
def _find_major_capability() -> int | None:
    """Return the major compute capability of all GPUs of the process; None if they differ."""
    devices = map(cupy.cuda.Device, range(cupy.cuda.runtime.getDeviceCount()))
    majors = {int(device.compute_capability) // 10 for device in devices}
    return majors.pop() if len(majors) == 1 else None


def _compile_kernel(text: str, name: str) -> RawKernel:
    """Return a kernel that CuPy compiles now, or loads from its cache on disk."""
    kernel = RawKernel(text, name, options=_OPTIONS)
    start_s = time.perf_counter()
    log = _CompilerLog()
    kernel.compile(log)
    if log.is_written:
        add_compiled(start_s)
    return kernel


class _CompilerLog:
    """A file to which CuPy writes only if it compiles a kernel; maybe nothing."""

    is_written = False

    def write(self, text: str) -> None:
        self.is_written = True


def launch(
    kernel: RawKernel,
    grid: tuple[int, ...],
    block_size: int,
    arguments: Sequence[Any],
    shared_nbytes: int = 0,
) -> None:
    """Launch on CuPy's current stream; None is passed as a null pointer."""
    if shared_nbytes and kernel.max_dynamic_shared_size_bytes < shared_nbytes:
        kernel.max_dynamic_shared_size_bytes = shared_nbytes
    if _HAS_ASSERTIONS:
        check_arguments(kernel.code, kernel.name, arguments)
    passed = tuple([np.uint64(0) if value is None else value for value in arguments])
    kernel(grid, (block_size,), passed, shared_mem=shared_nbytes)


def launch_items(
    kernel: RawKernel, num_items: int, arguments: Sequence[Any], block_size: int = tuning.BLOCK_SIZE
) -> None:
    """Launch a thread for each item: a grid may have more than fit a GPU's memory."""
    if num_items > 0:  # no grid is empty
        num_blocks = -(-num_items // block_size)
        launch(kernel, (num_blocks,), block_size, arguments)


def launch_tiles(
    kernel: RawKernel,
    num_tiles: int,
    num_parts: int,
    block_size: int,
    arguments: Sequence[Any],
    shared_nbytes: int = 0,
) -> None:
    """Launch a block for each tile, and along y for each part of the columns.

    The kernel's first argument is the first tile of the launch. If the kernel looped over tiles
    instead, the compiler would keep loop invariants in registers, and need up to twice as many.
    """
    for first_tile in range(0, num_tiles, MAX_GRID):
        grid = (min(num_tiles - first_tile, MAX_GRID), num_parts)
        launch(kernel, grid, block_size, (np.int64(first_tile), *arguments), shared_nbytes)


def current_gpu() -> tuning.Gpu:
    """Return the current device's `Gpu`; raise RuntimeError if kernels do not compile for it."""
    return _describe_gpu(cupy.cuda.runtime.getDevice())


@functools.cache
def _describe_gpu(device_id: int) -> tuning.Gpu:
    """Return a device's `Gpu`, if the kernels compile for it."""
    device = cupy.cuda.Device(device_id)
    major, minor = divmod(int(device.compute_capability), 10)
    tuning.check_capability((major, minor), device_id)
    return tuning.Gpu((major, minor), device.attributes["MaxSharedMemoryPerMultiprocessor"])


def row_stride(x: Array) -> int:
    """Return the numbers from the start of a row to the next."""
    return x.strides[0] // x.itemsize


def find_address(array: Array | None) -> int:
    """Return the address of an array, 0 for None: what a `DirectKernel` takes for a pointer."""
    return 0 if array is None else array.data.ptr


class DirectKernel:
    """A kernel of the current device, launched straight through the driver.

    Small tensors wait for the host, not for the GPU, and CuPy's call takes several times as long.
    `formats` are the types of its arguments, members of structures included, as the module `struct`
    names them; these are aligned as in C. `shared_nbytes` is the dynamic shared memory of a block.
    """

    def __init__(self, kernel: RawKernel, formats: str, shared_nbytes: int = 0) -> None:
        if kernel.max_dynamic_shared_size_bytes < shared_nbytes:
            kernel.max_dynamic_shared_size_bytes = shared_nbytes
        self._function = kernel.kernel  # its module stays loaded while this lives
        self._format = struct.Struct(formats)
        self._shared_nbytes = shared_nbytes
        self._arguments = _Arguments(self._format.size)

    def __call__(self, grid: tuple[int, int], block_size: int, *values: Any) -> None:
        """Launch on CuPy's current stream; arrays are given as their addresses."""
        self._format.pack_into(self._arguments.buffer, 0, *values)
        num_blocks_x, num_blocks_y = grid
        driver.launchKernel(
            self._function.ptr,
            num_blocks_x,
            num_blocks_y,
            1,
            block_size,
            1,
            1,
            self._shared_nbytes,
            cupy.cuda.get_current_stream().ptr,
            0,  # the arguments one by one, in place of `extra`
            self._arguments.extra,
        )


class _Arguments(threading.local):
    """A thread's buffer of packed arguments, which the driver copies at each launch.

    `extra` is the address of the driver's argument of that name: it names the buffer and its size.
    """

    def __init__(self, nbytes: int) -> None:
        # The driver's own calls need the context that the runtime's first one gives a thread.
        cupy.cuda.Device().use()
        self.buffer = ctypes.create_string_buffer(nbytes)
        self._size = ctypes.c_size_t(nbytes)  # the driver reads it, and the items, at each launch
        items = (
            _BUFFER_POINTER,
            ctypes.addressof(self.buffer),
            _BUFFER_SIZE,
            ctypes.addressof(self._size),
            _END,
        )
        self._items = (ctypes.c_void_p * len(items))(*items)
        self.extra = ctypes.addressof(self._items)


@functools.cache
def get_direct_kernel(
    file: str, name: str, formats: str, device_id: int, shared_nbytes: int = 0, **macros: Any
) -> DirectKernel:
    """Return the kernel of `get_kernel`, for direct launches on the current device, `device_id`."""
    return DirectKernel(get_kernel(file, name, **macros), formats, shared_nbytes)
