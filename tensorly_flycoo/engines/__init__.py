"""Engines: one interface for each kind of device, chosen by name, imported when chosen."""

import functools
import importlib.util
import logging
import os
from typing import TYPE_CHECKING, Any

from ..base.array_modules import Array, is_cupy
from ..base.checks import DEVICES, check_choice, check_count
from ..base.choices import Choice
from ..base.devices import Devices

if TYPE_CHECKING:
    from .protocol import Engine as Engine
else:
    Engine = Any  # the protocol is loaded with the first engine

#: The environment variable that names the device until `set_device` is called.
DEVICE_VARIABLE = "TENSORLY_FLYCOO_DEVICE"

_CUDA_HINT = 'pip install "tensorly-flycoo[cuda13x]" (or [cuda12x])'

#: The `status` of CuPy's error if the driver is missing or older than CuPy's CUDA.
_INSUFFICIENT_DRIVER = 35

#: With fewer nonzeros one GPU is done before the host has launched all that two need [H100].
_SPREAD_NNZ = 2**27

_logger = logging.getLogger("tensorly_flycoo")

_chosen_device: str | None = None


def set_device(device: str, *, gpus: int | str | None = None) -> Choice:
    """Choose the device of tensors made from now on, in the whole process.

    Until it is called, the environment variable TENSORLY_FLYCOO_DEVICE names the device, by default
    "auto". Existing tensors stay where they are.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        "auto" leaves data on a GPU there. It moves other data to the GPU if CuPy is installed and
        finds one; otherwise it uses the CPU.
    gpus : int or "all", optional
        Spreads tensors over the GPUs 0 to gpus - 1, in slabs (see `FlycooTensor`), by default one
        for each GPU. Factors of 32 MiB or more together are `RowShards`, whose rows are spread too,
        and which ``tl.to_numpy`` gathers. "all" leaves a tensor of fewer than 2**27 nonzeros on GPU
        0, where it is as fast. By default a tensor is on CuPy's current GPU.

    Returns
    -------
    Choice
        A context manager: ``with set_device("cpu"):`` restores the previous choice at the end of
        the block. A plain call holds until the next one.

    Raises
    ------
    TypeError
        If `gpus` is not an integer or "all".
    ValueError
        If `device` is none of these names, or `gpus` is less than 1, more than there are, or given
        for a CPU.
    ImportError
        If `device` is "cuda" and CuPy is not installed, or cannot be imported.
    RuntimeError
        If `device` is "cuda" and CuPy finds no GPU, the driver is missing or too old, or NVRTC,
        which compiles the kernels, is missing. The previous choice then stays.

    Notes
    -----
    The choice applies to all threads, even inside a ``with`` block. "auto" looks for a GPU once in
    a process.

    Examples
    --------
    >>> import tensorly_flycoo
    >>> from tensorly_flycoo import FlycooTensor
    >>> with tensorly_flycoo.set_device("cpu"):
    ...     x = FlycooTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3))
    >>> x.device
    'cpu'
    >>> tensorly_flycoo.set_device("auto")  # until the next call
    <device 'auto'>
    """
    global _chosen_device
    engine = select_engine(check_choice(device, "device", DEVICES))
    devices = None
    num_gpus = None
    if gpus is not None:
        devices = _choose_gpus(engine, gpus)
        num_gpus = devices.count
    previous_device = _chosen_device
    previous_devices = engine.devices

    def restore() -> None:
        global _chosen_device
        _chosen_device = previous_device
        engine.devices = previous_devices

    _chosen_device = device
    engine.devices = devices
    text = f"device {device!r}"
    if num_gpus is not None:
        text += f", gpus={num_gpus}"
    return Choice(text, restore)


def _choose_gpus(engine: Engine, gpus: int | str) -> Devices:
    """Return the GPUs for `gpus=` of `set_device`: "all", or a number."""
    if engine.name != "cuda":
        raise ValueError(f"gpus is {gpus!r}, but the device is the CPU: give device 'cuda'")
    from .cuda.gpus import CudaDevices

    num_gpus = _count_gpus()
    if gpus == "all":
        devices = CudaDevices(num_gpus)
        # Who asks for a number gets it for every tensor; "all" spreads only those that gain by it.
        devices.least_nnz = _SPREAD_NNZ
        return devices
    count = check_count(gpus, "gpus")
    if count > num_gpus:
        raise ValueError(f"gpus is {count}, expected at most {num_gpus}, the GPUs that CuPy finds")
    return CudaDevices(count)


def select_engine(device: str | None = None, *, is_on_gpu: bool = False) -> Engine:
    """Return the engine of `device`, by default of the chosen device; see `set_device`.

    With "auto", data that are on a GPU (`is_on_gpu`) stay there.
    """
    if device is not None:
        check_choice(device, "device", DEVICES)
    elif _chosen_device is not None:
        device = _chosen_device
    else:
        device = check_choice(os.environ.get(DEVICE_VARIABLE, "auto"), DEVICE_VARIABLE, DEVICES)
    if device == "auto":
        wants_gpu = is_on_gpu or _has_gpu()
        device = "cuda" if wants_gpu else "cpu"
    if device == "cuda":
        if importlib.util.find_spec("cupy") is None:
            raise ImportError(f'device "cuda" needs CuPy, which is not installed: {_CUDA_HINT}')
        if _count_gpus() == 0:
            raise RuntimeError('device "cuda" needs a GPU; CuPy finds none')
    return _load_engine(device)


def engine_of(array: Array) -> Engine:
    """Return the engine of the device that holds a NumPy or CuPy array."""
    return _load_engine("cuda" if is_cupy(array) else "cpu")


@functools.cache
def _load_engine(device: str) -> Engine:
    """Import the engine of a device, "cpu" or "cuda", once."""
    if device == "cuda":
        from .cuda.engine import CUDA

        return CUDA
    from .cpu.engine import CPU

    return CPU


@functools.cache
def _has_gpu() -> bool:
    """Return whether CuPy is installed and finds a GPU; looked for once, which takes 50 us."""
    if importlib.util.find_spec("cupy") is None:
        return False
    try:
        return _count_gpus() > 0
    except (ImportError, RuntimeError) as error:
        _logger.warning("CuPy is installed but cannot use a GPU, so the CPU is used: %s", error)
        return False


def _count_gpus() -> int:
    """Count the GPUs; if they cannot be used, raise an error that says what to install."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            f'device "cuda" needs CuPy, which is installed but cannot be imported: '
            f"{str(error).strip()}. Reinstall it: {_CUDA_HINT}"
        ) from None
    runtime = cupy.cuda.runtime
    try:
        num_gpus = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        message = f'device "cuda" needs a GPU and its driver; CuPy says: {error}'
        if error.status == _INSUFFICIENT_DRIVER:
            message = _explain_driver(runtime.driverGetVersion(), runtime.runtimeGetVersion())
        raise RuntimeError(message) from None
    if num_gpus > 0:
        try:
            cupy.cuda.nvrtc.getVersion()  # loads it
        except RuntimeError as error:
            raise RuntimeError(
                'device "cuda" compiles its kernels with NVRTC, which CuPy cannot load: '
                f"{_CUDA_HINT}; CuPy says: {str(error).strip()}"
            ) from None
    return num_gpus


def _explain_driver(driver_version: int, cupy_version: int) -> str:
    """Return a message that names the driver needed; versions are like 12040 for CUDA 12.4."""
    needed = "CUDA 13 needs driver 580 or later, CUDA 12 needs 525 or later"
    if driver_version == 0:
        return f'device "cuda" needs an NVIDIA driver, but none is installed: {needed}'
    return (
        'device "cuda" needs a newer NVIDIA driver: this one supports CUDA '
        f"{_format_version(driver_version)}, CuPy uses CUDA {_format_version(cupy_version)}. "
        f"Install a newer driver ({needed}), or CuPy for an older CUDA: {_CUDA_HINT}"
    )


def _format_version(version: int) -> str:
    """Return CUDA's number of a version as users know it.

    >>> _format_version(12040)
    '12.4'
    """
    major, minor = divmod(version, 1000)
    return f"{major}.{minor // 10}"
