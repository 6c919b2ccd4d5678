"""Compile specialisations of the kernels when they are first used, and launch them.

They are compiled one after another: threads do not help, since NVRTC lets them take turns (101
kernels took 15.8 s on one thread, 13.6 s on 16).

With the environment variable TENSORLY_FLYCOO_ASSERTIONS set to 1 they are debug builds, which stop
if an id is out of range or rows do not ascend.
"""

import functools
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import cupy
import numpy as np

from ...array_modules import Array
from ...reporting import add_compiled
from .source import load_source
from .tuning import Gpu, check_capability

_HAS_ASSERTIONS = os.environ.get("TENSORLY_FLYCOO_ASSERTIONS") == "1"
_OPTIONS = ("-std=c++17", *(["-DASSERTIONS"] if _HAS_ASSERTIONS else []))

#: The most blocks along x of one launch.
MAX_GRID = 2**31 - 1


@functools.cache
def get_kernel(file: str, name: str, **macros: int | str) -> cupy.RawKernel:
    """Return one specialisation of the kernel `name` in `file`.

    CuPy compiles it now, or loads it from its cache on disk.
    """
    # Not options: for each new set of options CuPy asks NVRTC for its version, which takes 10 ms.
    defines = [f"#define {macro} {value}\n" for macro, value in macros.items()]
    kernel = cupy.RawKernel("".join(defines) + load_source(file), name, options=_OPTIONS)
    start_s, log = time.perf_counter(), _CompilerLog()
    kernel.compile(log)
    if log.is_written:
        add_compiled(start_s)
    return kernel


class _CompilerLog:
    """A file to which CuPy writes only if it compiles a kernel."""

    is_written = False

    def write(self, text: str) -> None:
        self.is_written = True


def launch(
    kernel: cupy.RawKernel,
    grid: tuple[int, ...],
    block_size: int,
    arguments: Sequence[Any],
    shared_nbytes: int = 0,
) -> None:
    """Launch on CuPy's current stream."""
    if shared_nbytes and kernel.max_dynamic_shared_size_bytes < shared_nbytes:
        kernel.max_dynamic_shared_size_bytes = shared_nbytes
    kernel(grid, (block_size,), arguments, shared_mem=shared_nbytes)


def pass_none(arrays: Iterable[Array | None]) -> list[Array | np.uint64]:
    """Return kernel arguments for arrays, with a null pointer for None."""
    return [np.uint64(0) if array is None else array for array in arrays]


def launch_items(
    kernel: cupy.RawKernel, num_items: int, block_size: int, arguments: Sequence[Any]
) -> None:
    """Launch a thread for each item, or as many as a grid may have: the kernel loops."""
    grid = (min(-(-num_items // block_size), MAX_GRID),)
    if num_items > 0:
        launch(kernel, grid, block_size, arguments)


def launch_tiles(
    kernel: cupy.RawKernel,
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


def current_gpu() -> Gpu:
    """Return the current device's `Gpu`; raise RuntimeError if kernels do not compile for it."""
    return _describe_gpu(cupy.cuda.runtime.getDevice())


@functools.cache
def _describe_gpu(device_id: int) -> Gpu:
    device = cupy.cuda.Device(device_id)
    major, minor = divmod(int(device.compute_capability), 10)
    check_capability((major, minor), device_id)
    return Gpu((major, minor), device.attributes["MaxSharedMemoryPerMultiprocessor"])
