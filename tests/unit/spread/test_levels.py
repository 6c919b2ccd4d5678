"""Steps of non-negative ADMM that leave nothing above zero, against whole arrays."""

import math

import numpy as np
import pytest
from row_rule_statements import draw_problem, find_bound

from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.decomposition.proximal import clip_negative
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.engines.levelled_steps import step_by_arrays
from tensorly_flycoo.engines.row_rules import Method, Operator, RowRule
from tensorly_flycoo.spread import levels
from tensorly_flycoo.spread.array_admm import step_whole
from tensorly_flycoo.spread.row_shards import RowShards, Sharding

NUM_STEPS = 6
RANK = 5


#: What is added to the targets and to the dual variable.
SHIFTS = [(0, 0), (-3, 0), (-8, 0), (-100, 0), (0, 5), (3, 30)]


def make_problem(shifts, dtype=np.float64, num_rows=3000):
    """Return the targets, the rows, the dual variable, the penalty and the inverse."""
    targets, rows, dual, gram = draw_problem(num_rows, RANK, dtype)
    inverse, penalty = CPU.invert_penalized(gram)
    return targets + dtype(shifts[0]), rows, dual + dtype(shifts[1]), penalty, inverse


def step_levelled(problem):
    targets, rows, dual, penalty, inverse = problem
    found = levels.find_levels(targets, rows, dual, NUM_STEPS, penalty, inverse)
    rule = RowRule(Method.ADMM, Operator.NON_NEGATIVE, levels=found)
    return found, CPU.update_rows(rule, targets, rows, dual, NUM_STEPS, penalty, inverse)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shifts", SHIFTS)
def test_the_steps_of_whole_arrays(shifts, dtype):
    problem = make_problem(shifts, dtype)
    targets, rows, dual, penalty, inverse = problem
    _, results = step_levelled(problem)
    with np.errstate(invalid="ignore"):
        expected = step_whole(clip_negative, targets, penalty, inverse, rows, dual, NUM_STEPS)
    bound = find_bound(NUM_STEPS, RANK, dtype, max(abs(targets).max(), abs(dual).max()))
    for array, other in zip(results[:2], expected[:2], strict=True):
        assert array.dtype == dtype
        assert np.abs(array - other).max() <= bound
    roots = np.sqrt(results[2]) - np.sqrt(expected[2])
    assert np.abs(roots).max() <= 3 * bound * math.sqrt(rows.size)


def test_each_kind_of_run_is_tried():
    """No levels; levels from the first step on, or later; and steps without one after them."""
    found = [np.isnan(step_levelled(make_problem(shifts))[0]) for shifts in SHIFTS]
    assert any(are_missing.all() for are_missing in found)
    assert any(not are_missing.any() for are_missing in found)
    assert any(are_missing[0] and not are_missing[-1] for are_missing in found)
    assert any(are_missing[-1] and not are_missing[0] for are_missing in found)


def test_nan_and_no_rows_have_no_levels():
    targets, *rest = make_problem((-100, 0))
    targets[17, 2] = np.nan
    assert np.isnan(step_levelled((targets, *rest))[0]).all()
    assert np.isnan(step_levelled(make_problem((-100, 0), num_rows=0))[0]).all()


def test_few_passes_find_many_levels(monkeypatch):
    shapes = []
    find_peaks = levels.find_peaks

    def count(*arguments):
        shapes.append(arguments[1].shape)
        return find_peaks(*arguments)

    monkeypatch.setattr(levels, "find_peaks", count)
    found, _ = step_levelled(make_problem((-100, 0)))
    assert len(shapes) <= 1 + np.isnan(found).sum()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shifts", SHIFTS)
def test_steps_by_arrays_are_those_of_kernels(shifts, dtype):
    targets, rows, dual, penalty, inverse = make_problem(shifts, dtype)
    found, expected = step_levelled((targets, rows, dual, penalty, inverse))
    rule = RowRule(Method.ADMM, Operator.NON_NEGATIVE, levels=found)
    arguments = (rule, targets, rows, dual, NUM_STEPS, penalty, inverse)
    *results, peaks = step_by_arrays(*arguments)
    bound = find_bound(NUM_STEPS, RANK, dtype, max(abs(targets).max(), abs(dual).max()))
    for array, other in zip(results[:2], expected[:2], strict=True):
        assert array.dtype == dtype
        assert np.abs(array - other).max() <= bound
    of_kernel = CPU.find_peaks(rule, targets, rows, dual, penalty, inverse)
    assert np.abs(peaks - of_kernel).max() <= bound


@pytest.mark.parametrize("shifts", SHIFTS)
def test_row_shards_have_the_same_levels(shifts):
    """Largest elements do not depend on how rows are divided."""
    targets, rows, dual, penalty, inverse = make_problem(shifts)
    sharding = Sharding((0, 0, 700, 3000), (0, 0, 0), OneDevice(np))
    sharded = [RowShards.scatter(array, sharding) for array in (targets, rows, dual)]
    found = levels.find_levels(*sharded, NUM_STEPS, penalty, inverse)
    expected = levels.find_levels(targets, rows, dual, NUM_STEPS, penalty, inverse)
    np.testing.assert_array_equal(found, expected)
