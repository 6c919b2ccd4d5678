"""Observed and missing entries of a tensor, and the imputation of missing ones."""

import numpy as np
import pytest
import reference
import sparse

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.loop.masks import (
    ImputedTensor,
    MissingBlocks,
    MissingEntries,
    copy_mask,
    find_missing,
    is_same_mask,
)
from tensorly_flycoo.ops import cp_entries as entries
from tensorly_flycoo.ops.ttmc import multiply_nonempty_rows

SHAPE, RANK = (6, 7, 8), 4
RNG = np.random.RandomState(0)
CELLS = RNG.choice(np.prod(SHAPE), 90, replace=False)
COORDS = np.stack(np.unravel_index(CELLS, SHAPE))
VALUES = RNG.standard_normal(90)
#: Ten missing entries that are stored, and ten that are not.
OTHERS = np.setdiff1d(np.arange(np.prod(SHAPE)), CELLS)[::20][:10]
MISSING = np.concatenate([COORDS[:, 5:15], np.stack(np.unravel_index(OTHERS, SHAPE))], axis=1)
FACTORS = [RNG.standard_normal((size, RANK)) for size in SHAPE]
WEIGHTS = np.array([1.0, -2.0, 0.5, 3.0])

DENSE = np.zeros(SHAPE)
DENSE[tuple(COORDS)] = VALUES
MODEL = np.einsum("r,ir,jr,kr->ijk", WEIGHTS, *FACTORS)


@pytest.fixture(params=["remap", "replicated", "indexed"])
def missing(request):
    x = FlycooTensor(COORDS, VALUES, SHAPE, layout=request.param)
    # Unsorted and with duplicates.
    return MissingEntries(x, np.concatenate([MISSING, MISSING[:, 3:6]], axis=1)[:, ::-1])


def test_observed_and_missing_make_the_tensor(missing):
    assert missing.count == 20
    assert missing.observed.nnz == 80
    assert missing.observed.layout == missing.tensor.layout
    whole = missing.observed.to_coo().todense()
    assert (whole[tuple(missing.coords)] == 0).all()
    whole[tuple(missing.coords)] = missing.start
    np.testing.assert_array_equal(whole, DENSE)


def test_a_tensor_that_stores_no_missing_entry_is_not_rebuilt():
    x = FlycooTensor(COORDS, VALUES, SHAPE)
    missing = MissingEntries(x, MISSING[:, 10:])
    assert missing.observed is x
    assert (missing.start == 0).all()


def _filled(missing, values):
    filled = DENSE.copy()
    filled[tuple(missing.coords)] = values
    return filled


def test_imputed_values_are_those_of_the_model(missing):
    x = ImputedTensor(missing)
    np.testing.assert_array_equal(x.values, DENSE[tuple(missing.coords)])
    x.impute(WEIGHTS, FACTORS)
    np.testing.assert_allclose(x.values, MODEL[tuple(missing.coords)], rtol=1e-13)


@pytest.mark.parametrize("knows_mttkrp", [False, True])
def test_the_error_is_that_of_the_imputed_tensor(knows_mttkrp, missing):
    x = ImputedTensor(missing)
    x.values = np.linspace(-1, 1, missing.count)
    last = x.mttkrp(WEIGHTS, FACTORS, 2) if knows_mttkrp else None
    error, values = x.measure(WEIGHTS, FACTORS, last)
    filled = _filled(missing, MODEL[tuple(missing.coords)])
    np.testing.assert_allclose(values, MODEL[tuple(missing.coords)], rtol=1e-13)
    expected = np.linalg.norm(filled - MODEL) / np.linalg.norm(filled)
    np.testing.assert_allclose(error, expected, rtol=1e-13)
    np.testing.assert_array_equal(x.values, np.linspace(-1, 1, missing.count))


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weights"])
def test_mttkrp_is_that_of_both_parts(mode, weights, missing):
    x = ImputedTensor(missing)
    x.impute(None, FACTORS)
    found = x.mttkrp(weights, FACTORS, mode)
    # For the oracle, weights are the factor of an extra mode of size 1.
    filled = _filled(missing, x.values)[..., None]
    factors = [*FACTORS, np.ones((1, RANK)) if weights is None else weights[None]]
    coords = np.array(np.nonzero(filled))
    arguments = (coords, filled[tuple(coords)], filled.shape, factors, mode)
    bound = reference.mttkrp_error_bound(*arguments, np.float64)
    assert (np.abs(found - reference.mttkrp(*arguments)) <= bound).all()


@pytest.mark.parametrize("block_numbers", [1, 2**16])
@pytest.mark.parametrize("mode", range(3))
def test_imputation_by_singular_vectors(mode, block_numbers, missing, monkeypatch):
    monkeypatch.setattr(entries, "_CPU_BLOCK_NUMBERS", block_numbers)
    dense = DENSE.copy()
    for num_repeats in range(3):
        found, found_values = missing.unfold_imputed(mode, RANK, num_repeats).svd(RANK)
        matrix = np.moveaxis(dense, mode, 0).reshape(SHAPE[mode], -1)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        np.testing.assert_allclose(found_values, values[:RANK], rtol=1e-12)
        signs = np.sign((found * left[:, :RANK]).sum(axis=0))
        np.testing.assert_allclose(found, signs * left[:, :RANK], atol=1e-10)
        model = (left[:, :RANK] * values[:RANK]) @ right[:RANK]
        model = np.moveaxis(model.reshape(np.moveaxis(dense, mode, 0).shape), 0, mode)
        dense[tuple(missing.coords)] = model[tuple(missing.coords)]


@pytest.mark.parametrize("block_numbers", [1, 2**16])
@pytest.mark.parametrize("mode", range(3))
def test_unfoldings_of_slabs_are_imputed(mode, block_numbers, missing, monkeypatch):
    monkeypatch.setattr(entries, "_CPU_BLOCK_NUMBERS", block_numbers)
    in_slabs = MissingEntries(FlycooTensor(COORDS, VALUES, SHAPE, slabs=3), MISSING)
    found = in_slabs.unfold_imputed(mode, RANK, 3).svd(RANK)
    for array, expected in zip(found, missing.unfold_imputed(mode, RANK, 3).svd(RANK), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"groups": [(0, 1), (2,)]}, {"slabs": 2}], ids=str)
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_a_filled_tensor_is_that_built_anew(layout, options, dtype):
    x = FlycooTensor(COORDS, VALUES, SHAPE, dtype=dtype, layout=layout, **options)
    missing, factors = MissingEntries(x, MISSING), [factor.astype(dtype) for factor in FACTORS]
    values = np.arange(20) - 9.0  # with a zero
    filled = [missing.fill(own) for own in (values, -1 / (values + 0.5), values)]
    for own in filled[::2]:
        coords = np.concatenate([missing.observed.nonzeros()[0], missing.coords], axis=1)
        given = np.concatenate([missing.observed.nonzeros()[1], values.astype(dtype)])
        options = options | {"layout": layout, "groups": None}
        expected = FlycooTensor(coords, given, SHAPE, **options)
        assert (own.nnz, own.layout, own.slabs) == (99, layout, options.get("slabs", 1))
        for found, array in zip(own.nonzeros(), expected.nonzeros(), strict=True):
            np.testing.assert_array_equal(found, array)
        assert own.norm() == expected.norm()
        for mode in range(3):
            others = {n: factor for n, factor in enumerate(factors) if n != mode}
            rows, array = (multiply_nonempty_rows(y, mode, others)[0] for y in (own, expected))
            np.testing.assert_array_equal(rows, array)


def test_a_tensor_is_sorted_in_the_first_fill_only(missing):
    first, second = missing.fill(np.ones(20)), missing.fill(np.arange(1.0, 21))
    assert first._layout.tilings is second._layout.tilings
    assert (first.max(), second.max()) == (max(1, missing.observed.max()), 20)
    with pytest.raises(ValueError, match="is nan, expected finite"):
        missing.fill(np.full(20, np.nan))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes(dtype):
    missing = MissingEntries(FlycooTensor(COORDS, VALUES, SHAPE, dtype=dtype), MISSING)
    factors = [factor.astype(dtype) for factor in FACTORS]
    x = ImputedTensor(missing)
    error, values = x.measure(None, factors)
    assert isinstance(error, float)
    left, _ = missing.unfold_imputed(1, 3, num_repeats=1).svd(2)
    products = x.mttkrp(None, factors, 0)
    assert {a.dtype for a in (values, missing.start, products, left)} == {np.dtype(dtype)}


def test_an_index_outside_is_named():
    mask = sparse.COO([[1], [2], [3]], [0.0], SHAPE, fill_value=1.0)
    mask.coords[2, 0] = 9
    with pytest.raises(ValueError, match=r"coords\[2, 0\] is 9"):
        find_missing(FlycooTensor(COORDS, VALUES, SHAPE), mask)


#: Missing for all indices of the other modes: of the first and third mode, and of the second alone.
SMALL = {
    "two modes": (RNG.random_sample((6, 1, 8)) < 0.8),
    "one mode": np.array([1, 0, 1, 1, 0, 1, 1]).reshape(1, 7, 1),
    "first modes": (RNG.random_sample((6, 7, 1)) < 0.7).astype(float),
}


@pytest.fixture(params=SMALL)
def blocks(request):
    small = SMALL[request.param]
    kinds = find_missing(FlycooTensor(COORDS, VALUES, SHAPE), small), small
    assert type(kinds[0]) is MissingBlocks
    return kinds


def test_blocks_are_the_entries_of_a_whole_mask(blocks):
    missing, small = blocks
    is_missing = np.broadcast_to(small == 0, SHAPE)
    assert missing.count == is_missing.sum()
    np.testing.assert_array_equal(
        missing.observed.to_coo().todense(), np.where(is_missing, 0, DENSE)
    )
    listed = find_missing(missing.tensor, small, lists=True)
    np.testing.assert_array_equal(listed.coords, np.nonzero(is_missing))
    np.testing.assert_array_equal(listed.start, DENSE[is_missing])
    stored = sparse.COO(np.stack(np.nonzero(small == 0)), 0.0, small.shape, fill_value=1.0)
    again = find_missing(missing.tensor, stored)
    np.testing.assert_array_equal(again.coords, missing.coords)
    shifted = again.of(missing.tensor * 2)
    assert (shifted.count, shifted.observed.norm()) == (missing.count, missing.observed.norm() * 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weights"])
def test_sums_over_blocks_are_those_over_their_entries(weights, dtype, blocks):
    _, small = blocks
    x = FlycooTensor(COORDS, VALUES, SHAPE, dtype=dtype)
    missing, is_missing = find_missing(x, small), np.broadcast_to(small == 0, SHAPE)
    rng, bound = np.random.RandomState(1), 100 * float(np.finfo(dtype).eps)
    old, new = (
        [rng.standard_normal((size, rank)).astype(dtype) for size in SHAPE] for rank in (3, RANK)
    )
    of_old = np.where(is_missing, np.einsum("ir,jr,kr->ijk", *old), 0)
    ones = np.ones(RANK) if weights is None else weights
    of_new = np.where(is_missing, np.einsum("r,ir,jr,kr->ijk", ones, *new), 0)
    weights = None if weights is None else weights.astype(dtype)
    np.testing.assert_allclose(missing.sum_model(weights, new), of_new.sum(), rtol=10 * bound)
    square = missing.sum_model(weights, new, square=True)
    np.testing.assert_allclose(square, (of_new**2).sum(), rtol=bound)
    values, *sums = missing.compare(missing.impute(None, old), weights, new)
    expected = [(of_new**2).sum(), (of_new * (of_new - of_old)).sum()]
    np.testing.assert_allclose(sums, expected, rtol=10 * bound)
    for given, dense in ((values, of_new), (missing.make_ones(), 1.0 * is_missing), (None, 0.0)):
        filled = np.where(is_missing, dense, 0.0)[..., None]
        coords = np.array(np.nonzero(np.ones_like(filled)))
        factors = [*new, np.ones((1, RANK), dtype) if weights is None else weights[None]]
        for mode, size in enumerate(SHAPE):
            arguments = coords, filled.ravel(), filled.shape, factors, mode
            found = missing.add_mttkrp(np.ones((size, RANK), dtype), given, new, mode, weights)
            limit = 10 * reference.mttkrp_error_bound(*arguments, np.dtype(dtype)) + bound
            assert found.dtype == dtype
            assert (np.abs(found - 1 - reference.mttkrp(*arguments)) <= limit).all()


@pytest.mark.parametrize("count", [12, 90])
def test_blocks_of_a_tensor_in_slabs(count, blocks):
    """More missing entries than nonzeros, or fewer: the fewer are looked up in the others."""
    _, small = blocks
    x = FlycooTensor(COORDS[:, :count], VALUES[:count], SHAPE, slabs=3)
    dense, is_missing = x.to_coo().todense(), np.broadcast_to(small == 0, SHAPE)
    for lists in (False, True):
        observed = find_missing(x, small, lists=lists).observed
        np.testing.assert_array_equal(observed.to_coo().todense(), np.where(is_missing, 0, dense))
    listed = find_missing(x, small, lists=True)
    np.testing.assert_array_equal(listed.start, dense[tuple(listed.coords)])


@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 7), (6, 2, 8), (6, 1, 8, 1)])
def test_other_shapes_of_a_mask_are_named(shape):
    with pytest.raises(ValueError, match=r"mask (has shape|marks all entries as missing)"):
        find_missing(FlycooTensor(COORDS, VALUES, SHAPE), np.zeros(shape))


def test_a_mask_of_three_modes_is_that_of_its_slices():
    cells = np.ones((3, 4, 5))
    cells[0, 1, 2] = cells[2, 3, :2] = 0
    mask = copy_mask(cells)
    slices = copy_mask([*cells])
    assert is_same_mask(mask, slices)
    assert is_same_mask(slices, mask)
    assert not is_same_mask(mask, slices[:2])
    assert not is_same_mask(mask, [slices[0], slices[1], slices[0]])
    assert not is_same_mask(mask[0], slices)
    assert not is_same_mask(slices, None)
    nothing = copy_mask(np.ones((3, 4, 5)))
    assert is_same_mask(nothing, [copy_mask(np.ones((4, 5)))] * 3)
    same_cells = cells[:1]  # of all slices
    assert is_same_mask(copy_mask(same_cells), [slices[0]] * 3)
