"""TensorLy's own loop on row-sharded factors, with NumPy "devices" whose arrays never mix.

The MTTKRP is computed in one place and scattered: what is tested is everything else in the loop.
"""

import numpy as np
import pytest
import tensorly as tl
from numpy_devices import NumpyDevices
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac

from tensorly_flycoo.backend import tensor_algebra
from tensorly_flycoo.shards.row_shards import RowShards
from tensorly_flycoo.shards.sharding import Sharding, cut_evenly
from tensorly_flycoo.testing import planted_tensor

SHAPE, RANK, NUM_BLOCKS = (30, 20, 40), 3, 5


def gather(factor):
    return factor.to_numpy() if isinstance(factor, RowShards) else factor


@pytest.fixture
def scattered_mttkrp(monkeypatch):
    """Take and return sharded factors, if one is."""
    real = tensor_algebra.mttkrp

    def mttkrp(x, factors, mode, weights=None):
        result = real(x, [gather(factor) for factor in factors], mode, weights=weights)
        sharded = [factor for factor in factors if isinstance(factor, RowShards)]
        is_sharded = bool(sharded) and len(sharded) == len(factors)
        return RowShards.scatter(result, factors[mode].sharding) if is_sharded else result

    monkeypatch.setattr(tensor_algebra, "mttkrp", mttkrp)


@pytest.mark.usefixtures("scattered_mttkrp")
@pytest.mark.filterwarnings("ignore:It is not recommended")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_factors": True},
        {"l2_reg": 0.1},
        {"linesearch": True},
        {"orthogonalise": True},
        {"fixed_modes": [0]},
    ],
    ids=str,
)
def test_parafac(options):
    x, _ = planted_tensor(SHAPE, RANK, 200, noise=0.1, random_state=0)
    rng = np.random.default_rng(0)
    factors = [rng.random((size, RANK)) for size in SHAPE]
    options = {"n_iter_max": 6, "tol": 0, "return_errors": True, **options}

    def run(start):
        with tl.backend_context("flycoo"):
            found, errors = parafac(x, RANK, init=CPTensor((np.ones(RANK), start)), **options)
            return [float(error) for error in errors], [tl.to_numpy(f) for f in found.factors]

    expected_errors, expected = run(factors)
    results = []
    for num_devices in (1, 2, 3, 5, 8):
        shardings = [
            Sharding.of(cut_evenly(size, NUM_BLOCKS), NumpyDevices(num_devices)) for size in SHAPE
        ]
        results.append(
            run([RowShards.scatter(*pair) for pair in zip(factors, shardings, strict=True)])
        )
    for errors, found in results:
        assert errors == results[0][0]
        assert [f.tobytes() for f in found] == [f.tobytes() for f in results[0][1]]
    np.testing.assert_allclose(results[0][0], expected_errors, rtol=1e-10)
    for found, factor in zip(results[0][1], expected, strict=True):
        # QR decompositions differ in signs.
        np.testing.assert_allclose(np.abs(found), np.abs(factor), rtol=1e-8, atol=1e-10)
