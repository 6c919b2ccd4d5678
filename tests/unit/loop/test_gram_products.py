"""Products of Gram matrices, with NumPy arrays and stand-ins for the kernels of a GPU."""

import threading

import numpy as np
import pytest
from gram_kernels import draw, stand_in_kernels

from tensorly_flycoo.loop import gram_products
from tensorly_flycoo.loop.gram_products import GramMemory, GramProduct


@pytest.fixture
def kernels(monkeypatch):
    with stand_in_kernels(monkeypatch) as kernels:
        yield kernels


def test_a_product_keeps_what_it_is_made_of(kernels):
    factors, weights = [draw((9, 4)), draw((8, 4), seed=1)], draw(4)
    product = gram_products.start_product(GramMemory(), 4, np.float32, True)
    for factor in factors:
        product = product * GramProduct.of(factor)
    product += 0
    product = weights[:, None] * product * weights[None]
    assert isinstance(product, GramProduct)
    assert (product.shape, product.ndim, product.dtype) == ((4, 4), 2, np.float32)
    expected = np.outer(weights, weights)
    for factor in factors:
        expected = expected * (factor.T @ factor)
    np.testing.assert_allclose(product.to_array(), expected, rtol=1e-5)
    assert product.to_array().dtype == np.float32


def test_the_transpose_swaps_the_axes_of_scales(kernels):
    column = draw((4, 1))
    product = GramProduct.of(draw((9, 4))) * column
    np.testing.assert_array_equal(product.T.to_array(), product.to_array().T)
    assert (product.T.to_array() != product.to_array()).any()


@pytest.mark.parametrize(
    "other", [2.0, np.float32(2), np.ones((4, 4)), np.ones(4, np.float32), np.ones((1, 1))]
)
def test_other_factors_turn_it_into_an_array(kernels, other):
    product = GramProduct.of(draw((9, 4)))
    plain = product.to_array()
    for found, expected in [
        (product * other, plain * other),
        (other * product, other * plain),
        (product + other, plain + other),
    ]:
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_too_many_factors_turn_it_into_an_array(kernels):
    product = GramProduct.of(draw((9, 4)))
    third = product * product * product
    assert isinstance(third, GramProduct)
    np.testing.assert_allclose(third * product, product.to_array() ** 4, rtol=1e-5)
    scale = draw((4, 4))
    assert isinstance(product * scale * scale * scale, GramProduct)
    assert isinstance(product * scale * scale * scale * scale, np.ndarray)


@pytest.mark.parametrize("rank", [1, 4])
def test_only_weights_are_left_out_where_they_are_one(kernels, rank):
    """Gram matrices that no kernel suits are arrays too; a cluster's are never left out."""
    memory = GramMemory()
    memory.has_unit_weights = True
    product = gram_products.start_product(memory, rank, np.float32, True)
    gram = draw((rank, rank), seed=2)
    ones = np.ones(rank, np.float32)
    for found in (product * gram, gram * product, ones[:, None] * (product * gram) * ones[None]):
        np.testing.assert_array_equal(found.to_array(), gram)


def test_functions_and_methods_see_an_array(kernels):
    product = GramProduct.of(draw((9, 4)))
    assert np.linalg.norm(product) == pytest.approx(np.linalg.norm(product.to_array()))
    assert product.sum() == product.to_array().sum()


def test_what_the_kernels_do_not_suit_is_solved_with_as_an_array(kernels):
    product, b = GramProduct.of(draw((9, 4))), draw((4, 30), float)
    np.testing.assert_allclose(product.to_array() @ product.solve(b), b, rtol=1e-3)
    assert kernels.num_solves == 0


def test_ones_that_are_no_product(kernels):
    assert gram_products.start_product(GramMemory(), 4, np.float64, True) is None
    assert gram_products.start_product(GramMemory(), 4, np.float32, False) is None


def test_a_gram_matrix_is_remembered_while_its_factor_lives(kernels):
    factor, memory = draw((9, 4)), GramMemory()
    GramProduct.of(factor, memory), GramProduct.of(factor.T.T, memory)
    assert kernels.num_grams == 1
    GramProduct.of(factor[:, :3], memory), GramProduct.of(factor[1:], memory)
    assert kernels.num_grams == 3
    memory.grams.clear()
    factor[0] = 7
    found = GramProduct.of(factor, memory).to_array()
    np.testing.assert_allclose(found, factor.T @ factor, rtol=1e-6)


def test_memory_that_another_factor_got_is_not_taken_for_the_first(kernels, monkeypatch):
    """Nor is the same memory in another shape; what is known of a factor goes with it."""
    memory, first = GramMemory(), draw((9, 4))
    monkeypatch.setattr(gram_products, "find_address", lambda array: 0)  # all get the same memory
    GramProduct.of(first, memory)
    second = draw((9, 4), seed=1)
    for factor in (second, second.reshape(4, 9).T, second[:, :3]):
        found = GramProduct.of(factor, memory).to_array()
        np.testing.assert_allclose(found, factor.T @ factor, rtol=1e-6)
    assert kernels.num_grams == 4
    del first, second, factor, found
    third = draw((8, 4), seed=2)
    monkeypatch.setattr(gram_products, "find_address", lambda array: 1)
    GramProduct.of(third, memory)
    assert list(memory.grams) == [1]


def test_parts_of_one_array_are_different_factors(kernels):
    both, memory = draw((18, 4)), GramMemory()
    for half in (both[:9], both[9:], both[:9]):
        found = GramProduct.of(half, memory).to_array()
        np.testing.assert_allclose(found, half.T @ half, rtol=1e-6)
    assert kernels.num_grams == 2


def test_other_products_are_no_gram_matrices(kernels):
    both, memory = draw((18, 4)), GramMemory()
    a, b, square = both[:9], both[9:], draw((4, 4))
    assert gram_products.find_gram(a.T, a) is None  # before parafac multiplies them
    gram_products.start_product(memory, 4, np.float32, True)
    known = gram_products.find_gram(a.T, a)
    assert known is gram_products.find_gram(a.T.T.T, a.T.T) is GramProduct.of(a, memory)
    pairs = [(b.T, a), (a, a), (a[:, :3].T, a), (square, square), (a[0], a[0]), (list(a.T), a)]
    for left, right in pairs:
        assert gram_products.find_gram(left, right) is None
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(gram_products.find_gram(a.T, a)))
    thread.start()
    thread.join()
    assert elsewhere == [None]
    gram_products.stop()
    assert gram_products.find_gram(a.T, a) is None


def test_a_transpose_of_a_transpose_is_the_product(kernels):
    product = GramProduct.of(draw((9, 4))) * draw((4, 1))
    assert product.T.T is product
