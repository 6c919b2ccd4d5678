"""Block Lanczos iteration: matrices with known eigenvalues, including hard cases."""

import numpy as np
import pytest

from tensorly_flycoo.linalg.eigen import find_leading_eigenpairs

CASES = [
    pytest.param(np.linspace(0, 1, 400) ** 2, 5, id="spread"),
    pytest.param(np.linspace(1, 1.001, 400), 5, id="close to each other"),
    pytest.param(np.logspace(0, -20, 400), 30, id="falling fast"),
    pytest.param(np.r_[np.zeros(390), np.ones(10)], 4, id="more copies than wanted"),
    pytest.param(np.r_[np.zeros(390), np.ones(10)], 14, id="fewer copies than wanted"),
    pytest.param(np.r_[np.zeros(399), 3.0], 7, id="rank 1"),
    pytest.param(np.ones(400), 7, id="identity"),
    pytest.param(np.zeros(400), 7, id="zero"),
    pytest.param(np.arange(8.0), 2, id="a basis of the whole space"),
]


@pytest.mark.parametrize(("spectrum", "rank"), CASES)
def test_known_eigenvalues(spectrum, rank):
    size = spectrum.size
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))
    matrix = (basis * spectrum) @ basis.T
    values, vectors = find_leading_eigenpairs(lambda block: matrix @ block, size, rank, np)
    largest = spectrum.max()
    rounding = 10 * size * np.finfo(float).eps
    assert np.abs(values - np.sort(spectrum)[::-1][:rank]).max() <= rounding * largest
    assert np.abs(vectors.T @ vectors - np.eye(rank)).max() <= rounding
    assert np.linalg.norm(matrix @ vectors - vectors * values, axis=0).max() <= 2e-10 * largest


def test_the_same_bits_in_every_run():
    diagonal = np.linspace(0, 1, 300)[:, None]
    runs = [find_leading_eigenpairs(lambda b: diagonal * b, 300, 4, np)[1] for _ in range(2)]
    np.testing.assert_array_equal(*runs)
