"""Products of sparse matrices on a GPU: right, and with the same bits each time."""

import cupy
import numpy as np
import pytest

from tensorly_flycoo.ops import sparse_products
from tensorly_flycoo.ops.sparse_products import add_products


def draw(dtype, size=50, num_places=4000, nnz=100_000):
    """Draw entries of a matrix with heavy rows, repeated entries, and empty rows and columns."""
    rng = np.random.default_rng(0)
    rows = (size * rng.random(nnz) ** 6).astype(np.int64)
    rows[rows == 3] = 4
    places = rng.integers(0, num_places // 2, nnz) * 2
    return rng.standard_normal(nnz).astype(dtype), rows, places


@pytest.mark.parametrize("num_products", [2**24, 250_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products(monkeypatch, dtype, num_products):
    monkeypatch.setattr(sparse_products, "_NUM_PRODUCTS", num_products)
    values, rows, places = draw(dtype)
    dense = np.random.default_rng(1).standard_normal((4000, 16)).astype(dtype)
    arguments = [cupy.asarray(array) for array in (values, rows, places, dense)]
    found = add_products(*arguments, 50)
    exact, wide = (x.astype("float64") for x in (values, dense))
    expected = add_products(exact, rows, places, wide, 50)
    size = add_products(abs(exact), rows, places, abs(wide), 50)
    assert found.dtype == dtype
    assert (np.abs(found.get() - expected) <= values.size * np.finfo(dtype).eps * size).all()
    for _ in range(20):
        assert (add_products(*arguments, 50) == found).all()
