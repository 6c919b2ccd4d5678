"""Engines: the same functions for each kind of device, chosen by name, imported when chosen."""

import importlib.util
import os

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
        "auto" takes the best engine that this version has for this machine.

    Raises
    ------
    ValueError
        If there is no device of that name.
    ImportError
        If `device` is "cuda" and CuPy is not installed.
    RuntimeError
        If `device` is "cuda" and there is no GPU, or no engine for it. The choice stays as it was.

    Examples
    --------
    >>> import tensorly_flycoo
    >>> tensorly_flycoo.set_device("cpu")
    >>> tensorly_flycoo.set_device("auto")
    """
    global _chosen_device
    select_engine(check_device_name(device))
    _chosen_device = device


def select_engine(device=None):
    """Return the engine module of `device`, by default of the chosen one; see `set_device`."""
    if device is not None:
        check_device_name(device)
    elif _chosen_device is not None:
        device = _chosen_device
    else:
        device = check_device_name(os.environ.get(DEVICE_VARIABLE, "auto"), DEVICE_VARIABLE)
    if device == "cuda":
        _refuse_cuda()
    from . import cpu

    return cpu


def _refuse_cuda():
    if importlib.util.find_spec("cupy") is None:
        raise ImportError(f'device "cuda" needs CuPy, which is not installed: {_CUDA_HINT}')
    import cupy

    try:
        num_gpus = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        hint = 'device "cuda" needs a GPU and its driver; CuPy says'
        raise RuntimeError(f"{hint}: {error}") from None
    raise RuntimeError(
        f'device "cuda": CuPy finds {num_gpus} GPUs, but this version of tensorly-flycoo has '
        'no engine for them yet; use device "cpu" or "auto"'
    )
