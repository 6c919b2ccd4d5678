"""The command line, ``python -m tensorly_flycoo``: from a file of events to named components.

`commands` parses a command line and calls a command. `fit` is one, whose steps are in `reading`,
`fitting`, `profiles` and `writing`; `rank` has the same. `saved_models` has those that use what
`fit` wrote, `environment` those that set Python up or say what is installed.
"""

from .commands import main

__all__ = ["main"]
