"""Products of a sparse matrix and a dense one, added in a fixed order."""

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy
from ..engines import engine_of

#: Products of an entry and a number that are in memory at a time.
_NUM_PRODUCTS = 2**24


def add_products(values: Array, rows: Array, places: Array, dense: Array, size: int) -> Array:
    """Add ``values[k] * dense[places[k]]`` to row ``rows[k]`` of a matrix of zeros (size, R).

    Each row is added in the order of k.
    """
    if is_cupy(dense):
        return _add_on_gpu(values, rows, places, dense, size)
    from scipy.sparse import coo_array

    matrix = coo_array((values, (rows, places)), shape=(size, dense.shape[0]))
    return np.ascontiguousarray(matrix @ dense)


def _add_on_gpu(values: Array, rows: Array, places: Array, dense: Array, size: int) -> Array:
    """Add products on a GPU: not by cuSPARSE, which adds in no fixed order."""
    xp = array_module(dense)
    rank = dense.shape[1]
    order = xp.argsort(rows)  # a stable sort
    starts = xp.searchsorted(rows[order], xp.arange(size))
    sorted_values = values[order]
    sorted_places = places[order]
    result = xp.empty((size, rank), xp.result_type(values.dtype, dense.dtype))
    step = max(1, _NUM_PRODUCTS // max(values.size, 1))
    for first in range(0, rank, step):
        block = slice(first, first + step)
        columns = dense[:, block].T
        products = columns[:, sorted_places] * sorted_values
        products = products.astype(result.dtype, copy=False)
        # All columns at once: a group for each row of each column.
        column_starts = xp.arange(len(columns)) * values.size
        groups = column_starts[:, None] + starts
        sums = engine_of(dense).sum_groups(products.ravel(), groups.ravel())
        result[:, block] = sums.reshape(groups.shape).T
    return result
