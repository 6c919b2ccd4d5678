"""Raise KeyboardInterrupt at a chosen place in the package's own code, as Ctrl-C might."""

import contextlib
import itertools
import linecache
import sys
from pathlib import Path

import tensorly_flycoo

_PACKAGE = str(Path(tensorly_flycoo.__file__).parent)


class Interrupter:
    """A trace function that raises at the `failing`-th place and counts the places.

    A place is a call or a line. CPython handles interrupts at calls and backward jumps, so never
    within a statement without either, nor between the body of a ``with`` and its exit, where a
    tracer sees the line of the ``with`` again.
    """

    def __init__(self, failing):
        self.failing, self.num = failing, 0

    def __call__(self, frame, event, argument):
        code = frame.f_code
        # An interrupt would be lost in a generator expression that is being closed.
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
    """Interrupt the body at a place, if it has that many; yield the `Interrupter`."""
    interrupter, before = Interrupter(failing), sys.gettrace()
    sys.settrace(interrupter)
    try:
        yield interrupter
    finally:
        sys.settrace(before)


def for_each_place(task):
    """Call `task` repeatedly, interrupted one place later each time, until it completes.

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
