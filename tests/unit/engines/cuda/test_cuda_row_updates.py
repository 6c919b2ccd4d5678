"""Updates of rows on a GPU, emulated: the kernels and the arguments that Python gives them."""

import importlib
import math
import sys
import types
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from emulated_gpu import HAS_COMPILER, EmulatedKernel, get_direct_kernel
from row_rule_statements import (
    DIFFERENT_RULES,
    RULES,
    check_integers,
    count_exact_steps,
    draw_integers,
    draw_problem,
    find_bound,
)
from row_rule_statements import update_rows as state_update

from tensorly_flycoo.engines import cuda
from tensorly_flycoo.engines.cuda import tuning
from tensorly_flycoo.engines.levelled_steps import step_by_arrays
from tensorly_flycoo.engines.row_rules import Method, Operator, RowRule
from tensorly_flycoo.loop.row_updates import changes_nothing, run_steps, stops_after

pytestmark = HAS_COMPILER

MODULE = "tensorly_flycoo.engines.cuda.row_updates"
ROOM = 227 * 1024  # shared memory of a block of an H200


class DeviceArray(np.ndarray):
    """A NumPy array that passes for one on a GPU."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)

    def get(self):
        return np.array(self)


class Pinned(np.ndarray):
    """Memory that passes for pinned."""

    @property
    def ptr(self):
        return self.ctypes.data


class Event:
    """What has been recorded is done."""

    def __init__(self, disable_timing):
        self.is_recorded = False

    def record(self, stream):
        self.is_recorded = True

    def synchronize(self):
        assert self.is_recorded


class Cupy(types.ModuleType):
    """The functions of CuPy that `row_updates` uses; what is not written is nan."""

    ndarray = DeviceArray
    full_like = staticmethod(np.full_like)
    isnan = staticmethod(np.isnan)
    square = staticmethod(np.square)
    where = staticmethod(np.where)

    def __init__(self, name):
        super().__init__(name)
        self.cuda = SimpleNamespace(
            alloc_pinned_memory=lambda nbytes: Pinned(nbytes, np.uint8),
            get_current_stream=lambda: None,
            Event=Event,
        )

    def zeros(self, shape):
        return np.zeros(shape).view(DeviceArray)

    def empty(self, shape, dtype=np.float64):
        array = np.empty(shape, dtype)
        array.reshape(-1).view(np.uint8).fill(255)
        return array.view(DeviceArray)

    def full(self, shape, number):
        return np.full(shape, number).view(DeviceArray)

    def ascontiguousarray(self, array):
        return np.ascontiguousarray(array).view(DeviceArray)


@pytest.fixture
def row_updates(monkeypatch):
    """The module, with emulated kernels; `has_tensor_cores` says whether the GPU suits them."""
    launch = types.ModuleType("launch")
    launch.DirectKernel, launch.get_direct_kernel = EmulatedKernel, get_direct_kernel
    launch.find_address = lambda array: 0 if array is None else array.data.ptr
    launch.row_stride = lambda array: array.strides[0] // array.itemsize
    tall = types.ModuleType("tall")
    tall.find_room = lambda device_id: ROOM
    tall.suits_rank = lambda rank, *_: module.has_tensor_cores and rank <= tuning.MAX_TALL_RANK
    monkeypatch.setitem(sys.modules, "cupy", Cupy("cupy"))
    for stand_in in (launch, tall):
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


#: Tolerances that the steps of `draw_problem` meet after a few, after all, or never.
UNTIL = [
    pytest.param(RowRule(Method.HALS), 5, (2.0, 0.5, 0.0), id="hals"),
    pytest.param(RowRule(Method.ADMM, Operator.NON_NEGATIVE), 10, (3.0, 0.2, 1e-9), id="admm"),
    pytest.param(RowRule(Method.ADMM, Operator.GROUP_LASSO, 0.1), 3, (3.0, 0.3, 0.0), id="group"),
]


def draw_steps(rule, num_rows, dtype):
    """Draw the arguments of `run_rule` whose steps come nearer and nearer to a solution."""
    targets, rows, dual, gram = draw_problem(num_rows, 7, dtype)
    targets, rows, dual, gram = (array.view(DeviceArray) for array in (targets, rows, dual, gram))
    if rule.method is Method.HALS:
        return targets, gram, None, abs(100 * rows), None  # the first sweep's error is the largest
    penalty = np.array(1.0)
    inverse = np.linalg.inv(gram + np.eye(7))
    return targets, inverse.view(DeviceArray), penalty.view(DeviceArray), rows, dual


@pytest.mark.parametrize(
    ("num_rows", "dtype", "is_wide"),
    [(140, np.float32, False), (1, np.float64, False), (6, np.float32, True)],
)
@pytest.mark.parametrize(("rule", "num_steps", "tolerances"), UNTIL)
def test_the_gpu_stops_where_the_host_would(
    row_updates, rule, num_steps, tolerances, num_rows, dtype, is_wide, monkeypatch
):
    """The same steps, to the bit, and measures of those that are needed."""
    monkeypatch.setattr(tuning, "choose_rows_per_block", lambda _, step=128: step)
    if is_wide:
        row_updates.has_tensor_cores = False
        row_updates.tall.find_room = lambda device_id: 0
    targets, matrix, penalty, rows, dual = draw_steps(rule, num_rows, dtype)
    nums_needed = set()
    for tolerance in tolerances:

        def take_steps(rows, dual, count):
            return row_updates.update_rows(rule, targets, rows, dual, count, penalty, matrix)

        expected = run_steps(
            take_steps,
            rows,
            num_steps,
            partial(stops_after, rule.method, tolerance),
            dual,
            is_final=partial(changes_nothing, rule.method),
        )
        arguments = (rule, targets, rows, dual, num_steps, penalty, matrix, tolerance)
        for wants_measures in (True, False):
            found = row_updates.update_rows_until(*arguments, wants_measures)
            new_rows, new_dual, read = found
            np.testing.assert_array_equal(new_rows, expected.rows)
            if dual is not None:
                np.testing.assert_array_equal(new_dual, expected.dual)
            if wants_measures:
                assert read() == expected.measures
            else:
                assert read is None
        nums_needed.add(len(expected.measures))
    assert num_steps in nums_needed
    assert len(nums_needed) > 1


def test_sweeps_after_a_final_one_are_not_taken_back(row_updates):
    """The first changes all rows but a column, the second nothing."""
    rule = RowRule(Method.HALS)
    targets, rows = np.ones((2, 40, 3), np.float32).view(DeviceArray)
    rows[:, 0] = 3
    arguments = (rule, targets, rows, None, 5, None, np.eye(3).view(DeviceArray))
    found, _, read = row_updates.update_rows_until(*arguments, 0.0, True)
    np.testing.assert_array_equal(found, targets)
    assert [num_changes for _, num_changes in read()] == [40, 0]


@pytest.mark.parametrize(("num_rows", "num_steps"), [(0, 2), (40, 0), (40, 17)])
def test_the_host_decides_where_a_launch_does_not_take_all_steps(row_updates, num_rows, num_steps):
    rule = RowRule(Method.HALS)
    rows = np.ones((num_rows, 3), np.float32).view(DeviceArray)
    arguments = (rule, rows, rows, None, num_steps, None, np.eye(3).view(DeviceArray))
    assert row_updates.update_rows_until(*arguments, 0.0, True) is None


def test_reports_are_used_again_after_they_were_read(row_updates):
    rule = RowRule(Method.HALS)
    rows = np.ones((40, 3), np.float32).view(DeviceArray)
    arguments = (rule, rows, rows, None, 2, None, np.eye(3).view(DeviceArray), 0.0, True)
    _, _, read = row_updates.update_rows_until(*arguments)
    _, _, read_other = row_updates.update_rows_until(*arguments)
    assert row_updates._free_reports[0] == []
    assert read() == read_other() == [[0.0, 0.0]]
    assert len(row_updates._free_reports[0]) == 2
    row_updates.update_rows_until(*arguments)
    assert len(row_updates._free_reports[0]) == 1


def levelled(*levels):
    """Return a rule with a level of each step, or nan."""
    return RowRule(Method.ADMM, Operator.NON_NEGATIVE, levels=levels)


def update_and_find_peaks(row_updates, rule, inputs):
    """Return what `step_by_arrays` does, of the kernels; and that, in float64; the inputs stay."""
    targets, rows, dual, penalty, matrix = inputs
    before = [array.copy() for array in inputs]
    peaks = row_updates.find_peaks(rule, targets, rows, dual, penalty, matrix)
    arguments = (rule, targets, rows, dual, len(rule.levels), penalty, matrix)
    found = row_updates.update_rows(*arguments)
    for array, copy in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    exact = [np.array(array, np.float64) for array in inputs]
    targets, rows, dual, penalty, matrix = exact
    expected = step_by_arrays(rule, targets, rows, dual, len(rule.levels), penalty, matrix)
    return (*found, peaks), expected


@pytest.mark.parametrize("levels", [(-2.0, math.nan), (math.nan, -3.0), (-1.0, -2.0)], ids=str)
@pytest.mark.parametrize(
    ("num_rows", "rank", "dtype"),
    [
        (131, 1, np.float32),
        (131, 5, np.float64),
        (64, 16, np.float32),
        (1001, 5, np.float32),
        (131, 33, np.float32),
        (70, 33, np.float64),
        pytest.param(131, 100, np.float32, marks=pytest.mark.slow),
        pytest.param(131, 100, np.float64, marks=pytest.mark.slow),
    ],
)
def test_levels_of_small_integers(row_updates, num_rows, rank, dtype, levels, monkeypatch):
    """Exactly; what pads rows and columns counts for nothing."""
    monkeypatch.setattr(tuning, "choose_rows_per_block", lambda _, step=128: 3 * step)
    rule = levelled(*levels)
    inputs = draw(rule, num_rows, rank, dtype)
    (*found, peaks), (*expected, expected_peaks) = update_and_find_peaks(row_updates, rule, inputs)
    check_integers(rule, found, expected, dtype)
    assert peaks.dtype == np.float64
    np.testing.assert_array_equal(peaks, expected_peaks)


@pytest.mark.parametrize(
    ("rank", "dtype"),
    [
        (5, np.float32),
        (16, np.float64),
        pytest.param(33, np.float32, marks=pytest.mark.slow),
        pytest.param(100, np.float64, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("num_steps", [6, tuning.MAX_ROW_STEPS + 3])
def test_levels_of_real_numbers(row_updates, rank, dtype, num_steps):
    """Also of more steps than a launch takes."""
    targets, rows, dual, gram = draw_problem(140, rank, dtype)
    matrix = np.linalg.inv(gram + np.eye(rank))
    arrays = (targets - dtype(3), rows, dual, np.array(1.0), matrix)
    inputs = [array.view(DeviceArray) for array in arrays]
    levels = [math.nan, -0.5, -0.25, math.nan, -1.5, math.nan, -2.0]
    rule = levelled(*(levels * 3)[:num_steps])
    found, expected = update_and_find_peaks(row_updates, rule, inputs)
    *pairs, measured, peaks = zip(found, expected, strict=True)
    size = max(abs(array).max() for array in (inputs[0], dual, *expected[:2]))
    bound = find_bound(num_steps, rank, dtype, size)
    for result, other in [*pairs, peaks]:
        assert np.abs(result - other).max() <= bound
    roots = np.sqrt(measured[0]) - np.sqrt(measured[1])
    assert np.abs(roots).max() <= 3 * bound * math.sqrt(rows.size)


def test_peaks_of_nan_and_of_no_rows(row_updates):
    rule = levelled(math.nan, -1.0)
    targets, *rest = draw(rule, 40, 5, np.float32)
    targets[7, 2] = np.nan
    (*_, peaks), _ = update_and_find_peaks(row_updates, rule, [targets, *rest])
    assert np.isnan(peaks).all()
    (*_, measures, peaks), _ = update_and_find_peaks(
        row_updates, rule, draw(rule, 0, 5, np.float32)
    )
    assert np.isneginf(peaks).all()
    assert not measures.any()


@pytest.mark.parametrize(("rank", "room"), [(129, ROOM), (5, 0)])
def test_levels_where_no_kernel_has_them(row_updates, rank, room):
    """Of a high rank, or on a GPU with little shared memory."""
    row_updates.tall.find_room = lambda device_id: room
    rule = levelled(-2.0, math.nan)
    inputs = draw(rule, 40, rank, np.float32)
    (*found, peaks), (*expected, expected_peaks) = update_and_find_peaks(row_updates, rule, inputs)
    check_integers(rule, found, expected, np.float32)
    np.testing.assert_array_equal(peaks, expected_peaks)
