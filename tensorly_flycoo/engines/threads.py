"""Run compiled loops on several threads, as many as numba is set to use.

The loops release the GIL, so plain threads do. numba's own parallel loops would not: their default
layer (OpenMP) spins at the end of each loop, which makes it up to a hundred times slower when
another process wants a core, and another layer must not be entered by two threads at once.
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from queue import Empty, SimpleQueue

import numba

#: Parts of a loop for each thread; more than one, so that a thread that is held up gets less.
_PARTS_PER_THREAD = 4

_pool: ThreadPoolExecutor | None = None


def run_parallel(loop, count, *arguments):
    """Call ``loop(first, last, *arguments)`` for parts that together are range(count).

    Returns, or raises, only when no part is running any more, so that nothing is written to the
    arguments after an exception such as KeyboardInterrupt.
    """
    num_threads = min(numba.get_num_threads(), count)
    num_parts = min(count, num_threads * _PARTS_PER_THREAD)
    edges = [count * part // num_parts for part in range(num_parts + 1)] if count else []
    parts: SimpleQueue = SimpleQueue()
    for part in pairwise(edges):
        parts.put(part)
    helpers = [
        _get_pool().submit(_run_parts, loop, parts, arguments) for _ in range(1, num_threads)
    ]
    try:
        _run_parts(loop, parts, arguments)
    finally:
        _drain(parts)
        _wait_for_all(helpers)
    for helper in helpers:
        helper.result()


def _run_parts(loop, parts, arguments):
    with contextlib.suppress(Empty):
        while True:
            loop(*parts.get_nowait(), *arguments)


def _wait_for_all(helpers):
    """Wait until all are done, and only then let an interrupt through."""
    interrupt = None
    while not all(helper.done() for helper in helpers):
        try:
            wait(helpers)
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _drain(parts):
    with contextlib.suppress(Empty):
        while True:
            parts.get_nowait()


def _get_pool():
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(numba.config.NUMBA_NUM_THREADS, "tensorly-flycoo")
    return _pool


def _forget_pool():
    global _pool
    _pool = None


# A child process has none of its parent's threads. (Windows has no fork.)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
