"""RESCAL: against a dense gradient and core, planted models, resumed runs and refusals."""

import numpy as np
import pytest
import tensorly as tl
from falling_errors import assert_never_rise
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from tensorly_flycoo import FlycooTensor, LabelledTensor, Progress
from tensorly_flycoo.decomposition import shared_parafac, shared_tucker
from tensorly_flycoo.testing import random_tensor

RANK = 3
EPS = np.finfo(float).eps

#: Shapes, and the two modes that share.
CASES = [((7, 4, 7), (0, 2)), ((7, 7, 4), (1, 0)), ((4, 7, 7), (1, 2))]
EACH_CASE = pytest.mark.parametrize(("shape", "modes"), CASES, ids=str)


def make_tensor(shape, seed=0):
    return random_tensor(shape, int(np.prod(shape)) // 3, random_state=seed)


def find_loss(dense, core, factors, modes, ridge):
    residual = dense - tl.tucker_to_tensor((core, factors))
    return (residual**2).sum() + ridge * ((factors[modes[0]] ** 2).sum() + (core**2).sum())


@EACH_CASE
@pytest.mark.parametrize("ridge", [0, 0.5])
def test_a_converged_model_is_stationary(shape, modes, ridge):
    """Its error is the dense one, its core the best one, and the shared factor has no gradient."""
    x = make_tensor(shape)
    options = {"random_state": 0, "n_iter_max": 3000, "tol": 1e-16, "return_errors": True}
    (core, factors), errors = shared_tucker(x, RANK, modes, l2_reg=ridge, **options)
    dense = x.to_coo().todense()
    first, second = modes
    np.testing.assert_array_equal(factors[first], factors[second])
    (relation,) = {0, 1, 2} - {*modes}
    np.testing.assert_array_equal(factors[relation], np.eye(shape[relation]))
    residual = dense - tl.tucker_to_tensor((core, factors))
    assert abs(np.linalg.norm(residual) / np.linalg.norm(dense) - errors[-1]) <= 1e-10

    of_core = -tl.tenalg.multi_mode_dot(residual, factors, transpose=True) + ridge * core
    assert np.abs(of_core).max() <= 1e-10 * np.linalg.norm(dense)
    of_factor = ridge * factors[first]
    for mode in modes:
        others = tl.tenalg.multi_mode_dot(core, factors, skip=mode)
        of_factor = of_factor - tl.unfold(residual, mode) @ tl.unfold(others, mode).T
    # Errors of 1e-16 apart leave a gradient of about the root of that.
    assert np.abs(of_factor).max() <= 1e-6 * np.linalg.norm(dense) ** 2


@quick
@given(st.sampled_from(CASES), st.integers(0, 50), st.sampled_from(["float64", "float32"]))
def test_errors_never_rise(case, seed, dtype):
    shape, modes = case
    x = make_tensor(shape, seed).astype(dtype)
    options = {"random_state": seed, "n_iter_max": 12, "tol": 0, "return_errors": True}
    _, errors = shared_tucker(x, RANK, modes, **options)
    assert_never_rise(errors, dtype)


def test_the_squared_error_and_the_ridge_together_never_rise():
    x = make_tensor((12, 5, 12))
    dense, losses = x.to_coo().todense(), []

    def note(model, error):
        losses.append(find_loss(dense, model.core, model.factors, (0, 2), 0.3))

    shared_tucker(x, RANK, l2_reg=0.3, random_state=0, tol=0, callback=note)
    assert (np.diff(losses) <= 64 * EPS * losses[0]).all()
    assert losses[-1] < losses[1]


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_model_with_directions_is_found(seed):
    """Its matrices are not symmetric: a model with diagonal ones of the same size does not fit."""
    rng = np.random.default_rng(seed)
    entities, links = rng.standard_normal((30, 3)), rng.standard_normal((6, 3, 3))
    x = FlycooTensor.from_dense(np.einsum("ak,rkl,bl->arb", entities, links, entities))
    options = {"random_state": seed, "return_errors": True}
    model, errors = shared_tucker(x, 3, n_iter_max=200, tol=1e-10, **options)
    assert errors[-1] < 1e-6
    planted, _ = np.linalg.qr(entities)
    found, _ = np.linalg.qr(model.factors[0])
    cosines = np.linalg.svd(planted.T @ found, compute_uv=False)
    assert cosines == pytest.approx(np.ones(3), abs=1e-9)
    _, others = shared_parafac(x, 9, (0, 2), **options)
    assert others[-1] > 0.1


@EACH_CASE
def test_a_resumed_run_has_the_same_bits(shape, modes, tmp_path):
    x = make_tensor(shape)
    options = {"random_state": 0, "tol": 0, "return_errors": True, "l2_reg": 0.1}
    expected, errors = shared_tucker(x, RANK, modes, n_iter_max=8, **options)
    path = tmp_path / "run.npz"
    with Progress(4, show=None, checkpoint=path, every=1) as progress:
        shared_tucker(x, RANK, modes, n_iter_max=4, callback=progress, **options)
    init = Progress(8, checkpoint=path).resume()
    found, others = shared_tucker(x, RANK, modes, n_iter_max=4, init=init, **options)
    assert others == errors[4:]
    np.testing.assert_array_equal(found.core, expected.core)
    np.testing.assert_array_equal(found.factors[modes[0]], expected.factors[modes[0]])
    again = shared_tucker(x, RANK, modes, n_iter_max=0, init=found, l2_reg=0.1)
    np.testing.assert_array_equal(again.core, found.core)


def test_labels_are_those_of_the_data():
    names, kinds = list("abcdefg"), ["likes", "knows", "helps", "meets"]
    labels = {"head": names, "kind": kinds, "tail": names}
    x = LabelledTensor(make_tensor((7, 4, 7)), labels)
    model = shared_tucker(x, 2, ("head", "tail"), random_state=0)
    assert [*model.labels] == ["head", "kind", "tail"]
    assert model.flycoo.constraints == {0: {"shared_factor": 1.0}, 2: {"shared_factor": 1.0}}
    other = LabelledTensor(x.tensor, labels | {"tail": names[::-1]})
    with pytest.raises(ValueError, match="modes 'head' and 'tail' have different labels"):
        shared_tucker(other, 2)


REFUSED = [
    ({"modes": (0, 1)}, ValueError, r"modes \(0, 1\) have the sizes \[7, 4\]"),
    ({"modes": (0, 2, 3)}, ValueError, "a mode of modes is 3, expected 0 to 2"),
    ({"modes": []}, ValueError, r"modes is \[\] of 3 modes, expected two of three"),
    ({"rank": 0}, ValueError, "rank is 0"),
    ({"init": "svd"}, ValueError, "init is 'svd', expected"),
    ({"init": (np.ones((2, 4, 2)), [np.ones((7, 2)), np.eye(4), np.zeros((7, 2))])},
     ValueError, r"factors\[2\] of init differs from factors\[0\]"),
    ({"init": (np.ones((3, 4, 3)), [np.ones((7, 3)), np.eye(4), np.ones((7, 3))])},
     ValueError, "init has factors of 3 columns, expected 2"),
    ({"l2_reg": -1}, ValueError, "l2_reg is -1"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "text"), REFUSED, ids=lambda part: str(part)[:40])
def test_wrong_arguments_are_refused_by_name(options, error, text):
    with pytest.raises(error, match=text):
        shared_tucker(make_tensor((7, 4, 7)), **{"rank": 2} | options)
