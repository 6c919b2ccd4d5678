"""Add what several GPUs have computed, in one launch."""

import functools

import cupy
import numpy as np

from ...array_modules import Array
from ...format import tree as trees
from . import launch, tuning
from .direct import DirectKernel
from .macros import add_parts_macros


def add_parts(rows: Array, tree: trees.Tree) -> Array:
    """Run `tree.add_parts` on a contiguous matrix of the current GPU."""
    if isinstance(tree, int) or rows.size == 0:
        return trees.add_parts(rows, tree)
    num_rows = rows.shape[0] // trees.count_parts(tree)
    sums = cupy.empty((num_rows, *rows.shape[1:]), rows.dtype)
    kernel = _get_kernel(tree, rows.dtype, rows.data.device_id)
    grid = (-(-sums.size // tuning.BLOCK_SIZE), 1)
    kernel(grid, tuning.BLOCK_SIZE, sums.size, rows.data.ptr, sums.data.ptr)
    return sums


@functools.cache
def _get_kernel(tree: trees.Tree, dtype: np.dtype, device_id: int) -> DirectKernel:
    """Return the kernel for a tree, and for the current device, `device_id`."""
    kernel = launch.get_kernel("add_parts.cu", "add_parts", **add_parts_macros(dtype, tree))
    return DirectKernel(kernel, "qQQ")
