"""Launch the kernel that only reads: the lower bound for every MTTKRP."""

import functools
from dataclasses import asdict

import cupy
import numpy as np
from macros import SETTINGS, SOURCE, gather_only_macros
from timing import time_steps

from tensorly_flycoo.engines.cuda import launch, structs, tuning


def time_gather_only(layout, factors, repeats):
    """Return the seconds of each mode with the best setting, and that setting.

    A few runs of each setting choose the one with the fastest sweep over all modes.
    """
    trials = {s: time_steps(_make_steps(layout, factors, s), 3).sum() for s in SETTINGS}
    best = min(trials, key=trials.get)
    return time_steps(_make_steps(layout, factors, best), repeats), asdict(best)


def _make_steps(layout, factors, setting):
    modes = range(layout.record_format.ndim)
    return [_make_step(layout, factors, mode, setting) for mode in modes]


def _make_step(layout, factors, mode, setting):
    record_format, records = layout.record_format, layout.copies[mode]
    rank, dtype = factors[0].shape[1], record_format.dtype
    inputs = [n for n in range(record_format.ndim) if n != mode]
    cut = tuning.cut_rank(rank, dtype.itemsize, 16, 16)
    macros = gather_only_macros(record_format, cut, setting)
    kernel = launch.get_kernel(SOURCE, "gather_only", **macros)
    slot = structs.slot_nbytes(record_format)
    num_tiles = -(-records.shape[0] // setting.tile_size)
    arguments = (
        structs.make_operands(record_format, mode, inputs, [factors[n] for n in inputs]),
        np.int64(records.shape[0]), records,
        np.int32(rank), dtype.type(np.nan), cupy.empty(16, dtype),
    )  # fmt: skip
    block_size = tuning.choose_block_size(setting.tile_size)
    sizes = (num_tiles, cut.num_parts, block_size)
    return functools.partial(
        launch.launch_tiles, kernel, *sizes, arguments, setting.tile_size * slot
    )
