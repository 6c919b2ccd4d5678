"""Models with one factor for several modes are on a GPU those of the CPU."""

import numpy as np
import pytest
from sides import check_runs

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.decomposition import shared_parafac, shared_tucker
from tensorly_flycoo.testing import random_tensor

RANK = 4

#: Functions, shapes, modes that share, and ridges.
CASES = [
    (shared_parafac, (60, 9, 60), (0, 2), 0.1),
    (shared_parafac, (50, 50, 50), (0, 1, 2), 0),
    (shared_parafac, (30, 40, 30, 40), [(0, 2), (1, 3)], 0),
    (shared_tucker, (60, 9, 60), (0, 2), 0.1),
]


def name_case(value):
    """Return a part of a test's name that is the same in every process."""
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("function", "shape", "modes", "ridge"), CASES, ids=name_case)
def test_as_on_the_cpu(function, shape, modes, ridge, dtype):
    x = random_tensor(shape, 5000, random_state=0, dtype=dtype, device="cpu")
    on_gpu = FlycooTensor(*x.nonzeros(), shape, device="cuda")
    options = {"modes": modes, "l2_reg": ridge, "random_state": 0, "n_iter_max": 3}
    _, errors = function(x, RANK, return_errors=True, **options)
    found, on_gpu_errors = function(on_gpu, RANK, return_errors=True, **options)
    again = function(on_gpu, RANK, **options)
    tolerance = 1e-3 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(on_gpu_errors, errors, rtol=tolerance)
    check_runs(found, again, dtype)
    on_host = function(x.to_coo(), RANK, **options)
    assert isinstance(on_host.factors[0], np.ndarray)
