"""Compile specialisations when they are first used, and launch them on the current stream.

With the environment variable TENSORLY_FLYCOO_ASSERTIONS set to 1 they are debug builds, which stop
where an id points outside of what it is for, or rows do not rise.
"""

import functools
import os

import cupy
import numpy as np

from .source import load_source

_HAS_ASSERTIONS = os.environ.get("TENSORLY_FLYCOO_ASSERTIONS") == "1"
_OPTIONS = ("-std=c++17", *(["-DASSERTIONS"] if _HAS_ASSERTIONS else []))

#: The most blocks along x of one launch.
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


def launch_items(kernel, num_items, block_size, arguments):
    """Launch a thread for each item, or as many as a grid may have: the kernel loops."""
    grid = (min(-(-num_items // block_size), MAX_GRID),)
    if num_items > 0:
        launch(kernel, grid, block_size, arguments)


def launch_tiles(kernel, num_tiles, num_parts, block_size, arguments, shared_nbytes=0):
    """Launch a block for each tile, and along y for each part of the columns.

    The first tile is the kernel's first argument: it counts from there. A loop over tiles inside
    would make a compiler keep in registers what it can compute before the loop, up to twice as many
    as all else needs.
    """
    for first_tile in range(0, num_tiles, MAX_GRID):
        grid = (min(num_tiles - first_tile, MAX_GRID), num_parts)
        launch(kernel, grid, block_size, (np.int64(first_tile), *arguments), shared_nbytes)


@functools.cache
def shared_nbytes_per_multiprocessor(device_id):
    """Return the shared memory that the blocks of a multiprocessor have between them."""
    return cupy.cuda.Device(device_id).attributes["MaxSharedMemoryPerMultiprocessor"]
