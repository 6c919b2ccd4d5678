"""CuPy's sparse matrices, with a stand-in; SciPy's are tested with unfoldings."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tensorly_flycoo.ops import sparse_matrices


@pytest.mark.parametrize("size", [2**31 - 1, 2**31])
def test_a_cupy_with_32_bit_indices_is_detected(monkeypatch, size):
    """CuPy 14.0 casts indices of any type to int32."""
    matrix = SimpleNamespace(indices=np.zeros(0, np.int32))
    module = SimpleNamespace(csc_matrix=lambda arrays, shape: matrix)
    monkeypatch.setitem(sys.modules, "cupyx.scipy.sparse", module)
    monkeypatch.setattr(sparse_matrices, "is_cupy", lambda array: True)
    arguments = (np.ones(2), np.zeros(2, np.int64), np.array([0, 2]), (size, 1))
    if size < 2**31:
        assert sparse_matrices.make_csc(*arguments) is matrix
    else:
        with pytest.raises(ValueError, match=r"expected at most 2147483647 of each .*CuPy 14\.2"):
            sparse_matrices.make_csc(*arguments)
