"""Reports of a call that takes long: the stage it has reached, and the kernels it compiled.

A stage goes to the listener of the caller's context, such as a `Progress`; without one, to the log,
and to the line about a call that is watched.
A profile that is on is told more: when calls and their parts begin and end, and what is refused.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from .watching import note_stage

_logger = logging.getLogger("tensorly_flycoo")

#: A long call logs what it compiled after this time without compiling, not only at its end.
_QUIET_S = 5.0

#: Seconds of compiling in all, from which on the process says so, once.
_SLOW_S = 1.0

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def report(stage: str) -> None:
    """Say that a stage begins, for instance "singular vectors of mode 2 of 3".

    Without a listener this is a log line at level INFO.
    """
    note_stage(stage)
    listener = _listener.get() or _logger.info
    listener(stage)


@contextlib.contextmanager
def listen(listener: Callable[[str], None]) -> Iterator[None]:
    """Pass each stage reported inside the block, by the same thread, to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


#: The `Profile` that is on in this context, if one is: see `tensorly_flycoo.profile`.
recorder: ContextVar[Any] = ContextVar("recorder", default=None)


def span(name: str, tensor: object = None) -> contextlib.AbstractContextManager[None]:
    """Let a profile time the block: a call with its sparse tensor, or a part of a call."""
    profile = recorder.get()
    if profile is None:
        return contextlib.nullcontext()
    return profile.time(name, tensor)


class _CompiledKernels(NamedTuple):
    """Kernels that were compiled together, and when (`time.perf_counter`)."""

    start_s: float
    end_s: float
    num_kernels: int


class _Compilation(contextlib.AbstractContextManager):
    """The kernels that a call has compiled, as a context for the calls inside it."""

    #: Of all calls of the process, and whether a log line has named them.
    total_count = 0
    total_s = 0.0
    is_said = False

    def __init__(self) -> None:
        self._compiled: list[_CompiledKernels] = []

    def add(self, start_s: float, count: int) -> None:
        """Add kernels that were compiled from `start_s` to now."""
        # Kernels that were compiled since `start_s` are called by these, and belong to them.
        earlier = [kernels for kernels in self._compiled if kernels.start_s < start_s]
        self._compiled = [*earlier, _CompiledKernels(start_s, time.perf_counter(), count)]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.log(_QUIET_S)

    def log(self, quiet_s: float = 0.0) -> None:
        """Log it, unless something was compiled less than `quiet_s` seconds ago."""
        if not self._compiled or time.perf_counter() - self._compiled[-1].end_s < quiet_s:
            return
        count = sum(kernels.num_kernels for kernels in self._compiled)
        seconds = sum(kernels.end_s - kernels.start_s for kernels in self._compiled)
        self._compiled = []
        _logger.debug("compiled %d kernels in %.1f s", count, seconds)
        profile = recorder.get()
        if profile is not None:
            profile.add_compiling(seconds)
        _Compilation.total_count += count
        _Compilation.total_s += seconds
        self._warn_if_slow()

    @staticmethod
    def _warn_if_slow() -> None:
        """Log the compilations of all calls, once, if they took a second.

        Under a listener, such as a progress bar, which a line would cut, a later call does.
        """
        process = _Compilation
        if process.total_s < _SLOW_S or process.is_said or _listener.get() is not None:
            return
        process.is_said = True
        noun = "kernel" if process.total_count == 1 else "kernels"
        # A warning is shown even if logging is not set up.
        _logger.warning(
            "compiled %d %s in %.1f s; cached on disk for the next time",
            process.total_count,
            noun,
            process.total_s,
        )


_compilation: ContextVar[_Compilation | None] = ContextVar("compilation", default=None)


def log_compilation() -> contextlib.AbstractContextManager[None]:
    """Log, at the end, how many kernels are compiled inside the block.

    Inside another such block, that one logs for both: at its end, or after 5 s without compiling.
    """
    return _compilation.get() or _log_at_end()


@contextlib.contextmanager
def _log_at_end() -> Iterator[None]:
    """Log the kernels compiled inside the block when it ends, even if it fails."""
    compilation = _Compilation()
    token = _compilation.set(compilation)
    try:
        yield
    finally:
        _compilation.reset(token)
        compilation.log()


def add_compiled(start_s: float, count: int = 1) -> None:
    """Count kernels whose compilation began at `start_s` (`time.perf_counter`) and ends now."""
    compilation = _compilation.get()
    if compilation is not None:
        compilation.add(start_s, count)
