"""Compile specialisations when they are first used, and launch them on the current stream."""

import functools

import cupy

from .source import load_source

_OPTIONS = ("-std=c++17",)

#: The most blocks along x of one launch; kernels loop where there are more tiles.
MAX_GRID = 2**31 - 1


@functools.cache
def get_kernel(file, name, **macros):
    """Return one specialisation of the kernel `name` in `file`.

    Each device's code is compiled at its first launch and kept on disk by CuPy.
    """
    defines = tuple(f"-D{macro}={value}" for macro, value in macros.items())
    return cupy.RawKernel(load_source(file), name, options=_OPTIONS + defines)


def launch(kernel, grid, block_size, arguments, shared_nbytes=0):
    """Launch on CuPy's current stream."""
    if kernel.max_dynamic_shared_size_bytes < shared_nbytes:
        kernel.max_dynamic_shared_size_bytes = shared_nbytes
    kernel(grid, (block_size,), arguments, shared_mem=shared_nbytes)


@functools.cache
def capability(device_id):
    """Return the compute capability of a device, such as 90."""
    return int(cupy.cuda.Device(device_id).compute_capability)


@functools.cache
def shared_nbytes_per_multiprocessor(device_id):
    """Return the shared memory that the blocks of a multiprocessor have between them."""
    return cupy.cuda.Device(device_id).attributes["MaxSharedMemoryPerMultiprocessor"]
