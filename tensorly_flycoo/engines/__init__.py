"""Engines: the same functions for each kind of device, chosen by name, imported when chosen."""

import ctypes
import functools
import importlib.util
import os
import sys

from ..checks import check_device_name

#: Names the device where `set_device` was not called.
DEVICE_VARIABLE = "TENSORLY_FLYCOO_DEVICE"

_CUDA_HINT = 'pip install "tensorly-flycoo[cuda13x]" (or [cuda12x])'

_chosen_device = None


def set_device(device):
    """Choose the device of tensors that are made from now on, in the whole process.

    Before it is called, the environment variable TENSORLY_FLYCOO_DEVICE chooses, and without it
    "auto". Tensors that exist stay where they are.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        "auto" leaves data that is on a GPU there, and takes other data to a GPU where CuPy is
        installed and finds one, else to the CPU.

    Raises
    ------
    ValueError
        If there is no device of that name.
    ImportError
        If `device` is "cuda" and CuPy is not installed.
    RuntimeError
        If `device` is "cuda" and there is no GPU. The choice stays as it was.

    Examples
    --------
    >>> import tensorly_flycoo
    >>> tensorly_flycoo.set_device("cpu")
    >>> tensorly_flycoo.set_device("auto")
    """
    global _chosen_device
    select_engine(check_device_name(device))
    _chosen_device = device


def select_engine(device=None, *, is_on_gpu=False):
    """Return the engine module of `device`, by default of the chosen one; see `set_device`.

    With "auto", data that `is_on_gpu` stay there; other data go to a GPU if there is one.
    """
    if device is not None:
        check_device_name(device)
    elif _chosen_device is not None:
        device = _chosen_device
    else:
        device = check_device_name(os.environ.get(DEVICE_VARIABLE, "auto"), DEVICE_VARIABLE)
    if device == "auto":
        has_gpu = is_on_gpu or (_has_driver() and _find_cuda_error() is None)
        device = "cuda" if has_gpu else "cpu"
    elif device == "cuda" and (error := _find_cuda_error()) is not None:
        raise error
    return importlib.import_module(f".{device}", __name__)


@functools.cache
def _has_driver():
    """Look for CUDA's driver, without which CuPy need not be imported to find no GPU."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def _find_cuda_error():
    """Return the error that device "cuda" would raise here, or None."""
    if importlib.util.find_spec("cupy") is None:
        return ImportError(f'device "cuda" needs CuPy, which is not installed: {_CUDA_HINT}')
    import cupy

    hint = 'device "cuda" needs a GPU and its driver; CuPy'
    try:
        num_gpus = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return RuntimeError(f"{hint} says: {error}")
    return None if num_gpus else RuntimeError(f"{hint} finds none")
