"""The macros that make a specialisation of `gather_only.cu`; known without a GPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from tensorly_flycoo.engines.cuda.macros import mttkrp_macros

SOURCE = str(Path(__file__).resolve().with_name("gather_only.cu"))


@dataclass(frozen=True)
class Setting:
    """How the kernel is cut; stands in for `tuning.Occupancy`."""

    tile_size: int
    batch: int
    num_threads: int
    capability: ClassVar[tuple[int, int]] = (9, 0)


#: The fastest of these settings on a tensor is its floor.
SETTINGS = (
    Setting(512, batch=2, num_threads=1024),
    Setting(512, batch=4, num_threads=640),
    Setting(512, batch=8, num_threads=512),
    Setting(1024, batch=2, num_threads=1024),
    Setting(1024, batch=4, num_threads=512),
    Setting(1024, batch=4, num_threads=768),
    Setting(1024, batch=4, num_threads=1024),
    Setting(1024, batch=8, num_threads=512),
)


def gather_only_macros(record_format, cut, setting):
    """Specialise the kernel: as `mttkrp_remap.cu` for sorted records, but with the setting."""
    empty_dtype = np.dtype(np.uint32)  # not used by this kernel
    return mttkrp_macros(record_format, setting.tile_size, cut, setting, empty_dtype)
