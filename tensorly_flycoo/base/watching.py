"""The line about a call that takes long, on standard error, where somebody sees it.

In a terminal or a notebook the outermost call of a public function is watched: from five seconds on
a line says how far it has come, until it ends. A thread writes the line, since a call that compiles
kernels or sorts nonzeros says nothing for long. Where nobody sees it, nothing is started.

What the calls inside say (`note_stage`, `note_iteration`) costs no more than storing it: nothing is
computed, and no device waited for, to be shown.
"""

import collections
import contextlib
import datetime
import functools
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .choices import Choice
from .locks import make_lock

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: The environment variable that says until `set_progress` is called whether lines are shown.
PROGRESS_VARIABLE = "TENSORLY_FLYCOO_PROGRESS"

#: A call is shown once it has taken this long: so that the first look after it comes by 5 s.
_PATIENCE_S = 4.7

#: Seconds between two looks at the calls, and so between two states of the line.
_INTERVAL_S = 0.25

#: Iterations by which the time of one is judged.
_NUM_TIMED = 10

#: Characters of a line where the width is unknown, as in a notebook.
_WIDTH = 100

#: Options of calls that print, or that want silence.
_FORBIDDING = ("verbose", "quiet")

#: Types of errors that are shown: no device has to be waited for.
_HOST_NUMBERS = (float, np.floating)

_is_wanted: bool | None = None


def set_progress(is_shown: bool) -> Choice:
    """Choose whether calls that take long say so on standard error, in the whole process.

    Until it is called, the environment variable TENSORLY_FLYCOO_PROGRESS chooses: 0 or 1, by
    default 1.

    Parameters
    ----------
    is_shown : bool
        Whether a call shows a line from its sixth second to its end: the stage, or the iteration,
        its fit if that is known, seconds an iteration and the time left. This needs somebody who
        sees it: standard error must be a terminal or that of a notebook. A pipe, a file or another
        process than the main one never gets a line, nor does a call inside the block of a
        `Progress`, or one with ``verbose=`` or ``quiet=``.

    Returns
    -------
    Choice
        A context manager: ``with set_progress(False):`` restores the previous choice at the end of
        the block. A plain call holds until the next one.

    Raises
    ------
    TypeError
        If `is_shown` is no bool.

    Notes
    -----
    The choice applies to all threads. Results have the same bits either way. A watched call starts
    a thread that looks at it four times a second.

    Examples
    --------
    >>> import tensorly_flycoo
    >>> with tensorly_flycoo.set_progress(False):
    ...     pass  # nothing that is called here shows a line
    >>> tensorly_flycoo.set_progress(True)  # until the next call
    <progress True>
    """
    global _is_wanted
    if not isinstance(is_shown, bool):
        raise TypeError(f"is_shown is {is_shown!r}, expected True or False")
    previous = _is_wanted

    def restore() -> None:
        global _is_wanted
        _is_wanted = previous

    _is_wanted = is_shown
    return Choice(f"progress {is_shown}", restore)


def is_seen() -> bool:
    """Return whether somebody sees lines on standard error, and wants to."""
    try:
        is_terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False
    if not (is_terminal or _is_notebook(sys.stderr)):
        return False
    return _is_main_process() and _wants_lines()


def _is_notebook(stream: Any) -> bool:
    """Return whether an IPython kernel shows what is written to a stream."""
    library, _, _ = type(stream).__module__.partition(".")
    return library == "ipykernel"


def _is_main_process() -> bool:
    """Return whether this is no worker of a pool, many of which may share one terminal."""
    processes: Any = sys.modules.get("multiprocessing.process")
    return processes is None or processes.parent_process() is None


def _wants_lines() -> bool:
    """Return the choice of `set_progress`, or else that of the environment."""
    if _is_wanted is not None:
        return _is_wanted
    choice = os.environ.get(PROGRESS_VARIABLE, "1")
    if choice not in ("0", "1"):
        raise ValueError(f"{PROGRESS_VARIABLE} is {choice!r}, expected '0' or '1'")
    return choice == "1"


# What a call says


class _Iterations:
    """How far a loop has come."""

    def __init__(self) -> None:
        self.num_done = 0
        self.num_max = 0
        self.error: Any = None  # of the last one, if it is known
        self.is_loss = False
        self.ends = collections.deque([time.monotonic()], maxlen=_NUM_TIMED + 1)

    def describe(self) -> str:
        text = f"iteration {max(self.num_done, 1)} of {self.num_max}"
        if not self.num_done or not isinstance(self.error, _HOST_NUMBERS):
            return text
        if self.is_loss:
            return f"{text}, loss {self.error:.4g}"
        return f"{text}, fit {1 - self.error:.4f}"

    def describe_times(self) -> str:
        """Describe the time of an iteration and the time left, which passes meanwhile."""
        ends = list(self.ends)
        durations = [end - start for start, end in itertools.pairwise(ends)]
        waited_s = time.monotonic() - ends[-1]
        return describe_pace(durations, self.num_max - self.num_done, waited_s)


class _Level:
    """A call, or one inside it: what it has said last."""

    def __init__(self) -> None:
        self.stage = ""
        self.iterations: _Iterations | None = None

    def describe(self) -> str:
        iterations = self.iterations  # which another thread may replace
        if iterations is not None:
            return iterations.describe()
        return self.stage


class _Call:
    """An outermost call, with those that run inside it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.start_s = time.monotonic()
        self.levels = [_Level()]
        self.stream = sys.stderr
        self.context = copy_context()  # by which a notebook finds the cell
        self.num_shown = 0  # characters of its line that are on the screen

    def describe(self) -> str:
        """Describe what the call does, and for how long it has done so."""
        levels = [*self.levels]
        texts = [level.describe() for level in (levels[0], *levels[:0:-1])]
        # By the call itself, and by the innermost one that has said anything else.
        said = [*dict.fromkeys(text for text in texts if text)][:2]
        iterations = levels[0].iterations
        if len(levels) == 1 and iterations is not None and iterations.num_done > 1:
            said.append(iterations.describe_times())
        else:
            said.append(f"{time.monotonic() - self.start_s:.0f} s so far")
        return f"{self.name}: {', '.join(said)}"


def describe_pace(durations: Sequence[float], num_left: int, waited_s: float = 0.0) -> str:
    """Describe the seconds of an iteration, and the time left for others.

    >>> describe_pace([3.0, 0.2, 0.2, 0.2], 50, waited_s=1.0)
    '0.2 s each, at most 0:00:09 left'
    """
    # Iterations that compile take longer than those that are left. Up to two thirds of the first
    # ones do, so not even the median is safe: take the quartile.
    last = sorted(durations[-_NUM_TIMED:])
    each_s = last[(len(last) - 1) // 4]
    left_s = max(each_s * num_left - waited_s, 0.0)
    left = datetime.timedelta(seconds=round(left_s))
    return f"{each_s:.3g} s each, at most {left} left"


_watched: ContextVar[_Call | None] = ContextVar("watched", default=None)


def is_watched() -> bool:
    """Return whether the running call is watched."""
    return _watched.get() is not None


def note_stage(stage: str) -> None:
    """Let the line say that a stage begins."""
    call = _watched.get()
    if call is not None:
        level = call.levels[-1]
        level.stage = stage
        level.iterations = None


def note_iteration(
    num_done: int, num_max: int, error: Any = None, *, is_loss: bool = False
) -> None:
    """Let the line say how many iterations are done, and the fit, unless that is on a device."""
    call = _watched.get()
    if call is None:
        return
    level = call.levels[-1]
    if level.iterations is None or num_done < level.iterations.num_done:
        level.iterations = _Iterations()
    iterations = level.iterations
    iterations.num_max = num_max
    if num_done > iterations.num_done:
        iterations.num_done = num_done
        iterations.ends.append(time.monotonic())
    if error is not None:
        iterations.error = error
        iterations.is_loss = is_loss


# Who is watched


def watch(name: str, options: Mapping[str, Any] | None = None) -> AbstractContextManager[None]:
    """Show a line about the block, a call of that name, if it takes long and somebody sees it.

    A block inside another one adds to that one's line. Options of the call such as ``verbose=1``
    forbid a line.
    """
    outer = _watched.get()
    if outer is not None:
        return _add_level(outer)
    if not is_seen():
        return contextlib.nullcontext()
    if options is not None and any(map(options.get, _FORBIDDING)):
        return unwatched()
    return _watch(_Call(name))


def watched(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Watch each call of a function."""
    name = function.__name__

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with watch(name, kwargs):
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Show no line about calls inside the block: somebody else shows them, or nobody should."""
    token = _watched.set(_Call(""))
    try:
        yield
    finally:
        _watched.reset(token)


@contextlib.contextmanager
def _watch(call: _Call) -> Iterator[None]:
    """Let the thread look at an outermost call."""
    token = _watched.set(call)
    try:
        _screen.begin(call)
        yield
    finally:
        _watched.reset(token)
        _screen.end(call)


@contextlib.contextmanager
def _add_level(outer: _Call) -> Iterator[None]:
    """Let a call inside another one speak for itself."""
    level = _Level()
    outer.levels.append(level)
    try:
        yield
    finally:
        outer.levels.remove(level)


# The line


class _Screen:
    """The calls that are watched, the thread that looks at them, and the line of the oldest one."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._calls: list[_Call] = []
        self._thread: threading.Thread | None = None  # which ends when there are no calls

    def begin(self, call: _Call) -> None:
        with self._lock:
            self._calls.append(call)
            if self._thread is None or not self._thread.is_alive():  # as after a fork
                self._thread = threading.Thread(target=self._look, daemon=True)
                with contextlib.suppress(RuntimeError):  # Python ends, or there are too many
                    self._thread.start()

    def end(self, call: _Call) -> None:
        with self._lock:
            if call in self._calls:  # else Ctrl-C has interrupted its beginning
                self._calls.remove(call)
            _erase(call)

    def clear(self) -> None:
        """Erase the line, before something else is written; it comes back."""
        with self._lock:
            for call in self._calls:
                _erase(call)

    def _look(self) -> None:
        """Write the line as long as there are calls."""
        while True:
            time.sleep(_INTERVAL_S)
            with self._lock:
                if not self._calls:
                    self._thread = None
                    return
                oldest = self._calls[0]
                if time.monotonic() - oldest.start_s >= _PATIENCE_S:
                    oldest.context.run(_write, oldest, oldest.describe())


def _write(call: _Call, text: str) -> None:
    """Write a line over that of the call, which stays there."""
    text = text[: _find_width(call.stream) - 1]
    _print(call, "\r" + text.ljust(call.num_shown))
    call.num_shown = len(text)


def _erase(call: _Call) -> None:
    """Erase the line of a call, if there is one."""
    if call.num_shown:
        _print(call, "\r" + " " * call.num_shown + "\r")
        call.num_shown = 0


def _print(call: _Call, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal is gone
        call.stream.write(text)
        call.stream.flush()


def _find_width(stream: Any) -> int:
    """Return how many characters a line has."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (AttributeError, OSError, ValueError):  # no terminal
        width = 0
    return width or _WIDTH


_screen = _Screen()


def clear_line() -> None:
    """Erase the line for a while, before something else is written on standard error."""
    _screen.clear()


def _make_room(record: logging.LogRecord) -> bool:
    """Erase the line before a line of the log."""
    clear_line()
    return True


logging.getLogger("tensorly_flycoo").addFilter(_make_room)
