"""New rows, masks that models know, and their diagnostics on the GPU, compared with the CPU."""

import cupy
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sparse

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    best_of,
    core_consistency,
    coupled_parafac,
    cp_fit,
    decomposition,
    fold_in,
    from_dataframe,
    observed_parafac,
    uncertainty,
)

SHAPE, RANK = (60, 12, 15), 3
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
DEVICES = ("cuda", "cpu")


def make_cells(seed=0):
    """Return coordinates and values of a third of the cells of a planted tensor."""
    rng = np.random.default_rng(seed)
    factors = [rng.random((size, RANK)) + 0.1 for size in SHAPE]
    cells = np.einsum("ir,jr,kr->ijk", *factors) + 0.01 * rng.random(SHAPE)
    coords = np.stack(np.nonzero(rng.random(SHAPE) < 0.3))
    return coords, cells[tuple(coords)]


def make_tensor(device, dtype="float64"):
    return FlycooTensor(*make_cells(), SHAPE, dtype=dtype, device=device)


def make_mask(shape, seed=1):
    is_missing = np.random.default_rng(seed).random(shape) < 0.1
    coords = np.stack(np.nonzero(is_missing))
    return sparse.COO(coords, np.zeros(coords.shape[1]), shape, fill_value=1.0)


def assert_near(found, expected, dtype):
    found = found.get() if isinstance(found, cupy.ndarray) else found
    bound = 1e-8 if dtype == "float64" else 2e-3
    assert np.abs(found - expected).max() <= bound * np.abs(expected).max()


MASKS = {"cells": SHAPE, "blocks": (1, *SHAPE[1:]), "rows": (SHAPE[0], SHAPE[1], 1)}


@DTYPES
@pytest.mark.parametrize("non_negative", [False, True], ids=["free", "non-negative"])
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_rows_with_missing_cells(shape, non_negative, dtype):
    rows = []
    for device in DEVICES:
        x = make_tensor(device, dtype)
        model = (None, [f.astype(dtype) for f in make_factors(x)])
        rows.append(fold_in(model, x, 0, mask=make_mask(shape), non_negative=non_negative))
    assert isinstance(rows[0], cupy.ndarray)
    assert_near(*rows, dtype)


def make_factors(x):
    rng = np.random.default_rng(3)
    return [x._engine.xp.asarray(rng.random((size, RANK))) for size in SHAPE]


@DTYPES
@pytest.mark.parametrize("unobserved", [0, 0.2])
def test_rows_with_confidence(unobserved, dtype):
    rows = []
    for device in DEVICES:
        x = make_tensor(device, dtype)
        coords, values = make_cells()
        weights = FlycooTensor(coords, 1 + values, SHAPE, dtype=dtype, device=device)
        options = {"confidence": weights, "unobserved": unobserved, "cg_steps": 0}
        model = observed_parafac(x, RANK, 2, l2_reg=0.1, random_state=0, **options)
        rows.append(fold_in(model, x, 1, confidence=weights))
    assert_near(*rows, dtype)


@DTYPES
@pytest.mark.parametrize("own", [{}, {"observed": True}, {"mask": make_mask(SHAPE)}], ids=str)
def test_rows_of_tucker(own, dtype):
    rows = []
    for device in DEVICES:
        x = make_tensor(device, dtype)
        core, factors = decomposition.tucker(make_tensor("cpu", dtype), [2, 3, 2], random_state=0)
        model = x._engine.xp.asarray(core), [x._engine.xp.asarray(f) for f in factors]
        rows.append(fold_in(model, x, 0, **own))
    assert_near(*rows, dtype)


@pytest.mark.parametrize("has_mask", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("mode", [0, 2])
def test_rows_of_parafac2(mode, has_mask):
    rng = np.random.default_rng(0)
    slices = [scipy.sparse.random_array((n, 10), density=0.6, rng=n) for n in (8, 9, 12, 7)]
    masks = [(rng.random(of.shape) > 0.1).astype(float) for of in slices] if has_mask else None
    rows = []
    for device in DEVICES:
        given = [FlycooTensor.from_scipy(of, device=device) for of in slices]
        model = decomposition.parafac2(given, 2, random_state=0, n_iter_max=50)
        rows.append(fold_in(model, given, mode, mask=masks))
    assert_near(*rows, "float32")  # the models differ by rounding errors, which iterations amplify


def test_rows_of_coupled_models():
    rng = np.random.default_rng(0)
    tags = scipy.sparse.random_array((60, 8), density=0.4, rng=rng)
    new = rng.random((5, 8))
    rows = []
    for device in DEVICES:
        blocks = [(make_tensor(device), tuple("uij")), (tags, ("u", "tag"))]
        model = coupled_parafac(blocks, 2, n_iter_max=5, random_state=0)
        data = FlycooTensor.from_dense(new, device=device)
        rows.append(fold_in(model, [(data, ("u", "tag"))], "u"))
    assert isinstance(rows[0], cupy.ndarray)
    assert_near(*rows, "float64")


def test_diagnostics_know_the_mask():
    """Of float64: iterations of the fits amplify what the devices round differently."""
    results = []
    for device in DEVICES:
        x = make_tensor(device)
        options = {"mask": make_mask(MASKS["blocks"]), "init": "random", "random_state": 0}
        cp = decomposition.parafac(x, RANK, n_iter_max=3, **options)
        found = uncertainty(x, cp, mode=0, n=5, random_state=0)
        ends = [end for pair in found.cp_tensor.intervals[1:] for end in pair]
        results.append([cp_fit(x, cp).rmse, core_consistency(x, cp), *ends])
    for found, expected in zip(*results, strict=True):
        assert_near(np.asarray(found), np.asarray(expected), "float64")


def test_a_table_that_knows_its_unknown_cells(tmp_path):
    """Results of a table's tensor are NumPy's, and the file keeps the record."""
    coords, values = make_cells()
    names = ["user", "item", "day"]
    table = pd.DataFrame(dict(zip(names, coords, strict=True)) | {"stars": values})
    table = table[(table["item"] + table["day"]) % 7 > 0]
    models = []
    for device in DEVICES:
        options = {"missing": ["item", "day"], "device": device}
        x = from_dataframe(table, names, "stars", **options)
        cp = best_of("parafac", x, RANK, 3, random_state=0, n_iter_max=5).best
        cp.save(tmp_path / "cp.npz")
        loaded = LabelledCP.load(tmp_path / "cp.npz")
        assert np.array_equal(loaded.flycoo.mask.coords, x.unknown.coords)
        new = table[table["user"] < 3].assign(user=lambda part: part["user"] + 1000)
        longer = loaded.extend(new, "user", missing=["item", "day"])
        models.append((cp, longer))
    (found, longer), (_, other) = models
    assert all(isinstance(factor, np.ndarray) for factor in found.factors)
    for own, factor in zip(longer.factors, other.factors, strict=True):
        assert_near(own, factor, "float32")
    assert longer.flycoo.value_column == "stars"
