"""Sums, means and extremes against NumPy's of dense arrays, with bounds on the error."""

import numpy as np
import pytest
import tensorly as tl
from problems import make_problem
from small_tensors import make_dense, make_huge, make_tensor

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines import select_engine
from tensorly_flycoo.tensor.tensor import check_axes, group_cells

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


@pytest.fixture
def backend():
    with tl.backend_context("flycoo"):
        yield


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("nnz", [0, 150, 5000])  # the last fills the tensor
@pytest.mark.parametrize("shift", [-20.0, 0.0])
@pytest.mark.parametrize("axis", [None, (2, 0, 1), (0, -1, 1)])
def test_extremes(axis, shift, nnz):
    problem = make_problem(SHAPE, nnz)
    x = FlycooTensor(problem.coords, problem.values + shift, SHAPE)
    dense = to_dense(x)
    for found in (x.max(axis), np.max(x, axis), tl.max(x, axis), tl.max(tl.unfold(x, 1))):
        assert (found, found.dtype) == (dense.max(), x.dtype)
    for found in (x.min(axis), np.min(x, axis=axis), tl.min(x, axis), tl.min(tl.unfold(x, 1))):
        assert (found, found.dtype) == (dense.min(), x.dtype)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("axis", [1, (0, 2), ()])
def test_extremes_over_some_modes_are_refused(axis, name):
    x = make_tensor(make_dense())
    for call in (
        lambda: getattr(x, name)(axis),
        lambda: getattr(np, name)(x, axis=axis),
        lambda: getattr(tl, name)(x, axis),
    ):
        with pytest.raises(ValueError, match=rf"expected all modes.*x\.to_coo\(\)\.{name}\(axis\)"):
            call()
    with pytest.raises(ValueError, match="expected all modes"):
        getattr(tl, name)(tl.unfold(x, 0), 1)


@LAYOUTS
@DTYPES
def test_kinds_of_results(layout, dtype):
    x = make_tensor(make_dense(dtype), layout=layout)
    for reduced in (x.sum, x.mean):
        assert (reduced(1).layout, reduced(1).dtype, reduced(1).shape) == (layout, dtype, (4, 3))
        assert type(reduced((0, 1))) is np.ndarray
    for reduced in (x.sum, x.mean, x.max, x.min):
        assert type(reduced()) is np.dtype(dtype).type


def test_more_than_2_to_63_cells():
    x = make_huge()
    assert (x.max(), x.min(), x.sum(), x.mean()) == (50, 0, 1275, 1275 / 2**86)
    assert (-x).min() == -50


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
