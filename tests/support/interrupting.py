"""Raise KeyboardInterrupt at a chosen place of the package's own code, as Ctrl-C may."""

import contextlib
import itertools
import linecache
import sys
from pathlib import Path

import tensorly_flycoo

_PACKAGE = str(Path(tensorly_flycoo.__file__).parent)


class Interrupter:
    """A trace function that raises at the `failing`-th place, and counts the places it saw.

    A place is a call or a line. CPython takes interrupts at calls and backward jumps, so
    never within a statement that does neither; nor between the body of a ``with`` and its exit,
    where a tracer is called for the line of the ``with`` again.
    """

    def __init__(self, failing):
        self.failing, self.num = failing, 0

    def __call__(self, frame, event, argument):
        code = frame.f_code
        # Of a generator expression that is closed an interrupt would be lost.
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
    """Interrupt the body at a place, if it has so many; give the `Interrupter`."""
    interrupter, before = Interrupter(failing), sys.gettrace()
    sys.settrace(interrupter)
    try:
        yield interrupter
    finally:
        sys.settrace(before)


def for_each_place(task):
    """Call `task` again and again, interrupted one place later each time, until it comes through.

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
