"""Have the C library keep the memory of arrays that nobody holds any more, for new ones.

Dask has it give such memory back to the system at once. Mapping it again, page by page, takes a
worker as long as what it computes there.
"""

import ctypes
import sys
from typing import Any

# Options of glibc, by their numbers in malloc.h.
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_THRESHOLD = -3

#: Keeps memory of a thread's heaps, and of arrays up to the largest threshold that glibc allows.
_KEEP = {_TRIM_THRESHOLD: 2**28, _TOP_PAD: 2**26, _MMAP_THRESHOLD: 2**25}

#: What Dask asks for, and glibc's defaults.
_GIVE_BACK = {_TRIM_THRESHOLD: 2**16, _TOP_PAD: 2**17, _MMAP_THRESHOLD: 2**17}

_library: Any = None
if sys.platform == "linux":
    _library = ctypes.CDLL(None)


def keep_freed_memory(is_kept: bool) -> None:
    """Keep freed memory for later allocations, or return all of it to the system from now on."""
    if not hasattr(_library, "malloc_trim"):  # it is not glibc
        return
    options = _KEEP if is_kept else _GIVE_BACK
    for option, value in options.items():
        _library.mallopt(option, value)
    if not is_kept:
        _library.malloc_trim(0)
