"""What of a tensor is observed and what is missing, and how missing entries are filled in."""

import numpy as np
import pytest
import sparse

from tensorly_flycoo import DensifyError, FlycooTensor, mttkrp
from tensorly_flycoo.decomposition.masks import (
    Mask,
    MaskedTensor,
    MissingEntries,
    MissingValues,
    find_missing,
)
from tensorly_flycoo.engines import reference
from tensorly_flycoo.ops import cp_entries as entries

SHAPE, RANK = (6, 7, 8), 4
RNG = np.random.RandomState(0)
CELLS = RNG.choice(np.prod(SHAPE), 90, replace=False)
COORDS = np.stack(np.unravel_index(CELLS, SHAPE))
VALUES = RNG.standard_normal(90)
#: Ten stored entries, and ten that are not.
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
    # In any order, and some of them twice.
    return MissingEntries(x, np.concatenate([MISSING, MISSING[:, 3:6]], axis=1)[:, ::-1])


def test_observed_and_missing_make_the_tensor(missing):
    assert missing.count == 20
    assert missing.observed.nnz == 80
    assert missing.observed.layout == missing.tensor.layout
    whole = missing.observed.to_coo().todense()
    assert (whole[tuple(missing.coords)] == 0).all()
    whole[tuple(missing.coords)] = missing.start
    np.testing.assert_array_equal(whole, DENSE)


def test_a_tensor_without_the_missing_entries_is_not_built_again():
    x = FlycooTensor(COORDS, VALUES, SHAPE)
    missing = MissingEntries(x, MISSING[:, 10:])
    assert missing.observed is x
    assert (missing.start == 0).all()


def _filled(missing, values):
    filled = DENSE.copy()
    filled[tuple(missing.coords)] = values
    return filled


def test_what_tensorly_evaluates(missing):
    mask, tensor = Mask(missing), MaskedTensor(missing, missing.start)
    assert (1 - mask) is missing
    model = missing.reconstruct(WEIGHTS, FACTORS)
    np.testing.assert_allclose(model.values, MODEL[tuple(missing.coords)], rtol=1e-13)
    imputed = tensor * mask + model
    np.testing.assert_array_equal(imputed.values, model.values)
    expected = np.linalg.norm(_filled(missing, model.values))
    np.testing.assert_allclose(imputed.norm(), expected, rtol=1e-14)
    np.testing.assert_allclose(tensor.norm(), np.linalg.norm(DENSE), rtol=1e-14)
    assert (imputed.shape, imputed.ndim, imputed.dtype) == (SHAPE, 3, np.float64)
    assert repr(imputed) == "<MaskedTensor of shape (6, 7, 8), 20 missing>"


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weights"])
def test_mttkrp_is_that_of_both_parts(mode, weights, missing):
    values = missing.reconstruct(None, FACTORS).values
    found = mttkrp(missing.observed, FACTORS, mode, weights=weights)
    result = missing.add_mttkrp(found, values, FACTORS, mode, weights)
    assert result is found
    # To the oracle, weights are the factor of one more mode, of size 1.
    filled = _filled(missing, values)[..., None]
    factors = [*FACTORS, np.ones((1, RANK)) if weights is None else weights[None]]
    coords = np.array(np.nonzero(filled))
    arguments = (coords, filled[tuple(coords)], filled.shape, factors, mode)
    bound = reference.mttkrp_error_bound(*arguments, np.float64)
    assert (np.abs(found - reference.mttkrp(*arguments)) <= bound).all()


@pytest.mark.parametrize("block_numbers", [1, 2**16])
@pytest.mark.parametrize("mode", range(3))
def test_imputation_by_singular_vectors(mode, block_numbers, missing, monkeypatch):
    monkeypatch.setattr(entries, "_CPU_BLOCK_NUMBERS", block_numbers)
    unfolding = missing.unfold(mode)
    dense = DENSE.copy()
    for _ in range(3):
        matrix = np.moveaxis(dense, mode, 0).reshape(SHAPE[mode], -1)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        found, found_values = unfolding.svd(RANK)
        np.testing.assert_allclose(found_values, values[:RANK], rtol=1e-12)
        signs = np.sign((found * left[:, :RANK]).sum(axis=0))
        np.testing.assert_allclose(found, signs * left[:, :RANK], atol=1e-10)
        model = (left[:, :RANK] * values[:RANK]) @ right[:RANK]
        model = np.moveaxis(model.reshape(np.moveaxis(dense, mode, 0).shape), 0, mode)
        dense[tuple(missing.coords)] = model[tuple(missing.coords)]
        before = unfolding
        unfolding = unfolding.impute(found)
    # The one before is as it was.
    np.testing.assert_array_equal(before.svd(RANK)[1], found_values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes(dtype):
    missing = MissingEntries(FlycooTensor(COORDS, VALUES, SHAPE, dtype=dtype), MISSING)
    model = missing.reconstruct(None, [factor.astype(dtype) for factor in FACTORS])
    tensor = MaskedTensor(missing, model.values)
    left, _ = missing.unfold(1).impute(np.eye(7, 3, dtype=dtype)).svd(2)
    assert {model.values.dtype, missing.start.dtype, tensor.norm().dtype, left.dtype} == {
        np.dtype(dtype)
    }


def test_parts_of_different_masks_do_not_mix(missing):
    other = MissingEntries(missing.tensor, MISSING[:, :1])
    tensor = MaskedTensor(missing, missing.start)
    with pytest.raises(TypeError):
        tensor * Mask(other)
    with pytest.raises(TypeError):
        tensor + MissingValues(other, other.start)
    with pytest.raises(TypeError):
        2 - Mask(missing)
    with pytest.raises(DensifyError, match="masks work in parafac"):
        np.asarray(tensor)


def test_an_index_outside_is_named():
    mask = sparse.COO([[1], [2], [3]], [0.0], SHAPE, fill_value=1.0)
    mask.coords[2, 0] = 9
    with pytest.raises(ValueError, match=r"coords\[2, 0\] is 9"):
        find_missing(FlycooTensor(COORDS, VALUES, SHAPE), mask)
