"""SciPy and CuPy sparse matrices, for unfoldings and samples of a tensor."""

from typing import Any

import numpy as np

from ..array_modules import Array, array_module, is_cupy
from ..format.primitives import index_dtype


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


def by_rows(matrix: Any) -> Any:
    """Convert a matrix on a GPU to CSR: cuSPARSE sums over CSC columns in no fixed order."""
    return matrix.tocsr() if is_cupy(matrix.data) else matrix
