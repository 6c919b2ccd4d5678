"""Threads that build several slabs at the same time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any

import numba
import numpy as np

from ...base.devices import OneDevice

#: At most one slab of so many is built at a time: what building adds to slabs stays a share of
#: them, whatever the number of threads.
_SLABS_A_BUILDER = 4


class SlabThreads(OneDevice):
    """The CPU, where `map` makes several calls at the same time, each with some of the threads.

    A slab is too short for all threads to share its loops well, and much is done by NumPy, whose
    functions have one thread but let others run.
    """

    def __init__(self, num_slabs: int) -> None:
        super().__init__(np)
        most_at_once = max(1, num_slabs // _SLABS_A_BUILDER)
        self.num_at_once = min(most_at_once, numba.get_num_threads())

    def map(self, function: Callable[..., Any], homes: Iterable[int], *columns: Iterable) -> list:
        if self.num_at_once == 1:
            return super().map(function, homes, *columns)
        homes = tuple(homes)
        contexts = [copy_context() for _ in homes]
        num_threads = numba.get_num_threads() // self.num_at_once  # of each call

        def call(context: Context, *arguments: Any) -> Any:
            return context.run(function, *arguments)

        with ThreadPoolExecutor(
            self.num_at_once, "tensorly-flycoo-builder", numba.set_num_threads, (num_threads,)
        ) as pool:
            return list(pool.map(call, contexts, homes, *columns))
