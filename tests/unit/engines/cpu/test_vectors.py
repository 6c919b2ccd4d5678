"""Vectors in compiled functions have the bits of NumPy's numbers."""

import numpy as np
import pytest

from tensorly_flycoo.engines.cpu.compiling import kernel
from tensorly_flycoo.engines.cpu.vectors import (
    add_lanes,
    fused,
    larger_magnitude,
    load,
    multiply_block,
    spread,
    store,
    where_different,
    where_less,
)

LANES = (0,) * 8
NUM_RESULTS = 8
BOTH_DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@kernel
def compute_all(matrix, number, results, lanes):
    """Write a row of results for each function of the rows 1 and 2, from column 3 on."""
    line = np.uint64(0)
    column = np.uint64(3)
    a = load(matrix, np.uint64(1), column, lanes)
    b = load(matrix, np.uint64(2), column, lanes)
    store(a + b, results, line, line)
    store(a - b, results, np.uint64(1), line)
    store(a * b, results, np.uint64(2), line)
    store(a / b, results, np.uint64(3), line)
    store(where_less(a, b, a, b), results, np.uint64(4), line)
    store(where_different(a, b, a, spread(number, lanes)), results, np.uint64(5), line)
    store(fused(a, a, b), results, np.uint64(6), line)
    store(spread(add_lanes(a), lanes), results, np.uint64(7), line)


@BOTH_DTYPES
def test_each_function(dtype):
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((3, 12)).astype(dtype)
    matrix[2, 5] = matrix[1, 5]
    matrix[2, 6:8] = np.nan, np.inf
    a, b = matrix[1:, 3:11]
    a[7] = -a[:4].sum()  # so that sums are small
    results = np.empty((NUM_RESULTS, 8), dtype)
    compute_all(matrix, dtype(7), results, LANES)
    expected = [a + b, a - b, a * b, a / b, np.where(a < b, a, b), np.where(a != b, a, dtype(7))]
    np.testing.assert_array_equal(results[:6], expected)
    # A product that is rounded and then added to has up to half a rounding more of the product.
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(results[6], a * a + b, rtol=eps, atol=eps * (a * a).max())
    pairs = a[:4] + a[4:]
    fours = pairs[:2] + pairs[2:]
    np.testing.assert_array_equal(results[7], fours[0] + fours[1])


@kernel
def find_larger(matrix, results, lanes):
    """Write the larger magnitude of the rows 0 and 1, of which the first has no sign."""
    line = np.uint64(0)
    largest = load(matrix, line, line, lanes)
    store(larger_magnitude(largest, load(matrix, np.uint64(1), line, lanes)), results, line, line)


@BOTH_DTYPES
def test_nan_is_the_largest_magnitude(dtype):
    matrix = np.zeros((2, 8), dtype)
    matrix[0] = 1, 3, np.nan, np.inf, np.inf, 0, 2, np.nan
    matrix[1] = -2, -1, 5, np.nan, -1, -0.0, np.nan, -np.inf
    results = np.empty((1, 8), dtype)
    find_larger(matrix, results, LANES)
    np.testing.assert_array_equal(results, [[2, 3, np.nan, np.nan, np.inf, 0, np.nan, np.nan]])
    assert not np.signbit(results[0, 5])


@kernel
def multiply_two(left, right, terms, product, block, lanes):
    first = np.uint64(1)
    column = np.uint64(2)
    multiply_block(left, first, right, column, terms, product, np.uint64(3), block, lanes)


@BOTH_DTYPES
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("is_narrow", [False, True])
def test_a_block_of_a_product(dtype, is_transposed, is_narrow):
    rng = np.random.default_rng(0)
    other_dtype = np.float32 if is_narrow else dtype
    left = rng.integers(-9, 9, (4, 5)).astype(other_dtype)
    if is_transposed:
        left = np.ascontiguousarray(left.T).T
    right = rng.integers(-9, 9, (5, 11)).astype(dtype)
    terms = slice(1, 4)
    product = np.full((6, 11), 77, other_dtype)
    multiply_two(left, right, (np.uint64(1), np.uint64(4)), product, (0, 0), LANES)
    expected = np.full((6, 11), 77, dtype)
    expected[3:5, 2:10] = left[1:3, terms] @ right[terms, 2:10]
    np.testing.assert_array_equal(product, expected)
