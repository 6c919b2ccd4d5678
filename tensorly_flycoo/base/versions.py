"""The versions and hardware that a bug report should state."""

import importlib.metadata
import importlib.util
import os
import platform
import sys

from .tables import format_table

_MISSING = "not installed"


def show_versions() -> None:
    """Print the versions of this package and of its dependencies, and the hardware it sees.

    Notes
    -----
    Imports numba and, if installed, CuPy: only they know the threads and the GPUs.

    Examples
    --------
    >>> import tensorly_flycoo
    >>> tensorly_flycoo.show_versions()  # doctest: +ELLIPSIS
    tensorly-flycoo  ...
    Python           3...
    numba threads    ...
    """
    get_backend = getattr(sys.modules.get("tensorly"), "get_backend", None)
    backend = "" if get_backend is None else f", backend {get_backend()!r}"
    try:
        import numba
    except ImportError:
        num_threads = _MISSING
    else:
        num_threads = str(numba.get_num_threads())
    rows = {
        "tensorly-flycoo": _find_version("tensorly_flycoo"),
        "Python": platform.python_version(),
        "OS": platform.platform(),
        "TensorLy": _find_version("tensorly") + backend,
        **{name: _find_version(name) for name in ("numpy", "scipy", "sparse", "numba")},
        **_describe_gpus(),
        "CPUs": str(os.cpu_count()),
        "numba threads": num_threads,
    }
    print(format_table(rows.items(), "<"))


def _find_version(name: str) -> str:
    """Return the version of a module: of the loaded one, otherwise of the installed one."""
    version = getattr(sys.modules.get(name), "__version__", None)
    if version is not None:
        return version
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING


def _describe_gpus() -> dict[str, str]:
    """Return the rows about CuPy, CUDA and the GPUs."""
    unknown = dict.fromkeys(["CUDA runtime", "CUDA driver", "GPUs"], "unknown without CuPy")
    if importlib.util.find_spec("cupy") is None:
        return {"CuPy": _MISSING, **unknown}
    try:
        import cupy
    except ImportError as error:
        return {"CuPy": f"cannot be imported: {_first_line(error)}", **unknown}
    runtime = cupy.cuda.runtime
    try:
        gpus = range(runtime.getDeviceCount())
        names = [runtime.getDeviceProperties(gpu)["name"].decode() for gpu in gpus]
    except RuntimeError as error:
        names = [f"none: {_first_line(error)}"]
    versions = {"runtime": runtime.runtimeGetVersion(), "driver": runtime.driverGetVersion()}
    return {
        "CuPy": cupy.__version__,
        # 12040 is 12.4, and 0 a missing driver.
        **{
            f"CUDA {name}": f"{version // 1000}.{version % 1000 // 10}" if version else _MISSING
            for name, version in versions.items()
        },
        "GPUs": ", ".join(names) or "none",
    }


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
