"""Sums, means and extremes against NumPy's of dense arrays, with bounds on the error."""

import numpy as np
import pytest
from problems import make_problem
from small_tensors import make_dense, make_huge, make_tensor

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines import select_engine
from tensorly_flycoo.tensor.tensor import check_axes, find_extremes, group_cells

SHAPE = (5, 6, 7)
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
AXES = pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), (2, 0), [0, -1, 1], ()], ids=str)


def to_dense(x):
    if not isinstance(x, FlycooTensor):
        return x
    coords, values = x.nonzeros()
    dense = np.zeros(x.shape)
    dense[tuple(coords)] = values
    return dense


def as_numpy_axis(axis):
    return tuple(axis) if isinstance(axis, list) else axis


@DTYPES
@LAYOUTS
@AXES
def test_sum_and_mean(axis, layout, dtype):
    """Allow one ulp for each value added, and four more."""
    x = make_problem(SHAPE, 150, dtype=dtype).tensor(layout=layout)
    dense, numpy_axis = to_dense(x), as_numpy_axis(axis)
    bound = (dense.size + 4) * np.finfo(dtype).eps * np.abs(dense).sum(numpy_axis)
    for found, expected in (
        (x.sum(axis), dense.sum(numpy_axis)),
        (x.mean(axis), dense.mean(numpy_axis)),
        (np.sum(x, axis), dense.sum(numpy_axis)),
        (np.mean(x, axis=axis), dense.mean(numpy_axis)),
    ):
        assert found.dtype == dtype
        assert np.shape(to_dense(found)) == np.shape(expected)
        assert (np.abs(to_dense(found) - expected) <= bound).all()
    if isinstance(x.sum(0), FlycooTensor):
        assert (x.sum(0).layout, x.sum(0).device) == (layout, "cpu")


@pytest.mark.parametrize("nnz", [0, 150, 5000])  # the last fills the tensor
@pytest.mark.parametrize("shift", [-20.0, 0.0])
@AXES
def test_extremes(axis, shift, nnz):
    problem = make_problem(SHAPE, nnz)
    x = FlycooTensor(problem.coords, problem.values + shift, SHAPE)
    dense, numpy_axis = to_dense(x), as_numpy_axis(axis)
    for found, expected in (
        (x.max(axis), dense.max(numpy_axis)),
        (x.min(axis), dense.min(numpy_axis)),
        (np.max(x, axis), dense.max(numpy_axis)),
        (np.min(x, axis=axis), dense.min(numpy_axis)),
    ):
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(to_dense(found), expected)


@LAYOUTS
@DTYPES
def test_kinds_of_results(layout, dtype):
    x = make_tensor(make_dense(dtype), layout=layout)
    for reduced in (x.sum, x.mean, x.max, x.min):
        assert (reduced(1).layout, reduced(1).dtype, reduced(1).shape) == (layout, dtype, (4, 3))
        assert type(reduced((0, 1))) is np.ndarray
        assert type(reduced()) is np.dtype(dtype).type


def test_more_than_2_to_63_cells():
    x = make_huge()
    assert (x.max(), x.min(), x.sum(), x.mean()) == (50, 0, 1275, 1275 / 2**86)
    assert (-x).min((0, 1, 2)).min() == -50
    assert x.max(3).nnz == x.max((2, 3)).nnz == 50


def test_sums_that_cancel_are_dropped():
    x = FlycooTensor([[0, 1], [1, 1], [2, 2]], [1.0, -1.0], (2, 3, 4))
    assert x.sum(0).nnz == 0
    assert x.sum((0, 1)).tolist() == [0, 0, 0, 0]
    assert x.sum() == 0


@pytest.mark.parametrize("axis", [3, -4, (0, 3)])
def test_axis_out_of_range(axis):
    with pytest.raises(ValueError, match="out of bounds for array of dimension 3"):
        check_axes(axis, 3)


@pytest.mark.parametrize(
    ("axis", "error"), [("a", TypeError), (1.0, TypeError), ((1, 1), ValueError)]
)
def test_wrong_axes(axis, error):
    with pytest.raises(error, match="axis is"):
        make_tensor(make_dense()).max(axis)


def test_groups_keep_the_order_of_their_entries():
    rng = np.random.default_rng(0)
    coords, values = rng.integers(0, 4, (2, 200)), rng.random(200)
    cells, sorted_values, starts = group_cells(coords, values, (4, 4), select_engine("cpu"))
    places = np.lexsort([np.arange(200), coords[1], coords[0]])
    np.testing.assert_array_equal(sorted_values, values[places])
    np.testing.assert_array_equal(cells, coords[:, places[starts]])
    assert np.unique(coords, axis=1).shape == cells.shape
    expected = np.minimum.reduceat(sorted_values, starts)
    np.testing.assert_array_equal(find_extremes(sorted_values, starts, "min", np), expected)
