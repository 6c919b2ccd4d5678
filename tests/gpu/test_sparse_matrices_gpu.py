"""Products of sparse matrices on a GPU: right, and with the same bits each time."""

import cupy
import numpy as np
import pytest

from tensorly_flycoo.ops import sparse_matrices
from tensorly_flycoo.ops.sparse_matrices import make_csc, multiply, multiply_transposed


def draw(dtype, shape=(50, 4000), nnz=100_000, seed=0):
    """Draw a matrix with heavy rows, repeated entries, and empty rows and columns."""
    rng = np.random.default_rng(seed)
    columns = np.sort(rng.integers(0, shape[1] // 2, nnz) * 2)
    rows = (shape[0] * rng.random(nnz) ** 6).astype(np.int64)
    rows[rows == 3] = 4
    values = rng.standard_normal(nnz).astype(dtype)
    starts = np.searchsorted(columns, np.arange(shape[1] + 1))
    arrays = (values, rows, starts)
    return [make_csc(*map(xp.asarray, arrays), shape) for xp in (np, cupy)]


@pytest.mark.parametrize("num_products", [2**24, 250_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", [multiply, multiply_transposed])
def test_products(monkeypatch, function, dtype, num_products):
    monkeypatch.setattr(sparse_matrices, "_NUM_PRODUCTS", num_products)
    host, device = draw(dtype)
    dense = np.random.default_rng(1).standard_normal((host.shape[function is multiply], 16))
    dense = dense.astype(dtype)
    found = function(device, cupy.asarray(dense))
    exact = function(host.astype("float64"), dense.astype("float64"))
    size = function(abs(host).astype("float64"), abs(dense).astype("float64"))
    assert found.dtype == dtype
    assert (np.abs(found.get() - exact) <= host.nnz * np.finfo(dtype).eps * size).all()
    for _ in range(20):
        assert (function(device, cupy.asarray(dense)) == found).all()
