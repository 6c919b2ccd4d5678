"""New rows where cells are missing, unknown or weighted, against row-by-row dense fits."""

import numpy as np
import pandas as pd
import pytest
import sparse
from scipy.optimize import minimize, nnls
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, LabelledCP, decomposition, fold_in, from_dataframe
from tensorly_flycoo.base.fit_record import FitRecord, attach

SHAPE, RANK, NUM_NEW = (9, 8, 10), 3, 7

#: The sizes of masks of new rows of mode 0: cells, blocks of whole rows, and blocks of their cells.
MASKS = {"cells": (NUM_NEW, 8, 10), "blocks": (1, 8, 10), "own blocks": (NUM_NEW, 8, 1)}


def make_model(seed=0, non_negative=False):
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((size, RANK)) for size in SHAPE]
    factors = [abs(factor) for factor in factors] if non_negative else factors
    return np.array([0.5, 2.0, 1.0]), factors


def make_new(seed=1, density=0.5):
    """Return new data of mode 0, as a tensor and dense."""
    rng = np.random.default_rng(seed)
    cells = rng.standard_normal((NUM_NEW, *SHAPE[1:])) * (rng.random((NUM_NEW, 8, 10)) < density)
    return FlycooTensor(np.nonzero(cells), cells[np.nonzero(cells)], cells.shape), cells


def make_mask(shape, seed=2):
    is_known = np.random.default_rng(seed).random(shape) > 0.3
    cells = np.stack(np.nonzero(~is_known))
    mask = sparse.COO(cells, np.zeros(cells.shape[1]), shape, fill_value=1.0)
    whole = shape if shape == SHAPE else (NUM_NEW, *SHAPE[1:])
    return mask, np.broadcast_to(is_known, whole)


def make_design(model):
    """Return what a cell of each pair of other indices adds for a row: (80, R)."""
    weights, factors = model
    return np.einsum("jr,kr->jkr", *factors[1:]).reshape(-1, RANK) * weights


def fit_rows(model, cells, weights, non_negative=False):
    """Fit each row to its cells, by weighted least squares over all of them."""
    design, rows = make_design(model), []
    for values, own in zip(cells.reshape(NUM_NEW, -1), weights.reshape(NUM_NEW, -1), strict=True):
        root = np.sqrt(own)
        system = design * root[:, None], values * root
        rows.append(nnls(*system)[0] if non_negative else np.linalg.lstsq(*system)[0])
    return np.array(rows)


@pytest.mark.parametrize("non_negative", [False, True], ids=["free", "non-negative"])
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_missing_cells_do_not_count(shape, non_negative):
    """Systems of three equations with a condition below 100 keep 1e-9 of float64's 16 digits."""
    model, (x, cells) = make_model(non_negative=non_negative), make_new()
    mask, is_known = make_mask(shape)
    expected = fit_rows(model, cells, is_known.astype(float), non_negative)
    found = fold_in(model, x, 0, mask=mask, non_negative=non_negative)
    assert np.abs(found - expected).max() <= 1e-9 * np.abs(expected).max()


@pytest.mark.parametrize("unobserved", [0.0, 0.3])
def test_weighted_cells(unobserved):
    model, (x, cells) = make_model(), make_new()
    coords, _ = x.nonzeros()
    confidence = 1 + np.random.default_rng(3).random(x.nnz)
    weights = np.full(cells.shape, unobserved)
    weights[tuple(coords)] = confidence
    record = FitRecord(
        method="observed_parafac",
        absent="weighted" if unobserved else "unknown",
        unobserved=unobserved,
        is_weighted=True,
    )
    cp = attach(CPTensor(model), record)
    given = FlycooTensor(coords, confidence, x.shape)
    found = fold_in(cp, x, 0, confidence=given, **({} if unobserved else {"l2_reg": 1e-12}))
    expected = fit_rows(model, cells, weights)
    assert np.abs(found - expected).max() <= 1e-8 * np.abs(expected).max()
    with pytest.raises(ValueError, match="confidence is not given"):
        fold_in(cp, x, 0)
    with pytest.raises(ValueError, match="confidence lacks 1 of the nonzeros of x_new"):
        fold_in(cp, x, 0, confidence=FlycooTensor(coords[:, 1:], confidence[1:], x.shape))
    with pytest.raises(ValueError, match="confidence has shape"):
        fold_in(cp, x, 0, confidence=given[:3])


def test_unknown_and_non_negative_rows():
    """What raised an error: rows of an observed, non-negative model."""
    model, (x, cells) = make_model(non_negative=True), make_new(density=0.7)
    expected = fit_rows(model, cells, (cells != 0).astype(float), non_negative=True)
    found = fold_in(model, x, 0, observed=True, non_negative=True, l2_reg=1e-12)
    assert np.abs(found - expected).max() <= 1e-8 * np.abs(expected).max()


def test_counts_of_missing_cells_do_not_count():
    """The likeliest rows, found by a general optimiser from the dense likelihood of known cells."""
    rng = np.random.default_rng(0)
    weights, factors = make_model(non_negative=True)
    design = make_design((weights, factors))
    truth = rng.gamma(2.0, 1.0, (NUM_NEW, RANK))
    counts = rng.poisson(truth @ design.T).astype(float)
    x = counts.reshape(NUM_NEW, 8, 10)
    x = FlycooTensor(np.nonzero(x), x[np.nonzero(x)], x.shape)
    mask, is_known = make_mask(MASKS["cells"])
    found = fold_in((weights, factors), x, 0, loss="poisson_count", mask=mask)
    for row, own, known in zip(found, counts, is_known.reshape(NUM_NEW, -1), strict=True):

        def evaluate(row, own=own[known], design=design[known]):
            means = design @ row
            return means.sum() - own @ np.log(means)

        best = minimize(evaluate, row, bounds=[(1e-12, None)] * RANK, tol=1e-14)
        assert evaluate(row) <= best.fun + 1e-6 * abs(best.fun)


@pytest.mark.usefixtures("flycoo_backend")
def test_the_ridge_of_a_model_counts():
    """At convergence a fit's own rows are those that its data fold in, with its ridge."""
    rng = np.random.default_rng(0)
    factors = [rng.random((size, RANK)) for size in SHAPE]
    cells = np.einsum("ir,jr,kr->ijk", *factors) + 0.1 * rng.random(SHAPE)
    x = FlycooTensor(np.nonzero(cells), cells[np.nonzero(cells)], SHAPE)
    options = {"init": "random", "random_state": 0, "n_iter_max": 3000, "tol": 0, "l2_reg": 0.5}
    for mask in (None, make_mask(SHAPE)[0]):
        cp = decomposition.parafac(x, RANK, mask=mask, linesearch=False, **options)
        labelled = LabelledCP(cp, [np.arange(size) for size in SHAPE])
        for model in (cp, labelled):
            given = {} if mask is None else {"mask": mask}
            for mode in range(3):
                found = fold_in(model, x, mode, **given)
                assert np.abs(found - model.factors[mode]).max() < 1e-3 * np.abs(found).max()


TABLE = pd.DataFrame(
    {
        "user": np.repeat(np.arange(30), 8),
        "film": np.tile(np.arange(8), 30),
        "stars": 1.0 + (np.repeat(np.arange(30), 8) * np.tile(np.arange(8), 30)) % 5,
    }
)


def test_a_model_of_values_transforms_and_extends_by_the_same_column():
    """TRIAL5's A1: ratings were all taken as 1."""
    names = ["user", "film"]
    x = from_dataframe(TABLE[TABLE["user"] < 25], names, "stars", missing="unknown")
    cp = decomposition.observed_parafac(x, 2, biases=True, l2_reg=0.1, random_state=0)
    new = TABLE[TABLE["user"] >= 25]
    found, expected = cp.transform(new, "user"), cp.transform(new, "user", "stars")
    pd.testing.assert_frame_equal(found, expected)
    longer = cp.extend(new, "user")
    assert longer.labels["user"].tolist() == list(range(30))
    predicted = longer.predict(new)
    assert np.sqrt(((predicted - new["stars"]) ** 2).mean()) < np.std(new["stars"])
    rows = found.to_numpy()[np.searchsorted(found.index, new["user"])]
    products = (rows * cp.weights * cp.factors[1][new["film"]]).sum(axis=1)
    np.testing.assert_allclose(predicted, products, rtol=1e-10)
    assert (longer.flycoo.method, longer.components) == ("observed_parafac", cp.components)
    with pytest.raises(ValueError, match="frame has 25 in column 'user', expected labels that are"):
        longer.extend(new, "user")


def test_a_longer_model_keeps_the_mask_of_old_and_new_rows():
    names = ["gene", "type", "donor"]
    rng = np.random.default_rng(0)
    coords = np.stack(np.unravel_index(np.arange(6 * 4 * 5), (6, 4, 5)))
    table = pd.DataFrame(dict(zip(names, coords, strict=True)) | {"level": rng.random(120)})
    is_absent = (table["type"] == 1) & (table["donor"] == 2)
    x = from_dataframe(table[~is_absent], names, "level", missing=["type", "donor"])
    cp = decomposition.parafac(x, 2, init="random", random_state=0)
    genes = cp.extend(table[~is_absent].assign(gene=lambda part: part["gene"] + 10), "gene")
    assert genes.flycoo.mask.shape == (1, 4, 5)
    new = table[~is_absent & (table["donor"] < 2)].assign(donor=lambda part: part["donor"] + 10)
    with pytest.raises(ValueError, match="mask is not given"):
        cp.extend(new, "donor")
    new = new[(new["type"] != 3) | (new["donor"] != 11)]
    donors = cp.extend(new, "donor", missing=["type", "donor"])
    mask = np.ones((4, 7))
    mask[1, 2] = mask[3, 6] = 0
    np.testing.assert_array_equal(donors.flycoo.mask.todense()[0], mask)
