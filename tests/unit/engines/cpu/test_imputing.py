"""Missing entries of many models: the loops equal the same sums by NumPy."""

import numba
import numpy as np
import pytest

from tensorly_flycoo.engines.cpu import imputing


@pytest.mark.parametrize(
    ("num_matrices", "num_models", "rank", "dtype"),
    [(2, 3, 5, "float64"), (3, 1, 1, "float32"), (4, 2, 40, "float64")],
)
def test_they_equal_numpy(num_matrices, num_models, rank, dtype):
    random, count = np.random.RandomState(0), 5000
    ids = random.randint(0, 30, (num_matrices, count))
    ids[0].sort()
    columns = tuple(random.random_sample((30, num_models * rank)).astype(dtype) for _ in ids)
    before = random.random_sample((count, num_models)).astype(dtype)
    rows = [matrix[own].astype(float) for matrix, own in zip(columns, ids, strict=True)]
    bound = 30 * rank * num_matrices * np.finfo(dtype).eps  # all terms are positive

    values = before.copy()
    sums = imputing.evaluate_models(ids, columns, values)
    expected = np.prod(rows, axis=0).reshape(count, num_models, rank).sum(axis=2)
    np.testing.assert_allclose(values, expected, rtol=bound)
    exact, changes = values.astype(float), values.astype(float) - before
    np.testing.assert_allclose(sums[0], (exact**2).sum(axis=0), rtol=1e-12)
    scale = (exact * abs(changes)).sum(axis=0)
    assert (abs(sums[1] - (exact * changes).sum(axis=0)) <= 1e-12 * scale).all()

    places, starts = random.permutation(count), np.append(0, np.flatnonzero(np.diff(ids[0])) + 1)
    starts, found = np.append(starts, count), np.ones((30, num_models * rank), dtype)
    arguments = (starts, ids, places, before, columns[1:])
    imputing.add_entries(*arguments, found)
    expected = np.ones(found.shape)
    wide = np.repeat(before[places].astype(float), rank, axis=1)
    np.add.at(expected, ids[0], np.prod(rows[1:], axis=0) * wide)
    np.testing.assert_allclose(found, expected, rtol=count * np.finfo(dtype).eps)

    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        again = np.ones_like(found)
        imputing.add_entries(*arguments, again)
        same = before.copy()
        np.testing.assert_array_equal(imputing.evaluate_models(ids, columns, same), sums)
    finally:
        numba.set_num_threads(threads)
    np.testing.assert_array_equal(again, found)
    np.testing.assert_array_equal(same, values)
