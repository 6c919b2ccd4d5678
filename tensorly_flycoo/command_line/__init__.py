"""The command line, ``python -m tensorly_flycoo``: from a file of events to named components."""

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from . import fit, info

_DESCRIPTION = "Decompose big sparse tensors: a file of events becomes a few named components."
_CODES = """exit codes:
  0    done
  1    it failed because of the data, the disk or a missing package; the message says which
  2    the command line is wrong
  130  interrupted by a second Ctrl-C
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, by default of the process's arguments, and return its exit code.

    A wrong command line and ``--help`` raise SystemExit, with the codes 2 and 0.
    """
    arguments = _make_parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (
        ImportError,
        LookupError,
        MemoryError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tensorly_flycoo",
        description=_DESCRIPTION,
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tensorly-flycoo {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in (fit, info):
        command.add_parser(commands)
    return parser
