"""Machine code that a wheel brings, so that the first call of a machine compiles fewer kernels.

`precompile.py` makes it for common tensors, ranks and GPUs, in a folder that a checkout does not
have. All else is compiled when it is first used (`launch.py`). This module needs no GPU.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

#: Files of machine code, each named after all that determines it.
FOLDER = Path(__file__).parent / "cubins"

#: Options of every kernel, and those that CuPy adds to them.
OPTIONS = ("--std=c++17",)
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")


def choose_architecture(major: int) -> str:
    """Return the architecture whose machine code runs on all GPUs of a major compute capability.

    >>> choose_architecture(8)
    'sm_80'
    """
    return f"sm_{major}0"


def name_cubin(text: str, options: Sequence[str], architecture: str) -> str:
    """Return the name of the file for a source with its headers and macros, such as `specialise`'s.

    Another text, option or architecture has another name, so no file is ever out of date.
    """
    parts = [architecture, *options, text]
    digest = hashlib.sha256("\0".join(parts).encode())
    return f"{digest.hexdigest()[:32]}.cubin"


def find_cubin(text: str, options: Sequence[str], major: int) -> Path | None:
    """Return the file for a GPU of a major compute capability; None if there is none."""
    path = FOLDER / name_cubin(text, options, choose_architecture(major))
    return path if path.exists() else None
