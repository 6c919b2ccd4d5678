"""TensorLy's tests of CP (its decomposition/tests/test_cp.py) for sparse tensors.

Each runs on a `sparse.COO` and on a `FlycooTensor`, under "flycoo", through TensorLy's public API,
with an alarm on anything that makes the tensor dense. Thresholds are TensorLy's own.
"""

import contextlib
import itertools
import warnings

import numpy as np
import pytest
import tensorly as tl
from sparse_problems import (
    AS_COO,
    BOTH_KINDS,
    ErrorTracker,
    dense_of,
    densification_alarm,
    planted_coo,
    random_coo,
    reconstruct,
)
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import CP, parafac
from tensorly.random import random_cp
from tensorly.testing import assert_class_wrapper_correctly_passes_arguments

import tensorly_flycoo

_SHAPE = (6, 8, 7)

#: From TensorLy's tests: largest relative error of a good decomposition, and error of a cell.
_MAX_ERROR, _MAX_CELL_ERROR = 0.01, 0.05

#: From TensorLy's tests: allowed increase of an error, which cancels near an exact fit.
_MAX_RISE = 1e-7

_BOOLS = [False, True]


@pytest.fixture(autouse=True)
def alarmed_backend(flycoo_backend):
    with densification_alarm():
        yield


@pytest.mark.parametrize(
    "densify",
    [np.asarray, np.exp, lambda x: x.todense(), lambda x: x - np.ones(x.shape), np.sum],
    ids=["asarray", "exp", "todense", "subtract", "sum"],
)
def test_the_alarm_rings(densify):
    coo = random_coo(_SHAPE, 50)

    def densify_and_hide_it():
        with densification_alarm(), contextlib.suppress(AssertionError):
            densify(coo)

    with pytest.raises(AssertionError, match="densified by"):
        densify_and_hide_it()


def _relative_error(cp_tensor, dense):
    rest = reconstruct(cp_tensor.factors, cp_tensor.weights) - dense
    return np.linalg.norm(rest) / np.linalg.norm(dense)


def _random_init(shape, rank, seed, weights=None):
    cp_tensor = random_cp(shape, rank, normalise_factors=False, random_state=seed)
    if weights is not None:
        cp_tensor.weights = tl.tensor(weights)
    return cp_tensor


@BOTH_KINDS
@pytest.mark.parametrize("random_state", [2, 1234])
@pytest.mark.parametrize("normalize_factors", _BOOLS, ids=["plain", "normalized"])
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.parametrize(("true_rank", "rank"), [(1, 1), (3, 4)])
@pytest.mark.parametrize("orthogonalise", _BOOLS, ids=["plain", "orthogonalised"])
@pytest.mark.parametrize("linesearch", _BOOLS, ids=["plain", "linesearch"])
def test_parafac_finds_the_planted_components(
    linesearch, orthogonalise, true_rank, rank, init, normalize_factors, random_state, kind
):
    coo = planted_coo(_SHAPE, true_rank, random_state, orthogonal=orthogonalise)
    dense = dense_of(coo)
    options = {"rank": rank, "n_iter_max": 70, "init": init, "tol": 1e-6}
    options |= {"normalize_factors": normalize_factors, "orthogonalise": orthogonalise}
    tracker = ErrorTracker()
    cp_tensor = parafac(
        kind(coo), random_state=random_state, linesearch=linesearch, callback=tracker, **options
    )
    assert _relative_error(cp_tensor, dense) < _MAX_ERROR
    rest = reconstruct(cp_tensor.factors, cp_tensor.weights) - dense
    assert np.abs(rest).max() < _MAX_CELL_ERROR
    if not orthogonalise:
        assert np.diff(tracker.errors).max() <= _MAX_RISE


@BOTH_KINDS
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.parametrize("linesearch", _BOOLS, ids=["plain", "linesearch"])
def test_the_same_seed_gives_the_same_bits(linesearch, init, kind):
    def decompose():
        tracker = ErrorTracker()
        x = kind(random_coo(_SHAPE, 100, seed=3))
        cp_tensor = parafac(
            x, 4, n_iter_max=15, init=init, random_state=7, linesearch=linesearch, callback=tracker
        )
        return [np.array(tracker.errors), *cp_tensor.factors]

    for first, second in zip(decompose(), decompose(), strict=True):
        np.testing.assert_array_equal(first, second)


@BOTH_KINDS
@pytest.mark.parametrize("normalize_factors", _BOOLS, ids=["plain", "normalized"])
def test_svd_and_random_init_end_close_to_each_other(normalize_factors, kind):
    coo = planted_coo(_SHAPE, 3, seed=5)
    options = {"n_iter_max": 100, "tol": 1e-7, "normalize_factors": normalize_factors}
    with_svd = parafac(kind(coo), 3, init="svd", **options)
    with_random = parafac(kind(coo), 3, init="random", random_state=1, **options)
    first = reconstruct(with_svd.factors, with_svd.weights)
    second = reconstruct(with_random.factors, with_random.weights)
    norm = np.linalg.norm(first)
    assert np.linalg.norm(first - second) / norm < 2 * _MAX_ERROR
    assert np.abs(first - second).max() < 2 * _MAX_CELL_ERROR


@BOTH_KINDS
@pytest.mark.parametrize("svd", ["truncated_svd", "randomized_svd"])
def test_each_svd_is_a_good_start(svd, kind):
    coo = planted_coo(_SHAPE, 3, seed=8)
    cp_tensor = parafac(kind(coo), 3, init="svd", svd=svd, random_state=0, tol=1e-9)
    assert _relative_error(cp_tensor, dense_of(coo)) < _MAX_ERROR


@BOTH_KINDS
def test_an_unknown_init_is_an_error(kind):
    with pytest.raises(ValueError, match="bogus"):
        parafac(kind(random_coo(_SHAPE, 50)), 2, init="bogus")


@BOTH_KINDS
@pytest.mark.parametrize("fixed_modes", [[0], [1], [0, 1], [1, 0]], ids=str)
@pytest.mark.parametrize("linesearch", _BOOLS, ids=["plain", "linesearch"])
def test_fixed_modes_keep_their_factors(linesearch, fixed_modes, kind):
    init = _random_init(_SHAPE, 2, seed=1)
    x = kind(random_coo(_SHAPE, 100, seed=1))
    cp_tensor = parafac(
        x, 2, n_iter_max=10, init=init, fixed_modes=fixed_modes, linesearch=linesearch
    )
    for mode in range(3):
        is_same = np.array_equal(cp_tensor.factors[mode], init.factors[mode])
        assert is_same == (mode in fixed_modes)


@BOTH_KINDS
def test_fixed_factors_are_not_scaled_by_the_weights_of_init(kind):
    init = _random_init((6, 3, 12), 2, seed=1234, weights=[2.0, 5.0])
    x = kind(planted_coo((6, 3, 12), 2, seed=1234))
    for fixed_modes in ([0], [1], [0, 1]):
        cp_tensor = parafac(x, 2, init=init, fixed_modes=fixed_modes, n_iter_max=2)
        for mode in fixed_modes:
            np.testing.assert_array_equal(cp_tensor.factors[mode], init.factors[mode])


@BOTH_KINDS
def test_the_last_mode_is_never_fixed(kind):
    init = _random_init(_SHAPE, 2, seed=1)
    with pytest.warns(UserWarning, match="last mode"):
        cp_tensor = parafac(
            kind(random_coo(_SHAPE, 100)), 2, init=init, fixed_modes=[0, 2], n_iter_max=2
        )
    assert not np.array_equal(cp_tensor.factors[2], init.factors[2])


@BOTH_KINDS
def test_with_all_modes_fixed_the_initial_guess_is_returned(kind):
    init = _random_init(_SHAPE, 2, seed=1)
    cp_tensor = parafac(kind(random_coo(_SHAPE, 100)), 2, init=init, fixed_modes=[0, 1, 2])
    for factor, start in zip(cp_tensor.factors, init.factors, strict=True):
        np.testing.assert_array_equal(factor, start)


@BOTH_KINDS
def test_a_fixed_factor_of_the_wrong_size_is_an_error(kind):
    init = _random_init((5, 8, 7), 2, seed=1)
    with pytest.raises(
        ValueError, match=r"factors\[0\] of init has shape \(5, 2\), expected 6 rows"
    ):
        parafac(kind(random_coo(_SHAPE, 100)), 2, init=init, fixed_modes=[0])


@BOTH_KINDS
@pytest.mark.parametrize("weights", [None, [2.0, 3.0, 4.0]], ids=["plain", "weighted"])
def test_init_and_fixed_modes_are_not_modified(weights, kind):
    shape = (2, 3, 4, 7)
    init = _random_init(shape, 3, seed=1, weights=weights)
    before, fixed_modes = init.cp_copy(), [0, 1, 2]
    parafac(kind(random_coo(shape, 60)), 3, init=init, fixed_modes=fixed_modes, n_iter_max=5)
    parafac(kind(random_coo(shape, 60)), 3, init=init, n_iter_max=5)
    assert fixed_modes == [0, 1, 2]
    np.testing.assert_array_equal(init.weights, before.weights)
    for factor, copy in zip(init.factors, before.factors, strict=True):
        np.testing.assert_array_equal(factor, copy)


@BOTH_KINDS
def test_linesearch_converges_no_slower(kind):
    x = kind(random_coo((5, 5, 5), 100, seed=1234))
    errors = []
    for linesearch in _BOOLS:
        cp_tensor = parafac(
            x, 5, init="random", random_state=1234, n_iter_max=10, tol=1e-8, linesearch=linesearch
        )
        errors.append(_relative_error(cp_tensor, dense_of(x)))
    assert errors[1] - errors[0] < 0.1


@BOTH_KINDS
@pytest.mark.parametrize("init", ["svd", "random"])
def test_normalized_factors_have_unit_columns(init, kind):
    coo = random_coo(_SHAPE, 100, seed=2)
    cp_tensor, errors = parafac(
        kind(coo), 3, init=init, random_state=0, normalize_factors=True, n_iter_max=20,
        tol=0, return_errors=True,
    )  # fmt: skip
    for factor in cp_tensor.factors:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1)
    assert not np.allclose(cp_tensor.weights, 1)
    np.testing.assert_allclose(_relative_error(cp_tensor, dense_of(coo)), errors[-1])


@BOTH_KINDS
def test_orthogonalise_starts_each_iteration_from_orthonormal_columns(kind):
    factors = []
    parafac(
        kind(random_coo(_SHAPE, 100, seed=2)), 3, init="random", random_state=0, n_iter_max=6,
        orthogonalise=6, fixed_modes=[0], callback=lambda cp, _: factors.append(cp.factors[0]),
    )  # fmt: skip
    # The fixed mode shows from which factors the other modes were computed.
    for factor in factors[1:]:
        np.testing.assert_allclose(factor.T @ factor, np.eye(3), atol=1e-14)


@BOTH_KINDS
@pytest.mark.parametrize("cvg_criterion", ["abs_rec_error", "rec_error"])
def test_iterations_stop_when_the_error_falls_by_less_than_tol(cvg_criterion, kind):
    tol = 1e-4
    _, errors = parafac(
        kind(random_coo(_SHAPE, 100, seed=2)), 3, init="random", random_state=0, n_iter_max=500,
        tol=tol, cvg_criterion=cvg_criterion, return_errors=True,
    )  # fmt: skip
    falls = -np.diff(errors)
    assert 2 < len(errors) < 500
    assert (falls[:-1] >= tol).all()
    assert falls[-1] < tol


@BOTH_KINDS
def test_an_unknown_criterion_is_an_error(kind):
    with pytest.raises(TypeError, match="convergence criterion"):
        parafac(kind(random_coo(_SHAPE, 100)), 2, cvg_criterion="bogus")


@BOTH_KINDS
@pytest.mark.parametrize("init", ["svd", "random"])
def test_the_callback_gets_the_start_and_each_iteration(init, kind):
    coo = random_coo(_SHAPE, 100, seed=2)
    dense, seen = dense_of(coo), []

    def keep(cp_tensor, error):
        assert isinstance(cp_tensor, CPTensor)
        seen.append((float(error), _relative_error(cp_tensor, dense)))

    _, errors = parafac(
        kind(coo), 3, init=init, random_state=0, n_iter_max=6, tol=0, return_errors=True,
        callback=keep,
    )  # fmt: skip
    told, true = np.transpose(seen)
    np.testing.assert_allclose(told, true)
    np.testing.assert_array_equal(told[1:], errors)


@BOTH_KINDS
def test_the_callback_stops_the_iterations_with_true(kind):
    tracker = ErrorTracker(stop_after=4)
    x = kind(random_coo(_SHAPE, 100, seed=2))
    _, errors = parafac(
        x, 3, init="random", random_state=0, tol=1e-12, callback=tracker, return_errors=True
    )
    assert len(tracker.errors) == 4
    assert len(errors) == 3


@BOTH_KINDS
def test_l2_reg_solves_the_regularised_problem_of_the_last_mode(kind):
    coo, penalty = random_coo(_SHAPE, 100, seed=2), 0.5
    cp_tensor = parafac(
        kind(coo), 3, init="random", random_state=0, n_iter_max=5, tol=0, l2_reg=penalty
    )
    first, second, last = cp_tensor.factors
    gram = (first.T @ first) * (second.T @ second) + penalty * np.eye(3)
    target = np.einsum("abc,az,bz->cz", dense_of(coo), first, second)
    np.testing.assert_allclose(last @ gram, target, atol=1e-12 * np.abs(target).max())


@BOTH_KINDS
def test_more_iterations_fit_no_worse_than_fewer(kind):
    x = kind(random_coo(_SHAPE, 100, seed=4))
    runs = [
        parafac(x, 4, init="random", random_state=0, n_iter_max=n, tol=0, return_errors=True)[1]
        for n in (3, 12, 40)
    ]
    for shorter, longer in itertools.pairwise(runs):
        np.testing.assert_array_equal(shorter, longer[: len(shorter)])
    assert np.diff(runs[-1]).max() <= _MAX_RISE


@BOTH_KINDS
@pytest.mark.parametrize("init", ["svd", "random"])
def test_the_class_does_what_the_function_does(init, kind):
    x = kind(random_coo(_SHAPE, 100, seed=2))
    options = {"rank": 3, "init": init, "random_state": 0, "n_iter_max": 10}
    cp_tensor, errors = parafac(x, return_errors=True, **options)
    transformer = CP(**options)
    fitted = transformer.fit_transform(x)
    also_fitted = CP(**options).fit(x).decomposition_
    for factor, second, third in zip(
        cp_tensor.factors, fitted.factors, also_fitted.factors, strict=True
    ):
        np.testing.assert_array_equal(factor, second)
        np.testing.assert_array_equal(factor, third)
    np.testing.assert_array_equal(transformer.errors_, errors)


def test_the_class_passes_all_options_on(monkeypatch):
    assert_class_wrapper_correctly_passes_arguments(
        monkeypatch, parafac, CP, ignore_args={"return_errors"}, rank=3
    )


@pytest.mark.parametrize("kind", [AS_COO, pytest.param(lambda coo: tl.tensor(coo), id="tl.tensor")])
def test_tensorly_treats_the_tensor_as_one_of_its_own(kind):
    coo = random_coo(_SHAPE, 100, np.int64, seed=2)
    x = kind(coo)
    assert tl.is_tensor(x)
    assert (tl.shape(x), tl.ndim(x)) == (_SHAPE, 3)
    assert tl.context(x) == {"dtype": np.float64}  # integers are counts
    norm = np.linalg.norm(coo.data.astype(float))
    # A sum of nnz squares and a square root.
    assert abs(tl.norm(x) - norm) <= coo.nnz * np.finfo(float).eps * norm
    assert tl.norm(x, 2) == tl.norm(x)


def test_tl_tensor_makes_a_flycoo_tensor():
    coo = random_coo(_SHAPE, 100, seed=2)
    x = tl.tensor(coo)
    assert isinstance(x, tensorly_flycoo.FlycooTensor)
    np.testing.assert_array_equal(dense_of(x), dense_of(coo))
    assert tl.tensor(x) is x
    assert tl.tensor(coo, dtype=tl.float32).dtype == np.float32
    assert tl.tensor(x, dtype=tl.float32).dtype == np.float32


@BOTH_KINDS
@pytest.mark.parametrize("method", ["truncated_svd", "randomized_svd"])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_svd_interface_gives_the_leading_singular_vectors(mode, method, kind):
    coo = random_coo(_SHAPE, 100, seed=2)
    matrix = np.moveaxis(dense_of(coo), mode, 0).reshape(_SHAPE[mode], -1)
    unfolded = tl.unfold(kind(coo), mode)
    assert tl.shape(unfolded) == matrix.shape
    left, values, right = tl.svd_interface(unfolded, method, n_eigenvecs=3, random_state=0)
    expected_left, expected_values, _ = np.linalg.svd(matrix, full_matrices=False)
    # Squared singular values are eigenvalues of a matrix of size I, with rounding errors of
    # eps * I * the largest; vectors rotate by that over the gap between the squares.
    squares = expected_values**2
    rounding = coo.nnz * np.finfo(float).eps * squares[0]
    gap = -np.diff(squares[:4]).max()
    assert np.abs(values**2 - squares[:3]).max() <= rounding
    overlaps = np.abs(np.sum(left * expected_left[:, :3], axis=0))
    assert (1 - overlaps <= rounding / gap).all()
    assert (left[np.abs(left).argmax(axis=0), range(3)] > 0).all()  # svd_flip
    assert tl.shape(right) == (3, matrix.shape[1])


@BOTH_KINDS
@pytest.mark.parametrize("init", ["svd", "random"])
def test_no_warning_is_given(init, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parafac(kind(random_coo(_SHAPE, 100, seed=2)), 3, init=init, random_state=0, n_iter_max=20)
