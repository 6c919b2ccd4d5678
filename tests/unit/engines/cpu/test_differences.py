"""A matrix minus a product, in one pass over its rows."""

import numpy as np
import pytest

from tensorly_flycoo.engines import tall
from tensorly_flycoo.engines.cpu.differences import subtract_product


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("num_terms", "num_columns"), [(1, 1), (3, 8), (16, 16), (5, 21)])
@pytest.mark.parametrize("function", [subtract_product, tall.subtract_product])
def test_subtract_product(function, num_terms, num_columns, dtype):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1000, num_terms)).astype(dtype)
    matrix = rng.standard_normal((num_terms, num_columns)).astype(dtype)
    out = rng.standard_normal((1000, num_columns)).astype(dtype)
    expected = out - rows.astype(float) @ matrix
    magnitude = np.abs(out) + np.abs(rows).astype(float) @ np.abs(matrix)
    function(out, rows, matrix)
    assert out.dtype == dtype
    # One rounding for each product and each addition.
    assert (np.abs(out - expected) <= (num_terms + 1) * np.finfo(dtype).eps * magnitude).all()


def test_rows_that_lie_apart():
    rows = np.asfortranarray(np.arange(2000.0).reshape(1000, 2))
    out = np.zeros((1000, 3))
    subtract_product(out, rows, np.ones((2, 6))[:, ::2])
    np.testing.assert_array_equal(out, -rows.sum(axis=1)[:, None] * np.ones(3))
