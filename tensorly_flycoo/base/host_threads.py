"""Threads of the host that share the work of NumPy, whose functions have one but let others run."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")

#: More threads than these hardly move memory faster.
MAX_THREADS = 16


def count_threads() -> int:
    """Return how many threads share the work on large arrays: one for each core, up to a limit."""
    num_cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        num_cores = len(os.sched_getaffinity(0))  # those that this process may use
    return min(MAX_THREADS, num_cores)


def map_in_threads(
    function: Callable[..., Result], items: Sequence[Any], *others: Iterable[Any]
) -> list[Result]:
    """Return ``[*map(function, items, *others)]``, whose calls several threads make.

    If calls raise, the error of the first of them is raised, once those that have begun have ended.
    A single call is made by this thread.

    Examples
    --------
    >>> map_in_threads(pow, [2, 3], [5, 2])
    [32, 9]
    """
    num_threads = min(count_threads(), len(items))
    if num_threads <= 1:
        return [*map(function, items, *others)]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(num_threads, "tensorly-flycoo-host") as pool:
        return [*pool.map(function, items, *others)]
