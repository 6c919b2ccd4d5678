"""Reports of a call that takes long: the stage it has reached, and the kernels it compiled.

A stage goes to the listener of the caller's context, such as a `Progress`; without one, to the log.
A profile that is on is told more: when calls and their parts begin and end, and what is refused.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

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
    (_listener.get() or _logger.info)(stage)


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
    current = recorder.get()
    return contextlib.nullcontext() if current is None else current.time(name, tensor)


class _Compilation(contextlib.AbstractContextManager):
    """The compilations of a call: when each began and ended, and how many kernels it made.

    Its context is that of a call inside this one.
    """

    #: Of all calls of the process, and whether a log line has named them.
    total_count = 0
    total_s = 0.0
    is_said = False

    def __init__(self) -> None:
        self._spans: list[tuple[float, float, int]] = []

    def add(self, start_s: float, count: int) -> None:
        # Kernels that were compiled since `start_s` are called by this one, and belong to it.
        earlier = [span for span in self._spans if span[0] < start_s]
        self._spans = [*earlier, (start_s, time.perf_counter(), count)]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.log(_QUIET_S)

    def log(self, quiet_s: float = 0.0) -> None:
        """Log it, unless something was compiled less than `quiet_s` seconds ago.

        For all calls it is logged once, as a warning, if it took a second. Under a listener, such
        as a progress bar, which a line would cut, a later call says it.
        """
        if not self._spans or time.perf_counter() - self._spans[-1][1] < quiet_s:
            return
        starts_s, ends_s, counts = zip(*self._spans, strict=True)
        count = sum(counts)
        seconds = sum(ends_s) - sum(starts_s)
        whole = _Compilation
        self._spans = []
        _logger.debug("compiled %d kernels in %.1f s", count, seconds)
        whole.total_count += count
        whole.total_s += seconds
        if (current := recorder.get()) is not None:
            current.add_compiling(seconds)
        if whole.total_s >= _SLOW_S and not whole.is_said and _listener.get() is None:
            whole.is_said = True
            kernels = f"{whole.total_count} kernel" + "s" * (whole.total_count != 1)
            text = "compiled %s in %.1f s; cached on disk for the next time"
            _logger.warning(text, kernels, whole.total_s)  # shown even if logging is not set up


_compilation: ContextVar[_Compilation | None] = ContextVar("compilation", default=None)


def log_compilation() -> contextlib.AbstractContextManager[None]:
    """Log, at the end, how many kernels are compiled inside the block.

    Inside another such block, that one logs for both: at its end, or after 5 s without compiling.
    """
    return _compilation.get() or _log_at_end()


@contextlib.contextmanager
def _log_at_end() -> Iterator[None]:
    compilation = _Compilation()
    token = _compilation.set(compilation)
    try:
        yield
    finally:
        _compilation.reset(token)
        compilation.log()


def add_compiled(start_s: float, count: int = 1) -> None:
    """Count kernels whose compilation began at `start_s` (`time.perf_counter`) and ends now."""
    if (compilation := _compilation.get()) is not None:
        compilation.add(start_s, count)
