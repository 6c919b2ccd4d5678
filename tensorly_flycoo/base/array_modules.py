"""Tell NumPy arrays from CuPy arrays, and convert between them on request.

Telling them apart never imports CuPy: if it is not loaded, no array is CuPy's.
"""

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

if TYPE_CHECKING:
    import cupy

    #: A NumPy or CuPy array. Without CuPy, type checkers know NumPy's half alone.
    Array: TypeAlias = np.ndarray | cupy.ndarray
    GpuArray: TypeAlias = cupy.ndarray
else:
    Array = GpuArray = Any

#: DLPack's codes for CUDA device memory and CUDA managed memory.
_GPU_DEVICE_TYPES = (2, 13)

#: Larger arrays come from a GPU in parts, by several threads.
_MIN_PARTED, _PART_NBYTES, _MAX_THREADS = 2**23, 2**22, 16


def is_cupy(x: object) -> "TypeGuard[cupy.ndarray]":
    """Return whether `x` is a CuPy array."""
    kind: type = type(x)
    return "cupy" in sys.modules and _is_of_cupy(kind, sys.modules["cupy"])


@functools.cache
def _is_of_cupy(kind: type, cupy: ModuleType | None) -> bool:
    return issubclass(kind, getattr(cupy, "ndarray", ()))


def is_on_gpu(x: Any) -> bool:
    """Return whether `x` is a GPU array of any library, or a list or tuple of CuPy arrays."""
    if isinstance(x, list | tuple):
        return len(x) > 0 and is_cupy(x[0])
    is_foreign = hasattr(x, "__dlpack_device__") and not is_cupy(x)
    return is_cupy(x) or (is_foreign and x.__dlpack_device__()[0] in _GPU_DEVICE_TYPES)


def array_module(x: object) -> ModuleType:
    """Return cupy for a CuPy array, else numpy; for row-sharded factors that of their blocks."""
    return sys.modules["cupy"] if is_cupy(x) else getattr(x, "xp", np)


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
    return cupy.array(x) if isinstance(x, list | tuple) else cupy.from_dlpack(x)


def read_into_memory(x: Any) -> Any:
    """Read an array of Dask, or in a file of AnnData or HDF5; return others as they are."""
    for method in ("to_memory", "compute"):
        if hasattr(x, method):
            return getattr(x, method)()
    return x[...] if type(x).__module__.startswith("h5py") else x


def share(x: Any) -> Any:
    """Return another library's array, such as PyTorch's or JAX's, as NumPy's or CuPy's.

    It is shared, not copied. Anything else is returned as it is.
    """
    is_own = is_cupy(x) or isinstance(x, np.ndarray)
    return x if is_own or not hasattr(x, "__dlpack__") else as_array(x)


def move(array: Array, xp: ModuleType) -> Array:
    """Return a NumPy or CuPy array as an array of the module `xp`; copy only between devices."""
    if xp is not np:
        return xp.asarray(array)
    if not is_cupy(array):
        return array
    out = np.empty(array.shape, array.dtype)
    if array.nbytes >= _MIN_PARTED:
        _copy_parts(array, out)
        return out
    return array.get(out=out)


def _copy_parts(array: Any, out: np.ndarray) -> None:
    """Copy a GPU array to new host memory, whose pages the system provides to one thread slowly.

    Each thread copies rows through pinned memory of its own: 32 GB/s instead of 10 [H100].
    """
    from concurrent.futures import ThreadPoolExecutor

    import cupy
    import cupyx

    num_rows = max(1, _PART_NBYTES // max(1, array.nbytes // len(array)))
    starts = iter(range(0, len(array), num_rows))
    is_computed = cupy.cuda.get_current_stream().record()

    def copy_rows(_: int) -> None:
        with array.device, cupy.cuda.Stream(non_blocking=True) as stream:
            stream.wait_event(is_computed)
            pinned = cupyx.empty_pinned((num_rows, *array.shape[1:]), array.dtype)
            for start in starts:  # each is taken by one thread
                rows = cupy.ascontiguousarray(array[start : start + num_rows])
                out[start : start + num_rows] = rows.get(out=pinned[: len(rows)])

    num_threads = min(_MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(copy_rows, range(num_threads)))


def invert_positive(numbers: Array, smallest: Any) -> Array:
    """Return the reciprocals, with 0 for numbers that are not above `smallest`."""
    xp = array_module(numbers)
    is_large = numbers > smallest
    return xp.where(is_large, 1 / xp.where(is_large, numbers, 1), 0)
