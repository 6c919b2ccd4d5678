"""New slices and columns of PARAFAC2 models, against dense solvers of one slice at a time."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from scipy.optimize import minimize, nnls

from tensorly_flycoo import RaggedTensor, fold_in
from tensorly_flycoo.decomposition import parafac2
from tensorly_flycoo.results import fold_in_parafac2 as module
from tensorly_flycoo.results.fold_in_parafac2 import fold_in_parafac2

RANK, WIDTH = 3, 12
HEIGHTS = (6, 3, 9, 4, 6, 5, 9, 30)


def make_model(seed=0, weights=True, dtype="float64"):
    rng = np.random.default_rng(seed)
    shapes = ((len(HEIGHTS), RANK), (RANK, RANK), (WIDTH, RANK))
    factors = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    factors[0] = abs(factors[0])
    projections = [np.linalg.qr(rng.standard_normal((n, RANK)))[0].astype(dtype) for n in HEIGHTS]
    return (rng.random(RANK).astype(dtype) + 0.5 if weights else None), factors, projections


def absorb(model):
    """Return the factors in float64, and B times the weights."""
    weights, (a, b, c), _ = model
    a, b, c = (factor.astype(float) for factor in (a, b, c))
    return a, b * (1 if weights is None else weights), c


def evaluate(model):
    a, b, c = absorb(model)
    return [p @ b @ np.diag(row) @ c.T for p, row in zip(model[2], a, strict=True)]


def make_dense(model, noise=0.1, seed=1):
    rng = np.random.default_rng(seed)
    return [x + noise * rng.standard_normal(x.shape) for x in evaluate(model)]


def stack(slices, dtype="float64"):
    return RaggedTensor([scipy.sparse.csr_array(x.astype(dtype)) for x in slices])


def find_polar(x, row, b, c):
    left, _, right = np.linalg.svd(x @ c @ np.diag(row) @ b.T, full_matrices=False)
    return left @ right


def measure(x, row, b, c, projection=None):
    projection = find_polar(x, row, b, c) if projection is None else projection
    return np.linalg.norm(x - projection @ b @ np.diag(row) @ c.T)


def search_densely(x, b, c, non_negative):
    """Return the least error of a slice that a general optimiser finds from any signs."""
    triangle = np.linalg.qr(x @ c)[1]
    gram = (b.T @ b) * (c.T @ c)

    def evaluate(row):
        left, roots, right = np.linalg.svd(triangle @ np.diag(row) @ b.T)
        value = np.linalg.norm(x) ** 2 + row @ gram @ row - 2 * roots.sum()
        return value, 2 * gram @ row - 2 * np.diag(triangle.T @ left @ right @ b)

    patterns = itertools.product([1], *[(1,) if non_negative else (-1, 1)] * (RANK - 1))
    bounds = [(0, None)] * RANK if non_negative else None
    options = {"method": "L-BFGS-B", "bounds": bounds, "jac": True}
    found = [minimize(evaluate, signs, **options) for signs in patterns]
    return min(result.fun for result in found) ** 0.5


@pytest.mark.parametrize(("seed", "noise"), [(0, 0.1), (1, 0.5), (2, 2.0)])
@pytest.mark.parametrize("non_negative", [False, True])
def test_the_error_is_the_least_that_an_optimiser_finds(non_negative, noise, seed):
    model = make_model(seed, weights=seed != 1)
    slices = make_dense(model, noise, seed)
    _, b, c = absorb(model)
    rows, projections = fold_in_parafac2(model, stack(slices), 0, non_negative=non_negative)
    assert rows.shape == (len(slices), RANK)
    if non_negative:
        assert (rows >= 0).all()
    for x, row, projection in zip(slices, rows, projections, strict=True):
        assert np.abs(projection.T @ projection - np.eye(RANK)).max() <= 1e-12
        error = measure(x, row, b, c, projection)
        assert error == pytest.approx(measure(x, row, b, c), rel=1e-9)
        assert error <= search_densely(x, b, c, non_negative) * (1 + 1e-6)
        # The rows are those of least squares with these projections.
        best = solve_densely(x, projection @ b, c, np.ones(x.shape, bool), non_negative)
        assert np.abs(row - best).max() <= 1e-8 * np.abs(best).max()


def solve_densely(x, rows, columns, is_known, non_negative=False):
    """Return a for which ``rows diag(a) columns.T`` fits the known entries of x best."""
    design = (rows[:, None, :] * columns[None, :, :])[is_known]
    return (nnls if non_negative else np.linalg.lstsq)(design, x[is_known])[0]


def test_training_slices_of_a_non_negative_model_have_their_own_rows():
    x = stack(make_dense(make_model(3, weights=False), 0.01))
    model = parafac2(x, RANK, random_state=0, n_iter_max=3000, tol=1e-14, nn_modes=[0])
    found = fold_in_parafac2(model, x, 0, non_negative=True)
    own = model.factors[0]
    assert np.abs(found.rows - own).max() <= 1e-4 * own.max()
    for projection, other in zip(found.projections, model.projections, strict=True):
        assert np.abs(projection - other).max() <= 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"normalize_factors": True}], ids=str)
def test_training_slices_have_their_own_rows_or_better_ones(options, dtype):
    """The iteration may have left a slice in a local minimum. Signs of whole rows are free."""
    dense = make_dense(make_model(3, weights=False), 0.01)
    x = stack(dense, dtype)
    n_iter_max = 200 if dtype == "float32" else 3000
    model = parafac2(x, RANK, random_state=0, n_iter_max=n_iter_max, tol=1e-14, **options)
    found = fold_in_parafac2(model, x, 0)
    assert found.rows.dtype == dtype
    own, b, c = absorb(model)
    signs = np.sign((own * found.rows).sum(axis=1))
    tolerance = 1e-4 if dtype == "float64" else 1e-2  # of the iteration
    count = 0
    for k, row in enumerate(found.rows):
        error = measure(dense[k], row.astype(float), b, c)
        own_error = measure(dense[k], own[k], b, c)
        assert error <= own_error * (1 + tolerance)
        if error >= own_error * (1 - tolerance):
            count += 1
            assert np.abs(row - signs[k] * own[k]).max() <= tolerance * np.abs(own).max()
            other = signs[k] * model.projections[k]
            assert np.abs(found.projections[k] - other).max() <= tolerance
    assert count >= 6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weights", [False, True])
def test_columns_are_those_of_least_squares(weights, dtype):
    model = make_model(1, weights, dtype)
    rng = np.random.default_rng(5)
    slices = [rng.standard_normal((n, 7)) * (rng.random((n, 7)) < 0.5) for n in HEIGHTS]
    a, b, _ = absorb(model)
    design = np.concatenate([p @ b @ np.diag(row) for p, row in zip(model[2], a, strict=True)])
    for non_negative in (False, True):
        found = fold_in_parafac2(model, stack(slices, dtype), 2, non_negative=non_negative)
        assert found.projections is model[2]
        assert found.rows.dtype == dtype
        solve = nnls if non_negative else np.linalg.lstsq
        columns = np.concatenate(slices).astype(dtype).astype(float).T
        expected = np.array([solve(design, column)[0] for column in columns])
        bound = np.finfo(dtype).eps * np.linalg.cond(design) ** 2 * len(design)
        assert np.abs(found.rows - expected).max() <= bound * np.abs(expected).max()


def test_training_columns_have_their_own_rows():
    x = stack(make_dense(make_model(3, weights=False), 0.01))
    model = parafac2(x, RANK, random_state=0, n_iter_max=3000, tol=1e-14, normalize_factors=True)
    rows = fold_in_parafac2(model, x, 2).rows
    assert np.abs(rows - model.factors[2]).max() <= 1e-4 * np.abs(model.factors[2]).max()


@pytest.mark.parametrize("non_negative", [False, True])
def test_columns_with_entries_missing(non_negative):
    model = make_model(1)
    rng = np.random.default_rng(5)
    masks = [(rng.random((n, 7)) < 0.6).astype(float) for n in HEIGHTS]
    for mask in masks:
        mask[:, 3] = 0
        mask[:, 4] = 1
    slices = [rng.standard_normal((n, 7)) for n in HEIGHTS]
    a, b, _ = absorb(model)
    design = np.concatenate([p @ b @ np.diag(row) for p, row in zip(model[2], a, strict=True)])
    rows = fold_in_parafac2(model, stack(slices), 2, mask=masks, non_negative=non_negative).rows
    solve = nnls if non_negative else np.linalg.lstsq
    for j, (column, mask) in enumerate(
        zip(np.concatenate(slices).T, np.concatenate(masks).T, strict=True)
    ):
        is_known = mask == 1
        best = solve(design[is_known], column[is_known])[0] if is_known.any() else np.zeros(RANK)
        assert np.abs(rows[j] - best).max() <= 1e-10
    assert (rows[3] == 0).all()


def mask_slices(slices, share, seed=4):
    """Return masks, and slices with other values at missing entries."""
    rng = np.random.default_rng(seed)
    masks = [(rng.random(x.shape) < share).astype(float) for x in slices]
    return masks, [np.where(mask == 1, x, 9.0) for x, mask in zip(slices, masks, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_exact_slices_come_back_with_entries_missing(seed):
    """Not to a local minimum, which other signs would be; a weak component may stay in one."""
    model = make_model(seed)
    masks, slices = mask_slices(evaluate(model), 0.8, seed)
    rows, projections = fold_in_parafac2(model, stack(slices), 0, mask=masks)
    found = evaluate((model[0], [rows, *model[1][1:]], projections))
    pairs = zip(found, evaluate(model), strict=True)
    errors = np.array([np.linalg.norm(part - x) / np.linalg.norm(x) for part, x in pairs])
    assert errors.max() <= 2e-3
    assert (errors <= 1e-8).sum() >= len(errors) - 1


@pytest.mark.parametrize("non_negative", [False, True])
def test_slices_with_entries_missing_are_minima(non_negative):
    """Given the projections, the rows fit the known entries best, and the reverse."""
    model = make_model(2)
    _, b, c = absorb(model)
    masks, slices = mask_slices(make_dense(model, 0.5), 0.7)
    options = {"mask": masks, "non_negative": non_negative}
    rows, projections = fold_in_parafac2(model, stack(slices), 0, **options)
    for x, mask, row, projection in zip(slices, masks, rows, projections, strict=True):
        best = solve_densely(x, projection @ b, c, mask == 1, non_negative)
        assert np.abs(row - best).max() <= 1e-6 * np.abs(best).max()
        imputed = np.where(mask == 1, x, projection @ b @ np.diag(row) @ c.T)
        assert np.abs(projection - find_polar(imputed, row, b, c)).max() <= 1e-6


def test_slices_that_say_little():
    """Without nonzeros, with all entries missing, and with fewer rows than components."""
    model = make_model(2)
    slices = make_dense(model)
    slices[1] = np.zeros((3, WIDTH))
    slices[2] = slices[2][:2]
    masks = [np.ones(x.shape) for x in slices]
    masks[4][:] = 0
    rows, projections = fold_in_parafac2(model, stack(slices), 0, mask=masks)
    assert (rows[1] == 0).all()
    assert (rows[4] == 0).all()
    plain, _ = fold_in_parafac2(model, stack(slices), 0)
    assert (plain[1] == 0).all()
    padded = np.concatenate([slices[2], np.zeros((1, WIDTH))])
    _, b, c = absorb(model)
    error = measure(padded, plain[2], b, c)
    assert error <= search_densely(padded, b, c, False) * (1 + 1e-6)
    assert [p.shape for p in projections] == [(len(x), RANK) for x in slices]


@pytest.mark.parametrize("masked", [False, True])
def test_results_have_the_same_bits_and_slices_do_not_mind_others(masked):
    model = make_model(2)
    slices = make_dense(model, 0.5)
    masks = [np.ones(x.shape) for x in slices]
    masks[0][:3, :5] = 0
    options = {"mask": masks} if masked else {}
    first, second = (fold_in_parafac2(model, stack(slices), 0, **options) for _ in range(2))
    assert np.array_equal(first.rows, second.rows)
    for part, other in zip(first.projections, second.projections, strict=True):
        assert np.array_equal(part, other)
    reverse = {"mask": masks[::-1]} if masked else {}
    turned = fold_in_parafac2(model, stack(slices[::-1]), 0, **reverse)
    assert np.abs(turned.rows[::-1] - first.rows).max() <= 1e-8


def test_signs_are_those_of_the_model(monkeypatch):
    """And blocks of a few slices give the same rows."""
    model = make_model(2)
    x = stack(make_dense(model))
    rows = fold_in_parafac2(model, x, 0).rows
    assert (rows @ model[1][0].sum(axis=0) >= 0).all()
    monkeypatch.setattr(module, "choose_block_size", lambda array, row_length: 3)
    assert np.abs(fold_in_parafac2(model, x, 0).rows - rows).max() <= 1e-9


def test_slices_that_have_not_settled_warn(monkeypatch):
    model = make_model(2)
    monkeypatch.setattr(module, "_MAX_UPDATES", 1)
    with pytest.warns(UserWarning, match="of 8 slices still change by up to .* after 1 updates"):
        fold_in_parafac2(model, stack(make_dense(model, 1.0)), 0)


def test_what_does_not_fit_is_refused():
    model = make_model()
    x = stack(make_dense(model))
    with pytest.raises(ValueError, match="mode is 1, expected 0 or 2: the rows"):
        fold_in_parafac2(model, x, 1)
    with pytest.raises(ValueError, match="mode is 3, expected 0"):
        fold_in_parafac2(model, x, 3)
    with pytest.raises(ValueError, match=f"x has 5 columns, expected {WIDTH}"):
        fold_in_parafac2(model, stack([np.eye(5)]), 0)
    with pytest.raises(ValueError, match="x has 1 slices, expected 8"):
        fold_in_parafac2(model, stack([np.eye(5)]), 2)
    with pytest.raises(ValueError, match=r"slice 1 of x has 4 rows.*expected \(4, 3\)"):
        fold_in_parafac2(model, stack([np.ones((n, 2)) for n in (6, 4, 9, 4, 6, 5, 9, 30)]), 2)
    with pytest.raises(TypeError, match=r"factors.*has dtype float64, expected float32"):
        fold_in_parafac2(model, stack(make_dense(model), "float32"), 0)


def test_a_centred_model_is_refused():
    """It does not keep the means of its columns: rows would be those of other data."""
    slices = [scipy.sparse.random_array((n, 6), density=0.7, rng=n) for n in (5, 6, 7)]
    model = parafac2(slices, 2, center=True, random_state=0, n_iter_max=5)
    with pytest.raises(ValueError, match="cp_tensor was fitted with center=True"):
        fold_in(model, slices, 0)
