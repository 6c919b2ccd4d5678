"""CP completion against a row-by-row fit, and against planted components."""

import warnings

import numpy as np
import pytest
import sparse
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition._cp import initialize_cp
from threadpoolctl import threadpool_info, threadpool_limits

from tensorly_flycoo import (
    DensifyError,
    FlycooTensor,
    LabelledTensor,
    Progress,
    observed_parafac,
)
from tensorly_flycoo.decomposition import ridge_choice
from tensorly_flycoo.decomposition.ridge_choice import RIDGES, Trial
from tensorly_flycoo.loop import observed_rows
from tensorly_flycoo.ops import cp_entries as entries

SHAPE = (9, 7, 90, 6)


def make_tensor(shape=SHAPE, nnz=400, skew=2, seed=0, dtype=np.float64):
    """Make a tensor with rows of no, one and many nonzeros."""
    rng = np.random.RandomState(seed)
    cells = [np.minimum(size * rng.random_sample(nnz) ** skew, size - 1) for size in shape]
    coords = np.unique(np.array(cells, int), axis=1)
    values = rng.standard_normal(coords.shape[1])
    return FlycooTensor(coords, values, shape, dtype=dtype)


def fit_row_by_row(x, factors, num_iterations, ridge):
    """Run textbook alternating least squares."""
    coords, values = x.nonzeros()
    factors, errors = [factor.astype(float) for factor in factors], []
    for _ in range(num_iterations):
        for mode in range(x.ndim):
            others = [n for n in range(x.ndim) if n != mode]
            products = np.prod([factors[n][coords[n]] for n in others], axis=0)
            for row in range(x.shape[mode]):
                own = products[coords[mode] == row]
                gram = own.T @ own + ridge * np.eye(own.shape[1])
                target = own.T @ values[coords[mode] == row]
                factors[mode][row] = np.linalg.solve(gram, target)
        model = np.prod([f[c] for f, c in zip(factors, coords, strict=True)], axis=0).sum(axis=1)
        errors.append(np.linalg.norm(values - model) / np.linalg.norm(values))
    return factors, errors


def measure_scale(x):
    return np.sqrt((x.nonzeros()[1].astype(float) ** 2).mean())


@pytest.mark.parametrize("block_numbers", [1, 100, 2**16])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_row_by_row(rank, block_numbers, monkeypatch):
    monkeypatch.setattr(entries, "_CPU_BLOCK_NUMBERS", block_numbers)
    x = make_tensor()
    rng, scale = np.random.RandomState(1), measure_scale(x)
    factors = [rng.random_sample((size, rank)) * scale**0.25 for size in x.shape]
    expected, expected_errors = fit_row_by_row(x, factors, 3, ridge=0.1 * scale**1.5)
    found, errors = observed_parafac(
        x, rank, n_iter_max=3, tol=0, random_state=1, l2_reg=0.1, return_errors=True
    )
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-10)
    np.testing.assert_array_equal(found.weights, np.ones(rank))
    for n, factor in enumerate(found.factors):
        np.testing.assert_allclose(factor, expected[n], rtol=1e-8, atol=1e-10)
        is_empty = np.bincount(x.nonzeros()[0][n], minlength=x.shape[n]) == 0
        assert (factor[is_empty] == 0).all()
    assert (np.bincount(x.nonzeros()[0][2], minlength=90) == 0).any()


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        pytest.param((60, 50, 40), FlycooTensor.to_coo, marks=pytest.mark.slow),
        ((20, 25, 15, 10), lambda x: x),
    ],
)
def test_recovers_planted_factors(shape, kind):
    rng = np.random.RandomState(3)
    factors = [rng.random_sample((size, 3)) for size in shape]
    # A twentieth of all entries is observed, another twentieth is held out.
    coords = np.stack(np.unravel_index(rng.permutation(np.prod(shape)), shape))
    coords = coords[:, : np.prod(shape) // 10]
    values = np.prod([f[c] for f, c in zip(factors, coords, strict=True)], axis=0).sum(axis=1)
    x = FlycooTensor(coords[:, ::2], values[::2], shape)
    found = observed_parafac(kind(x), 3, n_iter_max=100, random_state=0)
    held_out = entries.evaluate_model(coords[:, 1::2], found.weights, found.factors)
    assert np.linalg.norm(held_out - values[1::2]) < 1e-3 * np.linalg.norm(values[1::2])


@pytest.mark.parametrize("options", [{}, {"cg_steps": 1}, {"non_negative": True}], ids=str)
def test_the_objective_falls(options):
    x = make_tensor()
    coords, values = x.nonzeros()
    objectives = []
    for n in range(8):
        cp_tensor = observed_parafac(
            x, 4, n_iter_max=n, tol=0, random_state=0, l2_reg=0.5, **options
        )
        residual = entries.evaluate_model(coords, None, cp_tensor.factors) - values
        ridge = sum((factor**2).sum() for factor in cp_tensor.factors)
        objectives.append(residual @ residual + 0.5 * measure_scale(x) ** 1.5 * ridge)
    assert (np.diff(objectives) < 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_starts_and_dtypes(dtype):
    x = make_tensor(dtype=dtype)
    with tl.backend_context("flycoo"):
        start = initialize_cp(x, 3, init="random", random_state=5)
    root = measure_scale(x) ** 0.25
    start.factors = [(factor.astype(float) * root).astype(dtype) for factor in start.factors]
    expected = observed_parafac(x, 3, n_iter_max=0, random_state=5, l2_reg=0.1)
    assert isinstance(expected, CPTensor)
    for factor, other in zip(expected.factors, start.factors, strict=True):
        assert factor.dtype == dtype
        np.testing.assert_allclose(factor, other, rtol=4 * np.finfo(dtype).eps)
    weights = np.array([1.0, 2.0, 3.0], dtype)
    guess = CPTensor((weights, start.factors))
    weighted = observed_parafac(x, 3, n_iter_max=0, init=guess, l2_reg=0.1)
    np.testing.assert_array_equal(weighted.factors[-1], start.factors[-1] * weights)
    runs = [
        observed_parafac(x, 3, n_iter_max=2, l2_reg=0.1, **options).factors
        for options in ({"random_state": 5}, {"init": (None, start.factors)})
    ]
    for factor, other in zip(*runs, strict=True):
        tolerance = 1e-4 if dtype == "float32" else 1e-12  # the start's roundings
        assert abs(factor - other).max() <= tolerance * abs(other).max()


@pytest.mark.parametrize("unit", [1e-9, 1e-6, 1e6])
def test_the_unit_of_the_values_does_not_matter(unit):
    x = make_tensor((9, 7, 20), 150)
    options = {"n_iter_max": 5, "random_state": 0, "return_errors": True}
    expected, errors = observed_parafac(x, 3, **options)
    found, found_errors = observed_parafac(x * unit, 3, **options)
    np.testing.assert_allclose(found_errors, errors, rtol=1e-9)
    assert found.flycoo.scale == pytest.approx(unit * expected.flycoo.scale, rel=1e-12)
    assert found.flycoo.l2_reg == expected.flycoo.l2_reg
    root = unit ** (1 / x.ndim)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, other * root, rtol=1e-6, atol=1e-9 * root)


def test_tol_and_errors():
    x = make_tensor()
    options = {"random_state": 0, "l2_reg": 0.1, "return_errors": True}
    _, all_errors = observed_parafac(x, 3, n_iter_max=50, tol=0, **options)
    _, errors = observed_parafac(x, 3, n_iter_max=50, tol=1e-2, **options)
    falls = np.abs(np.diff(all_errors)) < 1e-2
    assert len(all_errors) == 50
    assert len(errors) == 2 + np.argmax(falls) < 50
    assert errors == all_errors[: len(errors)]


def test_more_cells_than_64_bits_count():
    small = make_tensor((6, 5, 7, 4), 60)
    coords, values = small.nonzeros()
    rows = [2**13 * (1 + np.arange(size)) for size in small.shape]
    shape = (2**16,) * 4
    spread = np.stack([row[c] for row, c in zip(rows, coords, strict=True)])
    x = FlycooTensor(spread, values, shape, layout="indexed")
    starts = [np.random.RandomState(0).random_sample((size, 1)) for size in small.shape]
    large = [np.zeros((size, 1)) for size in shape]
    for factor, row, start in zip(large, rows, starts, strict=True):
        factor[row] = start
    options = {"n_iter_max": 2, "l2_reg": 0.1}
    expected = observed_parafac(small, 1, init=(None, starts), **options)
    found = observed_parafac(x, 1, init=(None, large), **options)
    for factor, other, row in zip(found.factors, expected.factors, rows, strict=True):
        np.testing.assert_array_equal(factor[row], other)


# Weights, zeros that were observed, and all other cells


def make_confidence(x, num_zeros=60, seed=4):
    """Make weights of the nonzeros and of some zeros; return them also as a dense array."""
    rng = np.random.RandomState(seed)
    zeros = np.stack([rng.randint(0, size, num_zeros) for size in x.shape])
    coords = np.unique(np.append(x.nonzeros()[0], zeros, axis=1), axis=1)
    weights = 0.5 + rng.random_sample(coords.shape[1])
    dense = np.zeros(x.shape)
    dense[tuple(coords)] = weights
    return FlycooTensor(coords, weights, x.shape), dense


def fit_densely(x, dense_weights, factors, num_iterations, ridge):
    """Fit all cells, row by row; return the objectives' fits too."""
    values, factors, errors = x.to_coo().todense().astype(float), list(factors), []
    for _ in range(num_iterations):
        for mode in range(x.ndim):
            others = [factor for n, factor in enumerate(factors) if n != mode]
            products = tl.tenalg.khatri_rao(others)
            new = []
            for value, weight in zip(
                np.moveaxis(values, mode, 0), np.moveaxis(dense_weights, mode, 0), strict=True
            ):
                weighted = products * weight.reshape(-1, 1)
                gram = weighted.T @ products + ridge * np.eye(products.shape[1])
                new.append(np.linalg.solve(gram, weighted.T @ value.ravel()))
            factors[mode] = np.array(new)
        model = tl.cp_to_tensor((None, factors))
        squares = [(dense_weights * array**2).sum() for array in (values - model, values)]
        errors.append((squares[0] / squares[1]) ** 0.5)
    return factors, errors


@pytest.fixture
def small():
    x = make_tensor((9, 7, 20), 150)
    rng, root = np.random.RandomState(1), measure_scale(x) ** (1 / 3)
    return x, [rng.random_sample((size, 3)) * root for size in x.shape]


@pytest.mark.parametrize("cg_steps", [0, 6], ids=["exact", "cg"])
@pytest.mark.parametrize(("is_weighted", "unobserved"), [(False, 0), (True, 0), (True, 0.25)])
def test_weights_zeros_and_other_cells(small, is_weighted, unobserved, cg_steps):
    """More steps than unknowns of a row solve its system: the same numbers as a dense fit."""
    x, start = small
    confidence, dense = make_confidence(x)
    if not is_weighted:
        confidence, dense = None, (x.to_coo().todense() != 0).astype(float)
    dense = np.where(dense == 0, unobserved, dense)
    scale = measure_scale(x)
    expected, expected_errors = fit_densely(x, dense, start, 3, 0.1 * scale ** (4 / 3))
    found, errors = observed_parafac(
        x, 3, n_iter_max=3, tol=0, init=(None, start), l2_reg=0.1, return_errors=True,
        confidence=confidence, unobserved=unobserved, cg_steps=cg_steps,
    )  # fmt: skip
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-8)
    for factor, other in zip(found.factors, expected, strict=True):
        np.testing.assert_allclose(factor, other, rtol=1e-7, atol=1e-8)
    record = found.flycoo
    assert (record.absent, record.l2_reg) == ("weighted" if unobserved else "unknown", 0.1)
    assert (record.unobserved, record.is_weighted) == (unobserved, confidence is not None)


def test_steps_by_default(small):
    """Three where all cells count, as other packages for clicks take; else rows are solved."""
    x, start = small
    confidence, _ = make_confidence(x)
    options = {"n_iter_max": 2, "init": (None, start), "l2_reg": 0.1, "confidence": confidence}
    for own, expected in (
        ({"unobserved": 0.25}, {"cg_steps": 3}),
        ({"unobserved": 0.25, "biases": True}, {"cg_steps": 3}),
        ({"unobserved": 0.25, "non_negative": True}, {"cg_steps": 0}),
        ({}, {"cg_steps": 0}),
    ):
        pair = [observed_parafac(x, 3, **options, **own, **more) for more in ({}, expected)]
        for factor, other in zip(pair[0].factors, pair[1].factors, strict=True):
            np.testing.assert_array_equal(factor, other)


def test_rows_are_fitted_without_the_threads_of_the_blas(monkeypatch):
    """Their idle threads would spin: on busy cores they took twenty times as long."""
    x, counts, descend = make_tensor(), set(), observed_rows._descend

    def count(*args):
        counts.update(own["num_threads"] for own in threadpool_info() if own["user_api"] == "blas")
        return descend(*args)

    monkeypatch.setattr(observed_rows, "_descend", count)
    with threadpool_limits(2, "blas"):
        observed_parafac(abs(x), 4, n_iter_max=1, non_negative=True, l2_reg=0.1)
    assert counts == {1}


@pytest.mark.usefixtures("modes_in_groups")
def test_conjugate_gradients_with_groups():
    x = make_tensor()
    assert len(x.groups) < x.ndim
    options = {"n_iter_max": 2, "random_state": 0, "l2_reg": 0.1, "tol": 0}
    found = observed_parafac(x, 3, cg_steps=9, **options)
    expected = observed_parafac(x, 3, **options)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("remap", "float64"),
        ("replicated", "float32"),
        ("indexed", "float64"),
        pytest.param("remap", "float32", marks=pytest.mark.slow),
        pytest.param("replicated", "float64", marks=pytest.mark.slow),
        pytest.param("indexed", "float32", marks=pytest.mark.slow),
    ],
)
def test_conjugate_gradients_in_every_layout_and_dtype(layout, dtype):
    coords, values = make_tensor(dtype=dtype).nonzeros()
    options = {"n_iter_max": 10, "random_state": 0, "l2_reg": 0.1, "return_errors": True, "tol": 0}
    runs = [
        observed_parafac(FlycooTensor(coords, values, SHAPE, layout=name), 4, cg_steps=2, **options)
        for name in (layout, "replicated")
    ]
    (found, errors), (expected, expected_errors) = runs
    assert errors == expected_errors
    for factor, other in zip(found.factors, expected.factors, strict=True):
        assert factor.dtype == dtype
        np.testing.assert_array_equal(factor, other)
    residual = entries.evaluate_model(coords, None, found.factors) - values
    error = np.linalg.norm(residual) / np.linalg.norm(values)
    # A difference of sums of about 1, each of 400 numbers: its error is that of the square.
    rounding = 400 * np.finfo(dtype).eps / (2 * error)
    assert abs(errors[-1] - error) <= rounding


def test_non_negative_rows_are_optimal():
    x = make_tensor((9, 7, 20), 300, skew=1)
    options = {"n_iter_max": 500, "tol": 0, "l2_reg": 0.1, "random_state": 1}
    found = observed_parafac(x, 3, non_negative=True, **options)
    assert all((factor >= 0).all() for factor in found.factors)
    assert any((factor == 0).any() for factor in found.factors)
    coords, values = x.nonzeros()
    ridge = 0.1 * measure_scale(x) ** (4 / 3)
    model = [f[c] for f, c in zip(found.factors, coords, strict=True)]
    residual = np.prod(model, axis=0).sum(axis=1) - values
    for mode, factor in enumerate(found.factors):
        products = np.prod([rows for n, rows in enumerate(model) if n != mode], axis=0)
        slopes = ridge * factor
        np.add.at(slopes, coords[mode], residual[:, None] * products)
        assert (slopes > -1e-6).all()
        assert np.abs(slopes[factor > 0]).max() < 1e-6


def fit_biases_densely(x, dense_weights, factors, num_iterations, ridges, mean):
    """Fit a model of components, biases and the mean to all cells, by least squares of each row."""
    values, rank = x.to_coo().todense().astype(float), factors[0].shape[1]
    biases = [np.zeros(size) for size in x.shape]

    def predict(skip):
        own = [bias if n != skip else 0 * bias for n, bias in enumerate(biases)]
        return mean + sum(np.ix_(*own))

    for _ in range(num_iterations):
        for mode in range(x.ndim):
            products = tl.tenalg.khatri_rao([f for n, f in enumerate(factors) if n != mode])
            products = np.append(products, np.ones((len(products), 1)), axis=1)
            rest = tl.unfold(values - predict(skip=mode), mode)
            new = []
            for value, weight in zip(rest, tl.unfold(dense_weights, mode), strict=True):
                gram = products.T @ (weight[:, None] * products) + np.diag(ridges)
                new.append(np.linalg.solve(gram, products.T @ (weight * value)))
            factors[mode], biases[mode] = np.array(new)[:, :rank], np.array(new)[:, rank]
    return factors, biases


@pytest.mark.parametrize("cg_steps", [0, 7], ids=["exact", "cg"])
@pytest.mark.parametrize(("is_weighted", "unobserved"), [(False, 0), (True, 0), (True, 0.25)])
def test_biases(small, is_weighted, unobserved, cg_steps):
    """The same numbers as of a dense fit of components, biases and the mean."""
    x, start = small
    x = x._map_values(lambda values: values + 3)
    confidence, dense = make_confidence(x)
    if not is_weighted:
        confidence, dense = None, (x.to_coo().todense() != 0).astype(float)
    dense = np.where(dense == 0, unobserved, dense)
    mean = (dense * x.to_coo().todense()).sum() / dense.sum()
    scale = np.sqrt(((x.nonzeros()[1] - mean) ** 2).mean())
    ridges = [*[0.1 * scale ** (4 / 3)] * 3, 0.1]
    factors, biases = fit_biases_densely(x, dense, list(start), 3, ridges, mean)
    found = observed_parafac(
        x, 3, n_iter_max=3, tol=0, init=(None, start), l2_reg=0.1, biases=True,
        confidence=confidence, unobserved=unobserved, cg_steps=cg_steps,
    )  # fmt: skip
    for mode, factor in enumerate(found.factors):
        np.testing.assert_allclose(factor[:, :3], factors[mode], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(factor[:, 3 + mode], biases[mode], rtol=1e-6, atol=1e-7)
        ones = np.delete(factor[:, 3:], mode, axis=1)
        ones[:, -1] /= mean if mode == x.ndim - 1 else 1
        np.testing.assert_allclose(ones, 1, rtol=1e-12)


@pytest.mark.parametrize("cg_steps", [None, 2], ids=["exact", "cg"])
def test_biases_of_values_that_are_all_alike(cg_steps):
    """The mean explains them: every prediction is that."""
    coords, _ = make_tensor((9, 7, 20), 150).nonzeros()
    x = FlycooTensor(coords, np.full(coords.shape[1], 4.0), (9, 7, 20))
    found = observed_parafac(x, 2, biases=True, cg_steps=cg_steps, l2_reg=1.0, random_state=0)
    np.testing.assert_allclose(tl.cp_to_tensor(found), 4, rtol=1e-6)


def test_validation_stops_at_the_best_model():
    rng, shape = np.random.RandomState(3), (20, 25, 15)
    factors = [rng.random_sample((size, 2)) for size in shape]
    coords = np.unique(np.stack([rng.randint(0, size, 900) for size in shape]), axis=1)
    coords = coords[:, rng.permutation(coords.shape[1])]
    values = np.prod([f[c] for f, c in zip(factors, coords, strict=True)], axis=0).sum(axis=1)
    values += 0.3 * rng.standard_normal(values.size)
    x = FlycooTensor(coords[:, 200:], values[200:], shape)
    held_out = FlycooTensor(coords[:, :200], values[:200], shape)
    options = {"random_state": 0, "tol": 0, "return_errors": True, "cg_steps": 3, "l2_reg": 0.1}
    found, errors = observed_parafac(x, 8, validation=held_out, **options)
    best = int(np.argmin(errors))
    assert best == len(errors) - 11
    residual = entries.evaluate_model(coords[:, :200], None, found.factors) - values[:200]
    assert np.linalg.norm(residual) / held_out.norm() == pytest.approx(errors[best], rel=1e-12)
    expected, _ = observed_parafac(x, 8, n_iter_max=best + 1, **options)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


def test_validation_does_not_stop_at_the_first_rise():
    x = make_tensor((9, 8, 7), 200)
    coords, values = x.nonzeros()
    held_out, seen = (FlycooTensor(coords[:, n::2], values[n::2], x.shape) for n in (0, 1))
    options = {"tol": 0, "return_errors": True, "validation": held_out, "n_iter_max": 60}
    options["l2_reg"] = 0.1
    for seed in range(5):
        found, errors = observed_parafac(seen, 3, random_state=seed, **options)
        best = int(np.argmin(errors))
        assert len(errors) == min(60, best + 11)
        once, _ = observed_parafac(seen, 3, random_state=seed, **options | {"n_iter_max": best + 1})
        np.testing.assert_array_equal(found.factors[0], once.factors[0])


X = make_tensor((4, 5, 6), 40)
SOME = FlycooTensor([[0], [0], [0]], [1.0], (4, 5, 6))
ONES = [np.ones((size, 2)) for size in X.shape]


@pytest.mark.parametrize("cg_steps", [0, 12], ids=["exact", "cg"])
def test_biases_of_rows_without_an_observed_entry(cg_steps):
    """All their cells count as zeros: the bias takes back the mean."""
    coords, _ = make_tensor((9, 7, 20), 150).nonzeros()
    x = FlycooTensor(coords, np.full(coords.shape[1], 4.0), (9, 7, 21))
    options = {"confidence": x, "unobserved": 1.0, "biases": True, "cg_steps": cg_steps}
    found = observed_parafac(x, 2, l2_reg=1e-3, tol=0, n_iter_max=50, random_state=0, **options)
    scale = 4 - found.factors[2][0, -1]
    gram = np.prod([f.T @ f for f in found.factors[:2]], axis=0)
    ridges = 1e-3 * np.array([scale ** (4 / 3)] * 2 + [0, 0, 1, 0])
    row = found.factors[2][20]
    slopes = (gram @ row + ridges * row)[[0, 1, 4]]
    np.testing.assert_allclose(slopes, 0, atol=1e-8)
    assert abs(row[4]) > 0.1


def test_labels_of_other_tensors_must_match():
    x = LabelledTensor(X, [list("abcd"), range(5), range(6)])
    other = LabelledTensor(abs(X), [list("bcda"), range(5), range(6)])
    for name in ("confidence", "validation"):
        with pytest.raises(ValueError, match=f"label 0 of mode 'mode 0' is b in {name} and a in"):
            observed_parafac(x, 2, **{name: other})
    assert observed_parafac(x, 2, confidence=LabelledTensor(abs(X), x.labels)).names == (*x.labels,)


@pytest.mark.parametrize(
    "scale",
    [
        1e-15,
        *(pytest.param(scale, marks=pytest.mark.slow) for scale in (1e-8, 1e5, 1e7, 1e11)),
        1e15,
    ],
)
def test_gradients_in_float32_find_what_exact_rows_find_at_any_scale(scale):
    random, shape = np.random.RandomState(0), (60, 30, 15, 8)
    coords = np.unique(np.array([random.randint(0, n, 2000) for n in shape]), axis=1)
    values = (random.poisson(3, coords.shape[1]) + 1.0) * scale
    x = FlycooTensor(coords, values.astype("float32"), shape)
    options = {"n_iter_max": 10, "random_state": 0, "return_errors": True, "tol": 0}
    exact, improved = (observed_parafac(x, 4, cg_steps=n, **options)[1][-1] for n in (None, 3))
    assert abs(exact - improved) < 0.02


def test_an_overflow_is_not_an_error_of_zero():
    guess = [np.full((size, 2), 1e15, np.float32) for size in X.shape]
    options = {"cg_steps": 3, "n_iter_max": 2, "return_errors": True, "init": (None, guess)}
    with np.errstate(all="ignore"):
        _, errors = observed_parafac(X.astype("float32"), 2, **options)
    assert np.isnan(errors).any()


# The ridge


@pytest.fixture(scope="module")
def ratings():
    """Make ratings of a few busy and many quiet users: 14,000 to fit, and others to predict."""
    rng, n = np.random.default_rng(0), 20000
    users = (rng.pareto(1.2, n) * 30).astype(int) % 3000
    coords = np.stack([users, (rng.pareto(1.1, n) * 10).astype(int) % 300, rng.integers(0, 30, n)])
    biases = rng.normal(0, 0.4, 3000), rng.normal(0, 0.5, 300)
    values = 3.5 + sum(bias[ids] for bias, ids in zip(biases, coords, strict=False))
    values += rng.normal(0, 0.5, n)
    first = np.sort(np.unique(coords, axis=1, return_index=True)[1])
    coords, values = coords[:, first], values[first]
    known, others = slice(14000), slice(16000, None)
    is_fair = [np.isin(rows[others], rows[known]) for rows in coords]
    is_fair = np.all(is_fair, axis=0)
    return coords[:, known], values[known], coords[:, others][:, is_fair], values[others][is_fair]


@pytest.mark.filterwarnings("ignore:. of . components")  # a model of biases needs no others
@pytest.mark.parametrize(
    ("options", "dtype", "most"),
    [
        pytest.param({}, "float64", 0.6, marks=pytest.mark.slow),
        pytest.param({"cg_steps": 3}, "float32", 0.6, marks=pytest.mark.slow),
        pytest.param({"biases": True}, "float64", 0.54, marks=pytest.mark.slow),
        ({"biases": True, "cg_steps": 3}, "float32", 0.54),
        pytest.param({"non_negative": True}, "float32", 0.7, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_ratings_are_predicted_better_than_by_the_mean(ratings, options, dtype, most):
    """The noise is 0.5, the mean's error 0.83; with almost no ridge it was 1.5 to 12."""
    coords, values, new, expected = ratings
    x = FlycooTensor(coords, values, (3000, 300, 30), dtype=dtype)
    found = observed_parafac(x, 4, n_iter_max=20, random_state=0, **options)
    predicted = entries.evaluate_model(new, None, found.factors)
    assert np.sqrt(((predicted - expected) ** 2).mean()) < most
    assert np.sqrt(((values.mean() - expected) ** 2).mean()) > 0.8


def make_noisy(nnz=900, num_held_out=200, shape=(20, 25, 15)):
    rng = np.random.RandomState(3)
    factors = [rng.random_sample((size, 2)) for size in shape]
    coords = np.unique(np.stack([rng.randint(0, size, nnz) for size in shape]), axis=1)
    coords = coords[:, rng.permutation(coords.shape[1])]
    values = np.prod([f[c] for f, c in zip(factors, coords, strict=True)], axis=0).sum(axis=1)
    values += 0.3 * rng.standard_normal(values.size)
    parts = slice(num_held_out, None), slice(num_held_out)
    return [FlycooTensor(coords[:, part], values[part], shape) for part in parts]


def test_the_ridge_is_that_which_predicts_best():
    """By textbook alternating least squares with each ridge, from the same start."""
    x, held_out = make_noisy()
    rng, scale, errors = np.random.RandomState(0), measure_scale(x), {}
    start = [rng.random_sample((size, 3)) * scale ** (1 / 3) for size in x.shape]
    coords, values = held_out.nonzeros()
    for l2_reg in RIDGES:
        factors, _ = fit_row_by_row(x, start, 12, l2_reg * scale ** (4 / 3))
        residual = entries.evaluate_model(coords, None, factors) - values
        errors[l2_reg] = np.linalg.norm(residual)
    found = observed_parafac(x, 3, validation=held_out, random_state=5, n_iter_max=1)
    assert 0.1 < found.flycoo.l2_reg < 30
    assert errors[found.flycoo.l2_reg] < 1.02 * min(errors.values())


def draw_planted(seed, rank):
    """Draw noisy ratings of biases and components; return also new cells and their expectations."""
    rng, shape = np.random.default_rng(seed), (100, 80, 10)
    factors = [rng.normal(size=(size, rank)) for size in shape]
    cells = np.einsum("ir,jr,kr->ijk", *factors)
    cells /= cells.std()
    coords = np.unique(np.array([rng.integers(0, size, 8000) for size in shape]), axis=1)
    biases = [rng.normal(0, 0.5, size) for size in shape]

    def expect(coords):
        return 3.5 + sum(b[c] for b, c in zip(biases, coords, strict=True)) + cells[tuple(coords)]

    values = expect(coords) + rng.normal(0, 0.5, coords.shape[1])
    new = np.unique(np.array([rng.integers(0, size, 4000) for size in shape]), axis=1)
    return FlycooTensor(coords, values, shape), new, expect(new)


@pytest.mark.parametrize(("seed", "rank"), [pytest.param(4, 3, marks=pytest.mark.slow), (6, 2)])
def test_a_plateau_does_not_end_the_choice(seed, rank):
    """Held-out errors stood still, or rose, before components were found: the biases were left."""
    x, new, expected = draw_planted(seed, rank)
    errors = []
    for options in ({}, {"l2_reg": 3.0}):
        found = observed_parafac(x, rank, biases=True, random_state=0, **options)
        predicted = entries.evaluate_model(new, None, found.factors)
        errors.append(np.sqrt(((predicted - expected) ** 2).mean()))
    assert errors[0] < 1.15 * errors[1] < 0.25


def test_another_start_is_tried_if_none_finds_components():
    """From the first start, all ridges of these entries end in poor local minima."""
    x, _, _ = draw_planted(6, 2)
    coords, values = x.nonzeros()
    places = np.sort(np.random.RandomState(0).permutation(x.nnz)[x.nnz // 5 :])
    x = FlycooTensor(coords[:, places], values[places], x.shape)
    found = observed_parafac(x, 2, biases=True, random_state=1, n_iter_max=0)
    assert found.flycoo.l2_reg < 10


def test_other_tenths_decide_between_close_ridges(monkeypatch):
    """At the first tenth 3 is better than 10, at the next two it is worse."""
    errors = {100.0: [0.08], 30.0: [0.07], 10.0: [0.05] * 3, 3.0: [0.0495, 0.052, 0.052], 1.0: [1]}
    tenths = {l2_reg: [] for l2_reg in errors}

    def try_ridge(problem, rows, l2_reg, held_out, seed=0):
        tenths[l2_reg].append(held_out)
        error = errors[l2_reg][len(tenths[l2_reg]) - 1]
        facts = {"is_unfinished": False, "has_components": True, "seed": seed}
        return Trial(error, **facts, factors=problem.start(seed))

    monkeypatch.setattr(ridge_choice, "try_ridge", try_ridge)
    x, held_out = make_noisy()
    options = {"random_state": 0, "n_iter_max": 1}
    assert observed_parafac(x, 2, **options).flycoo.l2_reg == 10
    assert [len(of_ridge) for of_ridge in tenths.values()] == [1, 1, 3, 3, 1]
    coords = np.concatenate([tenth.coords for tenth in tenths[10.0]], axis=1)
    assert x.nnz // 10 * 2.5 < np.unique(coords, axis=1).shape[1] == coords.shape[1]
    for of_ridge in tenths.values():
        of_ridge.clear()
    assert observed_parafac(x, 2, validation=held_out, **options).flycoo.l2_reg == 3


@pytest.mark.parametrize("options", [{}, {"biases": True}, {"cg_steps": 3}], ids=str)
def test_a_chosen_ridge_is_as_if_passed(options):
    """It depends neither on the seed nor on whether it is an int."""
    x, _ = make_noisy()
    options = {"n_iter_max": 3, **options}
    found = [observed_parafac(x, 3, random_state=seed, **options) for seed in (0, 1)]
    l2_reg = found[0].flycoo.l2_reg
    assert l2_reg == found[1].flycoo.l2_reg
    passed = [l2_reg, int(l2_reg)] if l2_reg == int(l2_reg) else [l2_reg]
    for given in passed:
        expected = observed_parafac(x, 3, random_state=0, l2_reg=given, **options)
        for factor, other in zip(found[0].factors, expected.factors, strict=True):
            np.testing.assert_array_equal(factor, other)
    whole, half = (observed_parafac(x, 3, l2_reg=of, **options).factors[0] for of in (1, 0.5))
    assert abs(whole - half).max() > 1e-3


def test_integer_ridges_of_biases_are_not_truncated():
    x = make_tensor((9, 7, 20), 150)
    options = {"biases": True, "random_state": 0, "n_iter_max": 2}
    runs = [observed_parafac(x, 2, l2_reg=l2_reg, **options).factors for l2_reg in (1, 1.0)]
    for factor, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(factor, other)


def test_a_validation_worse_than_the_mean_is_a_warning():
    x, held_out = make_noisy(600)
    options = {"n_iter_max": 3, "random_state": 0}
    with pytest.warns(UserWarning, match=r'pass l2_reg="validation" \(it is 1e-06\), a lower rank'):
        observed_parafac(x, 8, l2_reg=1e-6, validation=held_out, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        observed_parafac(x, 2, validation=held_out, **options)
    noise = x._map_values(lambda values: np.random.RandomState(0).standard_normal(values.size))
    with pytest.warns(UserWarning, match="by the mean: pass a lower rank or biases=True"):
        observed_parafac(noise + 0.3 * x, 3, biases=True, **options)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("biases", [False, True])
def test_a_ridge_that_leaves_nothing_is_named(biases, scale):
    x, _ = make_noisy()
    with pytest.warns(UserWarning, match="are zero. The ridge leaves nothing of them: pass a sma"):
        observed_parafac(x * scale, 2, l2_reg=1e4, biases=biases, random_state=0)


@pytest.mark.parametrize("options", [{}, {"biases": True}, {"cg_steps": 2}], ids=str)
def test_a_resumed_run_has_the_best_model(options, tmp_path):
    """Its best iteration is before the checkpoint."""
    x, held_out = make_noisy()
    options = {"tol": 0, "random_state": 0, "validation": held_out, "l2_reg": 1e-3, **options}
    expected, errors = observed_parafac(x, 8, return_errors=True, **options)
    best = int(np.argmin(errors))
    for end in (best + 5, 100):
        with Progress(end, show=None, checkpoint=tmp_path / "run.npz", every=1) as progress:
            init = progress.resume(default="random")
            left = progress.n_iter_left
            found = observed_parafac(x, 8, left, init, callback=progress, **options)
    assert progress.errors[1:] == errors
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


def test_a_resumed_run_has_the_ridge_that_was_chosen(tmp_path):
    x, _ = make_noisy()
    expected = observed_parafac(x, 3, 6, tol=0, random_state=0)
    for end in (3, 6):
        with Progress(end, show=None, checkpoint=tmp_path / "run.npz", every=1) as progress:
            init, left = progress.resume(default="random"), progress.n_iter_left
            found = observed_parafac(x, 3, left, init, tol=0, random_state=0, callback=progress)
    assert found.flycoo.l2_reg == expected.flycoo.l2_reg == progress.best.flycoo.l2_reg
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


@pytest.mark.filterwarnings("ignore:held-out entries")
@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_entries(count):
    coords = np.arange(count)
    x = FlycooTensor([coords, coords, coords], 2.0 + coords, (5, 5, 5))
    for options in ({}, {"biases": True}, {"confidence": x}, {"confidence": x, "unobserved": 0.1}):
        found = observed_parafac(x, 1, n_iter_max=5, random_state=0, **options)
        assert all(np.isfinite(factor).all() for factor in found.factors)


BAD = {
    "dense": (lambda: observed_parafac(np.ones((3, 3)), 2), TypeError, "x is a ndarray"),
    "rank 0": (lambda: observed_parafac(X, 0), ValueError, "rank is 0"),
    "rank 1.5": (lambda: observed_parafac(X, 1.5), TypeError, "rank is 1.5"),
    "no ridge": (lambda: observed_parafac(X, 2, l2_reg=0), ValueError, "l2_reg is 0"),
    "nan ridge": (lambda: observed_parafac(X, 2, l2_reg=np.nan), ValueError, "l2_reg is nan"),
    "ridge None": (lambda: observed_parafac(X, 2, l2_reg=None), TypeError, "l2_reg is None"),
    "init": (lambda: observed_parafac(X, 2, init="svd"), ValueError, "init is 'svd'"),
    "rank of init": (lambda: observed_parafac(X, 3, init=(None, ONES)), ValueError, "the rank 3"),
    "shape of init": (
        lambda: observed_parafac(X, 2, init=(None, ONES[::-1])), ValueError, r"factors\[0\]"
    ),
    "weights": (lambda: observed_parafac(X, 2, init=(np.ones(3), ONES)), ValueError, "weights"),
    "no nonzero": (
        lambda: observed_parafac(FlycooTensor(np.zeros((2, 0), int), [], (3, 3)), 2),
        ValueError, "no nonzero",
    ),
    "one mode": (lambda: observed_parafac(FlycooTensor([[1]], [1.0], (3,)), 2), ValueError, "two"),
    "confidence": (
        lambda: observed_parafac(X, 2, confidence=SOME), ValueError, "confidence lacks [0-9]+ of"
    ),
    "weight": (
        lambda: observed_parafac(X, 2, confidence=X), ValueError, "confidence has the weight -"
    ),
    "unobserved": (
        lambda: observed_parafac(X, 2, confidence=abs(X), unobserved=9), ValueError, "which is 9"
    ),
    "no confidence": (
        lambda: observed_parafac(X, 2, unobserved=1), ValueError, "unobserved is 1"
    ),
    "shape of confidence": (
        lambda: observed_parafac(X, 2, confidence=X.T), ValueError, r"confidence has shape \(6"
    ),
    "validation": (
        lambda: observed_parafac(X, 2, validation=X * 0), ValueError, "validation has .* 0 nonzeros"
    ),
    "steps": (lambda: observed_parafac(X, 2, cg_steps=-1), ValueError, "cg_steps is -1"),
    "both": (
        lambda: observed_parafac(X, 2, cg_steps=2, non_negative=True), ValueError, "non_negative is"
    ),
    "biases": (
        lambda: observed_parafac(X, 2, biases=True, non_negative=True), ValueError, "biases=False"
    ),
    "fill_value": (
        lambda: observed_parafac(sparse.COO([[1], [2]], [1.0], (3, 3), fill_value=2.0), 2),
        ValueError, "fill_value is 2.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), BAD.values(), ids=BAD)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error, match=text) as caught:
        call()
    assert not isinstance(caught.value, DensifyError)


def test_a_model_with_biases_is_a_guess():
    """Its components are taken, and its biases fitted anew."""
    x, _ = make_noisy()
    options = {"biases": True, "l2_reg": 0.1, "random_state": 0, "n_iter_max": 3, "tol": 0}
    model = observed_parafac(x, 2, **options)
    components = [factor[:, :2] for factor in model.factors]
    found = observed_parafac(x, 2, init=model, **options)
    expected = observed_parafac(x, 2, init=(None, components), **options)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, other, rtol=1e-12)
    with pytest.raises(ValueError, match="init must have the rank 3"):
        observed_parafac(x, 3, init=model, **options)
