"""Engines: the same functions for each kind of device, chosen by name, imported when chosen."""

import functools
import importlib.util
import logging
import os

from ..checks import check_device_name

#: Names the device where `set_device` was not called.
DEVICE_VARIABLE = "TENSORLY_FLYCOO_DEVICE"

_CUDA_HINT = 'pip install "tensorly-flycoo[cuda13x]" (or [cuda12x])'

_logger = logging.getLogger("tensorly_flycoo")

_chosen_device = None


def set_device(device):
    """Choose the device of tensors that are made from now on, in the whole process.

    Before it is called, the environment variable TENSORLY_FLYCOO_DEVICE chooses, and without it
    "auto". Tensors that exist stay where they are.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        "auto" leaves data that is on a GPU there, and takes other data to the GPU if CuPy is
        installed and finds one, to the CPU otherwise.

    Raises
    ------
    ValueError
        If there is no device of that name.
    ImportError
        If `device` is "cuda" and CuPy is not installed.
    RuntimeError
        If `device` is "cuda" and there is no GPU, or no driver. The choice stays as it was.

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

    With "auto", data that `is_on_gpu` stay there.
    """
    if device is not None:
        check_device_name(device)
    elif _chosen_device is not None:
        device = _chosen_device
    else:
        device = check_device_name(os.environ.get(DEVICE_VARIABLE, "auto"), DEVICE_VARIABLE)
    if device == "auto":
        device = "cuda" if is_on_gpu or _has_gpu() else "cpu"
    if device == "cuda":
        _check_cuda()
        from . import cuda

        return cuda
    from . import cpu

    return cpu


def _has_gpu():
    """Say whether CuPy is installed and finds a GPU."""
    if importlib.util.find_spec("cupy") is None:
        return False
    try:
        return _count_gpus() > 0
    except (ImportError, RuntimeError) as error:
        _warn_once(f"CuPy is installed but finds no GPU, so the CPU computes: {error}")
        return False


def _check_cuda():
    if importlib.util.find_spec("cupy") is None:
        raise ImportError(f'device "cuda" needs CuPy, which is not installed: {_CUDA_HINT}')
    try:
        num_gpus = _count_gpus()
    except RuntimeError as error:
        hint = 'device "cuda" needs a GPU and its driver; CuPy says'
        raise RuntimeError(f"{hint}: {error}") from None
    if num_gpus == 0:
        raise RuntimeError('device "cuda" needs a GPU; CuPy finds none')


def _count_gpus():
    # CuPy's errors of the runtime are RuntimeErrors.
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


@functools.cache
def _warn_once(message):
    _logger.warning(message)
