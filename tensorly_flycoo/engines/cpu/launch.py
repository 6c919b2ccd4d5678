"""Run compiled kernels on all threads."""

from collections.abc import Callable
from typing import Any

from ...reporting import log_compilation
from .threads import run_parallel


def launch(kernel: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run ``kernel(first, last, *arguments)`` over range(count) on all threads."""
    with log_compilation():
        run_parallel(kernel, count, *arguments)
