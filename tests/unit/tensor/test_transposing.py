"""Transposes against NumPy's."""

import numpy as np
import pytest
from small_tensors import make_dense, make_tensor, to_dense

LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])


@LAYOUTS
@pytest.mark.parametrize(
    "axes", [(), (None,), (1, 0, 2), ((2, 0, 1),), ([-1, -3, -2],), (0, 1, 2)], ids=str
)
def test_against_numpy(axes, layout):
    x = make_tensor(make_dense(), layout=layout)
    y = x.transpose(*axes)
    np.testing.assert_array_equal(to_dense(y), make_dense().transpose(*axes))
    assert (y.layout, y.device, y.dtype) == (layout, "cpu", x.dtype)


def test_other_spellings():
    x = make_tensor(make_dense())
    assert x.transpose(0, 1, 2) is x
    np.testing.assert_array_equal(to_dense(x.T), make_dense().T)
    np.testing.assert_array_equal(to_dense(np.transpose(x)), make_dense().T)
    np.testing.assert_array_equal(
        to_dense(np.transpose(x, (1, 2, 0))), make_dense().transpose(1, 2, 0)
    )


@pytest.mark.parametrize(("axes", "message"), [((0, 1), "each of the 3 axes"), ((0, 0, 1), "once")])
def test_wrong_axes(axes, message):
    with pytest.raises(ValueError, match=message):
        make_tensor(make_dense()).transpose(axes)
