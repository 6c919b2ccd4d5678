"""NumPy and CuPy arrays: which is which, and how one becomes the other where that is asked for.

CuPy is never imported to find out: without it there are no CuPy arrays.
"""

import contextlib
import contextvars
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

#: A NumPy or a CuPy array: CuPy has no type that a checker could use without it.
Array: TypeAlias = Any

#: What DLPack calls memory that a GPU reads: CUDA's own, and managed.
_GPU_DEVICE_TYPES = (2, 13)


def is_cupy(x):
    """Say whether `x` is a CuPy array.

    Examples
    --------
    >>> is_cupy(np.ones(3)), is_cupy([1, 2])
    (False, False)
    """
    return isinstance(x, getattr(sys.modules.get("cupy"), "ndarray", ()))


def is_on_gpu(x):
    """Say whether `x` is data on a GPU, of whatever library, or a list or tuple of CuPy arrays."""
    if isinstance(x, list | tuple):
        return len(x) > 0 and is_cupy(x[0])
    is_foreign = hasattr(x, "__dlpack_device__") and not is_cupy(x)
    return is_cupy(x) or (is_foreign and x.__dlpack_device__()[0] in _GPU_DEVICE_TYPES)


def array_module(x):
    """Return cupy for a CuPy array, else numpy."""
    return sys.modules["cupy"] if is_cupy(x) else np


def as_array(x):
    """Return `x` as an array where it is: CuPy's for what is on a GPU, else NumPy's.

    The memory of an array of another library that exports DLPack is shared, not copied.
    """
    if not is_on_gpu(x):
        return np.asarray(x)
    import cupy

    if is_cupy(x):
        return x
    return cupy.array(x) if isinstance(x, list | tuple) else cupy.from_dlpack(x)


def move(array, xp):
    """Return a NumPy or CuPy array as one of the module `xp`: itself, or a copy over there."""
    if xp is not np:
        return xp.asarray(array)
    return array.get() if is_cupy(array) else array


#: The array module of the sparse decomposition that runs in this thread or task, if one does.
_running_module: contextvars.ContextVar[ModuleType | None] = contextvars.ContextVar(
    "array module of the running decomposition", default=None
)


@contextlib.contextmanager
def running_on(xp: ModuleType) -> Iterator[None]:
    """Say that a decomposition of a sparse tensor runs, and that its arrays are those of `xp`.

    TensorLy's solvers make some arrays without naming a device: inside the block the backend makes
    those with `xp` too.
    """
    token = _running_module.set(xp)
    try:
        yield
    finally:
        _running_module.reset(token)


def running_module() -> ModuleType | None:
    """Return the array module of the sparse decomposition that runs here, or None."""
    return _running_module.get()
