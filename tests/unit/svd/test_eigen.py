"""Leading eigenpairs of matrices with known eigenvalues, including hard cases, and singular pairs.

Those are of matrices that are known only by products, against NumPy's.
"""

import numpy as np
import pytest
import scipy.linalg

from tensorly_flycoo.svd import eigen
from tensorly_flycoo.svd.eigen import (
    filter_leading_vectors,
    find_leading_eigenpairs,
    find_singular_pairs,
    multiply_by_gram,
)

EPS = np.finfo(np.float64).eps


class DenseMatrix:
    """A dense matrix that counts products with it and formations of its Gram matrix."""

    def __init__(self, array, max_gram_size=eigen.MAX_GRAM_SIZE):
        self.array, self.shape, self.max_gram_size = array, array.shape, max_gram_size
        self.num_grams = self.num_products = 0

    def is_gram_cheap(self, rank):
        return min(self.shape) <= self.max_gram_size

    def gram(self, of_rows):
        self.num_grams += 1
        return np.tril(self.array @ self.array.T if of_rows else self.array.T @ self.array)

    def multiply(self, block):
        self.num_products += 1
        return self.array @ block

    def multiply_transposed(self, block):
        self.num_products += 1
        return self.array.T @ block


def make_array(shape, rank=None, seed=0):
    rng = np.random.default_rng(seed)
    if rank is None:
        return rng.standard_normal(shape)
    return rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))


def check(array, vectors, values):
    """Compare squares with NumPy's up to rounding of the largest, and bound the residuals."""
    expected = np.linalg.svd(array, compute_uv=False)
    bound = 16 * max(array.shape) * EPS * expected[0] ** 2
    assert (np.abs(values**2 - expected[: values.size] ** 2) <= bound).all()
    residuals = array @ (array.T @ vectors) - vectors * values**2
    tolerance = eigen._TOLERANCE * expected[0] ** 2
    assert np.linalg.norm(residuals, axis=0).max() <= tolerance + bound * expected[0] / values.min()
    gram = vectors.T @ vectors
    assert np.abs(gram - np.eye(values.size)).max() <= bound / values.min() ** 2


SHAPES = pytest.mark.parametrize("shape", [(30, 50), (50, 30), (40, 40)], ids=str)


@SHAPES
@pytest.mark.parametrize("rank", [1, 3, 30])
def test_directly(shape, rank):
    matrix = DenseMatrix(make_array(shape))
    check(matrix.array, *find_singular_pairs(matrix, rank, np))
    assert matrix.num_grams == 1


@SHAPES
def test_by_lanczos_iteration_with_the_gram_matrix(shape, monkeypatch):
    monkeypatch.setattr(eigen, "MAX_DIRECT_SIZE", 0)
    matrix = DenseMatrix(make_array(shape))
    check(matrix.array, *find_singular_pairs(matrix, 3, np))
    assert (matrix.num_grams, matrix.num_products) == (1, int(shape[0] > shape[1]))


@SHAPES
def test_by_lanczos_iteration_with_products(shape):
    matrix = DenseMatrix(make_array(shape), max_gram_size=0)
    check(matrix.array, *find_singular_pairs(matrix, 3, np))
    assert matrix.num_grams == 0
    assert matrix.num_products > 6


def test_a_quarter_of_all_vectors_or_more_is_found_directly():
    for rank, num_grams in ((9, 0), (10, 1)):
        matrix = DenseMatrix(make_array((40, 50)), max_gram_size=0)
        check(matrix.array, *find_singular_pairs(matrix, rank, np))
        assert matrix.num_grams == num_grams


@SHAPES
@pytest.mark.parametrize("max_gram_size", [0, 100])
def test_values_below_rounding_are_zero(shape, max_gram_size):
    matrix = DenseMatrix(make_array(shape, rank=3), max_gram_size)
    vectors, values = find_singular_pairs(matrix, 5, np)
    assert np.count_nonzero(values) == 3
    assert np.isfinite(vectors).all()
    check(matrix.array, vectors[:, :3], values[:3])


@pytest.mark.parametrize("max_gram_size", [0, 300])
@pytest.mark.parametrize("copies", [2, 50])
def test_equal_values(copies, max_gram_size, monkeypatch):
    monkeypatch.setattr(eigen, "MAX_DIRECT_SIZE", 0)
    diagonal = np.sqrt(np.repeat(np.arange(1.0, 301.0), copies)[-300:])
    matrix = DenseMatrix(np.diag(diagonal), max_gram_size)
    vectors, values = find_singular_pairs(matrix, 20, np)
    check(matrix.array, vectors, values)


@pytest.mark.parametrize("density", ["few", "some", "few in some rows"])
def test_few_elements_of_a_gram_matrix_are_multiplied_alone(density, monkeypatch):
    rng, calls, dsymv = np.random.default_rng(0), [], scipy.linalg.blas.dsymv
    array = np.diag(rng.random(400))
    array[: {"few": 10, "some": 400}.get(density, 0), :10] = 0.1
    if density == "few in some rows":
        array[1 :: eigen._SPARSITY] = rng.random((13, 400))
        array[:: eigen._SPARSITY, :] = 0
    monkeypatch.setattr(scipy.linalg.blas, "dsymv", lambda *args: calls.append(1) or dsymv(*args))
    matrix = DenseMatrix(array)
    check(array, *find_singular_pairs(matrix, 5, np))
    assert matrix.num_grams == 1
    assert bool(calls) == (density != "few")


def test_no_vectors():
    vectors, values = find_singular_pairs(DenseMatrix(make_array((6, 4))), 0, np)
    assert (vectors.shape, values.shape) == ((6, 0), (0,))


@pytest.mark.parametrize("num_vectors", [1, 8, 9, 20])
@pytest.mark.parametrize("of_rows", [True, False])
def test_products_with_the_gram_matrix(of_rows, num_vectors):
    """A few vectors are multiplied at a time."""
    matrix = DenseMatrix(make_array((30, 50)))
    array = matrix.array if of_rows else matrix.array.T
    block = make_array((array.shape[0], num_vectors), seed=1)
    expected = array @ (array.T @ block)
    found = multiply_by_gram(matrix, block, of_rows)
    assert np.abs(found - expected).max() <= 100 * EPS * np.abs(expected).max()
    assert matrix.num_products == 2 * -(-num_vectors // eigen._VECTORS_AT_ONCE)


# Block Lanczos iteration

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


@pytest.mark.parametrize("scale", [1, 1e-12])
@pytest.mark.parametrize(
    ("spectrum", "shortfall"),
    [
        pytest.param(np.linspace(0, 1, 20_000), 0.02, id="no gaps"),
        pytest.param(np.r_[np.linspace(0.5, 1, 19_998), 1e4, 1e6], 0.05, id="two much larger"),
        pytest.param(1 / np.arange(1.0, 20_001), 1e-4, id="gaps"),
        pytest.param(np.r_[np.zeros(19_990), np.ones(10)], 1e-5, id="more copies than wanted"),
        pytest.param(np.ones(20_000), 1e-5, id="identity"),
        pytest.param(np.r_[np.zeros(19_997), 1, 1, 2], 1e-5, id="rank 3"),
        pytest.param(np.zeros(20_000), 0, id="zero"),
    ],
)
def test_vectors_without_a_basis(spectrum, shortfall, scale, monkeypatch):
    """In single precision, with blocks changed in place; measured: below 0.6 and 2 %."""
    monkeypatch.setattr(eigen, "_ROWS_AT_ONCE", 3000)
    diagonal = (scale * spectrum).astype("float32")[:, None]
    vectors = filter_leading_vectors(lambda b: diagonal * b, len(diagonal), 8, np, np.float32)
    assert np.abs(vectors.T @ vectors - np.eye(16)).max() <= 100 * np.finfo("float32").eps
    projected = vectors.T.astype(float) @ (diagonal * vectors.astype(float))
    values = np.linalg.eigvalsh(projected)[::-1][:8]
    expected = scale * np.sort(spectrum)[::-1][:8]
    rounding = 100 * np.finfo("float32").eps * expected[0]
    assert (expected - values <= shortfall * expected + rounding).all()
    assert (values - expected <= rounding).all()


def test_the_same_bits_in_every_run():
    diagonal = np.linspace(0, 1, 300)[:, None]
    runs = [find_leading_eigenpairs(lambda b: diagonal * b, 300, 4, np)[1] for _ in range(2)]
    np.testing.assert_array_equal(*runs)
