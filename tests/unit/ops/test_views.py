"""Views of sparse tensors have NumPy's shapes and, after `make_tensor`, NumPy's elements."""

import itertools

import numpy as np
import pytest
from problems import make_exact_problem

from tensorly_flycoo import DensifyError, FlycooTensor
from tensorly_flycoo.ops.lazy import ModeView
from tensorly_flycoo.ops.views import (
    dot,
    make_tensor,
    move_axis,
    permute,
    reduce_axes,
    reshape,
)
from tensorly_flycoo.svd.unfolding import Unfolding

SHAPE = (3, 4, 2, 5)


@pytest.fixture
def x():
    return make_exact_problem(SHAPE, 60).tensor()


@pytest.fixture
def dense(x):
    return make_dense(x)


def make_dense(x):
    if isinstance(x, ModeView):
        x = make_tensor(x)
    coords, values = x.nonzeros()
    dense = np.zeros(x.shape)
    dense[tuple(coords)] = values
    return dense


@pytest.mark.parametrize("axes", list(itertools.permutations(range(4))), ids=str)
def test_permute(x, dense, axes):
    np.testing.assert_array_equal(make_dense(permute(x, axes)), dense.transpose(axes))


def test_permute_without_axes_and_back(x, dense):
    np.testing.assert_array_equal(make_dense(permute(x)), dense.T)
    assert permute(permute(x)) is x


@pytest.mark.parametrize(("source", "destination"), [(0, 0), (0, 3), (2, 1), (-1, 0), (1, -2)])
def test_move_axis(x, dense, source, destination):
    expected = np.moveaxis(dense, source, destination)
    np.testing.assert_array_equal(make_dense(move_axis(x, source, destination)), expected)


RESHAPES = [
    (3, -1), (-1, 5), (12, 10), (-1,), 120, (3, 8, 5), (1, 3, 4, 2, 5), (3, 1, 4, 1, 10),
    (3, 4, 2, 5, 1),
]  # fmt: skip


@pytest.mark.parametrize("shape", RESHAPES, ids=str)
def test_reshape(x, dense, shape):
    found = reshape(x, shape)
    assert found.shape == dense.reshape(shape).shape
    np.testing.assert_array_equal(make_dense(found), dense.reshape(shape))
    back = reshape(found, SHAPE)
    assert back is x


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 5, 1), (5, 1, 1), (1, 1, 5), (1, 5, 5, 1)], ids=str
)
def test_sizes_of_1(shape):
    x = make_exact_problem(shape, 1).tensor()
    for mode in range(len(shape)):
        unfolding = reshape(move_axis(x, mode, 0), (shape[mode], -1))
        assert isinstance(unfolding, Unfolding)
        assert unfolding.mode == mode
        assert unfolding.shape == (shape[mode], np.prod(shape) // shape[mode])


def test_shapes_that_cannot_be_views(x):
    with pytest.raises(DensifyError, match="split"):
        reshape(x, (6, -1))
    with pytest.raises(ValueError, match="cannot reshape array of size 120"):
        reshape(x, (7, -1))
    with pytest.raises(ValueError, match="cannot reshape array of size 120"):
        reshape(x, (-1, -1))
    with pytest.raises(ValueError, match="expected each of the 4 axes once"):
        permute(x, (0, 1))


def test_unfoldings_of_a_matrix():
    x = make_exact_problem((4, 5), 9).tensor()
    assert isinstance(reshape(x, (4, -1)), Unfolding)
    assert reshape(reshape(x, (4, -1)), (4, 5)) is x
    assert permute(reshape(x, (4, -1))).mode == 1
    assert permute(x).mode == 1
    assert permute(permute(x)) is x


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2)], ids=str)
def test_sums_of_views(x, dense, axis):
    view, expected = reshape(x, (3, 8, 5)), dense.reshape(3, 8, 5)
    for name, of_numpy in (("sum", expected.sum), ("mean", expected.mean)):
        found = reduce_axes(name, view, axis)
        found = make_dense(found) if np.ndim(found) and not isinstance(found, np.ndarray) else found
        assert np.abs(found - of_numpy(axis)).max() <= 120 * np.finfo(float).eps * 10


def test_products(x, dense):
    multiplier = np.random.default_rng(0).standard_normal((24, 2))
    rows = reshape(x, (-1, 5))
    assert np.allclose(dot(multiplier.T, rows), multiplier.T @ dense.reshape(24, 5))
    assert np.allclose(multiplier[:, 0] @ rows, multiplier[:, 0] @ dense.reshape(24, 5))
    assert np.allclose(dot(permute(rows), multiplier), dense.reshape(24, 5).T @ multiplier)
    matrix = make_exact_problem((4, 5), 9).tensor()
    assert np.allclose(dot(matrix, np.ones(5)), make_dense(matrix).sum(1))
    assert np.allclose(dot(np.ones(4), matrix), make_dense(matrix).sum(0))


@pytest.mark.parametrize(
    "multiply",
    [
        pytest.param(lambda x: dot(reshape(x, (12, -1)), np.ones((10, 2))), id="rows of two modes"),
        pytest.param(lambda x: np.ones((2, 3)) @ reshape(x, (3, -1)), id="columns of three modes"),
        pytest.param(lambda x: dot(reshape(x, (3, 8, 5)), np.ones(5)), id="three axes"),
        pytest.param(lambda x: dot(x, np.ones(5)), id="a tensor"),
        pytest.param(lambda x: dot(x, 2), id="a number"),
        pytest.param(lambda x: dot(reshape(x, (3, -1)), permute(reshape(x, (3, -1)))), id="two"),
        pytest.param(lambda x: dot(reshape(x, -1), np.ones(120)), id="a vector"),
        pytest.param(lambda x: dot(np.ones(120), reshape(x, -1)), id="a vector after"),
    ],
)
def test_products_that_are_refused(x, multiply):
    with pytest.raises(DensifyError):
        multiply(x)


def test_a_view_longer_than_2_to_32_is_no_tensor():
    x = FlycooTensor([[5], [2**20], [7]], [3.0], (2**22,) * 3)
    with pytest.raises(ValueError, match=r"shape\[1\] is 17592186044416"):
        make_tensor(reshape(x, (2**22, -1)))
    assert repr(permute(x)) == f"<ModeView: modes (2,), (1,), (0,) of shape {x.shape}>"
