"""Narrow copies on a GPU, emulated: the kernels, and the arguments that Python gives them."""

import importlib
import sys
import types
from types import SimpleNamespace

import narrow_row_statements
import numpy as np
import pytest
from emulated_gpu import HAS_COMPILER, EmulatedKernel
from narrow_row_statements import draw_factor

from tensorly_flycoo.engines import cuda
from tensorly_flycoo.engines.cuda import tuning
from tensorly_flycoo.engines.narrow_rows import NARROW_FORMATS

pytestmark = HAS_COMPILER

MODULE = "tensorly_flycoo.engines.cuda.narrow_rows"
DTYPES = (np.float32, np.float64)


class DeviceArray(np.ndarray):
    """A NumPy array that passes for one on a GPU."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)


class Cupy(types.ModuleType):
    """The functions of CuPy that `narrow_rows` uses; what is not written is full of ones."""

    def zeros(self, shape, dtype):
        return np.zeros(shape, dtype).view(DeviceArray)

    def empty(self, shape, dtype):
        return np.full(shape, -1, "i1").astype(dtype).view(DeviceArray)

    def ascontiguousarray(self, array):
        return np.ascontiguousarray(array).view(DeviceArray)


@pytest.fixture(scope="module")
def kernels():
    """Kernels by their name and macros, compiled when they are first used."""
    return {}


@pytest.fixture
def narrow_rows(monkeypatch, tmp_path, kernels):
    """The module, with emulated kernels."""

    def get_direct_kernel(file, name, formats, device_id, **macros):
        key = (name, *map(str, macros.values()))
        if key not in kernels:
            arguments = (file, name, formats, macros)
            kernels[key] = EmulatedKernel(tmp_path, *arguments)
        return kernels[key]

    launch = types.ModuleType("launch")
    launch.DirectKernel, launch.get_direct_kernel = EmulatedKernel, get_direct_kernel
    launch.find_address = lambda array: 0 if array is None else array.data.ptr
    tall = types.ModuleType("tall")
    tall.row_stride = lambda array: array.strides[0] // array.itemsize
    monkeypatch.setitem(sys.modules, "cupy", Cupy("cupy"))
    for stand_in in (launch, tall):
        monkeypatch.setitem(sys.modules, f"{cuda.__name__}.{stand_in.__name__}", stand_in)
        monkeypatch.setattr(cuda, stand_in.__name__, stand_in, raising=False)
    spec = importlib.util.find_spec(MODULE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, MODULE, module)
    spec.loader.exec_module(module)
    return module


def check(module, factor, scales=None):
    """Compare with the statement to the bit; columns whose scale is nan hold arbitrary numbers."""
    with np.errstate(over="ignore"):
        expected_scales = narrow_row_statements.find_scales(np.array(factor))
    if scales is None:
        scales = module.find_scales(factor)
        assert scales.dtype == factor.dtype
        np.testing.assert_array_equal(scales, expected_scales)
    expected, rounded = narrow_row_statements.round_rows(np.array(factor), np.array(scales))
    found = module.round_rows(factor, scales)
    np.testing.assert_array_equal(found.scales, scales)
    assert found.rows.dtype == NARROW_FORMATS[factor.dtype].dtype
    assert found.rows.shape == factor.shape
    is_usable = ~np.isnan(np.array(scales))
    assert found.rows[:, is_usable].tobytes() == expected[:, is_usable].tobytes()
    np.testing.assert_array_equal(factor, rounded)
    pitch = tuning.choose_row_nbytes(expected.shape[1] * expected.itemsize)
    assert factor.size == 0 or found.rows.strides == (pitch, expected.itemsize)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 3, 10, 33, 200])
def test_the_bits_of_the_statement(narrow_rows, rank, dtype):
    """Columns of zeros, of subnormal numbers, with inf and nan, ties of rounding."""
    check(narrow_rows, draw_factor(300, rank, dtype).view(DeviceArray))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [0, 1, 2, 129, 1000])
def test_few_and_many_rows(narrow_rows, num_rows, dtype, monkeypatch):
    """Blocks that have several turns, and one with few rows."""
    monkeypatch.setattr(narrow_rows, "_NUM_BLOCKS", 7)
    factor = draw_factor(1000, 10, dtype)[:num_rows].view(DeviceArray)
    scales = None
    if num_rows == 0:
        scales = np.ones(10, dtype).view(DeviceArray)
    check(narrow_rows, factor, scales)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_lie_apart(narrow_rows, dtype):
    whole = draw_factor(100, 13, dtype).view(DeviceArray)
    padding = whole[:, 10:].tobytes()
    check(narrow_rows, whole[:, :10])
    assert whole[:, 10:].tobytes() == padding


@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_of_more_rows(narrow_rows, dtype):
    factor = draw_factor(400, 12, dtype).view(DeviceArray)
    scales = narrow_row_statements.find_scales(np.array(factor)).view(DeviceArray)
    check(narrow_rows, factor[:150], scales)
