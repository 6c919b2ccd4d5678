"""Sparse matrices of SciPy and CuPy, as unfoldings and samples of a tensor are multiplied with."""

import numpy as np

from ..array_modules import array_module, is_cupy
from ..format.primitives import index_dtype


def make_csc(values, row_ids, column_starts, shape):
    """Make a matrix of columns, SciPy's or on a GPU CuPy's, of what it consists of."""
    # One type for both: `column_starts` count the entries, of which there may be more than rows.
    largest = max(*shape, values.size)
    dtype = index_dtype(largest + 1, smallest="int32")
    indices, starts = (ids.astype(dtype, copy=False) for ids in (row_ids, column_starts))
    if not is_cupy(values):
        from scipy.sparse import csc_array

        return csc_array((values, indices, starts), shape=shape)
    from cupyx.scipy.sparse import csc_matrix

    # Values as they lie in records are apart, which cuSPARSE would not see.
    values = array_module(values).ascontiguousarray(values)
    matrix = csc_matrix((values, indices, starts), shape=shape)
    # CuPy 14.0 makes int32 of all indices, and says nothing where they overflow.
    if largest > np.iinfo(matrix.indices.dtype).max:
        raise ValueError(
            f"a sparse matrix has shape {shape} and {values.size} entries, expected at most "
            f"{2**31 - 1} of each with this CuPy: it takes CuPy 14.2, or set_device('cpu')"
        )
    return matrix


def by_rows(matrix):
    """Return a matrix on a GPU as CSR: from columns cuSPARSE adds to shared memory in any order."""
    return matrix.tocsr() if is_cupy(matrix.data) else matrix
