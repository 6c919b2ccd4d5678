"""Updates of rows on a GPU, emulated: the kernels and the arguments that Python gives them."""

import importlib
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
from emulated_gpu import HAS_COMPILER, EmulatedKernel
from row_rule_statements import (
    DIFFERENT_RULES,
    RULES,
    check_integers,
    count_exact_steps,
    draw_integers,
)
from row_rule_statements import update_rows as state_update

from tensorly_flycoo.engines import cuda
from tensorly_flycoo.engines.cuda import tuning
from tensorly_flycoo.engines.row_rules import Method, RowRule

pytestmark = HAS_COMPILER

MODULE = "tensorly_flycoo.engines.cuda.row_updates"
ROOM = 227 * 1024  # shared memory of a block of an H200


class DeviceArray(np.ndarray):
    """A NumPy array that passes for one on a GPU."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)


class Cupy(types.ModuleType):
    """The functions of CuPy that `row_updates` uses; what is not written is nan."""

    ndarray = DeviceArray

    def zeros(self, shape):
        return np.zeros(shape).view(DeviceArray)

    def empty(self, shape, dtype=np.float64):
        return np.full(shape, np.nan, dtype).view(DeviceArray)

    def ascontiguousarray(self, array):
        return np.ascontiguousarray(array).view(DeviceArray)


@pytest.fixture(scope="module")
def kernels():
    """Kernels by their file and macros, compiled when they are first used."""
    return {}


@pytest.fixture
def row_updates(monkeypatch, tmp_path, kernels):
    """The module, with emulated kernels; `has_tensor_cores` says whether the GPU suits them."""

    def get_direct_kernel(file, name, formats, device_id, shared_nbytes=0, **macros):
        key = (file, *map(str, macros.values()))
        if key not in kernels:
            arguments = (file, name, formats, macros, "OwnUpdate")
            kernels[key] = EmulatedKernel(tmp_path, *arguments)
        return kernels[key]

    launch = types.ModuleType("launch")
    launch.DirectKernel, launch.get_direct_kernel = EmulatedKernel, get_direct_kernel
    launch.find_address = lambda array: 0 if array is None else array.data.ptr
    tall = types.ModuleType("tall")
    tall.row_stride = lambda array: array.strides[0] // array.itemsize
    tall.find_room = lambda device_id: ROOM
    tall.suits_rank = lambda rank, *_: module.has_tensor_cores and rank <= tuning.MAX_TALL_RANK
    updates = types.ModuleType("updates")
    updates.add_columns = lambda blocks, sums: np.copyto(sums, blocks.sum(axis=0))
    monkeypatch.setitem(sys.modules, "cupy", Cupy("cupy"))
    for stand_in in (launch, tall, updates):
        monkeypatch.setitem(sys.modules, f"{cuda.__name__}.{stand_in.__name__}", stand_in)
        monkeypatch.setattr(cuda, stand_in.__name__, stand_in, raising=False)
    spec = importlib.util.find_spec(MODULE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, MODULE, module)
    spec.loader.exec_module(module)
    module.has_tensor_cores = True
    return module


def draw(rule, num_rows, rank, dtype):
    """Draw integers as `DeviceArray`."""
    return [
        None if array is None else array.view(DeviceArray)
        for array in draw_integers(rule, num_rows, rank, dtype)
    ]


def check(row_updates, rule, num_rows, rank, dtype):
    """Compare with what the rule states; the inputs stay, and the results are padded with zeros."""
    targets, rows, dual, penalty, matrix = inputs = draw(rule, num_rows, rank, dtype)
    before = [None if array is None else array.copy() for array in inputs]
    arguments = (rule, targets, rows, dual, max(1, count_exact_steps(rule)), penalty, matrix)
    found = row_updates.update_rows(*arguments)
    for array, copy in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    check_integers(rule, found, state_update(*arguments), dtype)
    for array in found[:2]:
        if array is not None and num_rows > 0:
            assert array.strides[0] == tuning.choose_row_nbytes(rank * array.itemsize)
            assert not array.base[:, rank:].any()


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("rank", "dtype"), [(7, np.float32), (17, np.float64)])
def test_a_rule(row_updates, rule, rank, dtype):
    check(row_updates, rule, 70, rank, dtype)


@pytest.mark.parametrize("rule", DIFFERENT_RULES, ids=str)
@pytest.mark.parametrize("num_rows", [0, 1, 1000])
def test_few_and_many_rows(row_updates, rule, num_rows, monkeypatch):
    """Blocks whose warps have several turns, and one whose last warps have no row."""
    monkeypatch.setattr(tuning, "choose_rows_per_block", lambda _, step=128: 5 * step)
    check(row_updates, rule, num_rows, 7, np.float32)


@pytest.mark.parametrize("rule", DIFFERENT_RULES, ids=str)
@pytest.mark.parametrize(
    ("rank", "dtype"), [(129, np.float32), pytest.param(5, np.float64, marks=pytest.mark.slow)]
)
def test_wide_rows(row_updates, rule, rank, dtype, monkeypatch):
    """Also on a GPU without tensor cores for float64, or with little shared memory."""
    row_updates.has_tensor_cores = False
    row_updates.tall.find_room = lambda device_id: 0
    check(row_updates, rule, 9, rank, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rank", [1, 3, 8, 16, 32, 33, 48, 64, 80, 96, 100, 112, 128, 129])
@pytest.mark.parametrize("rule", DIFFERENT_RULES, ids=str)
def test_every_cut(row_updates, rule, rank, dtype):
    check(row_updates, rule, 131, rank, dtype)


@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_more_steps_than_a_launch_takes(row_updates, rule):
    targets, rows, _, _, matrix = draw(rule, 40, 7, np.float32)
    matrix += 8 * np.eye(7)  # so that HALS converges
    most = tuning.MAX_ROW_STEPS
    whole, _, measures = row_updates.update_rows(rule, targets, rows, None, most + 2, None, matrix)
    part, _, first = row_updates.update_rows(rule, targets, rows, None, most, None, matrix)
    rest, _, last = row_updates.update_rows(rule, targets, part, None, 2, None, matrix)
    np.testing.assert_array_equal(whole, rest)
    np.testing.assert_array_equal(measures, np.concatenate([first, last]))


def test_sweeps_that_change_nothing_repeat_what_they_measure(row_updates):
    rule = RowRule(Method.HALS)
    targets, rows = np.ones((2, 40, 3), np.float32).view(DeviceArray)
    arguments = (rule, targets, rows, None, 3, None, np.eye(3).view(DeviceArray))
    found, _, measures = row_updates.update_rows(*arguments)
    np.testing.assert_array_equal(found, rows)
    np.testing.assert_array_equal(measures, np.zeros((3, 2)))
    rows[:, 0] = 3
    _, _, measures = row_updates.update_rows(*arguments)
    np.testing.assert_array_equal(measures[:, 1], [40, 0, 0])
    np.testing.assert_array_equal(measures, state_update(*arguments)[2])


@pytest.mark.parametrize("rule", DIFFERENT_RULES, ids=str)
def test_nan_stays_in_its_row(row_updates, rule):
    targets, rows, dual, penalty, matrix = draw(rule, 40, 7, np.float32)
    targets[3, 2:] = np.nan
    arguments = (rule, targets, rows, dual, 1, penalty, matrix)
    with np.errstate(invalid="ignore"):
        expected, _, _ = state_update(*arguments)
    found, _, _ = row_updates.update_rows(*arguments)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(found[3]).any()
