"""One factor for several modes: against dense steps, planted models, records and refusals."""

import numpy as np
import pandas as pd
import pytest
import sparse
import tensorly as tl
from falling_errors import assert_never_rise
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from tensorly_flycoo import FlycooTensor, Progress, diagnose, fold_in, from_dataframe, uncertainty
from tensorly_flycoo.decomposition import shared_parafac
from tensorly_flycoo.loop import gauss_newton
from tensorly_flycoo.loop.run import RunModel
from tensorly_flycoo.loop.shared_factors import SharedSweep, read_groups, share_factors
from tensorly_flycoo.loop.whole_tensor import WholeTensor
from tensorly_flycoo.testing import random_tensor

RANK = 3
EPS = np.finfo(float).eps

#: Shapes, modes that share, and the modes that do so as groups.
CASES = [
    ((6, 4, 6), (0, 2)),
    ((5, 5, 7), [(0, 1)]),
    ((4, 3, 4, 3), [(0, 2), (3, 1)]),
    ((5, 5, 5, 4), (0, 1, 2)),
    ((6, 6, 6), (0, 1, 2)),
    ((8, 8), (1, 0)),
]
EACH_CASE = pytest.mark.parametrize(("shape", "modes"), CASES, ids=str)


def make_tensor(shape, seed=0):
    return random_tensor(shape, int(np.prod(shape)) // 3, random_state=seed)


def make_guess(shape, modes, seed=1):
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((size, RANK)) for size in shape]
    return share_factors(factors, read_groups(modes, shape))


def make_dense(cp_tensor):
    return tl.cp_to_tensor((cp_tensor[0], cp_tensor[1]))


def compute_error(x, cp_tensor):
    dense = x.to_coo().todense()
    return np.linalg.norm(dense - make_dense(cp_tensor)) / np.linalg.norm(dense)


def list_parameters(shape, modes):
    """List the parameters of a model: (group, index); weights are a group None."""
    groups = read_groups(modes, shape)
    listed = [(g, i) for g in groups for i in np.ndindex(shape[g[0]], RANK)]
    if all(len(group) > 1 for group in groups):
        listed += [(None, (0, k)) for k in range(RANK)]
    return listed


def make_jacobian(weights, factors, parameters):
    """Return the derivatives of all cells of a model by its parameters."""
    columns = []
    row = np.ones(RANK) if weights is None else weights
    for group, index in parameters:
        modes = [None] if group is None else group
        column = 0
        for mode in modes:
            changed, of_weights = list(factors), row
            unit = np.zeros_like(row[None] if mode is None else factors[mode])
            unit[index] = 1
            if mode is None:
                of_weights = unit[0]
            else:
                changed[mode] = unit
            column = column + make_dense((of_weights, changed))
        columns.append(column.ravel())
    return np.stack(columns, axis=1)


@EACH_CASE
@pytest.mark.parametrize("ridge", [0, 5.0])
def test_a_step_is_that_of_the_shared_jacobian(shape, modes, ridge, monkeypatch):
    """One dense step from the model whose best part has been found, with the same damping."""
    monkeypatch.setattr(gauss_newton, "_MAX_CG", 500)
    monkeypatch.setattr(gauss_newton, "_SHARE_LEFT", 1e-13)
    x = make_tensor(shape)
    groups = read_groups(modes, shape)
    has_weights = all(len(group) > 1 for group in groups)
    ridge = 0 if has_weights else ridge
    sweep = SharedSweep(WholeTensor(x), RunModel(None, make_guess(shape, modes)), groups, ridge, {})
    start = sweep._find_best_part(sweep.model.factors)
    sweep._damping.strength = 0.5
    products = sweep._average_products(start)
    moved = sweep._move(start, products, sweep._multiply_factors(start, products))

    parameters = list_parameters(shape, modes)
    jacobian = make_jacobian(start.weights, start.factors, parameters)
    residual = make_dense((start.weights, start.factors)) - x.to_coo().todense()
    counts = np.array([0 if group is None else len(group) for group, _ in parameters])
    values = np.array([0 if g is None else start.factors[g[0]][i] for g, i in parameters])
    slope = jacobian.T @ residual.ravel() + ridge * counts * values
    curvature = jacobian.T @ jacobian + ridge * np.diag(counts)
    # The damping is relative to the diagonals of the systems of single modes.
    grams = [factor.T @ factor for factor in start.factors]
    square = np.ones(RANK) if start.weights is None else start.weights**2
    damping = []
    for group, (_, k) in parameters:
        others = [gram[k, k] for n, gram in enumerate(grams) if group is None or n != group[0]]
        of_mode = np.prod(others) * (1 if group is None else square[k]) + ridge
        damping.append(0.5 * of_mode * (1 if group is None else len(group)))
    step = -np.linalg.solve(curvature + np.diag(damping), slope)
    for (group, index), change in zip(parameters, step, strict=True):
        if group not in (None, (sweep._last,)):  # whose best values are found afterwards
            found = moved[group[0]][index] - start.factors[group[0]][index]
            assert abs(found - change) <= 1e-9 * abs(step).max()


@EACH_CASE
def test_errors_are_dense_ones_and_a_converged_model_has_no_gradient(shape, modes):
    x = make_tensor(shape)
    options = {"random_state": 0, "n_iter_max": 2000, "tol": 1e-15, "return_errors": True}
    cp, errors = shared_parafac(x, 2, modes, **options)
    assert abs(compute_error(x, cp) - errors[-1]) <= 1e-10
    for group in read_groups(modes, shape):
        for mode in group[1:]:
            np.testing.assert_array_equal(cp.factors[mode], cp.factors[group[0]])
    residual = make_dense(cp) - x.to_coo().todense()
    for group in read_groups(modes, shape):
        gradient = 0
        size = 0
        for mode in group:
            unfolded = tl.unfold(residual, mode)
            design = tl.tenalg.khatri_rao(cp.factors, skip_matrix=mode) * cp.weights
            gradient = gradient + unfolded @ design
            size += np.linalg.norm(unfolded) * np.linalg.norm(design)
        # Errors of 1e-15 apart leave a gradient of about the root of that.
        assert np.linalg.norm(gradient) <= 1e-6 * size


@quick
@given(st.sampled_from(CASES), st.integers(0, 50), st.sampled_from(["float64", "float32"]))
def test_errors_never_rise(case, seed, dtype):
    shape, modes = case
    x = make_tensor(shape, seed).astype(dtype)
    options = {"random_state": seed, "n_iter_max": 12, "tol": 0, "return_errors": True}
    _, errors = shared_parafac(x, RANK, modes, **options)
    assert_never_rise(errors, dtype)


def test_the_squared_error_and_the_ridge_together_never_rise():
    x = make_tensor((12, 5, 12))
    losses = []

    def note(cp, error):
        ridge = 0.1 * sum((factor**2).sum() for factor in cp.factors)
        losses.append(float(error) ** 2 * float(x.norm()) ** 2 + ridge)

    shared_parafac(x, RANK, (0, 2), l2_reg=0.1, random_state=0, tol=0, callback=note)
    assert (np.diff(losses) <= 32 * EPS * losses[0]).all()
    assert losses[-1] < losses[1]


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_model_is_found(seed):
    rng = np.random.default_rng(seed)
    people, kinds = rng.standard_normal((30, 4)), rng.standard_normal((6, 4))
    x = FlycooTensor.from_dense(np.einsum("ak,rk,bk->arb", people, kinds, people))
    cp = shared_parafac(x, 4, (0, 2), random_state=seed, n_iter_max=60)
    planted = people / np.linalg.norm(people, axis=0)
    found = cp.factors[0] / np.linalg.norm(cp.factors[0], axis=0)
    # An error of 1e-8 of the model moves factors by a condition of about 1e2 more.
    assert np.abs(planted.T @ found).max(axis=1) == pytest.approx(np.ones(4), abs=1e-6)


def test_weights_have_the_signs_of_a_symmetric_matrix():
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((12, 2)))
    dense = basis * [3.0, -1.0] @ basis.T
    cp, errors = shared_parafac(
        FlycooTensor.from_dense(dense), 2, (0, 1), random_state=0, return_errors=True
    )
    assert errors[-1] < 1e-6
    assert sorted(np.sign(cp.weights)) == [-1, 1]


def test_it_needs_fewer_iterations_than_symmetrised_alternating_updates():
    """Those crawl for hundreds; steps of the whole model converge in some ten."""
    rng = np.random.default_rng(0)
    people, kinds = 2 + rng.standard_normal((30, 5)), rng.standard_normal((10, 5))
    x = FlycooTensor.from_dense(np.einsum("ak,rk,bk->arb", people, kinds, people))
    _, errors = shared_parafac(x, 5, (0, 2), random_state=0, return_errors=True)
    assert len(errors) < 25
    assert errors[-1] < 1e-6


@EACH_CASE
def test_a_resumed_run_has_the_same_bits(shape, modes, tmp_path):
    x = make_tensor(shape)
    options = {"random_state": 0, "tol": 0, "return_errors": True}
    expected, errors = shared_parafac(x, RANK, modes, n_iter_max=8, **options)
    path = tmp_path / "run.npz"
    with Progress(4, show=None, checkpoint=path, every=1) as progress:
        shared_parafac(x, RANK, modes, n_iter_max=4, callback=progress, **options)
    init = Progress(8, checkpoint=path).resume()
    found, others = shared_parafac(x, RANK, modes, n_iter_max=4, init=init, **options)
    assert others == errors[4:]
    np.testing.assert_array_equal(found.weights, expected.weights)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


@EACH_CASE
@pytest.mark.parametrize("exponent", [300, -300])
def test_values_times_a_power_of_two_give_the_same_errors(shape, modes, exponent):
    x = make_tensor(shape)
    options = {"random_state": 0, "n_iter_max": 5, "return_errors": True}
    cp, errors = shared_parafac(x, RANK, modes, **options)
    scaled, others = shared_parafac(x * 2.0**exponent, RANK, modes, **options)
    np.testing.assert_allclose(others, errors, rtol=1e-9)
    expected = make_dense(cp)
    found = make_dense(scaled) * 2.0**-exponent
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * abs(expected).max())


def test_a_guess_with_weights_begins_there():
    shape, modes = (6, 6, 6), (0, 1, 2)
    x = make_tensor(shape)
    guess = np.array([1.0, -2.0, 0.5]), make_guess(shape, modes)
    for case in (modes, (0, 1)):
        seen = []
        shared_parafac(x, RANK, case, init=guess, callback=lambda cp, e, s=seen: s.append((cp, e)))
        cp, error = seen[0]
        np.testing.assert_array_equal(cp.weights, guess[0])
        assert abs(error - compute_error(x, guess)) <= 1e-10


TRIPLES = pd.DataFrame(
    [("a", "likes", "b"), ("b", "likes", "c"), ("c", "knows", "a"), ("b", "knows", "a")],
    columns=["head", "relation", "tail"],
)


def test_modes_by_name_need_the_same_labels():
    names = {"labels": {"head": list("abc"), "tail": list("abc")}}
    x = from_dataframe(TRIPLES, [*TRIPLES.columns], **names)
    cp = shared_parafac(x, 1, ("head", "tail"), random_state=0)
    assert cp.flycoo.constraints == {0: {"shared_factor": 1.0}, 2: {"shared_factor": 1.0}}
    assert [*cp.labels] == ["head", "relation", "tail"]
    names["labels"]["tail"] = list("acb")
    x = from_dataframe(TRIPLES, [*TRIPLES.columns], **names)
    with pytest.raises(ValueError, match="modes 'head' and 'tail' have different labels"):
        shared_parafac(x, 1, ("head", "tail"))
    with pytest.raises(ValueError, match="mode is 'object', expected one of"):
        shared_parafac(x, 1, ("head", "object"))


def test_functions_that_know_no_shared_factor_refuse_by_name():
    x = make_tensor((6, 4, 6))
    cp = shared_parafac(x, 2, (0, 2), random_state=0)
    for call in (
        lambda: diagnose(x, cp),
        lambda: uncertainty(x, cp, 1),
        lambda: fold_in(cp, x, 0),
    ):
        with pytest.raises(ValueError, match="shared_factor"):
            call()
    fold_in(cp, x, 1)


X = make_tensor((6, 4, 6, 6))
REFUSED = [
    ({"modes": 0}, TypeError, "modes is 0, expected modes that share a factor"),
    ({"modes": "ab"}, TypeError, "modes is 'ab', expected modes that share a factor"),
    ({"modes": (0, 1.5)}, TypeError, "a mode of modes is 1.5"),
    ({"modes": (0, 4)}, ValueError, "a mode of modes is 4, expected 0 to 3"),
    ({"modes": (0,)}, ValueError, r"modes is \(0,\), expected two or more that share"),
    ({"modes": (0, 1)}, ValueError, r"modes \(0, 1\) have the sizes \[6, 4\]"),
    ({"modes": (0, 0)}, ValueError, r"modes is \(0, 0\), expected mode 0 once"),
    ({"modes": [(0, 2), (2, 3)]}, ValueError, "expected mode 2 once"),
    ({"init": (None, [np.ones((n, 2)) + k for k, n in enumerate(X.shape)])},
     ValueError, r"factors\[2\] of init differs from factors\[0\]"),
    ({"l2_reg": -1}, ValueError, "l2_reg is -1"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "text"), REFUSED, ids=lambda part: str(part)[:40])
def test_wrong_arguments_are_refused_by_name(options, error, text):
    with pytest.raises(error, match=text):
        shared_parafac(X, 2, **{"modes": (0, 2)} | options)


def test_data_that_it_cannot_fit_are_refused():
    with pytest.raises(ValueError, match=r"l2_reg is 0\.1, expected 0 where every mode shares"):
        shared_parafac(make_tensor((5, 5)), 2, (0, 1), l2_reg=0.1)
    with pytest.raises(ValueError, match="has no nonzeros"):
        shared_parafac(sparse.COO(np.zeros((4, 3, 4))), 2, (0, 2))
    with pytest.raises(TypeError, match="x is a ndarray, expected a FlycooTensor"):
        shared_parafac(np.ones((4, 3, 4)), 2, (0, 2))
