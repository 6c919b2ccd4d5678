"""Loops over the nonzeros of a small slice in any order, compiled by numba: no plan is built.

They run in one thread: a slice of a thousand nonzeros takes less time than to wake another one.
"""

import numpy as np
from numpy import ndarray as Array

from .compiling import allocating_kernel


@allocating_kernel
def add_products(
    coords: Array, values: Array, factors: tuple[Array, ...], row: Array, mode: int, out: Array
) -> None:
    """Add the MTTKRP of a slice to `out` (I_mode, R), the weights being `row` (R,).

    `coords` is (ndim, nnz) and int64, and so are the modes of `factors`. If `mode` is `ndim`, all
    factors are multiplied, and `out` has one row.
    """
    rank, ndim = row.size, coords.shape[0]
    product = np.empty(rank, out.dtype)
    for k in range(values.size):
        for r in range(rank):
            product[r] = values[k] * row[r]
        for n in range(ndim):
            if n != mode:
                i = coords[n, k]
                for r in range(rank):
                    product[r] *= factors[n][i, r]
        i = coords[mode, k] if mode < ndim else 0
        for r in range(rank):
            out[i, r] += product[r]


@allocating_kernel
def share_counts(
    coords: Array,
    values: Array,
    factors: tuple[Array, ...],
    row: Array,
    sums: tuple[Array, ...],
    row_sum: Array,
    takes_all: bool,
) -> float:
    """Divide each count among the components, in proportion to their parts of the model.

    Adds the parts to `row_sum` (R,) and, if `takes_all`, to the rows of `sums` (I_n, R) of each
    mode. Returns the sum of ``x log m`` in float64. Counts where the model is zero are left out.
    """
    rank, ndim = row.size, coords.shape[0]
    parts = np.empty(rank, row.dtype)
    total = 0.0
    for k in range(values.size):
        parts[:] = row
        for n in range(ndim):
            i = coords[n, k]
            for r in range(rank):
                parts[r] *= factors[n][i, r]
        model = row.dtype.type(0)
        for r in range(rank):
            model += parts[r]
        if model <= 0:
            continue
        total += values[k] * np.log(model)
        scale = values[k] / model
        for r in range(rank):
            parts[r] *= scale
            row_sum[r] += parts[r]
        if takes_all:
            for n in range(ndim):
                i = coords[n, k]
                for r in range(rank):
                    sums[n][i, r] += parts[r]
    return total
