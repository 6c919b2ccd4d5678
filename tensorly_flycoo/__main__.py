"""python -m tensorly_flycoo: see `command_line`."""

import sys

from .command_line import main

sys.exit(main())
