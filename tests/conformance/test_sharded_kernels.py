"""Kernels for tall matrices on row-sharded ones, with NumPy's products in place of kernels."""

from itertools import pairwise

import numpy as np
import pytest
from numpy_devices import NumpyDevices

from tensorly_flycoo.loop import gram_products
from tensorly_flycoo.loop.gram_products import GramProduct
from tensorly_flycoo.spread.row_shards import RowShards, Sharding, cut_evenly, gather_each

RANK = 5


class Blocks:
    copies = ()

    def __init__(self, array):
        self._array = array
        self.shape = array.shape

    def to_array(self):
        return self._array


FLOAT32 = np.dtype(np.float32)


class Kernels:
    """As `engines.cuda.tall`: two blocks of rows for each matrix."""

    MAX_GRAMS = MAX_SCALES = 9

    def suits_tensor_cores(self, x):
        return x.shape[0] > 0

    def as_blocks(self, array):
        assert array.flags.c_contiguous
        return Blocks(array)

    def gram_blocks(self, x):
        return Blocks(np.stack([p.T @ p for p in self._split(x)]))

    def inner_blocks(self, a, b):
        pairs = zip(self._split(a), self._split(b), strict=True)
        return Blocks(np.stack([(p * q).sum() for p, q in pairs]))

    def solve_rows(self, x, inverse):
        y = (x @ inverse.to_array()[0]).astype(x.dtype)
        return y, self.gram_blocks(y), self.inner_blocks(x, y)

    def invert_product(self, grams, scales, rank, dtype):
        product = np.prod([gram.to_array().sum(axis=0) for gram in grams], axis=0)
        return Blocks(np.linalg.inv(product)[None])

    def compute_fit(self, grams, scales, rank, dtype, inner, norm_square, meanwhile):
        meanwhile()
        product = np.prod([gram.to_array().sum(axis=0) for gram in grams], axis=0)
        return np.sqrt(abs(norm_square + product.sum() - 2 * inner.to_array().sum()))

    def _split(self, x):
        edges = (0, x.shape[0] // 2, x.shape[0])
        return [x[start:stop].astype(np.float64) for start, stop in pairwise(edges)]


@pytest.fixture
def kernels(monkeypatch):
    kernels = Kernels()
    monkeypatch.setattr(gram_products, "_is_on_gpu", lambda x: True)
    monkeypatch.setattr(gram_products, "gpu_kernels", lambda: kernels)
    return kernels


DEVICES = {count: NumpyDevices(count) for count in (1, 2, 3, 5)}


def scatter(x, num_devices, num_blocks=6):
    return RowShards.scatter(x, Sharding.of(cut_evenly(len(x), num_blocks), DEVICES[num_devices]))


def draw(num_rows, seed):
    return np.random.default_rng(seed).random((num_rows, RANK)).astype(np.float32)


def test_a_mode_is_solved_on_any_number_of_devices(kernels):
    a, b, mttkrp = draw(80, 0), draw(70, 1), draw(60, 2)
    grams, results = (a.astype(float).T @ a) * (b.astype(float).T @ b), set()
    for num_devices in DEVICES:
        x = [scatter(matrix, num_devices) for matrix in (a, b, mttkrp)]
        product = GramProduct(kernels, RANK, FLOAT32) * GramProduct.of(x[0]) * GramProduct.of(x[1])
        factor = product.T.solve(x[2].T).T
        inverse = np.linalg.inv(grams)
        bound = 1e-6 * np.abs(mttkrp) @ np.abs(inverse)
        assert (np.abs(factor.to_numpy() - mttkrp @ inverse) <= bound).all()
        results.add(factor.to_numpy().tobytes())
        error = gram_products.compute_fit(30.0, None, [x[0], x[1], factor], x[2])
        model = grams * (factor.to_numpy().T @ factor.to_numpy()).astype(float)
        inner = (mttkrp.astype(float) * factor.to_numpy()).sum()
        np.testing.assert_allclose(error, np.sqrt(900 + model.sum() - 2 * inner), rtol=1e-6)
        results.add(error.tobytes())
    assert len(results) == 2


def test_what_the_solution_knows_is_used(kernels, monkeypatch):
    """Neither its Gram matrix nor its inner product with the MTTKRP is computed again."""
    a, mttkrp = scatter(draw(80, 0), 2), scatter(draw(60, 2), 2)
    factor = (GramProduct(kernels, RANK, FLOAT32) * GramProduct.of(a)).solve(mttkrp.T).T
    monkeypatch.setattr(kernels, "gram_blocks", None)
    monkeypatch.setattr(kernels, "inner_blocks", None)
    assert GramProduct.of(factor) is not None
    assert GramProduct.of(factor).grams[0].shape == (12, RANK, RANK)
    assert gram_products.compute_fit(30.0, None, [a, factor], mttkrp) > 0


def test_the_inner_product_with_another_mttkrp_is_computed(kernels):
    a, mttkrp, other = (scatter(draw(size, size), 2) for size in (80, 60, 60))
    factor = (GramProduct(kernels, RANK, FLOAT32) * GramProduct.of(a)).solve(mttkrp.T).T
    error = gram_products.compute_fit(30.0, None, [a, factor], other * 2)
    expected = gram_products.compute_fit(30.0, None, [a, scatter(factor.to_numpy(), 2)], other * 2)
    assert error == expected


def test_blocks_without_rows_are_left_to_numpy(kernels):
    x = scatter(draw(3, 0), 2)
    assert GramProduct.of(x) is None


def test_a_plain_factor_beside_sharded_ones(kernels, monkeypatch):
    """A factor that is never updated stays as it was given."""
    monkeypatch.setattr(gram_products, "find_address", lambda array: array.ctypes.data)
    plain, a, mttkrp = draw(80, 0), scatter(draw(70, 1), 2), scatter(draw(60, 2), 2)
    product = GramProduct(kernels, RANK, FLOAT32) * GramProduct.of(plain) * GramProduct.of(a)
    factor = product.solve(mttkrp.T).T
    for factors in ([plain, a, factor], [a, factor, plain]):
        of_last = scatter(draw(len(factors[-1]), 3), 2)
        found = gram_products.compute_fit(30.0, None, factors, of_last)
        dense = [x if x is plain else x.to_numpy() for x in (*factors, of_last)]
        model = np.prod([x.astype(float).T @ x for x in dense[:-1]], axis=0).sum()
        inner = (dense[-1].astype(float) * dense[-2]).sum()
        np.testing.assert_allclose(found, np.sqrt(abs(900 + model - 2 * inner)), rtol=1e-6)


def test_a_mode_takes_one_exchange_after_it_is_solved(kernels, monkeypatch):
    """Gram matrices go to all devices, which invert; so do the rows if all devices read them."""
    a, mttkrp, devices = scatter(draw(80, 0), 2), scatter(draw(60, 2), 2), DEVICES[2]
    gram, exchanges = GramProduct.of(a), []
    gather = devices.gather

    def count(requests):
        exchanges.extend([requests] if requests else [])
        return gather(requests)

    monkeypatch.setattr(devices, "gather", count)
    for num_solved, is_read_whole in enumerate([False, True]):
        sharding = Sharding.of(mttkrp.sharding.edges, devices, is_read_whole)
        right = RowShards(mttkrp.blocks, sharding)
        factor = (GramProduct(kernels, RANK, FLOAT32) * gram).solve(right.T).T
        homes = [0, 1] if is_read_whole else []
        (whole,) = gather_each([factor], devices, homes)
        assert len(exchanges) == num_solved + 1
        assert list(whole) == homes
        for own in whole.values():
            np.testing.assert_array_equal(own.view(np.ndarray), factor.to_numpy())
