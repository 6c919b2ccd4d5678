"""Multiplicative updates of a factor: the product, and the sums of its columns."""

import cupy
import numpy as np
import pytest

from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.engines.cuda.engine import CUDA


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 3, 32, 33, 300])
@pytest.mark.parametrize("num_rows", [1, 63, 65, 300_001])
@pytest.mark.parametrize("has_row_scales", [False, True])
def test_scale_rows(num_rows, rank, dtype, has_row_scales):
    random = cupy.random.RandomState(0)
    if num_rows * rank > 10**7:
        num_rows //= 10
    product, scales = (random.random_sample((n, rank)).astype(dtype) for n in (num_rows, num_rows))
    factor = random.random_sample((num_rows, rank + 3)).astype(dtype)[:, :rank]
    scales = scales if has_row_scales else scales[:1]
    expected = product * factor * scales
    first = product.copy()
    sums, again = cupy.empty((2, rank))
    CUDA.scale_rows(product, factor, scales, sums)
    cupy.testing.assert_array_equal(product, expected)
    np.testing.assert_allclose(sums.get(), product.get().sum(axis=0, dtype=float), rtol=1e-12)
    CUDA.scale_rows(first, factor, scales, again)
    assert again.get().tobytes() == sums.get().tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 32, 300])
@pytest.mark.parametrize("mode", [0, 2])
def test_invert_sums(rank, mode, dtype):
    sums = np.random.default_rng(0).random((4, rank)) + 0.5
    sums[1, 0] = 0
    found = CUDA.invert_sums(cupy.asarray(sums), mode, dtype).get()
    assert found.dtype == dtype
    assert found.tobytes() == CPU.invert_sums(sums, mode, dtype).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("num_rows", "rank"), [(1, 1), (65, 32), (3000, 33), (300_001, 4), (999, 300)]
)
def test_steps_are_measured_and_extrapolated(num_rows, rank, dtype):
    factors = np.random.default_rng(0).random((3, num_rows, rank)).astype(dtype)
    on_gpu = [cupy.asarray(factor) for factor in factors]
    squares, sums = np.empty((2, rank)), np.empty(rank)
    found_squares, found_sums = cupy.empty((2, rank)), cupy.empty(rank)
    CPU.measure_steps(factors, squares)
    CUDA.measure_steps(on_gpu, found_squares)
    np.testing.assert_allclose(found_squares.get(), squares, rtol=1e-12)
    moved = CPU.extrapolate(factors, 3.0, sums)
    found = CUDA.extrapolate(on_gpu, 3.0, found_sums).get()
    # Near 0 rounding decides whether an element moves.
    t0, t1, t2 = factors.astype(float)
    far = 100 * np.finfo(dtype).eps
    is_clear = abs(t0 + 6 * (t1 - t0) + 9 * (t2 - 2 * t1 + t0)) > far
    np.testing.assert_allclose(found[is_clear], moved[is_clear], rtol=0, atol=far)
    np.testing.assert_allclose(found_sums.get(), found.sum(axis=0, dtype=float), rtol=1e-12)
    assert (found > 0).all()
