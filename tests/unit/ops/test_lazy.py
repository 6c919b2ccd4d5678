"""Lazy arrays are never formed by accident; lazy matrices can be multiplied."""

import numpy as np
import pytest
from problems import make_exact_problem

from tensorly_flycoo import DensifyError
from tensorly_flycoo.ops.lazy import ModeView
from tensorly_flycoo.tensor.lazy_array import LazyArray

GROUPS = [[(0,), (1, 2, 3)], [(3, 1, 0), (2,)], [(2, 0, 1), (3,)], [(1,), (0, 3, 2)]]


@pytest.fixture
def x():
    return make_exact_problem((3, 4, 2, 5), 60).tensor()


def make_dense(view):
    axes = [mode for group in view.groups for mode in group]
    return view.tensor.to_coo().todense().transpose(axes).reshape(view.shape)


@pytest.mark.parametrize("groups", [*GROUPS, [(3, 2, 1, 0)], [(0, 1), (), (2,), (3,)]], ids=str)
def test_attributes(x, groups):
    view = ModeView(x, groups)
    assert view.shape == tuple(int(np.prod([x.shape[n] for n in group])) for group in groups)
    assert (view.ndim, view.dtype) == (len(groups), x.dtype)
    assert view.tensor is x
    assert repr(view).startswith("<ModeView: modes (")


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_products(x, groups):
    view = ModeView(x, groups)
    dense, rng = make_dense(view), np.random.default_rng(0)
    bound = 120 * np.finfo(float).eps * 100
    if len(groups[0]) == 1:
        for shape in ((dense.shape[1],), (dense.shape[1], 2)):
            other = rng.standard_normal(shape)
            assert np.abs(view @ other - dense @ other).max() <= bound
    else:
        for shape in ((dense.shape[0],), (2, dense.shape[0])):
            other = rng.standard_normal(shape)
            assert np.abs(other @ view - other @ dense).max() <= bound


@pytest.mark.parametrize(
    "multiply",
    [
        pytest.param(lambda x: ModeView(x, GROUPS[1]) @ np.ones((2, 2)), id="rows of 3 modes"),
        pytest.param(lambda x: np.ones((2, 3)) @ ModeView(x, GROUPS[0]), id="columns of 3 modes"),
        pytest.param(lambda x: ModeView(x, [(0,), (1,), (2, 3)]) @ np.ones(10), id="3 axes"),
        pytest.param(lambda x: ModeView(x, GROUPS[0]) @ ModeView(x, GROUPS[1]), id="two views"),
        pytest.param(lambda x: np.matmul(np.ones((2, 3)), ModeView(x, GROUPS[0])), id="matmul"),
    ],
)
def test_products_larger_than_a_factor(x, multiply):
    with pytest.raises(DensifyError, match="a product with <ModeView"):
        multiply(x)


class Unformed(LazyArray):
    shape = (3, 4)
    _instead = "use something else"

    def __repr__(self):
        return "<Unformed>"


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(np.asarray, id="asarray"),
        pytest.param(np.exp, id="a function"),
        pytest.param(lambda x: np.ones((3, 4)) * x, id="a product"),
        pytest.param(lambda x: np.float64(2) + x, id="a sum with a scalar"),
        pytest.param(np.add.reduce, id="a reduction"),
    ],
)
def test_elements_are_never_formed(use):
    with pytest.raises(DensifyError, match=r"<Unformed> .*shape \(3, 4\); use something else"):
        use(Unformed())
