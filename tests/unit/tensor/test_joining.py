"""Joining tensors along a mode, against NumPy's."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from small_tensors import make_dense, make_tensor, to_dense

from tensorly_flycoo import FlycooTensor

LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])


@LAYOUTS
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("slabs", [None, 3])
def test_against_numpy(layout, axis, slabs):
    first, second = make_dense("float32"), make_dense("float64")
    if axis == 0:
        second = second[:2]
    joined = np.concatenate(
        [make_tensor(first, layout=layout, slabs=slabs), make_tensor(second)], axis
    )
    expected = np.concatenate([first, second], axis)
    np.testing.assert_array_equal(to_dense(joined), expected)
    assert (joined.layout, joined.device, joined.dtype) == (layout, "cpu", "float64")


def test_tensors_are_not_changed():
    x = make_tensor(make_dense())
    joined = np.concatenate([x, x, x], axis=1)
    np.testing.assert_array_equal(to_dense(x), make_dense())
    assert joined.nnz == 3 * x.nnz


@pytest.mark.usefixtures("flycoo_backend")
def test_by_tensorly_from_coos():
    dense = make_dense()
    coo = sparse.COO.from_numpy(dense)
    joined = tl.concatenate([coo, FlycooTensor.from_dense(dense)], axis=2)
    np.testing.assert_array_equal(to_dense(joined), np.concatenate([dense, dense], axis=2))
    joined = np.concatenate([FlycooTensor.from_dense(dense), coo])
    np.testing.assert_array_equal(to_dense(joined), np.concatenate([dense, dense]))
    np.testing.assert_array_equal(tl.concatenate([dense, dense]), np.concatenate([dense, dense]))


@pytest.mark.parametrize(
    ("cut", "axis", "message"),
    [
        (np.s_[:2], 1, r"tensor 1 has shape \(2, .*\), expected \(.*\), but for .* mode 1"),
        (np.s_[:, :, 0], 0, "tensor 1 has shape"),
        (np.s_[:], 3, "axis 3 is out of bounds"),
    ],
)
def test_shapes_that_do_not_fit(cut, axis, message):
    x = make_tensor(make_dense())
    with pytest.raises(ValueError, match=message):
        np.concatenate([x, make_tensor(make_dense()[cut])], axis)
