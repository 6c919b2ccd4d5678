"""Entries with values of many models: those of any engine and the CPU's own equal sums by NumPy."""

import numba
import numpy as np
import pytest

from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.engines.cpu.imputing import CpuEntries
from tensorly_flycoo.engines.entries import PieceEntries

CLASSES = (CpuEntries, PieceEntries)


@pytest.mark.parametrize(
    ("num_modes", "num_models", "rank", "dtype"),
    [
        (1, 2, 3, "float64"),
        pytest.param(2, 3, 5, "float64", marks=pytest.mark.slow),
        (3, 1, 1, "float32"),
        pytest.param(4, 2, 40, "float64", marks=pytest.mark.slow),
    ],
)
def test_they_equal_numpy(num_modes, num_models, rank, dtype):
    random, shape = np.random.RandomState(0), (5000, 30, 30, 30)[:num_modes]
    coords = np.unique(random.randint(0, np.array([shape]).T, (num_modes, 5000)), axis=1)
    count = coords.shape[1]
    columns = {
        n: random.random_sample((size, num_models * rank)).astype(dtype)
        for n, size in enumerate(shape)
    }
    before = random.random_sample((count, num_models)).astype(dtype)
    rows = [columns[n][own].astype(float) for n, own in enumerate(coords)]
    # All terms are positive.
    bound = (30 * rank * num_modes + count) * np.finfo(dtype).eps
    found = []
    for kind in CLASSES:
        entries = kind(CPU, coords, shape, np.dtype(dtype))
        values, sums = entries.evaluate(columns, before)
        expected = np.prod(rows, axis=0).reshape(count, num_models, rank).sum(axis=2)
        np.testing.assert_allclose(values, expected, rtol=bound)
        exact, changes = values.astype(float), values.astype(float) - before
        np.testing.assert_allclose(sums[0], (exact**2).sum(axis=0), rtol=1e-12)
        scale = (exact * abs(changes)).sum(axis=0)
        assert (abs(sums[1] - (exact * changes).sum(axis=0)) <= 1e-12 * scale).all()

        wide = np.repeat(before.astype(float), rank, axis=1)
        for mode, size in enumerate(shape):
            others = {n: matrix for n, matrix in columns.items() if n != mode}
            out = np.ones((size, num_models * rank), dtype)
            entries.add_mttkrp(others, before, mode, out)
            expected = np.ones(out.shape)
            terms = [own for n, own in enumerate(rows) if n != mode]
            np.add.at(expected, coords[mode], np.prod([wide, *terms], axis=0))
            np.testing.assert_allclose(out, expected, rtol=bound)
        found.append((values, sums, out))
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        for kind, (values, sums, out) in zip(CLASSES, found, strict=True):
            entries = kind(CPU, coords, shape, np.dtype(dtype))
            again = np.ones_like(out)
            entries.add_mttkrp(others, before, mode, again)
            np.testing.assert_array_equal(again, out)
            for array, other in zip(entries.evaluate(columns, before), (values, sums), strict=True):
                np.testing.assert_array_equal(array, other)
    finally:
        numba.set_num_threads(threads)
