"""Values of a CP model at given entries, in blocks of any size."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import tensorly as tl

from tensorly_flycoo import FlycooTensor, cp_to_entries, from_dataframe
from tensorly_flycoo.ops import cp_entries
from tensorly_flycoo.ops.cp_entries import choose_block_size


@pytest.mark.parametrize("block_numbers", [1, 40, 10**6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ndim", [1, 2, 4])
def test_values_of_a_model(ndim, dtype, block_numbers, monkeypatch):
    monkeypatch.setattr(cp_entries, "_CPU_BLOCK_NUMBERS", block_numbers)
    rng = np.random.RandomState(0)
    shape, rank, count = (5, 4, 6, 3)[:ndim], 7, 50
    factors = [rng.random_sample((size, rank)).astype(dtype) for size in shape]
    weights = rng.random_sample(rank).astype(dtype)
    coords = np.stack([rng.randint(0, size, count) for size in shape])
    copies = [factor.copy() for factor in factors]
    rows = np.prod([f[c].astype(float) for f, c in zip(factors, coords, strict=True)], axis=0)
    for given, exact in ((None, rows.sum(axis=1)), (weights, rows @ weights)):
        found = cp_to_entries((given, factors), coords)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, exact, rtol=(rank + ndim) * np.finfo(dtype).eps)
    for factor, copy in zip(factors, copies, strict=True):
        np.testing.assert_array_equal(factor, copy)


def test_no_entries():
    assert cp_to_entries((None, [np.ones((3, 2))] * 2), np.zeros((2, 0), int)).shape == (0,)


@pytest.mark.parametrize(
    ("coords", "error", "text"),
    [
        ([[0, 3], [0, 0]], ValueError, r"coords\[0, 1\] is 3"),
        ([[0], [-1]], ValueError, r"coords\[1, 0\] is -1"),
        ([[0], [0], [0]], ValueError, "coords has shape"),
        ([[0.5], [0.5]], TypeError, "expected integers"),
    ],
)
def test_bad_coords(coords, error, text):
    with pytest.raises(error, match=text):
        cp_to_entries((None, [np.ones((3, 2))] * 2), coords)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table, from_dataframe])
def test_tables_are_for_predict(make):
    table = {"user": ["ann"], "item": ["tea"]}
    given = make(pd.DataFrame(table), [*table]) if make is from_dataframe else make(table)
    with pytest.raises(TypeError, match=r"expected integers: pass a table to LabelledCP\.predict"):
        cp_to_entries((None, [np.ones((3, 2))] * 2), given)


def test_of_a_decomposition():
    """A tensor of rank 1 that parafac recovers, at all of its entries."""
    x = np.multiply.outer(np.arange(1.0, 4), np.arange(1.0, 6))
    coords = np.indices(x.shape).reshape(2, -1)
    with tl.backend_context("flycoo"):
        cp_tensor = tl.decomposition.parafac(FlycooTensor(coords, x.ravel(), x.shape), 1)
    np.testing.assert_allclose(cp_to_entries(cp_tensor, coords), x.ravel(), rtol=1e-12)


def test_a_block_has_at_least_one_row():
    assert choose_block_size(np.ones(1), 10**12) == 1
