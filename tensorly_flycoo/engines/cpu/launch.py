"""Run compiled kernels on all threads, and warn if one had to be compiled."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from .threads import run_parallel

_logger = logging.getLogger("tensorly_flycoo")


def launch(kernel: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run ``kernel(first, last, *arguments)`` over range(count) on all threads."""
    with show_compiling(kernel):
        run_parallel(kernel, count, *arguments)


@contextlib.contextmanager
def show_compiling(kernel: Any) -> Iterator[None]:
    """Log a warning if `kernel` is compiled inside, to explain a wait of a second or two."""
    num_compiled = sum(kernel.stats.cache_misses.values())
    start_s = time.perf_counter()
    yield
    if sum(kernel.stats.cache_misses.values()) > num_compiled:
        # A warning is shown even if logging is not set up.
        _logger.warning(
            "compiled %s for the CPU in %.1f s; cached on disk for the next time",
            kernel.__name__,
            time.perf_counter() - start_s,
        )
