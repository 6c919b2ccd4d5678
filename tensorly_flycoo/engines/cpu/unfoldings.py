"""The primitives of unfoldings on a CPU, in one pass over the nonzeros each."""

import numpy as np

from ...array_modules import Array
from ...format.unfolding_primitives import UnfoldingPrimitives
from ...reporting import log_compilation
from .compiling import kernel


class CpuUnfoldings(UnfoldingPrimitives):
    """Compiled loops in the order of the columns: sums do not depend on the number of threads."""

    def sum_single_squares(
        self, is_first: Array, rows: Array, values: Array, num_rows: int, scale: float
    ) -> Array:
        sums = np.zeros((2, num_rows))
        with log_compilation():
            _add_single_squares(is_first, rows, values, scale, sums)
        return sums

    def list_shared(
        self, is_first: Array, rows: Array, values: Array, num_rows: int, scale: float
    ) -> tuple[Array, Array, Array]:
        is_coupled = np.zeros(num_rows, np.bool_)
        with log_compilation():
            count = _mark_coupled(is_first, rows, is_coupled)
            slots = np.cumsum(is_coupled) - 1
            coords, shared = np.empty((2, count), np.int64), np.empty(count)
            _copy_shared(is_first, rows, values, scale, slots, coords, shared)
        return np.flatnonzero(is_coupled), coords, shared


@kernel
def _add_single_squares(
    is_first: Array, rows: Array, values: Array, scale: float, sums: Array
) -> None:
    for i in range(np.uint64(values.shape[0])):
        if is_first[i] and is_first[i + np.uint64(1)]:
            value = values[i] / scale
            sums[int(value < 0), np.uint64(rows[i])] += value * value


@kernel
def _mark_coupled(is_first: Array, rows: Array, is_coupled: Array) -> int:
    """Mark the rows with nonzeros that share their column, and count these nonzeros."""
    count = 0
    for i in range(np.uint64(rows.shape[0])):
        if not (is_first[i] and is_first[i + np.uint64(1)]):
            is_coupled[np.uint64(rows[i])] = True
            count += 1
    return count


@kernel
def _copy_shared(
    is_first: Array,
    rows: Array,
    values: Array,
    scale: float,
    slots: Array,
    coords: Array,
    shared: Array,
) -> None:
    """Copy the nonzeros that share their column, with the numbers of their columns and rows."""
    place, column = np.uint64(0), -1
    for i in range(np.uint64(rows.shape[0])):
        if not (is_first[i] and is_first[i + np.uint64(1)]):
            column += int(is_first[i])
            coords[0, place], coords[1, place] = column, slots[np.uint64(rows[i])]
            shared[place] = values[i] / scale
            place += np.uint64(1)
