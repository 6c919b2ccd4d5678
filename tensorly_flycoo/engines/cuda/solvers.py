"""Launch the kernels that solve for the rows of a factor."""

import cupy
import numpy as np

from . import launch, tuning
from .macros import sweep_nonnegative_macros


def sweep_nonnegative(targets, gram, rows, shift, ridge, smallest):
    """Update all columns of `rows` (I, R) once, by HALS.

    Return the sum of squares that TensorLy compares with its tolerance, and how many elements
    changed. All arrays are C-contiguous and of one dtype; the host waits for the device.
    """
    num_rows, rank = rows.shape
    kernel = launch.get_kernel(
        "sweep_nonnegative.cu", "sweep_nonnegative", **sweep_nonnegative_macros(rows.dtype, rank)
    )
    num_blocks = -(-num_rows // tuning.BLOCK_SIZE)
    found = cupy.empty((2, num_blocks), np.float64)
    arguments = (np.int64(num_rows), targets, gram, rows, shift, ridge, smallest, found)
    launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, arguments)
    return found.sum(axis=1).tolist()
