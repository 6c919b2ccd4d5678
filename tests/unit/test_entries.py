"""A CP model at given entries, in blocks of any size."""

import numpy as np
import pytest

from tensorly_flycoo import entries
from tensorly_flycoo.entries import choose_block_size, evaluate_model


@pytest.mark.parametrize("block_numbers", [1, 40, 10**6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ndim", [1, 2, 4])
def test_evaluate_model(ndim, dtype, block_numbers, monkeypatch):
    monkeypatch.setattr(entries, "_CPU_BLOCK_NUMBERS", block_numbers)
    rng = np.random.RandomState(0)
    shape, rank, count = (5, 4, 6, 3)[:ndim], 7, 50
    factors = [rng.random_sample((size, rank)).astype(dtype) for size in shape]
    weights = rng.random_sample(rank).astype(dtype)
    coords = np.stack([rng.randint(0, size, count) for size in shape])
    copies = [factor.copy() for factor in factors]
    rows = np.prod([f[c].astype(float) for f, c in zip(factors, coords, strict=True)], axis=0)
    for given, exact in ((None, rows.sum(axis=1)), (weights, rows @ weights)):
        found = evaluate_model(coords, given, factors)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, exact, rtol=(rank + ndim) * np.finfo(dtype).eps)
    for factor, copy in zip(factors, copies, strict=True):
        np.testing.assert_array_equal(factor, copy)


def test_no_entries():
    assert evaluate_model(np.zeros((2, 0), int), None, [np.ones((3, 2))] * 2).shape == (0,)


def test_a_block_has_a_row():
    assert choose_block_size(np.ones(1), 10**12) == 1
