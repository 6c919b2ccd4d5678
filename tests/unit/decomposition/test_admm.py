"""Constrained CP by ADMM: operators of one's own, momentum, and what lies between the parts."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from sparse_problems import community_coo, densification_alarm
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, Progress
from tensorly_flycoo.decomposition import (
    admm,
    constrained_parafac,
    non_negative_parafac,
    non_negative_parafac_hals,
)
from tensorly_flycoo.decomposition.proximal import project_rows
from tensorly_flycoo.engines.row_rules import Operator
from tensorly_flycoo.io.checkpoint import load_checkpoint
from tensorly_flycoo.spread import array_admm
from tensorly_flycoo.testing import random_tensor

SHAPE, RANK = (30, 25, 20), 4
OPTIONS = {"init": "random", "random_state": 0, "n_iter_max": 6, "return_errors": True}

#: The operators of the kernels, as a user would write them.
OWN = {
    "non_negative": (True, lambda rows: rows.clip(0)),
    "l1_reg": (0.05, lambda rows: np.sign(rows) * (abs(rows) - 0.05).clip(0)),
    "l2_square_reg": (0.05, lambda rows: rows / 1.1),
    "group_lasso": (0.05, lambda rows: project_rows(rows, Operator.GROUP_LASSO, 0.05)),
}


@pytest.fixture
def x():
    return FlycooTensor.from_coo(community_coo(SHAPE, seed=1))


def find_simplex(rows):
    """Project rows onto the simplex of non-negative numbers with a sum of 1."""
    descending = -np.sort(-rows, axis=1)
    excess = (np.cumsum(descending, axis=1) - 1) / np.arange(1, rows.shape[1] + 1)
    num_positive = (descending > excess).sum(axis=1)
    threshold = excess[np.arange(len(rows)), num_positive - 1]
    return np.maximum(rows - threshold[:, None], 0)


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("name", OWN)
def test_an_operator_of_ones_own_is_as_good_as_the_kernels(x, name):
    parameter, prox = OWN[name]
    expected, expected_errors = constrained_parafac(x, RANK, **{name: parameter}, **OPTIONS)
    with densification_alarm():
        found, errors = constrained_parafac(x, RANK, prox=prox, **OPTIONS)
    # Six iterations of ten steps, with systems whose condition is at most RANK + 1.
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-10)
    for first, second in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=1e-9 * abs(second).max())


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_memberships(x, dtype):
    """The simplex by rows, which TensorLy has by columns alone: met by every row."""
    cp_tensor, _ = constrained_parafac(x.astype(dtype), RANK, prox={1: find_simplex}, **OPTIONS)
    rows = cp_tensor.factors[1]
    assert rows.dtype == dtype
    assert (rows >= 0).all()
    assert np.abs(rows.sum(axis=1) - 1).max() <= 2 * RANK * np.finfo(dtype).eps


@pytest.mark.usefixtures("flycoo_backend")
def test_blocks_of_rows_change_no_row(x, monkeypatch):
    expected, _ = constrained_parafac(x, RANK, prox=find_simplex, **OPTIONS)
    sizes = []

    def prox(rows):
        sizes.append(len(rows))
        return find_simplex(rows)

    monkeypatch.setattr(array_admm, "_BLOCK_ROWS", 7)
    found, _ = constrained_parafac(x, RANK, prox=[prox, prox, prox], **OPTIONS)
    assert max(sizes[3:]) == 7  # the first three calls make the initial guess
    for first, second in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=1e-9 * abs(second).max())


@pytest.mark.usefixtures("flycoo_backend")
def test_operators_that_are_none_are_refused_before_anything(x):
    with pytest.raises(TypeError, match="prox of mode 1 is 3, expected a function of rows"):
        constrained_parafac(x, RANK, prox={1: 3})
    with pytest.raises(ValueError, match="two constraints for the same mode"):
        constrained_parafac(x, RANK, prox={1: abs}, non_negative=True)
    with pytest.raises(ValueError, match=r"prox returned float64 of shape \(\) for rows \(30, 4\)"):
        constrained_parafac(x, RANK, prox=np.sum, **OPTIONS | {"init": make_guess()})
    with pytest.raises(ValueError, match="prox returned list"):
        constrained_parafac(x, RANK, prox=np.ndarray.tolist, **OPTIONS | {"init": make_guess()})


def make_guess(dtype=np.float64):
    rng = np.random.default_rng(3)
    return None, [rng.random((size, RANK)).astype(dtype) for size in SHAPE]


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize(("name", "parameter"), [("l1_reg", 0.1), ("prox", abs), ("l2_reg", 0.1)])
def test_momentum_with_a_penalty_is_refused(x, name, parameter):
    with pytest.raises(
        ValueError, match=f"linesearch is 'nesterov' and {name} is .*, expected False"
    ):
        constrained_parafac(x, RANK, linesearch="nesterov", **{name: {2: parameter}})
    with pytest.raises(ValueError, match="linesearch is 'bro', expected"):
        constrained_parafac(x, RANK, linesearch="bro")


ACCELERATED = {
    "mu": (non_negative_parafac, {}),
    "hals": (non_negative_parafac_hals, {}),
    "admm": (constrained_parafac, {"non_negative": True}),
    "admm, one mode": (constrained_parafac, {"non_negative": {1: True}}),
    "admm, simplex": (constrained_parafac, {"simplex": {0: 3.0}}),
}


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["mu", "hals", "admm"])
def test_momentum_never_raises_the_error_and_gets_further(name, seed):
    """In 40 iterations it gets below what 60 plain ones reach, to four digits."""
    function, options = ACCELERATED[name]
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(0.5, 1, (size, RANK)) for size in SHAPE]
    dense = rng.poisson(0.3 * np.einsum("ir,jr,kr->ijk", *factors)).astype(float)
    x = FlycooTensor.from_dense(dense)
    tol = {"tol_outer" if function is constrained_parafac else "tol": -1}
    options = options | tol | OPTIONS | {"random_state": seed}
    _, plain = function(x, RANK, **options | {"n_iter_max": 60})
    _, errors = function(x, RANK, linesearch="nesterov", **options | {"n_iter_max": 40})
    assert errors[-1] <= plain[-1] + 1e-4
    eps = np.finfo(float).eps
    assert (np.diff(np.square(errors)) <= 100 * eps).all()


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("name", ACCELERATED)
def test_a_run_with_momentum_goes_on_to_the_same_bits(x, name, tmp_path):
    function, options = ACCELERATED[name]
    options = {"linesearch": "nesterov", **OPTIONS, **options, "return_errors": False}
    expected = function(x, RANK, **options | {"n_iter_max": 9})
    path = tmp_path / "run.npz"
    with Progress(4, show=None, checkpoint=path) as progress:
        function(x, RANK, callback=progress, **options | {"n_iter_max": 4})
    found = function(x, RANK, **options | {"init": load_checkpoint(path), "n_iter_max": 5})
    for first, second in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("name", ["mu", "hals", "admm"])
def test_a_callback_may_write_to_factors(x, name):
    """Gram matrices are computed anew after a callback that is not known to read only."""
    function, options = ACCELERATED[name]

    def double(cp_tensor, error):
        cp_tensor.factors[1][:] *= 2

    tol = {"tol_outer" if function is constrained_parafac else "tol": -1}
    options = options | OPTIONS | tol
    _, plain = function(x, RANK, **options)
    _, errors = function(x, RANK, callback=double, **options)
    # The factor is the best one for the others again before the error is measured, so a scale
    # does hardly matter; with a Gram matrix of before the error would be far off.
    assert errors[-1] < 1.5 * plain[-1]


@pytest.mark.usefixtures("flycoo_backend")
def test_masks_with_momentum():
    x = community_coo(SHAPE, seed=1)
    mask = sparse.COO([[0, 1], [2, 3], [4, 5]], [0.0, 0.0], x.shape, fill_value=1.0)
    options = OPTIONS | {"mask": mask, "n_iter_max": 20}
    _, plain = non_negative_parafac(x, RANK, **options)
    _, errors = non_negative_parafac(x, RANK, linesearch="nesterov", **options)
    assert errors[-1] <= plain[-1]


def test_a_start_that_is_far_too_large_is_left_as_tensorly_leaves_it():
    """Where all elements of a step are negative TensorLy's operator does not make them zero."""
    coo = community_coo(SHAPE, seed=1)
    options = {"non_negative": True, "n_iter_max": 5, "return_errors": True}

    def make_start():  # TensorLy's function replaces the factors of the one that it gets
        _, factors = make_guess()
        return CPTensor((None, [30 * factor for factor in factors]))

    with tl.backend_context("numpy"):
        expected, expected_errors = tl.decomposition.constrained_parafac(
            coo.todense(), RANK, init=make_start(), **options
        )
    with tl.backend_context("flycoo"):
        x = FlycooTensor.from_coo(coo)
        found, errors = constrained_parafac(x, RANK, init=make_start(), **options)
    assert errors[-1] < 0.9
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-9)
    for first, second in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=1e-9 * abs(second).max())


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("linesearch", [False, "nesterov"])
@pytest.mark.parametrize(("size", "num_refused"), [(1, 1), (30, 3)])
def test_updates_that_are_taken_back_leave_no_trace(monkeypatch, size, num_refused, linesearch):
    """Small factors on a GPU are updated provisionally; without positive elements, once more."""
    x = random_tensor((60, 50, 40), 300, random_state=0)
    rng = np.random.default_rng(3)
    factors = [size * rng.random((length, 8)) for length in x.shape]
    options = {"non_negative": True, "linesearch": linesearch, "tol_outer": -1, "n_iter_max": 8}

    def run():
        guess = CPTensor((None, list(factors)))
        return constrained_parafac(x, 8, init=guess, return_errors=True, **options)

    expected, expected_errors = run()
    confirmed = []
    confirm = admm.Admm.confirm

    def confirm_and_list(self):
        confirmed.append(confirm(self))
        return confirmed[-1]

    monkeypatch.setattr(admm, "_are_small_on_gpu", lambda factors: True)
    monkeypatch.setattr(admm.Admm, "confirm", confirm_and_list)
    found, errors = run()
    assert errors == expected_errors
    for first, second in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(first, second)
    # After each the host decides for a while: for 1, 2 and then 4 iterations.
    assert confirmed.count(False) == num_refused


@pytest.mark.usefixtures("flycoo_backend")
def test_float32_factors_and_duals_are_float32(x):
    single = x.astype("float32")
    cp_tensor, errors = constrained_parafac(single, RANK, non_negative=True, **OPTIONS)
    _, exact = constrained_parafac(x, RANK, non_negative=True, **OPTIONS)
    assert [factor.dtype for factor in cp_tensor.factors] == [np.float32] * 3
    assert cp_tensor.weights.dtype == np.float32
    np.testing.assert_allclose(errors, exact, rtol=1e-3)
