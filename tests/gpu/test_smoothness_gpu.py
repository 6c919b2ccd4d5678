"""Smooth models on a GPU are those of the CPU."""

import cupy
import numpy as np
import pytest
import scipy.sparse

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.decomposition import non_negative_parafac_hals, parafac, parafac2
from tensorly_flycoo.testing import random_tensor

SHAPE, RANK = (30, 40, 60), 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("smoothness", [5.0, {2: 100.0}], ids=str)
@pytest.mark.parametrize("function", [parafac, non_negative_parafac_hals])
def test_as_on_the_cpu(function, smoothness, dtype):
    x = random_tensor(SHAPE, 5000, random_state=0, dtype=dtype, device="cpu")
    on_gpu = FlycooTensor(*x.nonzeros(), SHAPE, device="cuda")
    options = {"init": "random", "random_state": 0, "n_iter_max": 3, "return_errors": True}
    expected, errors = function(x, RANK, smoothness=smoothness, **options)
    found, on_gpu_errors = function(on_gpu, RANK, smoothness=smoothness, **options)
    again, _ = function(on_gpu, RANK, smoothness=smoothness, **options)
    tolerance = 1e-3 if dtype == "float32" else 1e-9
    assert list(map(float, on_gpu_errors)) == pytest.approx(list(map(float, errors)), rel=tolerance)
    for own, same, factor in zip(found.factors, again.factors, expected.factors, strict=True):
        own, same = cupy.asnumpy(own), cupy.asnumpy(same)
        assert own.dtype == dtype
        assert own.tobytes() == same.tobytes()
        assert np.abs(own - factor).max() <= tolerance * np.abs(factor).max()


def test_slices_in_order_of_time():
    slices = [scipy.sparse.random_array((n, 20), density=0.5, rng=n) for n in (9, 12, 7, 10)]
    x = [FlycooTensor(np.stack(s.coords), s.data, s.shape, device="cuda") for s in slices]
    flat = parafac2(x, 2, random_state=0, n_iter_max=200, smoothness={0: 1e7, 2: 1.0})
    assert float(np.ptp(cupy.asnumpy(flat.factors[0]), axis=0).max()) <= 1e-3
