"""Run compiled loops on several threads, as many as numba is set to use.

The loops release the GIL, so plain threads do. numba's own parallel loops would not: their default
layer (OpenMP) spins at the end of each loop, which makes it up to a hundred times slower when
another process wants a core, and another layer must not be entered by two threads at once.
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from queue import Empty, SimpleQueue
from threading import Event

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
    begun: list[Event] = []  # of each helper that may have a part, whether it is done
    try:
        try:
            helpers = [
                _get_pool().submit(_help, loop, parts, arguments, begun)
                for _ in range(1, num_threads)
            ]
            _run_parts(loop, parts, arguments)
        finally:
            _stop(parts, begun)
    finally:
        _stop(parts, begun)  # again, for an interrupt may have come before the first had done it
    for helper in helpers:
        helper.result()


def _help(loop, parts, arguments, begun):
    done = Event()
    begun.append(done)
    try:
        _run_parts(loop, parts, arguments)
    finally:
        done.set()


def _run_parts(loop, parts, arguments):
    with contextlib.suppress(Empty):
        while True:
            loop(*parts.get_nowait(), *arguments)


def _stop(parts, begun):
    """Take back the parts that nobody has, wait for the others, and only then let an interrupt out.

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
