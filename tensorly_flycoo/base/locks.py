"""Locks that a fork does not leave locked in the child process."""

import os
import threading
import weakref

_locks: weakref.WeakSet = weakref.WeakSet()


def make_lock() -> threading.Lock:
    """Make a lock that is released in a forked child, where the threads that held it are gone.

    What it guards must be consistent at any fork, as records are: a swap is a single line.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free_locks() -> None:
    """Release all locks, in a child after a fork."""
    for lock in _locks:
        if lock.locked():
            lock.release()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_free_locks)
