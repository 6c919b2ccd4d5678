"""Every public function gives NumPy's arrays for a tensor on the host, wherever it is computed.

Here a tensor is computed on two simulated devices, whose factors are `RowShards`: these stay where
they are for a `FlycooTensor`, and come to the host for a COO.
"""

import pytest
import tensorly as tl
from numpy_devices import NumpyDevices
from public_calls import CALLS, CASES, NO_ARRAYS, RANK, START, call, make_coo

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, decomposition
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.spread.row_shards import RowShards
from tensorly_flycoo.tensor.entrance import map_arrays


def list_shards(x):
    shards = []
    map_arrays(lambda array: shards.append(array) or array, x)
    return [array for array in shards if isinstance(array, RowShards)]


@pytest.fixture
def two_devices(monkeypatch, flycoo_backend):
    monkeypatch.setattr(CPU, "devices", NumpyDevices(2))


def test_every_public_function_is_listed():
    names = {*decomposition.__all__, *tensorly_flycoo.__all__}
    assert names <= {*CALLS, *NO_ARRAYS}, names - {*CALLS, *NO_ARRAYS}


@pytest.mark.usefixtures("two_devices")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_results_are_on_the_host(name, kind):
    assert not list_shards(call(name, kind))


@pytest.mark.usefixtures("two_devices")
def test_results_of_a_flycoo_tensor_stay():
    x = FlycooTensor.from_coo(make_coo())
    assert list_shards(tl.decomposition.parafac(x, RANK, **START))
