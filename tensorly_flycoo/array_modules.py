"""NumPy and CuPy arrays: which is which, and how one becomes the other, only where that is asked for.

CuPy is never imported to find out: without it there are no CuPy arrays.
"""

import sys

import numpy as np

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


def array_module(x):
    """Return cupy for a CuPy array, else numpy."""
    return sys.modules["cupy"] if is_cupy(x) else np


def as_array(x):
    """Return `x` as an array where it is: CuPy's for what is on a GPU, else NumPy's.

    Parameters
    ----------
    x : array_like
        Also an array of another library on a GPU that exports DLPack, whose memory is then shared,
        and a list or tuple of CuPy arrays.
    """
    if is_cupy(x):
        return x
    if isinstance(x, list | tuple) and x and is_cupy(x[0]):
        return array_module(x[0]).array(x)
    if hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] in _GPU_DEVICE_TYPES:
        import cupy

        return cupy.from_dlpack(x)
    return np.asarray(x)


def move(array, xp):
    """Return a NumPy or CuPy array as one of the module `xp`: itself, or a copy over there."""
    if xp is not np:
        return xp.asarray(array)
    return array.get() if is_cupy(array) else array
