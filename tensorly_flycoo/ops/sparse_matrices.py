"""SciPy and CuPy sparse matrices, for unfoldings and samples of a tensor."""

from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy
from ..engines import engine_of
from ..format.primitives import index_dtype

#: Products of an entry and a number that are in memory at a time.
_NUM_PRODUCTS = 2**24


def make_csc(values: Array, row_ids: Array, column_starts: Array, shape: tuple[int, int]) -> Any:
    """Make a CSC matrix from its arrays with SciPy, or with CuPy if they are on a GPU."""
    # One dtype for both: `column_starts` counts entries, which may outnumber the rows.
    largest = max(*shape, values.size)
    dtype = index_dtype(largest + 1, smallest="int32")
    indices, starts = (ids.astype(dtype, copy=False) for ids in (row_ids, column_starts))
    if not is_cupy(values):
        from scipy.sparse import csc_array

        return csc_array((values, indices, starts), shape=shape)
    from cupyx.scipy.sparse import csc_matrix

    # cuSPARSE ignores strides, and values inside records are strided.
    values = array_module(values).ascontiguousarray(values)
    matrix = csc_matrix((values, indices, starts), shape=shape)
    # CuPy 14.0 casts all indices to int32, and overflows silently.
    if largest > np.iinfo(matrix.indices.dtype).max:
        raise ValueError(
            f"a sparse matrix has shape {shape} and {values.size} entries, expected at most "
            f"{2**31 - 1} of each with this CuPy: use CuPy 14.2, or set_device('cpu')"
        )
    return matrix


def multiply(matrix: Any, dense: Array) -> Array:
    """Multiply a CSC matrix (I, n) by a dense one (n, R), adding the columns in their order."""
    if not is_cupy(matrix.data):
        return matrix @ dense
    # cuSPARSE adds in no fixed order.
    xp = array_module(dense)
    order = xp.argsort(matrix.indices)  # a stable sort
    columns = xp.searchsorted(matrix.indptr[1:].astype(np.int64), order, side="right")
    rows = xp.arange(matrix.shape[0], dtype=matrix.indices.dtype)
    starts = xp.searchsorted(matrix.indices[order], rows)
    return _sum_products(matrix.data[order], columns, starts, dense)


def multiply_transposed(matrix: Any, dense: Array) -> Array:
    """Multiply the transpose of a CSC matrix (I, n) by a dense one (I, R), as `multiply` does."""
    if not is_cupy(matrix.data):
        return matrix.T @ dense
    return _sum_products(matrix.data, matrix.indices, matrix.indptr[:-1].astype(np.int64), dense)


def _sum_products(values: Array, places: Array, starts: Array, dense: Array) -> Array:
    """Sum ``values[i] * dense[places[i]]`` from each of the `starts` to the next, on a GPU."""
    xp, engine, rank = array_module(dense), engine_of(values), dense.shape[1]
    result = xp.empty((starts.size, rank), np.result_type(values.dtype, dense.dtype))
    step = max(1, _NUM_PRODUCTS // max(values.size, 1))
    for first in range(0, rank, step):
        columns = dense[:, first : first + step].T
        products = (columns[:, places] * values).astype(result.dtype, copy=False)
        groups = xp.arange(len(columns))[:, None] * values.size + starts
        sums = engine.sum_groups(products.ravel(), groups.ravel())
        result[:, first : first + step] = sums.reshape(groups.shape).T
    return result
