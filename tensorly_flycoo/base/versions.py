"""The versions and hardware that a bug report should state."""

import importlib.metadata
import os
import platform
import sys

from .checks import current_backend
from .tables import format_table

_MISSING = "not installed"


def show_versions() -> None:
    """Print the versions of this package and of its dependencies, and the hardware it sees.

    Notes
    -----
    Imports numba, which knows the threads, and, if installed, CuPy. If there are GPUs, CuPy's own
    table of them and of CUDA follows.

    Examples
    --------
    >>> import tensorly_flycoo
    >>> tensorly_flycoo.show_versions()  # doctest: +ELLIPSIS
    tensorly-flycoo  ...
    Python           3...
    numba threads    ...
    """
    tensorly = _find_version("tensorly")
    backend = current_backend()
    if backend is not None:
        tensorly += f", backend {backend!r}"
    try:
        import numba

        num_threads = str(numba.get_num_threads())
    except ImportError:
        num_threads = _MISSING
    try:
        import cupy

        num_gpus = cupy.cuda.runtime.getDeviceCount()
        problem = ""
    except (ImportError, RuntimeError) as error:
        num_gpus = 0
        problem = f": {error}".partition("\n")[0]  # the first line of a long message
    rows = {
        "tensorly-flycoo": _find_version("tensorly_flycoo"),
        "Python": platform.python_version(),
        "OS": platform.platform(),
        "TensorLy": tensorly,
        **{name: _find_version(name) for name in ("numpy", "scipy", "sparse", "numba")},
        "CuPy": _find_version("cupy"),
        "GPUs": f"{num_gpus}{problem}",
        "CPUs": str(os.cpu_count()),
        "numba threads": num_threads,
    }
    print(format_table(rows.items(), "<"))
    if num_gpus:
        cupy.show_config()


def _find_version(name: str) -> str:
    """Return the version of a module: of the loaded one, otherwise of the installed one."""
    version = getattr(sys.modules.get(name), "__version__", None)
    if version is not None:
        return version
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING
