"""Products of sparse and dense matrices, entry by entry."""

import numpy as np
import pytest

from tensorly_flycoo.ops.sparse_products import add_products


@pytest.mark.parametrize("nnz", [0, 1, 500])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "float64")])
def test_rows_are_added_in_order(nnz, dtypes):
    rng = np.random.default_rng(0)
    values, dense = (
        rng.standard_normal(n).astype(d) for n, d in zip((nnz, 90), dtypes, strict=True)
    )
    rows, places, dense = rng.integers(0, 7, nnz), rng.integers(0, 30, nnz), dense.reshape(30, 3)
    expected = np.zeros((7, 3), dtypes[1])
    for value, row, place in zip(values, rows, places, strict=True):
        expected[row] += value * dense[place]
    found = add_products(values, rows, places, dense, 7)
    assert found.dtype == dtypes[1]
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, expected)
