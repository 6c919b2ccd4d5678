"""Launch the kernels that solve for the rows of a factor."""

import cupy
import numpy as np

from ...array_modules import Array
from . import launch, tuning
from .macros import sweep_nonnegative_macros


def sweep_nonnegative(
    targets: Array, gram: Array, rows: Array, shift: float, ridge: float, smallest: float
) -> tuple[float, int]:
    """Update all columns of `rows` once; see `Engine.sweep_nonnegative`. Waits for the GPU."""
    num_rows, rank = rows.shape
    kernel = launch.get_kernel(
        "sweep_nonnegative.cu", "sweep_nonnegative", **sweep_nonnegative_macros(rows.dtype, rank)
    )
    num_blocks = -(-num_rows // tuning.BLOCK_SIZE)
    found = cupy.empty((2, num_blocks), np.float64)
    arguments = (np.int64(num_rows), targets, gram, rows, shift, ridge, smallest, found)
    launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, arguments)
    error, num_changes = found.sum(axis=1).tolist()
    return error, num_changes
