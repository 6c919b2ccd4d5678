"""Rows of Tucker models for new indices, against dense solvers of one row at a time."""

import functools

import numpy as np
import pytest
from scipy.optimize import nnls

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.loop.masks import MissingEntries
from tensorly_flycoo.results.fold_in_tucker import fold_in_tucker
from tensorly_flycoo.testing import random_tensor

SHAPE, RANKS, NUM_NEW = (9, 8, 10), (3, 2, 4), 15


def make_model(dtype="float64", seed=0):
    """Return a core and factors that are not orthonormal, with columns of unlike lengths."""
    rng = np.random.default_rng(seed)
    pairs = zip(SHAPE, RANKS, strict=True)
    factors = [rng.standard_normal(pair) * 2.0 ** -np.arange(pair[1]) for pair in pairs]
    return rng.standard_normal(RANKS).astype(dtype), [f.astype(dtype) for f in factors]


def make_new(mode, dtype="float64", nnz=400):
    shape = [*SHAPE[:mode], NUM_NEW, *SHAPE[mode + 1 :]]
    return random_tensor(shape, nnz, random_state=mode, dtype=dtype)


def make_design(core, factors, mode):
    """Return the Kronecker product of the other factors times the core: (cells, R)."""
    core = np.moveaxis(core.astype(float), mode, 0).reshape(core.shape[mode], -1)
    others = [factor.astype(float) for n, factor in enumerate(factors) if n != mode]
    return functools.reduce(np.kron, others) @ core.T


def unfold(x, mode):
    return np.moveaxis(x, mode, 0).reshape(x.shape[mode], -1)


def mark_missing(x, seed=0):
    """Return a table of known cells, which in a few rows are very few, and the missing ones."""
    rng = np.random.default_rng(seed)
    is_known = rng.random(x.shape) < 0.7
    mode = x.shape.index(NUM_NEW)
    front = np.moveaxis(is_known, mode, 0)
    front[1] &= rng.random(front[1].shape) < 0.03
    front[2] = False
    front[3] = True
    return is_known, MissingEntries(x, np.argwhere(~is_known).T)


def solve_rows_densely(design, values, is_known, non_negative=False):
    """Solve each row by itself, with columns in units of their lengths."""
    lengths = np.linalg.norm(design, axis=0)

    def solve(matrix, targets):
        if non_negative:
            return nnls(matrix, targets)[0] if targets.size else np.zeros(lengths.size)
        return np.linalg.lstsq(matrix, targets, rcond=1e-10)[0]

    rows = zip(values.astype(float), is_known, strict=True)
    return np.array([solve((design / lengths)[known], row[known]) for row, known in rows]) / lengths


def check_rows(found, expected, design, values, is_known):
    """Compare rows that have one solution, in units of the designs' lengths.

    Each number has an error of one rounding for each cell at most, relative to the length of all
    designs; a system magnifies it by the inverse of its least eigenvalue.
    """
    lengths = np.linalg.norm(design, axis=0)
    rounding = np.finfo(found.dtype).eps * len(design)
    size = np.sqrt(lengths.size)
    count = 0
    for row, wanted, own, known in zip(found, expected, values, is_known, strict=True):
        roots = np.linalg.svd((design / lengths)[known], compute_uv=False)
        if roots.size < lengths.size or roots[-1] < 1e-4:
            continue
        count += 1
        error = size * (np.linalg.norm(own) + size * np.linalg.norm(wanted * lengths))
        bound = rounding * error / roots[-1] ** 2
        assert np.linalg.norm((row - wanted) * lengths) <= bound
    assert count >= len(found) - 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("non_negative", [False, True])
def test_all_cells_known(non_negative, mode, dtype):
    core, factors = make_model(dtype)
    x = make_new(mode, dtype)
    design = make_design(core, factors, mode)
    values = unfold(x.to_coo().todense(), mode)
    is_known = np.ones(values.shape, bool)
    expected = solve_rows_densely(design, values, is_known, non_negative)
    found = fold_in_tucker(core, factors, x, mode, non_negative=non_negative)
    assert found.dtype == dtype
    check_rows(found, expected, design, values, is_known)


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("non_negative", [False, True])
@pytest.mark.parametrize("is_observed", [False, True], ids=["missing", "observed"])
def test_some_cells_known(is_observed, non_negative, mode):
    """Whether the unknown cells are listed, or the known ones are those that are stored."""
    core, factors = make_model()
    x = make_new(mode)
    dense = x.to_coo().todense()
    is_known, missing = mark_missing(x)
    if is_observed:
        is_known &= dense != 0
    design = make_design(core, factors, mode)
    options = {"observed": is_observed, "non_negative": non_negative}
    found = fold_in_tucker(core, factors, x, mode, missing=missing, **options)
    values, is_known = unfold(dense, mode), unfold(is_known, mode)
    expected = solve_rows_densely(design, values, is_known, non_negative)
    check_rows(found, expected, design, values, is_known)
    assert (found[2] == 0).all()
    for row, wanted, own, known in zip(found, expected, values, is_known, strict=True):
        residual, least = (own[known] - design[known] @ f for f in (row, wanted))
        assert np.linalg.norm(residual) <= np.linalg.norm(least) + 1e-10 * np.linalg.norm(own)


@pytest.mark.parametrize("mode", range(3))
def test_listing_all_zeros_as_missing_is_observed(mode):
    core, factors = make_model()
    x = make_new(mode, nnz=300)
    missing = MissingEntries(x, np.argwhere(x.to_coo().todense() == 0).T)
    found = fold_in_tucker(core, factors, x, mode, missing=missing)
    expected = fold_in_tucker(core, factors, x, mode, observed=True)
    design = make_design(core, factors, mode)
    values = unfold(x.to_coo().todense(), mode)
    check_rows(found, expected, design, values, values != 0)


@pytest.mark.parametrize("mode", range(3))
def test_rows_of_an_exact_model_come_back(mode):
    core, factors = make_model()
    dense = np.einsum("abc,ia,jb,kc->ijk", core, *factors)
    coords = np.indices(SHAPE).reshape(3, -1)
    x = FlycooTensor(coords, dense.reshape(-1), SHAPE)
    is_known = np.random.default_rng(1).random(SHAPE) < 0.7
    missing = MissingEntries(x, np.argwhere(~is_known).T)
    design = make_design(core, factors, mode)
    wanted = factors[mode]
    factors[mode] = np.full((1, 1), np.nan)  # it is not used
    for options in ({}, {"observed": True}, {"missing": missing}):
        found = fold_in_tucker(core, factors, x, mode, **options)
        check_rows(found, wanted, design, unfold(dense, mode), unfold(is_known, mode))


def test_a_huge_hypersparse_tensor_is_never_dense():
    """Of a million indices in each mode, with the middle mode of one row."""
    rng = np.random.default_rng(0)
    shape = (1_000_000, 50, 1_000_000)
    coords = np.stack([rng.integers(0, size, 300) for size in shape])
    x = FlycooTensor(coords, rng.random(300), shape)
    core = rng.random((2, 3, 2))
    factors = [rng.random((size, rank)) for size, rank in zip(shape, core.shape, strict=True)]
    (rows, *columns), values = x._sorted_nonzeros()
    found = fold_in_tucker(core, factors, x, 0)
    assert np.array_equal(np.flatnonzero(found.any(axis=1)), np.unique(rows))
    observed = fold_in_tucker(core, factors, x, 0, observed=True)
    pairs = [factor[ids] for factor, ids in zip(factors[1:], columns, strict=True)]
    model = np.einsum("abc,na,nb,nc->n", core, observed[rows], *pairs)
    is_alone = np.bincount(rows)[rows] == 1
    assert is_alone.any()
    assert np.abs(model - values)[is_alone].max() <= 1e-12


def test_no_nonzeros():
    core, factors = make_model()
    x = FlycooTensor(np.zeros((3, 0), int), np.zeros(0), (4, *SHAPE[1:]))
    for observed in (False, True):
        assert (fold_in_tucker(core, factors, x, 0, observed=observed) == 0).all()


def test_results_have_the_same_bits():
    core, factors = make_model()
    x = make_new(1)
    _, missing = mark_missing(x)
    first, second = (fold_in_tucker(core, factors, x, 1, missing=missing) for _ in range(2))
    assert (first == second).all()


def test_models_that_do_not_match():
    core, factors = make_model()
    x = make_new(0)
    with pytest.raises(ValueError, match=r"x has 3 modes, expected 2"):
        fold_in_tucker(core[0], factors[1:], x, 0)
    with pytest.raises(ValueError, match=r"factors\[1\] has shape \(7, 2\), expected \(8, rank\)"):
        fold_in_tucker(core, [factors[0], factors[1][:7], factors[2]], x, 0)
    with pytest.raises(ValueError, match=r"factors\[2\] has shape \(10, 3\), expected \(10, 4\)"):
        fold_in_tucker(core, [*factors[:2], factors[2][:, :3]], x, 0)
    with pytest.raises(TypeError, match=r"factors\[2\] has dtype float32"):
        fold_in_tucker(core, [*factors[:2], factors[2].astype("float32")], x, 0)
