"""The macros of a specialisation of `gather_only.cu`; needs no GPU."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorly_flycoo.engines.cuda.macros import mttkrp_macros

SOURCE = str(Path(__file__).resolve().with_name("gather_only.cu"))


@dataclass(frozen=True)
class Setting:
    """The kernel's tile and block sizes, named as in `tuning`."""

    tile_size: int
    batch: int
    min_blocks: int


#: The fastest of these on a tensor is its lower bound.
SETTINGS = (
    Setting(512, batch=2, min_blocks=8),
    Setting(512, batch=4, min_blocks=5),
    Setting(512, batch=8, min_blocks=4),
    Setting(1024, batch=2, min_blocks=8),
    Setting(1024, batch=4, min_blocks=4),
    Setting(1024, batch=4, min_blocks=6),
    Setting(1024, batch=8, min_blocks=4),
)


def gather_only_macros(record_format, cut, setting):
    """Return the macros: those of `mttkrp.cu` for sorted records, with another setting."""
    empty_dtype = np.dtype(np.uint32)  # has no effect here
    macros = mttkrp_macros(record_format, setting.tile_size, cut, empty_dtype)
    return macros | {"BATCH": setting.batch, "MIN_BLOCKS": setting.min_blocks}
