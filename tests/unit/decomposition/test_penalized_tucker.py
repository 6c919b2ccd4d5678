"""Tucker with penalised rows: an iteration in NumPy, its objective, the minimum and refusals."""

import numpy as np
import pytest
import scipy.linalg
import tensorly as tl
from row_penalty_statements import find_excess, measure_penalty, update_densely
from tensorly.tucker_tensor import TuckerTensor

from tensorly_flycoo import FlycooTensor, LabelledTensor
from tensorly_flycoo.decomposition import tucker
from tensorly_flycoo.testing import random_tensor

SHAPE, RANKS = (12, 9, 10), [3, 2, 4]
EPS = np.finfo(float).eps

#: Penalties by mode: name and strength.
CASES = [
    {2: ("l1_reg", 0.3)},
    {0: ("group_lasso", 0.4), 1: ("l1_reg", 0.1)},
    dict.fromkeys(range(3), ("l1_reg", 0.1)),
]
EACH_CASE = pytest.mark.parametrize("penalties", CASES, ids=["one", "two", "all"])

pytestmark = pytest.mark.usefixtures("flycoo_backend")


def make_tensor(dtype="float64"):
    return random_tensor(SHAPE, 400, random_state=0, dtype=dtype)


def make_guess(x):
    rng = np.random.RandomState(1)
    factors = [rng.random_sample(size) for size in zip(SHAPE, RANKS, strict=True)]
    return TuckerTensor((rng.random_sample(RANKS), factors))


def make_options(penalties):
    """Return the options of `tucker` for penalties by mode."""
    options = {"l1_reg": {}, "group_lasso": {}}
    for mode, (name, strength) in penalties.items():
        options[name][mode] = strength
    return options


def find_objective(dense, core, factors, penalties):
    residual = dense - tl.tucker_to_tensor((core, factors))
    penalty = sum(measure_penalty(*penalties[mode], factors[mode]) for mode in penalties)
    return (residual**2).sum() / 2 + (core**2).sum() + penalty


def fit_core(dense, factors):
    """Solve the system of the core, whose matrix is a Kronecker product and twice the identity."""
    products = tl.tenalg.multi_mode_dot(dense, factors, transpose=True)
    matrix = tl.tenalg.kronecker([factor.T @ factor for factor in factors])
    return np.linalg.solve(matrix + 2 * np.eye(len(matrix)), products.ravel()).reshape(RANKS)


def make_system(dense, core, factors, mode):
    """Return the targets and the Gram matrix of the systems of a factor's rows."""
    design = tl.unfold(tl.tenalg.multi_mode_dot(core, factors, skip=mode), mode)
    return tl.unfold(dense, mode) @ design.T, design @ design.T


@EACH_CASE
def test_an_iteration_is_that_of_numpy(penalties):
    x = make_tensor()
    dense, guess = x.to_coo().todense(), make_guess(x)
    options = make_options(penalties) | {"n_iter_max": 1, "tol": 0, "return_errors": True}
    found, errors = tucker(x, RANKS, init=guess, **options)

    factors = [
        factor if mode in penalties else np.linalg.qr(factor)[0]
        for mode, factor in enumerate(guess.factors)
    ]
    core = fit_core(dense, factors)
    for mode in range(3):
        targets, gram = make_system(dense, core, factors, mode)
        if mode in penalties:
            factors[mode] = update_densely(*penalties[mode], factors[mode], targets, gram)
        else:
            factors[mode], _ = scipy.linalg.polar(targets)
        core = fit_core(dense, factors)
    model = tl.tucker_to_tensor((core, factors))
    error = np.linalg.norm(dense - model) / np.linalg.norm(dense)
    assert errors[-1] == pytest.approx(error, rel=1e-10)
    for one, other in zip([found.core, *found.factors], [core, *factors], strict=True):
        # The sign of a column of an orthonormal start is open, and so is that of a core's slice.
        np.testing.assert_allclose(abs(one), abs(other), rtol=0, atol=1e-10 * abs(other).max())


@EACH_CASE
@pytest.mark.parametrize("init", ["random", "svd"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_objective_never_rises(penalties, init, dtype):
    x = make_tensor(dtype)
    dense = x.to_coo().todense().astype(float)
    objectives = []

    def note(model, error):
        core, factors = (model.core.astype(float), [f.astype(float) for f in model.factors])
        objectives.append(find_objective(dense, core, factors, penalties))

    options = make_options(penalties) | {"random_state": 0, "n_iter_max": 60, "tol": 0}
    tucker(x, RANKS, init=init, callback=note, **options)
    assert objectives[-1] < 0.99 * objectives[0]
    # A sum for each element of the model and the targets, and of their inner products.
    rounding = (x.nnz + 2 * sum(RANKS)) * np.finfo(dtype).eps * objectives[0]
    assert np.diff(objectives).max() <= rounding


@EACH_CASE
def test_a_converged_model_is_a_critical_point(penalties):
    x = make_tensor()
    dense = x.to_coo().todense()
    options = make_options(penalties) | {"n_iter_max": 3000, "tol": 1e-15}
    core, factors = tucker(x, RANKS, **options)
    unit = np.linalg.norm(dense)
    np.testing.assert_allclose(core, fit_core(dense, factors), rtol=0, atol=1e-10 * unit)
    for mode, factor in enumerate(factors):
        targets, gram = make_system(dense, core, factors, mode)
        if mode in penalties:
            excess = find_excess(*penalties[mode], factor, factor @ gram - targets)
        else:
            identity = np.eye(RANKS[mode])
            np.testing.assert_allclose(factor.T @ factor, identity, rtol=0, atol=1e3 * EPS)
            # On orthonormal matrices, the gradient is what no symmetric matrix times them gives.
            inner = factor.T @ targets
            excess = abs(targets - factor @ (inner + inner.T) / 2).max()
        # Errors that differ by 1e-15 leave a gradient of about the root of that.
        assert excess <= 1e-5 * unit


def test_missing_entries_are_imputed():
    """The objective over the known cells never rises."""
    x = make_tensor()
    dense = x.to_coo().todense()
    mask = np.random.default_rng(0).random(SHAPE) < 0.9
    objectives = []

    def note(model, error):
        filled = np.where(mask, dense, tl.tucker_to_tensor(model))
        objectives.append(find_objective(filled, *model, CASES[0]))

    options = make_options(CASES[0]) | {"init": "random", "random_state": 0, "tol": 0}
    tucker(x, RANKS, mask=mask, n_iter_max=30, callback=note, **options)
    assert np.diff(objectives).max() <= x.nnz * EPS * objectives[0]


def test_a_strong_penalty_of_rows_drops_them():
    x = make_tensor()
    _, factors = tucker(x, RANKS, group_lasso={0: 2.5}, n_iter_max=100)
    is_zero = (factors[0] == 0).all(axis=1)
    assert 0 < is_zero.sum() < SHAPE[0]


@pytest.mark.parametrize("seed", range(3))
def test_an_l1_penalty_finds_planted_groups(seed):
    """Each item has the component of its group alone, where a plain model gives it all three."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 3, 40)
    slices = np.linalg.qr(rng.standard_normal((8, 3)))[0]  # of the core, for each group
    core = 3 * slices.reshape(4, 2, 3)
    users, days = rng.standard_normal((60, 4)), rng.standard_normal((25, 2))
    cells = tl.tucker_to_tensor((core, [users, days, np.eye(3)[groups]]))
    x = FlycooTensor.from_dense(np.where(abs(cells) > 2, cells, 0))
    _, factors = tucker(x, [4, 2, 3], l1_reg={2: 1000.0})
    components = [np.unique(np.nonzero(factors[2][groups == group])[1]) for group in range(3)]
    assert sorted(map(tuple, components)) == [(0,), (1,), (2,)]
    assert factors[2].any(axis=1).all()
    _, plain = tucker(x, [4, 2, 3])
    assert plain[2].all()


def test_all_zeros_are_warned_of():
    with pytest.warns(UserWarning, match=r"tucker ended in all zeros: l1_reg=1000\.0 is too stro"):
        core, _ = tucker(make_tensor(), RANKS, l1_reg=1e3)
    assert not core.any()


def test_modes_may_be_named():
    x = make_tensor()
    names = ["user", "item", "day"]
    labels = {name: np.arange(size) for name, size in zip(names, SHAPE, strict=True)}
    found = tucker(LabelledTensor(x, labels), RANKS, l1_reg={"day": 0.3}, n_iter_max=3)
    expected = tucker(x, RANKS, l1_reg={2: 0.3}, n_iter_max=3)
    np.testing.assert_array_equal(found.factors[2], expected.factors[2])
    assert found.flycoo.constraints == {2: {"l1_reg": 0.3}}


@pytest.mark.parametrize("layout", ["remap", "indexed"])
def test_layouts_give_the_same_bits(layout):
    x = make_tensor()
    other = FlycooTensor(*x.nonzeros(), SHAPE, layout=layout)
    options = {"l1_reg": {2: 0.3}, "n_iter_max": 3}
    expected, found = tucker(x, RANKS, **options), tucker(other, RANKS, **options)
    for one, two in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(one, two)


BAD = {
    "two": ({"l1_reg": {0: 1}, "group_lasso": {0: 1}}, "both given for mode 0"),
    "fixed": ({"l1_reg": 1, "fixed_factors": [0]}, "fixed_factors is .* penalties"),
    "rank": ({"l1_reg": {0: 1}, "rank": [3, 10, 4]}, "rank is 10 in mode 1, expected at most 9"),
}


@pytest.mark.parametrize(("options", "words"), BAD.values(), ids=BAD)
def test_refusals(options, words):
    x = make_tensor()
    given = {"rank": RANKS, "init": make_guess(x)} | options
    if "rank" in options:
        given["init"] = "random"
    with pytest.raises(ValueError, match=words):
        tucker(x, **given)
