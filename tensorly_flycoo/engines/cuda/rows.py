"""Lists of rows and orders of places on a GPU."""

import cupy
import numpy as np

from ...array_modules import Array
from ...format.primitives import index_dtype
from . import launch, tuning
from .macros import list_empty_rows_macros, store_places_macros


def store_places(
    order: Array,
    places: Array | None,
    target: Array | None = None,
    positions: Array | None = None,
) -> None:
    """Write ``places[order]`` (`order` if None) to `target`, and where each went to `positions`."""
    dtype = next(array.dtype for array in (target, positions) if array is not None)
    kernel = launch.get_kernel("store_places.cu", "store_places", **store_places_macros(dtype))
    arguments = (np.int64(order.size), order, *launch.pass_none([places, target, positions]))
    launch.launch_items(kernel, order.size, tuning.BLOCK_SIZE, arguments)


def list_empty_rows(is_used: Array, dtype: np.dtype | None = None) -> Array:
    """List the rows that are not in use, ascending."""
    dtype = dtype or index_dtype(is_used.size)
    macros = list_empty_rows_macros(dtype)
    kernel = launch.get_kernel("list_empty_rows.cu", "list_empty_rows", **macros)
    num_blocks = -(-is_used.size // macros["ROWS_PER_BLOCK"])
    starts = cupy.empty(num_blocks, np.int64)
    arguments = (np.int64(is_used.size), is_used, starts)
    launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, (*arguments, np.uint64(0)))
    counts = starts.get()
    empty_rows = cupy.empty(counts.sum(), dtype)
    if empty_rows.size > 0:
        starts.set(counts.cumsum() - counts)
        launch.launch(kernel, (num_blocks,), tuning.BLOCK_SIZE, (*arguments, empty_rows))
    return empty_rows
