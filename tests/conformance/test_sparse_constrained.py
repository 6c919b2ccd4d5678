"""Constrained CP under "flycoo", with each of TensorLy's constraints."""

import inspect

import numpy as np
import pytest
import sparse
import tensorly as tl
from rounding import check_same_as_dense
from sparse_problems import (
    BOTH_KINDS,
    BOTH_PRECISIONS,
    community_coo,
    densification_alarm,
    random_coo,
    reconstruct,
    spread,
)
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import ConstrainedCP, constrained_parafac
from tensorly.decomposition._constrained_cp import initialize_constrained_parafac
from tensorly.tenalg import proximal
from tensorly.tenalg.proximal import proximal_operator

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.decomposition.proximal import fit_monotone
from tensorly_flycoo.testing import random_tensor

_RANK = 3
_SHAPE = (9, 11, 10)

#: All of TensorLy's constraints, with parameters like those of its own tests.
_CONSTRAINTS = {
    "non_negative": True,
    "l1_reg": 1e-3,
    "group_lasso": 1e-3,
    "l2_reg": 1e-2,
    "l2_square_reg": 1e-2,
    "unimodality": True,
    "normalize": True,
    "simplex": 3.0,
    "normalized_sparsity": 5,
    "soft_sparsity": 1.0,
    "smoothness": 0.01,
    "monotonicity": True,
    "hard_sparsity": 5,
}
_KNOWN = set(inspect.signature(constrained_parafac).parameters)  # TensorLy 0.9 has fewer
_IS_SEEDED = "group_lasso" in _KNOWN  # both from TensorLy 0.10 on
_EACH = {name: {name: value} for name, value in _CONSTRAINTS.items() if name in _KNOWN}
_OPTIONS = {
    **_EACH,
    "one a mode": {"non_negative": {0: True}, "l1_reg": {1: 0.01}, "smoothness": {2: 0.1}},
    "list": {"simplex": [3.0, 2.0, 1.0]},
    "none": {},
}


def _init(shape, dtype, weights=None):
    rng = np.random.RandomState(11)
    factors = [(0.1 + rng.random_sample((size, _RANK))).astype(dtype) for size in shape]
    return CPTensor((weights if weights is None else np.array(weights, dtype), factors))


def _check_same_as_dense(decompose, coo, kind):
    """Compare with TensorLy, whose factors are float64 for a float32 tensor too."""
    check_same_as_dense(decompose, coo, kind, _RANK, has_tensors_dtype=True)


def test_all_constraints_are_tested():
    parameters = inspect.signature(proximal_operator).parameters
    assert set(_EACH) == set(parameters) - {"tensor", "n_const", "order"}


@BOTH_PRECISIONS
@pytest.mark.parametrize("name", _OPTIONS)
def test_same_as_dense(name, dtype, kind, monkeypatch):
    if name == "unimodality":
        # It compares elements of a column with those of two monotone fits. They are equal up to
        # rounding with TensorLy's operator, so its result depends on how they are rounded.
        monkeypatch.setattr(proximal, "monotonicity_prox", fit_monotone)
    init = "random" if dtype == "float32" and _IS_SEEDED else "svd"

    def decompose(x):
        options = {"init": init, "n_iter_max": 3, "random_state": 5, "return_errors": True}
        return constrained_parafac(x, _RANK, **options, **_OPTIONS[name])

    coo = community_coo(_SHAPE, dtype, seed=1)
    _check_same_as_dense(decompose, coo, kind)


_LOOPS = {
    "init": lambda dtype: {"init": _init(_SHAPE, dtype)},
    "weighted-init": lambda dtype: {"init": _init(_SHAPE, dtype, [0.5, 1.0, 2.0])},
    "fixed": lambda dtype: {"init": _init(_SHAPE, dtype), "fixed_modes": [0]},
    "tol": lambda dtype: {"init": _init(_SHAPE, dtype), "tol_outer": 1e-2, "n_iter_max": 50},
    "rec_error": lambda dtype: {
        "init": _init(_SHAPE, dtype), "tol_outer": 1e-2, "n_iter_max": 50,
        "cvg_criterion": "rec_error",
    },
    "inner": lambda dtype: {"n_iter_max_inner": 3, "tol_inner": 1e-2},
}  # fmt: skip


@BOTH_PRECISIONS
@pytest.mark.parametrize("name", _LOOPS)
def test_same_as_dense_with_options(name, dtype, kind):
    coo = community_coo(_SHAPE, dtype, seed=1)

    def decompose(x):
        options = {"n_iter_max": 5, "random_state": 5, "return_errors": True, "non_negative": True}
        options |= _LOOPS[name](np.float32 if dtype == "float32" else np.float64)
        return constrained_parafac(x, _RANK, **options)

    _check_same_as_dense(decompose, coo, kind)


@BOTH_KINDS
@pytest.mark.parametrize("ndim", [2, 4])
def test_same_as_dense_for_any_number_of_modes(ndim, kind):
    def decompose(x):
        return constrained_parafac(x, _RANK, n_iter_max=5, non_negative=True, return_errors=True)

    coo = community_coo({2: (14, 15), 4: (8, 6, 9, 7)}[ndim], seed=1)
    _check_same_as_dense(decompose, coo, kind)


@BOTH_PRECISIONS
@pytest.mark.usefixtures("modes_in_groups")
@pytest.mark.parametrize("name", _LOOPS)
def test_same_as_dense_with_groups(name, dtype, kind):
    test_same_as_dense_with_options(name, dtype, kind)


@BOTH_KINDS
@pytest.mark.usefixtures("flycoo_backend")
def test_the_class(kind):
    coo = community_coo(_SHAPE, seed=1)
    options = {"non_negative": True, "n_iter_max": 5, "random_state": 1}
    with densification_alarm():
        cp_tensor = ConstrainedCP(_RANK, **options).fit_transform(kind(coo))
    expected = constrained_parafac(coo, _RANK, **options)
    for factor, other in zip(cp_tensor.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


@pytest.mark.parametrize(
    "name",
    [
        "non_negative",
        "hard_sparsity",
        *[pytest.param(name, marks=pytest.mark.slow) for name in ("simplex", "smoothness")],
    ],
)
@pytest.mark.usefixtures("flycoo_backend")
def test_more_than_2_to_63_cells(name):
    x, _ = spread(community_coo((8, 6, 9, 7, 6), seed=1), (2**13 + 1,) * 5)
    with densification_alarm():
        cp_tensor, errors = constrained_parafac(
            x, _RANK, random_state=0, n_iter_max=1, return_errors=True, **_EACH[name]
        )
    assert all(np.isfinite(factor).all() for factor in cp_tensor.factors)
    assert np.isfinite(errors).all()


@pytest.mark.parametrize("name", ["smoothness", "monotonicity", "unimodality"])
@pytest.mark.usefixtures("flycoo_backend")
def test_a_long_mode_needs_no_square_matrix(name):
    """A square matrix would take 80 GB."""
    x = random_tensor((100_000, 20, 30), 10_000, random_state=0)
    cp_tensor = constrained_parafac(
        x, 2, init="random", n_iter_max=1, **{name: {0: _CONSTRAINTS[name]}}
    )
    assert np.isfinite(cp_tensor.factors[0]).all()


@pytest.mark.usefixtures("flycoo_backend")
def test_init_of_another_precision_is_an_error():
    coo = random_coo(_SHAPE, 100, np.float32)
    with pytest.raises(TypeError, match=r"factors\[0\] has dtype float64, expected float32"):
        constrained_parafac(coo, _RANK, init=_init(_SHAPE, np.float64), non_negative=True)


@pytest.mark.parametrize("name", _EACH)
@pytest.mark.usefixtures("flycoo_backend")
def test_one_nonzero_and_empty_rows(name):
    x = random_coo(_SHAPE, 1, seed=3)
    with densification_alarm():
        cp_tensor = constrained_parafac(
            x, _RANK, init="random", random_state=0, n_iter_max=3, **_EACH[name]
        )
    assert all(np.isfinite(factor).all() for factor in cp_tensor.factors)


# TensorLy's own tests with sparse input and TensorLy's thresholds.


def _planted(name):
    """Make a tensor whose components meet the constraint, and a start near them."""
    rng = np.random.RandomState(1234)
    options = {"random_state": rng} if _IS_SEEDED else {}
    start = initialize_constrained_parafac(
        tl.zeros([6, 8, 4]), _RANK, init="random", **_EACH[name], **options
    )
    dense = reconstruct(start.factors)
    noisy = [factor + 0.1 * rng.random_sample(factor.shape) for factor in start.factors]
    return sparse.COO.from_numpy(dense), dense, CPTensor((None, noisy)), rng


_REGULARISED = ["non_negative", "l1_reg", "l2_reg", "group_lasso", "l2_square_reg", "smoothness"]


@pytest.mark.parametrize("name", [name for name in _REGULARISED if name in _EACH])
@pytest.mark.usefixtures("flycoo_backend")
def test_planted_components_are_found(name):
    x, dense, start, rng = _planted(name)
    with densification_alarm():
        cp_tensor = constrained_parafac(
            x, _RANK, init=start, random_state=rng, n_iter_max=25, **_EACH[name]
        )
    residual = reconstruct(cp_tensor.factors) - dense
    assert np.linalg.norm(residual) < 0.5 * np.linalg.norm(dense)
    assert np.abs(residual).max() < 0.5
    if name == "non_negative":
        assert all((factor >= 0).all() for factor in cp_tensor.factors)


def _is_unimodal(column):
    top = int(np.argmax(column))
    return (np.diff(column[: top + 1]) >= 0).all() and (np.diff(column[top:]) <= 0).all()


_PROPERTIES = {
    "monotonicity": lambda factor: (np.diff(factor, axis=0) >= 0).all(),
    "simplex": lambda factor: abs(factor[:, 0].sum() - 3) < 1.5,
    "normalize": lambda factor: abs(np.abs(factor).max() - 1) < 1.5e-6,
    "soft_sparsity": lambda factor: (np.abs(factor).sum(axis=0) <= 1 + 1e-9).all(),
    "unimodality": lambda factor: _is_unimodal(factor[:, 0]),
    "normalized_sparsity": lambda factor: (
        abs(np.linalg.norm(factor) - 1) < 1.5e-6 and np.count_nonzero(factor) == 5
    ),
    "hard_sparsity": lambda factor: np.count_nonzero(factor) == 5,
}


@pytest.mark.parametrize("name", _PROPERTIES)
@pytest.mark.usefixtures("flycoo_backend")
def test_factors_meet_their_constraint(name):
    x, _, start, rng = _planted(name)
    n_iter_max = 2 if name == "unimodality" else 25
    with densification_alarm():
        cp_tensor = constrained_parafac(
            x, _RANK, init=start, random_state=rng, n_iter_max=n_iter_max, **_EACH[name]
        )
    assert all(_PROPERTIES[name](factor) for factor in cp_tensor.factors)


@pytest.mark.parametrize(
    ("options", "causes"),
    [({"l1_reg": 100.0}, "l1_reg=100.0"), ({"soft_sparsity": {0: 0.0}, "l1_reg": {1: 1e-9}}, "l1")],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.usefixtures("flycoo_backend")
def test_a_result_of_zeros_is_a_warning_that_names_the_cause(options, causes):
    if not options.keys() <= _KNOWN:
        pytest.skip("this TensorLy does not have them")
    x = random_tensor(_SHAPE, 200, random_state=0)
    with pytest.warns(UserWarning, match=f"ended in all zeros: .*{causes}.* too strong"):
        cp_tensor = constrained_parafac(x, _RANK, init="random", random_state=0, **options)
    assert any((factor == 0).all() for factor in cp_tensor.factors)


@pytest.mark.filterwarnings("error:constrained_parafac ended")
@pytest.mark.filterwarnings("ignore:divide by zero")  # the error relative to an empty tensor's norm
@pytest.mark.usefixtures("flycoo_backend")
def test_other_results_are_no_warning():
    x = random_tensor(_SHAPE, 200, random_state=0)
    constrained_parafac(x, _RANK, init="random", random_state=0, l1_reg=1e-3, n_iter_max=3)
    empty = FlycooTensor(np.zeros((3, 0), int), np.zeros(0), _SHAPE)
    constrained_parafac(empty, _RANK, init="random", random_state=0, l1_reg=1e-3, n_iter_max=2)
