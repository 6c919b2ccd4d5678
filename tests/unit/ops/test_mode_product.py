"""Lazy products of a sparse tensor with factors, against NumPy's products of a dense array."""

import numpy as np
import pytest
from mode_products import make_dense, make_product, multiply
from problems import make_factors

from tensorly_flycoo import DensifyError, FlycooTensor
from tensorly_flycoo.ops.mode_product import ModeProduct, ProductUnfolding


def check_array(array, dense, product, dtype="float64"):
    expected = multiply(dense, product)
    magnitude = multiply(np.abs(dense), ModeProduct(product.tensor, abs_factors(product)))
    assert array.shape == product.shape
    assert array.dtype == dtype
    bound = (dense.size + dense.ndim) * float(np.finfo(dtype).eps) * magnitude
    assert (np.abs(array - expected) <= bound).all()


def abs_factors(product):
    return {n: np.abs(factor) for n, factor in product.factors.items()}


@pytest.mark.parametrize("modes", [(0,), (2, 1), (0, 1, 2), (1, 3), (0, 1, 2, 3), (0, 3, 1)])
def test_to_array(modes):
    """With no mode, one mode and several modes left out."""
    dense = make_dense((5, 3, 4, 6))
    product = make_product(dense, modes)
    assert product.free_modes == [n for n in range(4) if n not in modes]
    check_array(product.to_array(), dense, product)


@pytest.mark.parametrize("modes", [(1,), (0, 2), (0, 1, 2)])
def test_to_array_in_single_precision(modes):
    dense = make_dense((5, 3, 4)).astype(np.float32).astype(np.float64)
    product = make_product(dense, modes, "float32")
    check_array(product.to_array(), dense, product, "float32")


@pytest.mark.parametrize("modes", [(0,), (0, 1)])
def test_tensors_of_one_and_two_modes(modes):
    dense = make_dense((5, 3)[: len(modes)])
    product = make_product(dense, modes)
    check_array(product.to_array(), dense, product)


def test_empty_rows_are_zeros():
    dense = make_dense((50, 40, 30), density=0.0003)
    for modes in ((0, 1), (1, 2), (0, 1, 2)):
        product = make_product(dense, modes)
        check_array(product.to_array(), dense, product)


@pytest.mark.parametrize("modes", [(0, 1), (0, 1, 2), (0,)])
def test_norm(modes):
    dense = make_dense((5, 3, 4), density=0.9)
    product = make_product(dense, modes)
    np.testing.assert_allclose(product.norm(), np.linalg.norm(multiply(dense, product)))


@pytest.mark.parametrize("shape", [(5, -1), (5, 9)])
def test_unfolding_by_moving_and_reshaping(shape):
    """`tl.unfold` does this."""
    product = make_product(make_dense((4, 5, 6)), (0, 2))
    moved = product.move_axis(1, 0)
    assert (moved.shape, moved.ndim) == ((5, 3, 3), 3)
    unfolding = moved.reshape(shape)
    assert (unfolding.mode, unfolding.shape) == (1, (5, 9))
    np.testing.assert_array_equal(moved.to_array(), np.moveaxis(product.to_array(), 1, 0))


def test_moving_an_axis_elsewhere_forms_the_product():
    product = make_product(make_dense((4, 5, 6)), (0, 2))
    for source, destination in ((1, 2), (0, 0), (2, 0)):
        expected = np.moveaxis(product.to_array(), source, destination)
        np.testing.assert_array_equal(product.move_axis(source, destination), expected)


def test_other_shapes_are_refused():
    product = make_product(make_dense((4, 5, 6)), (0, 2))
    for moved, shape in (
        (product, (3, -1)),
        (product.move_axis(1, 0), (3, -1)),
        (product.move_axis(1, 0), (5, 3, -1)),
    ):
        with pytest.raises(DensifyError, match=r"tl\.reshape to"):
            moved.reshape(shape)


def test_only_a_mode_without_a_factor_is_unfolded():
    with pytest.raises(ValueError, match="1 is not in list"):
        ProductUnfolding(make_product(make_dense((4, 5, 6)), (1, 2)), 1)


def test_more_than_2_to_63_cells():
    """Modes may be left out only if they have at most as many cells as there are nonzeros."""
    coords = [[0, 1, 2, 2], [0, 2**10, 0, 1], [7, 7, 7, 7], [3, 3, 3, 2**20]]
    shape = (5, 2**21, 2**21, 2**21)
    x = FlycooTensor(coords, [3.0, 4.0, 5.0, 6.0], shape)
    factors = dict(enumerate(make_factors(shape, 1)))
    core = ModeProduct(x, factors).to_array()
    rows = [factors[n][coords[n], 0] for n in range(4)]
    np.testing.assert_allclose(core.ravel(), np.prod(rows, axis=0) @ [3.0, 4.0, 5.0, 6.0])
    left, _ = ProductUnfolding(ModeProduct(x, {n: factors[n] for n in (1, 2)}), 0).svd(1)
    assert left.shape == (5, 1)
    product = ModeProduct(x, {3: factors[3]})
    for use in (product.to_array, lambda: ProductUnfolding(product, 0).svd(1)):
        with pytest.raises(DensifyError, match=r"all modes but .*1 and 2 would make"):
            use()


@pytest.mark.parametrize(
    ("factor", "error", "message"),
    [
        (np.ones((4, 2)), ValueError, r"factor of mode 1 has shape \(4, 2\), expected \(5, rank\)"),
        (np.ones(5), ValueError, r"has shape \(5,\), expected \(5, rank\)"),
        (np.ones((5, 0)), ValueError, r"has shape \(5, 0\)"),
        (np.ones((5, 2), np.float32), TypeError, "has dtype float32, expected float64"),
        ([[1.0]] * 5, TypeError, "is a builtins.list, expected a numpy.ndarray"),
    ],
)
def test_bad_factors(factor, error, message):
    x = make_product(make_dense((4, 5, 6)), ()).tensor
    with pytest.raises(error, match=message):
        ModeProduct(x, {1: factor})


def test_it_is_never_formed_by_accident():
    product = make_product(make_dense((4, 5, 6)), (1, 2))
    for use in (np.asarray, np.exp, lambda x: np.ones(6) * x):
        with pytest.raises(DensifyError, match=r"ModeProduct of shape \(4, 4, 3\)"):
            use(product)
    assert (product.shape, product.ndim, product.dtype) == ((4, 4, 3), 3, np.float64)
    with pytest.raises(DensifyError, match="ProductUnfolding: mode 0 of <ModeProduct"):
        np.asarray(ProductUnfolding(product, 0))
