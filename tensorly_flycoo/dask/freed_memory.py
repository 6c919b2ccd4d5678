"""Have the C library keep the memory of arrays that nobody holds any more, for new ones.

Dask has it give such memory back to the system at once. Mapping it again, page by page, takes a
worker as long as what it computes there.
"""

import ctypes
import sys
from typing import Any

#: Options of glibc, by their numbers in malloc.h (M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD),
#: that keep memory of a thread's heaps, and of arrays up to the size that it allows.
_KEEP = {-1: 2**28, -2: 2**26, -3: 2**25}

#: What Dask asks for, and defaults.
_GIVE_BACK = {-1: 2**16, -2: 2**17, -3: 2**17}

_library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def keep_freed_memory(is_kept: bool) -> None:
    """Keep freed memory from now on, or give back what is kept and keep no more."""
    if not hasattr(_library, "malloc_trim"):  # it is not glibc
        return
    for option, value in (_KEEP if is_kept else _GIVE_BACK).items():
        _library.mallopt(option, value)
    if not is_kept:
        _library.malloc_trim(0)
