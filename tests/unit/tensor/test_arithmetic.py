"""Scaling, powers and sums of sparse tensors, against NumPy's of dense arrays."""

import operator

import numpy as np
import pytest
import sparse
from problems import Problem
from small_tensors import make_dense, make_huge, make_tensor, to_dense

from tensorly_flycoo import FlycooTensor, mttkrp

LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])


@pytest.fixture
def x():
    return make_tensor(make_dense())


SCALINGS = [
    pytest.param(lambda x: x * 3, lambda dense: dense * 3, id="x * int"),
    pytest.param(lambda x: -0.5 * x, lambda dense: -0.5 * dense, id="float * x"),
    pytest.param(lambda x: x * np.float32(0.3), lambda d: d * np.float32(0.3), id="x * float32"),
    pytest.param(lambda x: np.float64(2.5) * x, lambda dense: 2.5 * dense, id="float64 * x"),
    pytest.param(lambda x: np.int8(2) * x, lambda dense: 2 * dense, id="int8 * x"),
    pytest.param(lambda x: x * np.array(2.5), lambda dense: dense * 2.5, id="x * array()"),
    pytest.param(lambda x: x * True, lambda dense: dense, id="x * True"),
    pytest.param(lambda x: x * 0, lambda dense: dense * 0, id="x * 0"),
    pytest.param(lambda x: x / 4, lambda dense: dense / 4, id="x / int"),
    pytest.param(lambda x: x / np.float64(3), lambda dense: dense / 3, id="x / float64"),
    pytest.param(operator.neg, operator.neg, id="-x"),
    pytest.param(operator.pos, operator.pos, id="+x"),
    pytest.param(abs, abs, id="abs(x)"),
    pytest.param(np.negative, np.negative, id="np.negative"),
    pytest.param(np.abs, np.abs, id="np.abs"),
    pytest.param(lambda x: np.multiply(2, x), lambda dense: 2 * dense, id="np.multiply"),
    pytest.param(lambda x: np.divide(x, 2), lambda dense: dense / 2, id="np.divide"),
]


@LAYOUTS
@pytest.mark.parametrize("num_modes_computed", [0, 1])
@pytest.mark.parametrize(("operate", "expect"), SCALINGS)
def test_scaling(operate, expect, layout, num_modes_computed):
    x = make_tensor(make_dense(), layout=layout)
    factors = [np.ones((size, 3)) for size in x.shape]
    for mode in range(num_modes_computed):
        mttkrp(x, factors, mode)
    y, expected = operate(x), expect(make_dense())
    np.testing.assert_array_equal(to_dense(y), expected)
    np.testing.assert_array_equal(to_dense(x), make_dense())
    assert (y.layout, y.device, y.dtype, y.shape) == (layout, "cpu", x.dtype, x.shape)
    assert abs(y.norm() - np.linalg.norm(expected)) <= 1e-15 * np.linalg.norm(expected)
    coords = np.array(np.nonzero(expected))
    problem = Problem(coords, expected[tuple(coords)], expected.shape, factors)
    problem.check_tensor(y)


def test_scaling_keeps_float32():
    x = make_tensor(make_dense("float32"))
    for y in (x * 2.5, np.float64(2.5) * x, x / 3, -x, abs(x)):
        assert y.dtype == np.float32


def test_in_place_scaling_makes_a_new_tensor(x):
    y = x
    y *= 2
    np.testing.assert_array_equal(to_dense(y), 2 * make_dense())
    np.testing.assert_array_equal(to_dense(x), make_dense())


def test_underflow_drops_nonzeros():
    x = FlycooTensor([[0, 1]], [1e-300, 1.0], (2,))
    y = x * 1e-200
    assert y.nnz == 1
    assert y.nonzeros()[1].tolist() == [1e-200]


@pytest.mark.parametrize("scalar", [np.nan, np.inf, 1e308])
def test_scaling_beyond_finite_numbers(x, scalar):
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="expected finite numbers"):
        x * scalar


def test_division_by_zero(x):
    with pytest.raises(ZeroDivisionError, match="FlycooTensor / 0"):
        x / 0


@LAYOUTS
@pytest.mark.parametrize(
    "operate", [operator.add, operator.sub, np.add, np.subtract], ids=lambda f: f.__name__
)
def test_sums_of_two(layout, operate):
    first, second = make_dense(), np.roll(make_dense(), 1, axis=1)
    result = operate(make_tensor(first, layout=layout), make_tensor(second))
    np.testing.assert_array_equal(to_dense(result), operate(first, second))
    assert result.layout == layout


def test_difference_with_itself_is_empty(x):
    assert (x - x).nnz == 0
    assert (x - x).shape == x.shape


def test_sum_of_two_precisions():
    x, y = make_tensor(make_dense("float32")), make_tensor(make_dense())
    assert (x + y).dtype == (y + x).dtype == np.float64
    assert (x + x).dtype == np.float32


def test_sum_beyond_2_to_63_cells():
    huge = make_huge()
    total = huge + huge
    np.testing.assert_array_equal(total.nonzeros()[0], huge.nonzeros()[0])
    np.testing.assert_array_equal(total.nonzeros()[1], 2 * huge.nonzeros()[1])


@pytest.mark.parametrize("operate", [operator.add, operator.sub])
def test_sum_of_two_shapes(x, operate):
    other = FlycooTensor([[0]], [1.0], (7,))
    with pytest.raises(ValueError, match=r"\(4, 5, 3\) and \(7,\) differ"):
        operate(x, other)


@LAYOUTS
@pytest.mark.parametrize("exponent", [1, 2, 3.0, np.float32(2), np.array(2), True])
def test_powers(layout, exponent):
    x = make_tensor(make_dense(), layout=layout)
    mttkrp(x, [np.ones((size, 2)) for size in x.shape], 0)
    y, expected = x**exponent, make_dense() ** float(exponent)
    np.testing.assert_array_equal(to_dense(y), expected)
    np.testing.assert_array_equal(to_dense(np.power(x, exponent)), expected)
    assert (y.layout, y.device, y.dtype) == (layout, "cpu", x.dtype)
    assert abs(y.norm() - np.linalg.norm(expected)) <= 1e-15 * np.linalg.norm(expected)


def test_squares(x):
    np.testing.assert_array_equal(to_dense(np.square(x)), make_dense() ** 2)
    np.testing.assert_array_equal(to_dense(np.abs(x) ** 2), make_dense() ** 2)


def test_roots():
    dense = np.abs(make_dense("float32"))
    y = make_tensor(dense) ** 0.5
    assert y.dtype == np.float32
    np.testing.assert_array_equal(to_dense(y), dense ** np.float32(0.5))


@pytest.mark.parametrize("exponent", [0.5, 1e4])
def test_powers_that_are_not_finite(x, exponent):
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="expected finite numbers"):
        x**exponent


def test_powers_that_underflow_are_dropped():
    x = FlycooTensor([[0, 1]], [1e-200, 2.0], (2,))
    assert (x**2).nonzeros()[1].tolist() == [4]


def test_a_coo_on_either_side():
    dense, other = make_dense(), 2 * make_dense()[::-1]
    x, coo = make_tensor(dense), sparse.COO.from_numpy(other)
    for found, expected in [
        (x + coo, dense + other), (coo + x, dense + other), (np.add(coo, x), dense + other),
        (x - coo, dense - other), (coo - x, other - dense),
    ]:  # fmt: skip
        assert isinstance(found, FlycooTensor)
        np.testing.assert_array_equal(to_dense(found), expected)
    for multiply in (lambda: x * coo, lambda: coo * x):
        with pytest.raises(TypeError, match="is the elementwise product"):
            multiply()


@pytest.mark.parametrize("zero", [0, 0.0, np.float32(0)])
def test_zero_is_neutral(zero, x):
    for found in (x + zero, zero + x, x - zero):
        np.testing.assert_array_equal(to_dense(found), to_dense(x))
    np.testing.assert_array_equal(to_dense(sum([x, x, x])), 3 * to_dense(x))
