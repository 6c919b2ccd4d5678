"""Tell NumPy arrays from CuPy arrays, and convert between them on request.

Telling them apart never imports CuPy: if it is not loaded, no array is CuPy's.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from .host_threads import count_threads, map_in_threads

if TYPE_CHECKING:
    import cupy

    #: A NumPy or CuPy array. Without CuPy, type checkers know NumPy's half alone.
    Array: TypeAlias = np.ndarray | cupy.ndarray
    GpuArray: TypeAlias = cupy.ndarray
else:
    Array = GpuArray = Any

#: DLPack's codes for CUDA device memory and CUDA managed memory.
_GPU_DEVICE_TYPES = (2, 13)

#: Larger arrays are copied between the host and a GPU in parts, by several threads.
_MIN_PARTED = 2**23
_PART_NBYTES = 2**23


def is_cupy(x: object) -> "TypeGuard[cupy.ndarray]":
    """Return whether `x` is a CuPy array."""
    kind: type = type(x)
    return "cupy" in sys.modules and _is_of_cupy(kind, sys.modules["cupy"])


@functools.cache
def _is_of_cupy(kind: type, cupy: ModuleType | None) -> bool:
    # While it is being imported, or if that failed, the module has no arrays.
    return issubclass(kind, getattr(cupy, "ndarray", ()))


def is_on_gpu(x: Any) -> bool:
    """Return whether `x` is a GPU array of any library, or a list or tuple of CuPy arrays."""
    if isinstance(x, list | tuple):
        return len(x) > 0 and is_cupy(x[0])
    if is_cupy(x):
        return True
    if not hasattr(x, "__dlpack_device__"):
        return False
    device_type, _ = x.__dlpack_device__()
    return device_type in _GPU_DEVICE_TYPES


def array_module(x: object) -> ModuleType:
    """Return cupy for a CuPy array, else numpy; for row-sharded factors, their blocks' module."""
    if type(x) is np.ndarray:
        return np
    if is_cupy(x):
        return sys.modules["cupy"]
    return getattr(x, "xp", np)


def remote_aware(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of arrays run where they are, if that is in another process.

    The method `call_remotely` of such an array, one of the arguments, sends the whole call.
    """

    @functools.wraps(function)
    def call(*arrays: Any) -> Any:
        for array in arrays:
            if hasattr(array, "call_remotely"):
                return array.call_remotely(call, *arrays)
        return function(*arrays)

    return call


def as_array(x: Any) -> Array:
    """Return `x` as an array on its own device: CuPy's if it is on a GPU, else NumPy's.

    Another library's array is shared through DLPack, not copied. No entry may be masked.
    """
    if np.ma.is_masked(x):
        raise ValueError(
            f"a masked array has {np.ma.count_masked(x)} masked entries, expected none: fill them "
            "(`x.filled(0)`), and if they are unknown, pass them to a decomposition as mask="
        )
    if not is_on_gpu(x):
        return np.asarray(x)
    import cupy

    if is_cupy(x):
        return x
    if isinstance(x, list | tuple):
        return cupy.array(x)
    return cupy.from_dlpack(x)


def read_into_memory(x: Any) -> Any:
    """Read an array of Dask, or in a file of AnnData or HDF5; return others as they are."""
    for method in ("to_memory", "compute"):
        if hasattr(x, method):
            return getattr(x, method)()
    if type(x).__module__.startswith("h5py"):
        return x[...]
    return x


def share(x: Any) -> Any:
    """Return another library's array, such as PyTorch's or JAX's, as NumPy's or CuPy's.

    It is shared, not copied. Anything else is returned as it is.
    """
    if is_cupy(x) or isinstance(x, np.ndarray) or not hasattr(x, "__dlpack__"):
        return x
    return as_array(x)


def move(array: Array, xp: ModuleType) -> Array:
    """Return a NumPy or CuPy array as an array of the module `xp`; copy only between devices."""
    if is_cupy(array) == (xp.__name__ == "cupy"):
        return array
    moved = xp.empty(array.shape, array.dtype.newbyteorder("="))
    copy_parts(array, moved)
    return moved


def copy_parts(source: Any, target: Any) -> None:
    """Copy an array between the host and any GPU.

    From or to pageable memory the driver copies 10 GB/s, and the system provides the pages of new
    memory slowly to one thread. Threads that copy through pinned memory of their own reach 32 GB/s
    from a GPU, and the speed of the link to it [H100].
    """
    is_from_gpu = is_cupy(source)
    gpu_array = source if is_from_gpu else target
    if gpu_array.nbytes < _MIN_PARTED:
        if is_from_gpu:
            target[...] = source.get()
        else:
            target.set(np.asarray(source, target.dtype))
        return
    import cupy
    import cupyx

    num_rows = max(1, _PART_NBYTES * len(gpu_array) // max(1, gpu_array.nbytes))  # of a part

    def copy(_: int, starts: Iterator[int]) -> None:
        """Copy the parts that begin at `starts`, through pinned memory of this thread."""
        stream = cupy.cuda.get_current_stream()
        pinned = cupyx.empty_pinned((num_rows, *gpu_array.shape[1:]), gpu_array.dtype)
        for start in starts:
            rows = slice(start, start + num_rows)
            part = pinned[: len(gpu_array[rows])]
            if is_from_gpu:
                target[rows] = cupy.ascontiguousarray(source[rows]).get(out=part)
            else:
                part[...] = source[rows]
                target[rows].data.copy_from_host_async(part.ctypes.data, part.nbytes, stream)
                stream.synchronize()  # the next part takes the same pinned memory

    with gpu_array.device:
        share_parts(range(0, len(gpu_array), num_rows), copy)


def share_parts(starts: Iterable[int], copy: Callable[[int, Iterator[int]], None]) -> None:
    """Have threads copy parts between the host and the current GPU, each on its own stream.

    Each thread calls `copy` with its number, below `MAX_THREADS`, and an iterator over `starts`
    that all threads share: each start goes to one of them. Their streams wait for earlier work on
    the current stream; when this returns, all their work is complete.
    """
    import cupy

    shared_starts = iter(starts)  # all threads take from this one
    device = cupy.cuda.Device()
    earlier_work = cupy.cuda.get_current_stream().record()

    def run(thread: int) -> None:
        with device, cupy.cuda.Stream(non_blocking=True) as stream:
            stream.wait_event(earlier_work)
            copy(thread, shared_starts)
            stream.synchronize()

    map_in_threads(run, range(count_threads()))


def has_true(flags: Array) -> bool:
    """Return ``flags.any()``, for which CuPy would compile two kernels in 2 s each."""
    return flags.size > 0 and bool(flags.view(np.uint8).max())


def invert_positive(numbers: Array, smallest: Any) -> Array:
    """Return the reciprocals, with 0 for numbers that are not above `smallest`.

    >>> invert_positive(np.array([2.0, 0.0, -4.0]), 0.0)
    array([0.5, 0. , 0. ])
    """
    xp = array_module(numbers)
    is_large = numbers > smallest
    divisors = xp.where(is_large, numbers, 1)  # dividing by 0 would warn
    return xp.where(is_large, 1 / divisors, 0)
