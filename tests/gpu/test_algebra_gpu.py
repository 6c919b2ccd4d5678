"""Sums, products, views, slices and parafac2 of tensors on the GPU."""

import cupy
import numpy as np
import pytest
import sparse
import tensorly as tl
from tensorly.decomposition import parafac2

from tensorly_flycoo import DensifyError, FlycooTensor
from tensorly_flycoo.tensor.entrance import is_callers

SHAPE = (6, 7, 8)
LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])

#: Sums of at most 336 products of numbers below 10.
BOUND = 336 * np.finfo(float).eps * 336 * 100


def make_coo(seed=0):
    coo = sparse.random(SHAPE, nnz=90, random_state=seed)
    return sparse.COO(coo.coords, coo.data - 0.5, SHAPE)


def vectors(xp):
    return [xp.linspace(-1, 1, size) for size in SHAPE]


def matrix(xp, num_rows):
    return xp.linspace(-1, 1, 3 * num_rows).reshape(num_rows, 3)


def to_host(found):
    """Copy a result to the host, and fail if it was not on the GPU."""
    if isinstance(found, FlycooTensor):
        assert found.device == "cuda"
        return found.to_coo().todense()
    assert isinstance(found, cupy.ndarray)
    return found.get()


FUNCTIONS = {
    "sum": lambda x, xp: tl.sum(x),
    "sum over one": lambda x, xp: tl.sum(x, 1),
    "sum over two": lambda x, xp: tl.sum(x, (0, 2)),
    "mean over one": lambda x, xp: tl.mean(x, 2),
    "inner": lambda x, xp: tl.tenalg.inner(x, x),
    "inner with dense": lambda x, xp: tl.tenalg.inner(x, xp.arange(336.0).reshape(SHAPE) / 336),
    "mode_dot": lambda x, xp: tl.tenalg.mode_dot(x, vectors(xp)[1], 1),
    "multi_mode_dot": lambda x, xp: tl.tenalg.multi_mode_dot(x, vectors(xp), skip=1),
    "all vectors": lambda x, xp: tl.tenalg.multi_mode_dot(x, vectors(xp)),
    "unfolding @ dense": lambda x, xp: tl.unfold(x, 0) @ matrix(xp, 56),
    "dot": lambda x, xp: tl.dot(tl.unfold(x, 2), matrix(xp, 42)),
    "dense @ transposed": lambda x, xp: matrix(xp, 48).T @ tl.transpose(tl.unfold(x, 1)),
    "moveaxis": lambda x, xp: tl.tensor(tl.moveaxis(x, 2, 0)),
    "integer": lambda x, xp: x[3],
    "slices": lambda x, xp: x[:, 1:5, ::-2],
    "mixed": lambda x, xp: x[2, ..., -1],
    "number": lambda x, xp: x[1, 2, 3],
}


@LAYOUTS
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_as_numpy(function, layout):
    coo = make_coo()
    found = to_host(function(FlycooTensor.from_coo(coo, device="cuda", layout=layout), cupy))
    expected = function(coo.todense(), np)
    assert found.shape == np.shape(expected)
    assert np.abs(found - expected).max() <= BOUND


def test_khatri_rao_with_a_sparse_mask():
    coo, factors = make_coo(), [matrix(cupy, size) for size in SHAPE]
    found = tl.cp_to_tensor((None, factors), mask=FlycooTensor.from_coo(coo, device="cuda"))
    expected = tl.cp_to_tensor((None, [factor.get() for factor in factors])) * coo.todense()
    assert np.abs(to_host(found) - expected).max() <= BOUND


def test_iteration():
    coo = make_coo()
    parts = list(FlycooTensor.from_coo(coo, device="cuda"))
    np.testing.assert_array_equal(np.stack([to_host(part) for part in parts]), coo.todense())


def test_parafac2():
    coo, options = make_coo(), {"random_state": 0, "n_iter_max": 6, "return_errors": True}
    _, errors = parafac2(coo, 2, **options)
    _, expected = parafac2(coo.todense(), 2, **options)
    np.testing.assert_allclose([float(error) for error in errors], expected, rtol=1e-8)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: tl.tenalg.inner(x, FlycooTensor.from_coo(make_coo(), device="cpu")),
    ],
)
def test_host_arrays_do_not_mix(mix):
    with pytest.raises(TypeError):
        mix(FlycooTensor.from_coo(make_coo(), device="cuda"))


def test_host_arrays_are_moved():
    x = FlycooTensor.from_coo(make_coo(), device="cuda")
    for use in (
        FUNCTIONS["mode_dot"],
        FUNCTIONS["inner with dense"],
        FUNCTIONS["dot"],
        FUNCTIONS["unfolding @ dense"],
        FUNCTIONS["dense @ transposed"],
    ):
        np.testing.assert_allclose(to_host(use(x, np)), to_host(use(x, cupy)), atol=BOUND)


@pytest.mark.parametrize("name", ["sum over one", "inner", "mode_dot", "multi_mode_dot", "dot"])
def test_results_of_a_coo_are_on_the_host(name):
    coo = make_coo()
    found = FUNCTIONS[name](coo, np)
    if isinstance(found, FlycooTensor):
        assert is_callers(found)
        found = found.to_coo().todense()
    assert not isinstance(found, cupy.ndarray)
    np.testing.assert_allclose(found, FUNCTIONS[name](coo.todense(), np), atol=BOUND)


def test_refusals():
    x = FlycooTensor.from_coo(make_coo(), device="cuda")
    for refuse in (
        tl.prod,
        tl.decomposition.robust_pca,
        lambda x: cupy.ones((2, 6)) @ tl.unfold(x, 0),
    ):
        with pytest.raises(DensifyError):
            refuse(x)
