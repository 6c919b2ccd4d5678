"""Raise KeyboardInterrupt at a chosen place in the package's own code, as Ctrl-C might."""

import contextlib
import itertools
import linecache
import sys
from pathlib import Path

import tensorly_flycoo

_PACKAGE = str(Path(tensorly_flycoo.__file__).parent)


class Interrupter:
    """A trace function that counts places and raises at the `failing`-th.

    A place is a call or a line. CPython handles interrupts at calls and backward jumps only, so
    never in a statement without either, nor between the body of a ``with`` and its exit, where a
    tracer sees the line of the ``with`` again.
    """

    def __init__(self, failing):
        self.failing, self.num = failing, 0

    def __call__(self, frame, event, argument):
        code = frame.f_code
        # A generator expression that is being closed would swallow the interrupt.
        if not code.co_filename.startswith(_PACKAGE) or code.co_name == "<genexpr>":
            return None
        line = linecache.getline(code.co_filename, frame.f_lineno)
        is_exit = event == "line" and line.lstrip().startswith("with ")
        if event not in ("call", "line") or is_exit:
            return self
        self.num += 1
        if self.num - 1 == self.failing:
            raise KeyboardInterrupt(f"{event} at {code.co_filename}:{frame.f_lineno}")
        return self


@contextlib.contextmanager
def interrupt_at(failing):
    """Interrupt the body at the `failing`-th place, if there is one; yield the `Interrupter`."""
    interrupter, before = Interrupter(failing), sys.gettrace()
    sys.settrace(interrupter)
    try:
        yield interrupter
    finally:
        sys.settrace(before)


def for_each_place(task):
    """Call `task` repeatedly, interrupting it one place later each time, until it completes.

    Yields the interrupt after each call.
    """
    for failing in itertools.count():
        try:
            with interrupt_at(failing):
                task()
        except KeyboardInterrupt as interrupt:
            yield interrupt
        else:
            return
