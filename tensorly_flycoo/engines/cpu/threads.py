"""Run compiled loops on several threads, in numba's number.

The loops release the GIL, so plain threads suffice. numba's own parallel loops do not: their
default layer (OpenMP) spins at the end of each loop, which makes it up to a hundred times slower
when another process needs a core, and another layer does not allow two threads at a time.
"""

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import pairwise
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any

import numba

from ...base.reporting import log_compilation

#: Parts of a loop for each thread; more than one, so that a delayed thread gets less to do.
_PARTS_PER_THREAD = 4

_pool: ThreadPoolExecutor | None = None


def launch(kernel: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run ``kernel(first, last, *arguments)`` over range(count) on all threads."""
    with log_compilation():
        run_parallel(kernel, count, *arguments)


def run_parallel(loop: Callable[..., None], count: int, *arguments: Any) -> None:
    """Call ``loop(first, last, *arguments)`` for parts that together are range(count).

    Returns or raises only when no part is running, so that nothing writes to the arguments after an
    exception such as KeyboardInterrupt.
    """
    num_threads = min(numba.get_num_threads(), count)
    num_parts = min(count, num_threads * _PARTS_PER_THREAD)
    edges = [count * part // num_parts for part in range(num_parts + 1)] if count else []
    parts: SimpleQueue[tuple[int, int]] = SimpleQueue()
    for part in pairwise(edges):
        parts.put(part)
    begun: list[Event] = []  # one for each helper that may have a part; set when it is done
    try:
        try:
            helpers = [
                _get_pool().submit(copy_context().run, _help, loop, parts, arguments, begun)
                for _ in range(1, num_threads)
            ]
            _run_parts(loop, parts, arguments)
        finally:
            _stop(parts, begun)
    finally:
        _stop(parts, begun)  # again: an interrupt may have cut the first one short
    for helper in helpers:
        helper.result()


def _help(
    loop: Callable[..., None],
    parts: SimpleQueue[tuple[int, int]],
    arguments: tuple,
    begun: list[Event],
) -> None:
    done = Event()
    begun.append(done)
    try:
        _run_parts(loop, parts, arguments)
    finally:
        done.set()


def _run_parts(
    loop: Callable[..., None], parts: SimpleQueue[tuple[int, int]], arguments: tuple
) -> None:
    with contextlib.suppress(Empty):
        while True:
            loop(*parts.get_nowait(), *arguments)


def _stop(parts: SimpleQueue[tuple[int, int]], begun: list[Event]) -> None:
    """Withdraw the parts not yet taken, wait for the others, and only then raise an interrupt.

    A helper that begins later, and is not in the list yet, finds no part.
    """
    _drain(parts)
    interrupt = None
    while not all(done.is_set() for done in begun):
        try:
            for done in begun:
                done.wait()
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _drain(parts: SimpleQueue[tuple[int, int]]) -> None:
    with contextlib.suppress(Empty):
        while True:
            parts.get_nowait()


def _get_pool() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # set at import
        _pool = ThreadPoolExecutor(most, "tensorly-flycoo")
    return _pool


def _forget_pool() -> None:
    global _pool
    _pool = None


# A child process has none of its parent's threads. (Windows has no fork.)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
