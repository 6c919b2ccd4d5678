"""NNDSVD without right singular vectors, against TensorLy's."""

import numpy as np
import pytest
import tensorly as tl

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.svd.nndsvd import make_left_vectors_non_negative
from tensorly_flycoo.svd.unfolding import Unfolding
from tensorly_flycoo.testing import random_tensor


def _mixed_tensor(dtype=np.float64):
    x = random_tensor((9, 8, 7), 150, random_state=0)
    coords, values = x.nonzeros()
    return FlycooTensor(coords, values - 0.3, x.shape, dtype=dtype)


@pytest.mark.parametrize("kind", ["nndsvd", "nndsvda"])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("signs", [1, -1])
def test_same_as_tensorly(signs, mode, kind):
    x = _mixed_tensor()
    unfolding = Unfolding(x, mode)
    left, values = unfolding.svd(4)
    matrix = np.moveaxis(x.to_coo().todense(), mode, 0).reshape(unfolding.shape)
    right = (left.T @ matrix) / values[:, None]
    left = signs * left  # the right vectors change sign too
    with tl.backend_context("numpy"):
        expected, _ = tl.tenalg.svd.make_svd_non_negative(
            matrix, left, values, signs * right, nntype=kind
        )
    found = make_left_vectors_non_negative(unfolding, left, values, kind)
    np.testing.assert_allclose(found, expected, atol=x.nnz * np.finfo(float).eps * values[0])
    assert (found >= 0).all()


def test_zero_singular_values_give_no_nan():
    x = FlycooTensor([[0, 1], [2, 0]], [4.0, 9.0], shape=(5, 4))
    unfolding = Unfolding(x, 0)
    found = make_left_vectors_non_negative(unfolding, *unfolding.svd(4))
    np.testing.assert_allclose(found[:, 2:], 13 / 20)
    assert np.isfinite(found).all()


def test_precision_is_that_of_the_tensor():
    unfolding = Unfolding(_mixed_tensor(np.float32), 0)
    assert make_left_vectors_non_negative(unfolding, *unfolding.svd(3)).dtype == np.float32


def test_an_unknown_kind_is_an_error():
    unfolding = Unfolding(_mixed_tensor(), 0)
    with pytest.raises(ValueError, match="non_negative is 'nnsvd', expected"):
        make_left_vectors_non_negative(unfolding, *unfolding.svd(2), "nnsvd")
