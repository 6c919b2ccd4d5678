"""What a command shows while it works: on standard error, in a terminal, without --quiet."""

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator

#: A step of a command says so once it has taken this long.
_PATIENCE_S = 5.0


def shows_progress(arguments: argparse.Namespace) -> bool:
    """Return whether somebody sees progress, and wants to."""
    return sys.stderr.isatty() and not arguments.quiet


@contextlib.contextmanager
def step(name: str, arguments: argparse.Namespace) -> Iterator[None]:
    """Name a step of a command on standard error, if it takes long and progress is shown."""
    if not shows_progress(arguments):
        yield
        return
    timer = threading.Timer(_PATIENCE_S, _show, [name])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _show(name: str) -> None:
    print(f"{name} ...", file=sys.stderr, flush=True)
