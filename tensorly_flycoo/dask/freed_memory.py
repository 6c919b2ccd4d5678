"""Have the C library keep the memory of arrays that nobody holds any more, for new ones.

Dask has it give such memory back to the system at once. Mapping it again, page by page, takes a
worker as long as what it computes there.
"""

import ctypes
import functools
from collections.abc import Callable

#: The options by which glibc keeps memory, of a thread's heaps and of arrays up to the size that it
#: allows, by their numbers in malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD.
_KEEP = {-1: 2**28, -2: 2**26, -3: 2**25}

#: What Dask asks for, and defaults.
_GIVE_BACK = {-1: 2**16, -2: 2**17, -3: 2**17}


@functools.cache
def _find_functions() -> tuple[Callable, Callable] | None:
    """Return the C library's `mallopt` and `malloc_trim`, if it has them."""
    try:
        library = ctypes.CDLL(None)
        return library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return None


def keep_freed_memory() -> None:
    if functions := _find_functions():
        for option, value in _KEEP.items():
            functions[0](option, value)


def give_back_memory() -> None:
    """Give back what is kept, and keep no more."""
    if functions := _find_functions():
        for option, value in _GIVE_BACK.items():
            functions[0](option, value)
        functions[1](0)
