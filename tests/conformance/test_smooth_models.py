"""Smooth models, against dense computations of what they minimise."""

import numpy as np
import pytest
import scipy.sparse
import sparse
import tensorly as tl
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from strategies import quick, seeds

from tensorly_flycoo import FlycooCP, FlycooTensor, LabelledTensor, best_of, decomposition
from tensorly_flycoo.decomposition import non_negative_parafac_hals, parafac, parafac2
from tensorly_flycoo.testing import random_tensor

SHAPE, RANK = (4, 5, 6), 2
EPS = np.finfo(np.float64).eps

pytestmark = pytest.mark.usefixtures("flycoo_backend")


def make_dense(seed, shape=SHAPE):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * (rng.random(shape) < 0.6)


def make_factors(seed, shape=SHAPE):
    return [np.random.default_rng(seed + n).random((size, RANK)) for n, size in enumerate(shape)]


def weigh(x, strengths):
    """Multiply an array by I + s D^T D in each mode."""
    for mode, strength in enumerate(strengths):
        differences = np.diff(np.eye(x.shape[mode]), axis=0)
        metric = np.eye(x.shape[mode]) + strength * differences.T @ differences
        x = np.moveaxis(np.tensordot(metric, x, (1, mode)), 0, mode)
    return x


def measure(x, model, strengths):
    """Return the squared residual and the penalty together; nan in x is missing."""
    residual = np.nan_to_num(x - model)
    return (residual**2).sum() + (model * (weigh(model, strengths) - model)).sum()


def solve_dense(x, factors, mode, strengths, non_negative=False):
    """Return the factor that is best for the others."""
    size = x.shape[mode] * RANK
    design = np.empty((x.size, size))
    weighted = np.empty((x.size, size))
    for column in range(size):
        one = list(factors)
        one[mode] = np.eye(size)[column].reshape(-1, RANK)
        model = tl.cp_to_tensor((None, one))
        design[:, column], weighted[:, column] = model.ravel(), weigh(model, strengths).ravel()
    matrix, target = design.T @ weighted, design.T @ x.ravel()
    if not non_negative:
        return np.linalg.solve(matrix, target).reshape(-1, RANK)
    root = np.linalg.cholesky(matrix)
    return nnls(root.T, np.linalg.solve(root, target))[0].reshape(-1, RANK)


@pytest.mark.parametrize("strengths", [[0, 0, 3], [2, 0, 0], [0.5, 2, 30]], ids=str)
@pytest.mark.parametrize("function", [parafac, non_negative_parafac_hals])
def test_each_update_is_exact(function, strengths):
    """Of the last mode, which may be smooth, or another one, or both."""
    x, factors = make_dense(0), make_factors(1)
    is_hals = function is non_negative_parafac_hals
    found = function(
        FlycooTensor.from_dense(x), RANK, n_iter_max=1, init=(None, factors), fixed_modes=[0, 1],
        smoothness=strengths, tol=0, **({"exact": True} if is_hals else {}),
    )  # fmt: skip
    expected = solve_dense(x, factors, 2, strengths, is_hals)
    np.testing.assert_allclose(found.factors[2], expected, atol=1e-7 if is_hals else 1e-10)


def test_float32_agrees_to_its_rounding():
    x, factors = make_dense(0).astype(np.float32), [f.astype(np.float32) for f in make_factors(1)]
    strengths = [0, 2.0, 30.0]
    found = parafac(
        FlycooTensor.from_dense(x), RANK, n_iter_max=1, init=(None, factors), fixed_modes=[0, 1],
        smoothness=strengths,
    )  # fmt: skip
    wide = [factor.astype(float) for factor in factors]
    expected = solve_dense(x.astype(float), wide, 2, strengths)
    longer = np.concatenate([wide[1], 2**0.5 * np.diff(wide[1], axis=0)])
    condition = np.linalg.cond((wide[0].T @ wide[0]) * (longer.T @ longer))
    bound = 100 * np.finfo(np.float32).eps * condition * np.abs(expected).max()
    assert found.factors[2].dtype == np.float32
    assert np.abs(found.factors[2] - expected).max() <= bound


def follow(function, x, **options):
    """Run a decomposition; return the model before the first and after each iteration."""
    models = []
    function(
        x, RANK, n_iter_max=6, init="random", random_state=0, tol=0, **options,
        callback=lambda cp, _: models.append((cp.weights.copy(), [f.copy() for f in cp.factors])),
    )  # fmt: skip
    return models


@quick
@given(
    seeds,
    st.lists(st.sampled_from([0, 0.1, 3, 1e3]), min_size=3, max_size=3),
    st.sampled_from([parafac, non_negative_parafac_hals]),
    st.booleans(),
    st.booleans(),
)
def test_error_and_penalty_never_rise(seed, strengths, function, normalizes, is_masked):
    x, mask = make_dense(seed), None
    sparse_x = FlycooTensor.from_dense(x)
    options = {"smoothness": strengths, "normalize_factors": normalizes}
    if is_masked and function is parafac:
        mask = np.random.default_rng(seed).random(SHAPE) < 0.8
        options["mask"] = sparse.COO.from_numpy(mask.astype(float), fill_value=1.0)
        x = np.where(mask, x, np.nan)
    models = follow(function, sparse_x, **options)
    found = [measure(x, tl.cp_to_tensor(model), strengths) for model in models]
    # Systems that are near singular have larger factors, but their residuals are small.
    assert np.diff(found).max() <= 1e4 * EPS * found[0]


@pytest.mark.parametrize("options", [{}, {"nn_modes": [0, 2]}, {"normalize_factors": True}])
def test_parafac2_never_rises_either(options):
    rng, strengths = np.random.default_rng(0), [4.0, 0, 9.0]
    slices = [rng.random((n, 8)) * (rng.random((n, 8)) < 0.6) for n in (5, 7, 4, 9, 6)]
    models, found = [], []
    parafac2(
        [scipy.sparse.csr_array(part) for part in slices], 3, n_iter_max=8, random_state=0, tol=0,
        smoothness={0: 4.0, 2: 9.0}, callback=lambda model, error: models.append((model, error)),
        **options,
    )  # fmt: skip
    total = sum((part**2).sum() for part in slices)
    for (weights, (a, b, c)), error in models:
        core = np.einsum("kr,ir,jr->kij", a, b * weights, c)
        penalty = (core * (weigh(core, strengths) - core)).sum()
        found.append(float(error) ** 2 * total + penalty)
    assert np.diff(found).max() <= 1e3 * EPS * found[0]
    flat = parafac2(
        [scipy.sparse.csr_array(part) for part in slices], 2, random_state=0, n_iter_max=300,
        smoothness={0: 1e7},
    )  # fmt: skip
    assert np.ptp(flat.factors[0], axis=0).max() <= 1e-4 * np.abs(flat.factors[0]).max()


@pytest.mark.parametrize("nothing", [None, 0, [0.0, None, 0], {}])
@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac_hals", "parafac2"])
def test_no_smoothness_changes_no_bit(name, nothing):
    x = FlycooTensor.from_dense(np.abs(make_dense(0)))
    options = {"n_iter_max": 8, "random_state": 0, "init": "random"}
    expected = getattr(decomposition, name)(x, RANK, **options)
    found = getattr(decomposition, name)(x, RANK, smoothness=nothing, **options)
    for ours, theirs in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_mode_may_have_one_index_or_no_other_nonzeros():
    x = FlycooTensor([[0, 0], [1, 3], [2, 2]], [1.0, 2.0], (1, 5, 4))
    for function in (parafac, non_negative_parafac_hals):
        cp_tensor = function(x, 1, init="random", random_state=0, smoothness=2.0)
        assert all(np.isfinite(factor).all() for factor in cp_tensor.factors)


@pytest.mark.parametrize("function", [parafac, non_negative_parafac_hals])
def test_momentum_is_refused(function):
    x = random_tensor(SHAPE, 60, random_state=0)
    with pytest.raises(ValueError, match="linesearch is 'nesterov', expected False with smooth"):
        function(x, RANK, linesearch="nesterov", smoothness=1.0)


def test_tensorlys_name_names_ours():
    x = random_tensor(SHAPE, 60, random_state=0)
    with pytest.raises(
        TypeError, match=r"'smoothness': tensorly_flycoo\.decomposition\.parafac takes"
    ):
        tl.decomposition.parafac(x, RANK, smoothness=1.0)


def test_parafac2_refuses_rows():
    x = random_tensor(SHAPE, 60, random_state=0)
    with pytest.raises(ValueError, match=r"smoothness is 1\.0, expected modes 0 or 2, not rows"):
        parafac2(x, RANK, smoothness=1.0)


def test_several_starts_and_estimators_pass_it_on():
    x, given = random_tensor(SHAPE, 60, random_state=0), {"smoothness": {2: 50.0}}
    starts = best_of(parafac, x, RANK, 3, 0, n_iter_max=5, **given)
    seed = starts.seeds[starts.best_number]
    alone = parafac(x, RANK, init="random", random_state=seed, n_iter_max=5, **given)
    model = FlycooCP(RANK, n_starts=1, random_state=seed, n_iter_max=5, options=given).fit(x)
    for expected, found, fitted in zip(
        alone.factors, starts.best.factors, model.cp_tensor_.factors, strict=True
    ):
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(fitted, expected)


def test_modes_go_by_name():
    x = random_tensor(SHAPE, 60, random_state=0)
    labelled = LabelledTensor(
        x, {name: range(size) for name, size in zip("abc", SHAPE, strict=True)}
    )
    options = {"init": "random", "random_state": 0, "n_iter_max": 3, "return_errors": True}
    _, expected = parafac(x, RANK, smoothness={1: 5.0}, **options)
    assert parafac(labelled, RANK, smoothness={"b": 5.0}, **options)[1] == expected
    with pytest.raises(ValueError, match="mode is 'd', expected one of"):
        parafac(labelled, RANK, smoothness={"d": 5.0}, **options)


#: Starts, by seed, kind of data and guess, whose surplus components once became inf.
VANISHING = [
    (0, "random", "svd"),
    (2, "standard_normal", "svd"),
    (7, "random", "random"),
    (17, "random", "random"),
    (25, "standard_normal", "random"),
    (26, "random", "svd"),
    (28, "standard_normal", "random"),
    (32, "standard_normal", "random"),
    (36, "random", "random"),
    (37, "standard_normal", "random"),
    (38, "random", "random"),
]


def make_rank_one(seed, kind):
    rng = np.random.default_rng(seed)
    a, b, c = (getattr(rng, kind)(size) for size in (5, 6, 7))
    return np.einsum("i,j,k->ijk", a, b, c)


@pytest.mark.parametrize(("seed", "kind", "init"), VANISHING)
def test_surplus_components_vanish(seed, kind, init):
    """The best smooth model of any rank, K^-1 X, has rank 1 like X."""
    x = make_rank_one(seed, kind)
    found = parafac(
        FlycooTensor.from_dense(x), 3, init=init, random_state=seed, n_iter_max=60, tol=0,
        smoothness={0: 1.0},
    )  # fmt: skip
    expected = np.tensordot(np.linalg.inv(weigh(np.eye(5), [1.0])), x, (1, 0))
    assert np.abs(tl.cp_to_tensor(found) - expected).max() <= 1e3 * EPS * np.abs(x).max()


@pytest.mark.parametrize("seed", [6, 17])
def test_surplus_components_of_a_ridge_vanish(seed):
    """Their weights once made the Gram matrix inf, of which LAPACK's SVD never ended.

    Beside columns of norm 1 it divides a lone component by 1 + `l2_reg`, and takes less from more.
    """
    x = make_rank_one(seed, "standard_normal").astype(np.float32)
    options = {"n_iter_max": 60, "tol": 0, "l2_reg": 0.1, "normalize_factors": True}
    with pytest.warns(UserWarning, match="of 3 components (is|are) zero"):
        found = parafac(FlycooTensor.from_dense(x), 3, init="random", random_state=seed, **options)
    error = np.linalg.norm(tl.cp_to_tensor(found) - x) / np.linalg.norm(x)
    assert error <= 1 - 1 / 1.1 + 100 * np.finfo(np.float32).eps
