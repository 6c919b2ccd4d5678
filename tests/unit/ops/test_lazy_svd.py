"""The lazy SVD that TensorLy slices: shapes without computing, and fresh leading vectors."""

import numpy as np
import pytest
from unfoldings import check_orthonormal, make_dense, make_unfolding

from tensorly_flycoo import DensifyError, FlycooTensor
from tensorly_flycoo.ops.lazy_svd import LazySVD
from tensorly_flycoo.svd.unfolding import Unfolding


@pytest.fixture
def unfolding():
    return make_unfolding(make_dense((6, 5, 7)))


def test_the_triple_has_shapes_without_computing(unfolding, monkeypatch):
    monkeypatch.setattr(Unfolding, "svd", None)
    left, values, right = LazySVD(unfolding)
    assert (left.shape, values.shape, right.shape) == ((6, 6), (6,), (6, 35))
    assert (left.ndim, values.ndim, right.ndim) == (2, 1, 2)


def test_slices_are_the_leading_vectors(unfolding):
    left, values, right = LazySVD(unfolding)
    expected = unfolding.svd(3)
    np.testing.assert_array_equal(left[:, :3], expected[0])
    np.testing.assert_array_equal(values[:3], expected[1])
    assert right[:3, :].shape == (3, 35)
    assert right[:3].shape == (3, 35)


@pytest.mark.parametrize(
    "index", [slice(None), slice(6), slice(99), slice(0, 6), slice(None, 6, 1)]
)
def test_slices_of_all(unfolding, index):
    left, values, right = LazySVD(unfolding)
    assert left[:, index].shape == (6, 6)
    assert values[index].shape == (6,)
    assert right[index, :].shape == (6, 35)


def test_slices_are_fresh(unfolding):
    """TensorLy writes to its slice; the next slice holds the original vectors."""
    left, values, _ = LazySVD(unfolding)
    expected = left[:, :3].copy(), values[:3].copy()
    left[:, :3][...] = 7
    values[:3][...] = 7
    np.testing.assert_array_equal(left[:, :3], expected[0])
    np.testing.assert_array_equal(values[:3], expected[1])


@pytest.mark.parametrize(
    ("shape", "left_shape", "right_shape"),
    [((6, 5, 7), (6, 6), (35, 35)), ((60, 3, 4), (60, 60), (12, 12))],
    ids=["wide", "tall"],
)
def test_full_matrices_have_shapes_without_computing(shape, left_shape, right_shape, monkeypatch):
    monkeypatch.setattr(Unfolding, "svd", None)
    left, values, right = LazySVD(make_unfolding(make_dense(shape)), full_matrices=True)
    assert (left.shape, values.shape, right.shape) == (
        left_shape,
        (min(*left_shape, *right_shape),),
        right_shape,
    )
    assert [right[:n, :].shape for n in (3, 20)] == [
        (3, right_shape[1]),
        (min(20, right_shape[1]), right_shape[1]),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_columns", [13, 20, 60, 99])
def test_full_matrices_complete_the_left_vectors(num_columns, dtype):
    unfolding = make_unfolding(make_dense((60, 3, 4)).astype(dtype), dtype=dtype)
    left, values, _ = LazySVD(unfolding, full_matrices=True)
    basis, (known, expected) = left[:, :num_columns], unfolding.svd(12)
    assert (basis.shape, basis.dtype) == ((60, min(num_columns, 60)), dtype)
    check_orthonormal(basis, dtype)
    np.testing.assert_allclose(basis[:, :12], known, atol=60 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(values[:num_columns], expected)


def test_full_matrices_have_the_same_leading_vectors(unfolding):
    for full_matrices in (False, True):
        left, values, right = LazySVD(unfolding, full_matrices=full_matrices)
        np.testing.assert_array_equal(left[:, :6], unfolding.svd(6)[0])
        np.testing.assert_array_equal(left[:, :99], unfolding.svd(6)[0])
        np.testing.assert_array_equal(values[:99], unfolding.svd(6)[1])
        assert right[:99].shape == (35 if full_matrices else 6, 35)


def test_full_matrices_of_more_than_2_to_63_columns():
    x = FlycooTensor([[0, 1], [0, 5], [7, 7], [3, 3]], [3.0, 4.0], (5, 2**22, 2**22, 2**22))
    _, _, right = LazySVD(Unfolding(x, 0), full_matrices=True)
    assert right.shape == (2**66, 2**66)
    assert right[:3].shape == (3, 2**66)
    assert right[:].shape == (2**66, 2**66)


def test_computed_once_for_each_rank(unfolding, monkeypatch):
    ranks, original = [], Unfolding.svd

    def counted(self, rank):
        ranks.append(rank)
        return original(self, rank)

    monkeypatch.setattr(Unfolding, "svd", counted)
    left, values, right = LazySVD(unfolding)
    left[:, :3], values[:3], right[:3, :], left[:, :2], left[:, :3]
    assert ranks == [3, 2]


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda left, values, right: left[0], id="a row"),
        pytest.param(lambda left, values, right: left[:, 2], id="a column"),
        pytest.param(lambda left, values, right: left[:2, :2], id="some rows"),
        pytest.param(lambda left, values, right: left[:, 1:3], id="columns in the middle"),
        pytest.param(lambda left, values, right: left[:, ::2], id="every other column"),
        pytest.param(lambda left, values, right: values[1:], id="the last values"),
        pytest.param(lambda left, values, right: values[0], id="one value"),
        pytest.param(lambda left, values, right: np.asarray(left), id="all as an array"),
        pytest.param(lambda left, values, right: np.asarray(values), id="values as an array"),
        pytest.param(lambda left, values, right: np.abs(left), id="a function of all"),
        pytest.param(lambda left, values, right: np.asarray(right[:3]), id="right as an array"),
        pytest.param(lambda left, values, right: right[:3, :2], id="columns of right"),
        pytest.param(lambda left, values, right: right[1:], id="the last rows of right"),
        pytest.param(lambda left, values, right: right[:3] + 1, id="right in a sum"),
    ],
)
def test_other_uses_of_the_vectors_are_refused(unfolding, use):
    with pytest.raises((DensifyError, TypeError)):
        use(*LazySVD(unfolding))
