"""Engines: the same functions for each kind of device, chosen by name, imported when chosen."""

import functools
import importlib.util
import logging
import os

from ..checks import check_device_name

#: Names the device where `set_device` was not called.
DEVICE_VARIABLE = "TENSORLY_FLYCOO_DEVICE"

_CUDA_HINT = 'pip install "tensorly-flycoo[cuda13x]" (or [cuda12x])'

#: What CuPy's error has as `status` where the driver is older than its CUDA, or there is none.
_INSUFFICIENT_DRIVER = 35

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
        If `device` is "cuda" and CuPy is not installed, or cannot be imported.
    RuntimeError
        If `device` is "cuda" and there is no GPU, no driver or one that is too old, or no NVRTC,
        which compiles the kernels. The choice stays as it was.

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
        from .cuda import engine as cuda

        return cuda
    from .cpu import engine as cpu

    return cpu


def _has_gpu():
    """Say whether CuPy is installed and finds a GPU."""
    if importlib.util.find_spec("cupy") is None:
        return False
    try:
        return _count_gpus() > 0
    except (ImportError, RuntimeError) as error:
        _warn_once(f"CuPy is installed but cannot use a GPU, so the CPU computes: {error}")
        return False


def _check_cuda():
    if importlib.util.find_spec("cupy") is None:
        raise ImportError(f'device "cuda" needs CuPy, which is not installed: {_CUDA_HINT}')
    if _count_gpus() == 0:
        raise RuntimeError('device "cuda" needs a GPU; CuPy finds none')


def _count_gpus():
    """Count the GPUs; raise an error that says what to install if none can be used."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            f'device "cuda" needs CuPy, which is installed but cannot be imported; {_CUDA_HINT} '
            f"installs it anew. It says: {str(error).strip()}"
        ) from None
    runtime = cupy.cuda.runtime
    try:
        num_gpus = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        text = f'device "cuda" needs a GPU and its driver; CuPy says: {error}'
        if error.status == _INSUFFICIENT_DRIVER:
            text = _explain_driver(runtime.driverGetVersion(), runtime.runtimeGetVersion())
        raise RuntimeError(text) from None
    if num_gpus > 0:
        try:
            cupy.cuda.nvrtc.getVersion()  # loads it
        except RuntimeError as error:
            raise RuntimeError(
                'device "cuda" compiles its kernels with NVRTC, which CuPy cannot load: '
                f"{_CUDA_HINT}; CuPy says: {str(error).strip()}"
            ) from None
    return num_gpus


def _explain_driver(driver_version, cupy_version):
    """Say which driver is missing; versions are those of CUDA, 12040 for 12.4."""
    needed = "CUDA 13 needs driver 580 or later, CUDA 12 needs 525 or later"
    if driver_version == 0:
        return f'device "cuda" needs an NVIDIA driver, and none is installed: {needed}'
    own, cupys = (f"{v // 1000}.{v % 1000 // 10}" for v in (driver_version, cupy_version))
    return (
        f'device "cuda" needs a newer NVIDIA driver: this one is for CUDA {own}, CuPy for CUDA '
        f"{cupys}. Install a newer driver ({needed}), or a CuPy for an older CUDA: {_CUDA_HINT}"
    )


@functools.cache
def _warn_once(message):
    _logger.warning(message)
