"""Centring: the operand against dense arrays, and parafac against TensorLy's of the centred one."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from reference import mttkrp, mttkrp_error_bound

from tensorly_flycoo import FlycooTensor, LabelledTensor, best_of
from tensorly_flycoo.decomposition import parafac
from tensorly_flycoo.loop.whole_tensor import CentredTensor
from tensorly_flycoo.testing import planted_tensor, random_tensor

SHAPE = (9, 8, 7)
MODES = pytest.mark.parametrize("modes", [[0], [1], [2], [0, 2], [0, 1, 2]], ids=str)


pytestmark = pytest.mark.usefixtures("flycoo_backend")


def centre_densely(x, modes):
    dense = x.to_coo().todense().astype(np.float64)
    for mode in modes:
        dense = dense - dense.mean(axis=mode, keepdims=True)
    return dense


@MODES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_operand_is_the_centred_tensor(modes, dtype):
    x = random_tensor(SHAPE, 200, random_state=0).astype(dtype)
    dense, random = centre_densely(x, modes), np.random.RandomState(1)
    factors = [random.standard_normal((size, 3)).astype(dtype) for size in SHAPE]
    centred, eps = CentredTensor(x, modes), np.finfo(dtype).eps
    square = x._layout.norm**2
    assert abs(centred.norm() ** 2 - (dense**2).sum()) <= 2 ** len(modes) * x.nnz * eps * square
    # |P| adds to each row at most the mean of all: bounds are those of |x| with factors so changed.
    spread = [abs(f) + abs(f).mean(axis=0) if n in modes else abs(f) for n, f in enumerate(factors)]
    coords, values = x.nonzeros()
    places = np.stack(np.nonzero(dense))
    for mode in range(3):
        found = centred.mttkrp(None, factors, mode)
        expected = mttkrp(places, dense[tuple(places)], SHAPE, factors, mode)
        bound = mttkrp_error_bound(coords, values, SHAPE, spread, mode, dtype)
        # The means of the factors, and their subtraction, take two more roundings per mode.
        bound = bound.max(axis=0) * (1 + 4 * len(modes))
        assert (abs(found - expected) <= bound).all()


@MODES
@pytest.mark.parametrize("linesearch", [False, True])
def test_runs_equal_those_of_the_dense_centred_tensor(modes, linesearch):
    x = planted_tensor(SHAPE, 3, 100, noise=0.3, random_state=0)[0]
    options = {"init": "random", "random_state": 0, "n_iter_max": 15, "tol": 0, "l2_reg": 1e-3}
    options |= {"linesearch": linesearch, "return_errors": True, "callback": lambda *_: None}
    cp, errors = parafac(x, 2, center_modes=modes, **options)
    with tl.backend_context("numpy"):
        expected_cp, expected = tl.decomposition.parafac(centre_densely(x, modes), 2, **options)
    np.testing.assert_allclose([float(e) for e in errors], expected, rtol=1e-9)
    for factor, other in zip(cp.factors, expected_cp.factors, strict=True):
        np.testing.assert_allclose(factor, other, rtol=1e-6, atol=1e-8)
    for mode in modes:
        assert abs(cp.factors[mode].mean(axis=0)).max() < 1e-12


def test_momentum_starts_and_labels():
    x = planted_tensor(SHAPE, 3, 100, noise=0.3, random_state=0)[0]
    labels = {name: np.arange(size) for name, size in zip("abc", SHAPE, strict=True)}
    options = {"center_modes": [1], "tol": 1e-12, "n_iter_max": 300}
    starts = best_of(parafac, LabelledTensor(x, labels), 2, 3, random_state=0, **options)
    assert starts.best.names == ("a", "b", "c")
    dense = centre_densely(x, [1])
    error = np.linalg.norm(dense - tl.cp_to_tensor(starts.best)) / np.linalg.norm(dense)
    assert starts.final_errors.min() == pytest.approx(error, rel=1e-7)
    plain = best_of(parafac, x, 2, 3, random_state=0, linesearch=False, **options)
    assert plain.final_errors.min() == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"center_modes": [3]}, ValueError, "a mode of center_modes is 3, expected 0 to 2"),
        ({"center_modes": 0}, TypeError, "center_modes is 0, expected a sequence"),
        ({"init": "svd"}, ValueError, "init is 'svd', expected 'random' or a model together"),
        (
            {"mask": sparse.COO([[0], [1], [2]], [0.0], SHAPE, fill_value=1.0)},
            ValueError,
            "center_modes are given together with a mask",
        ),
    ],
)
def test_errors(changes, error, message):
    x = random_tensor(SHAPE, 200, random_state=0)
    with pytest.raises(error, match=message):
        parafac(x, 2, **{"init": "random", "center_modes": [0], **changes})


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 5)])
def test_a_tensor_of_which_centring_leaves_nothing(shape):
    x = FlycooTensor.from_dense(np.full(shape, 0.1))
    with tl.backend_context("flycoo"), pytest.raises(ValueError, match=r"center_modes is \[0\]"):
        parafac(x, 2, init="random", center_modes=[0])


def test_tensorlys_name_says_which_function_takes_it():
    x = random_tensor(SHAPE, 200, random_state=0)
    with pytest.raises(TypeError, match=r"tensorly_flycoo\.decomposition\.parafac takes it"):
        tl.decomposition.parafac(x, 2, center_modes=[0])
