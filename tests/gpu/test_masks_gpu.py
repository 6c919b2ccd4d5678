"""Missing values and completion on the GPU, compared with the CPU."""

import cupy
import numpy as np
import pytest
import sparse
from sides import fetch
from tensorly.decomposition import non_negative_parafac, parafac

from tensorly_flycoo import FlycooTensor, cp_fit, fold_in, observed_parafac
from tensorly_flycoo.decomposition import non_negative_tucker, parafac2, tucker
from tensorly_flycoo.loop.masks import MissingEntries

SHAPE, RANK = (30, 40, 50), 3
LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
FUNCTIONS = {"parafac": parafac, "non-negative": non_negative_parafac}
BY_FUNCTION = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
OPTIONS = {
    "random": {"init": "random"},
    "svd": {},
    "tol=0": {"init": "random", "tol": 0, "return_errors": False},
    "normalize": {"init": "random", "normalize_factors": True},
}


def make_coo(dtype="float64"):
    """Make a noisy tensor of three communities, with well-determined factors."""
    rng = np.random.RandomState(0)
    groups = np.meshgrid(*(np.arange(size) % 3 for size in SHAPE), indexing="ij")
    is_same = (groups[0] == groups[1]) & (groups[1] == groups[2])
    levels = np.where(is_same, np.array([0.9, 0.6, 0.3])[groups[0]], 0.02)
    coords = np.stack(np.nonzero(rng.random_sample(SHAPE) < levels))
    values = (0.5 + rng.random_sample(coords.shape[1])).astype(dtype)
    return sparse.COO(coords, values, SHAPE)


def make_mask(coo):
    """Return a mask that leaves out fifty nonzeros and fifty other cells."""
    rng = np.random.RandomState(1)
    stored = rng.choice(coo.nnz, 50, replace=False)
    others = np.stack([rng.randint(0, size, 50) for size in coo.shape])
    coords = np.unique(np.concatenate([coo.coords[:, stored], others], axis=1), axis=1)
    return sparse.COO(coords, np.zeros(coords.shape[1]), coo.shape, fill_value=1.0)


def assert_near(found, expected, dtype, x=None):
    """Compare results of `x` with the CPU's; a few iterations amplify rounding errors."""
    bound = 1e-8 if dtype == "float64" else 1e-2
    for array, other in zip(found, expected, strict=True):
        assert array.dtype == dtype
        assert np.abs(fetch(array, x) - other).max() <= bound * np.abs(other).max()


@BY_FUNCTION
@DTYPES
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_masks(options, dtype, function):
    coo = make_coo(dtype)
    options = {"n_iter_max": 5, "tol": 1e-30, "random_state": 0, "return_errors": True} | options
    results = []
    for device in ("cuda", "cpu"):
        x = FlycooTensor.from_coo(coo, device=device)
        result = function(x, RANK, mask=make_mask(coo), **options)
        results.append(result if options["return_errors"] else (result, []))
    (found, errors), (expected, expected_errors) = results
    assert_near(found.factors, expected.factors, dtype)
    bound = 1e-7 if dtype == "float64" else 1e-2
    assert np.allclose([float(e) for e in errors], expected_errors, rtol=0, atol=bound)


def make_blocks():
    """Return a small mask that leaves out whole blocks of cells."""
    return (np.random.RandomState(2).random_sample((SHAPE[0], 1, SHAPE[2])) < 0.9) * 1.0


@BY_FUNCTION
@DTYPES
def test_masks_that_broadcast(dtype, function):
    coo = make_coo(dtype)
    options = {"init": "random", "random_state": 0, "n_iter_max": 5, "mask": make_blocks()}
    found, expected = (
        function(FlycooTensor.from_coo(coo, device=device), RANK, **options).factors
        for device in ("cuda", "cpu")
    )
    assert_near(found, expected, dtype)


@pytest.mark.parametrize(
    "make", [make_blocks, lambda: make_mask(make_coo())], ids=["blocks", "list"]
)
@pytest.mark.parametrize("function", [tucker, non_negative_tucker])
def test_masks_of_tucker(function, make):
    coo, options = make_coo(), {"init": "random", "random_state": 0, "n_iter_max": 5}
    (core, factors), (own_core, own_factors) = (
        function(FlycooTensor.from_coo(coo, device=device), (2, 3, 2), mask=make(), **options)
        for device in ("cuda", "cpu")
    )
    assert_near([core, *factors], [own_core, *own_factors], "float64")


@pytest.mark.parametrize("options", [{}, {"linesearch": False, "normalize_factors": True}], ids=str)
def test_masks_of_slices(options):
    coo = make_coo()
    options |= {"random_state": 0, "n_iter_max": 12, "return_errors": True}
    (found, errors), (expected, others) = (
        parafac2(FlycooTensor.from_coo(coo, device=device), 2, mask=make_mask(coo), **options)
        for device in ("cuda", "cpu")
    )
    assert errors == pytest.approx(others, rel=1e-9)
    assert_near(found.factors, expected.factors, "float64")


@pytest.mark.parametrize(
    "make", [make_blocks, lambda: make_mask(make_coo())], ids=["blocks", "list"]
)
def test_fits_to_the_observed_entries(make):
    coo = make_coo()
    cp = parafac(FlycooTensor.from_coo(coo, device="cpu"), RANK, init="random", random_state=0)
    found, expected = (
        cp_fit(FlycooTensor.from_coo(coo, device=device), cp, mask=make())
        for device in ("cuda", "cpu")
    )
    assert found == pytest.approx(expected, rel=1e-10)


@LAYOUTS
def test_the_share_of_missing_entries_is_the_same_in_every_run(layout):
    coo = make_coo()
    missing = MissingEntries(
        FlycooTensor.from_coo(coo, layout=layout, device="cuda"), make_mask(coo).coords
    )
    rng = np.random.RandomState(0)
    factors = [cupy.asarray(rng.random_sample((size, RANK))) for size in SHAPE]
    assert missing.observed.layout == layout
    for mode, size in enumerate(SHAPE):
        runs = []
        for _ in range(2):
            values = missing.impute(cupy.ones(RANK), factors)
            runs.append(missing.add_mttkrp(cupy.zeros((size, RANK)), values, factors, mode))
        assert (runs[0] == runs[1]).all()
        assert (runs[0] != 0).any()


def test_a_raw_coo_and_linesearch():
    coo = make_coo()
    options = {"init": "random", "random_state": 0, "n_iter_max": 12, "linesearch": True}
    found = parafac(coo, RANK, mask=make_mask(coo), **options)
    on_host = FlycooTensor.from_coo(coo, device="cpu")
    expected = parafac(on_host, RANK, mask=make_mask(coo), **options)
    assert_near(found.factors, expected.factors, "float64", coo)


@DTYPES
def test_imputation_by_singular_vectors(dtype):
    coo = make_coo(dtype)
    coords = make_mask(coo).coords
    for mode in range(3):
        values = []
        for device in ("cuda", "cpu"):
            missing = MissingEntries(FlycooTensor.from_coo(coo, device=device), coords)
            values.append(missing.unfold_imputed(mode, RANK, num_repeats=2).svd(RANK)[1])
        assert_near(values[:1], values[1:], dtype)


@DTYPES
@pytest.mark.parametrize("rank", [3, 20])
def test_completion(rank, dtype):
    results = []
    for device in ("cuda", "cpu"):
        x = FlycooTensor.from_coo(make_coo(dtype), device=device)
        options = {"n_iter_max": 3, "random_state": 0, "l2_reg": 0.1, "return_errors": True}
        results.append(observed_parafac(x, rank, **options))
    (found, errors), (expected, expected_errors) = results
    assert_near(found.factors, expected.factors, dtype)
    assert np.allclose(errors, expected_errors, rtol=1e-8)
    assert isinstance(found.weights, cupy.ndarray)


@DTYPES
@pytest.mark.parametrize(
    "own",
    [
        {"cg_steps": 3},
        {"non_negative": True},
        {"cg_steps": 3, "unobserved": 0.5},
        {"cg_steps": 0, "unobserved": 0.5},
        {"biases": True},
        {"cg_steps": 3, "biases": True},
    ],
    ids=str,
)
def test_completion_with_weights_and_observed_zeros(own, dtype):
    results, coo = [], make_coo(dtype)
    rng = np.random.default_rng(0)
    zeros = np.stack([rng.integers(0, size, 500) for size in coo.shape])
    seen = np.unique(np.append(coo.coords, zeros, axis=1), axis=1)
    weights = 0.5 + rng.random(seen.shape[1])
    for device in ("cuda", "cpu"):
        x, confidence, held_out = (
            FlycooTensor(coords, values, coo.shape, dtype=dtype, device=device)
            for coords, values in (
                (coo.coords, coo.data), (seen, weights), (coo.coords[:, ::9], coo.data[::9])
            )
        )  # fmt: skip
        options = {"n_iter_max": 3, "random_state": 0, "l2_reg": 0.1, "return_errors": True}
        options |= {"confidence": confidence, "tol": 0}
        results.append(observed_parafac(x, 5, **options, **own))
        observed_parafac(x, 5, validation=held_out, **options, **own)
    (found, errors), (expected, expected_errors) = results
    assert_near(found.factors, expected.factors, dtype)
    assert np.allclose(errors, expected_errors, rtol=1e-3 if dtype == "float32" else 1e-8)
    assert all(isinstance(factor, cupy.ndarray) for factor in found.factors)


@DTYPES
@pytest.mark.parametrize("own", [{}, {"biases": True}, {"cg_steps": 3, "biases": True}], ids=str)
def test_completion_with_a_chosen_ridge_and_new_rows(own, dtype):
    models, rows, coo = [], [], make_coo(dtype)
    for device in ("cuda", "cpu"):
        x = FlycooTensor.from_coo(coo, device=device)
        model = observed_parafac(x, 2, n_iter_max=2, random_state=0, **own)
        models.append(model)
        rows.append(fold_in(model, x, 0))
        assert isinstance(rows[0], cupy.ndarray)
    found, expected = models
    assert found.flycoo.bias_modes == expected.flycoo.bias_modes
    assert found.flycoo.l2_reg == expected.flycoo.l2_reg
    assert np.isclose(found.flycoo.scale, expected.flycoo.scale)
    assert_near(found.factors, expected.factors, dtype)
    assert_near(rows[:1], rows[1:], dtype)


def test_completion_is_the_same_in_every_run():
    x = FlycooTensor.from_coo(make_coo(), device="cuda")
    runs = [observed_parafac(x, 4, n_iter_max=3, random_state=0).factors for _ in range(2)]
    for factor, other in zip(*runs, strict=True):
        assert (factor == other).all()
