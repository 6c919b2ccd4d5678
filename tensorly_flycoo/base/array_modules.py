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

#: The pages of larger arrays are touched by several threads.
_MIN_TOUCHED, _PAGE_NBYTES, _MAX_TOUCHING = 2**26, 2**12, 16


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
    """Return what an array of Dask, or in a file of AnnData or HDF5, holds; others as they are."""
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
    return array.get(out=_touched(array.shape, array.dtype)) if is_cupy(array) else array


def _touched(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return a new array whose pages the system has provided, if it is large.

    A copy from the GPU would wait for one page after the other: 3 GB/s instead of 11 [H100].
    """
    array = np.empty(shape, dtype)
    if array.nbytes >= _MIN_TOUCHED:
        from concurrent.futures import ThreadPoolExecutor

        firsts = array.reshape(-1)[:: _PAGE_NBYTES // array.itemsize]
        num_threads = min(_MAX_TOUCHING, os.cpu_count() or 1)
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(lambda part: part.fill(0), np.array_split(firsts, num_threads)))
    return array


def invert_positive(numbers: Array, smallest: Any) -> Array:
    """Return the reciprocals, with 0 for numbers that are not above `smallest`."""
    xp = array_module(numbers)
    is_large = numbers > smallest
    return xp.where(is_large, 1 / xp.where(is_large, numbers, 1), 0)
