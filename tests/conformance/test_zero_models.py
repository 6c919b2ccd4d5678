"""A start that has nothing in common with the tensor does not end in a zero model, silently."""

import inspect
import warnings

import numpy as np
import pytest
import sparse
import tensorly as tl

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo import decomposition as ours

pytestmark = pytest.mark.usefixtures("flycoo_backend")

_MESSAGE = r"the first MTTKRP is zero, .*pass init='random'"


def draw_events(shape, count, seed=0):
    """Draw a tensor in which nearly all indices of the long modes occur once."""
    random = np.random.RandomState(seed)
    coords = [random.randint(size, size=count) for size in shape]
    return sparse.COO(coords, np.ones(count), shape)


@pytest.fixture
def events():
    return draw_events((827, 7, 119, 24), 1000)


def test_the_default_start_of_few_events(events):
    for x in (events, tl.tensor(events)):
        with pytest.raises(np.linalg.LinAlgError, match=_MESSAGE):
            tl.decomposition.parafac(x, 3)
    with pytest.raises(np.linalg.LinAlgError, match=_MESSAGE):
        ours.parafac(events, 3)


def test_a_parafac_that_was_imported_before_the_package(events):
    with pytest.raises(np.linalg.LinAlgError, match=_MESSAGE):
        inspect.unwrap(tl.decomposition.parafac)(events, 3)


@pytest.mark.slow
def test_dense_tensorly_raises_too():
    x = draw_events((60, 7, 80, 24), 80)
    with (
        tl.backend_context("numpy"),
        pytest.raises(np.linalg.LinAlgError, match="Singular"),
    ):
        tl.decomposition.parafac(x.todense(), 3)
    with pytest.raises(np.linalg.LinAlgError, match=_MESSAGE):
        tl.decomposition.parafac(x, 3)


def test_a_random_start_of_the_same_events(events):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cp_tensor = tl.decomposition.parafac(events, 3, init="random", random_state=0)
    assert all(np.linalg.norm(factor, axis=0).all() for factor in cp_tensor.factors)


def make_disjoint_start(shape):
    """Make a start whose second component has no nonzero of `make_corner`."""
    factors = [np.zeros((size, 2)) for size in shape]
    for factor in factors:
        factor[:2, 0] = factor[2:, 1] = 1.0
    return factors


def make_corner(shape):
    coords = np.random.RandomState(0).randint(2, size=(3, 6))
    return sparse.COO(coords, np.ones(6), shape)


@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac_hals"])
def test_components_that_are_zero(name):
    shape = (5, 6, 7)
    start = make_disjoint_start(shape)
    with pytest.warns(UserWarning, match="1 of 2 components is zero. .* pass init='random'"):
        getattr(tl.decomposition, name)(make_corner(shape), 2, init=(None, start), n_iter_max=3)


@pytest.mark.parametrize("values", [[], [0.0]])
def test_a_tensor_without_nonzeros(values):
    x = FlycooTensor(np.zeros((3, len(values)), int), values, (3, 4, 5))
    with pytest.raises(ValueError, match=r"tensor of shape \(3, 4, 5\) has no nonzeros"):
        tl.decomposition.parafac(x, 2)
