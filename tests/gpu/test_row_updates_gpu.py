"""Updates of rows by a rule, compared with the CPU and with what the rules state."""

import math
from functools import partial

import cupy
import numpy as np
import pytest
from row_rule_statements import (
    DIFFERENT_RULES,
    NUM_STEPS,
    RULES,
    check_integers,
    count_exact_steps,
    draw_integers,
    draw_problem,
    find_bound,
    update_rows,
)

from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.engines.cuda import tuning
from tensorly_flycoo.engines.cuda.engine import CUDA
from tensorly_flycoo.engines.levelled_steps import step_by_arrays
from tensorly_flycoo.engines.row_rules import Method, Operator, RowRule
from tensorly_flycoo.loop.row_updates import changes_nothing, run_steps, stops_after

RANKS = (1, 3, 8, 16, 17, 32, 33, 64, 100, 128, 130)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=str)


def copy_to_gpu(array):
    """Copy an array, with what lies between its rows."""
    if array is None:
        return None
    if array.flags.c_contiguous:
        return cupy.asarray(array)
    return cupy.asarray(array.base)[:, : array.shape[1]]


def fetch(results):
    return [None if array is None else array.get() for array in results]


def assert_same(results, others):
    for result, other in zip(results, others, strict=True):
        np.testing.assert_array_equal(result, other)


def run(rule, inputs, num_steps):
    """Update rows on the GPU, twice, with the same bits; the inputs stay."""
    on_gpu = [copy_to_gpu(array) for array in inputs]
    targets, rows, dual, penalty, matrix = on_gpu
    arguments = (rule, targets, rows, dual, num_steps, penalty, matrix)
    results = CUDA.update_rows(*arguments)
    assert_same(fetch(results), fetch(CUDA.update_rows(*arguments)))
    assert_same(fetch(on_gpu), inputs)
    for array in results[:2]:
        if array is not None and len(array) > 1:  # rows aligned for MTTKRP, zeros between them
            num_columns = array.strides[0] // array.itemsize
            assert array.strides[0] == tuning.choose_row_nbytes(rows.shape[1] * array.itemsize)
            whole = cupy.ndarray((len(array), num_columns), array.dtype, memptr=array.data)
            assert not whole[:, rows.shape[1] :].any()
    return fetch(results)


def state(rule, inputs, num_steps, compute=update_rows):
    targets, rows, dual, penalty, matrix = inputs
    return compute(rule, targets, rows, dual, num_steps, penalty, matrix)


@DTYPES
@pytest.mark.parametrize("rank", RANKS)
@EVERY_RULE
def test_small_integers(rule, rank, dtype):
    compare_integers(rule, 1000, rank, dtype)


@DTYPES
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("num_rows", [0, 1, 40_001])
@pytest.mark.parametrize("rule", DIFFERENT_RULES, ids=str)
def test_few_and_many_rows(rule, num_rows, rank, dtype):
    if num_rows * rank > 10**6:
        num_rows //= 8
    compare_integers(rule, num_rows, rank, dtype)


def compare_integers(rule, num_rows, rank, dtype):
    """Exactly, but for quotients and roots, where the CPU's results may differ as much."""
    num_steps = max(1, count_exact_steps(rule))
    inputs = draw_integers(rule, num_rows, rank, dtype)
    expected = state(rule, inputs, num_steps)
    check_integers(rule, run(rule, inputs, num_steps), expected, dtype)
    check_integers(rule, state(rule, inputs, num_steps, CPU.update_rows), expected, dtype)


def draw_real(rule, num_rows, rank, dtype):
    """Draw the rows of a model, and what an iteration would update them with."""
    rng = np.random.default_rng(0)
    others = rng.random((2 * rank + 5, rank))
    gram = others.T @ others
    rows = rng.random((num_rows, rank)).astype(dtype)
    targets = (rng.random((num_rows, rank)) @ gram).astype(dtype)
    if rule.method is not Method.ADMM:
        return targets, rows, None, None, gram
    dual = rng.standard_normal((num_rows, rank)).astype(dtype)
    inverse, penalty = CPU.invert_penalized(gram)
    return targets, rows, dual, penalty, inverse


def disturb(array, unit, rng):
    """Return an array with relative errors of a size."""
    return None if array is None else array * (1 + rng.uniform(-unit, unit, np.shape(array)))


@DTYPES
@pytest.mark.parametrize("rank", [3, 32, 33, 100, 130])
@EVERY_RULE
def test_real_numbers(rule, rank, dtype):
    """They differ as results do of inputs with errors as large as those of each inner product.

    Of these a few are drawn; ten times the largest difference allows for others.
    """
    num_steps = NUM_STEPS[rule.method]
    inputs = draw_real(rule, 1000, rank, dtype)
    expected = state(rule, inputs, num_steps)
    found = run(rule, inputs, num_steps)
    rng, unit = np.random.default_rng(1), (rank + 4) * np.finfo(dtype).eps
    disturbed = [
        state(rule, [disturb(array, unit, rng) for array in inputs], num_steps) for _ in range(3)
    ]
    for n, exact in enumerate(expected):
        if exact is None or exact.size == 0:
            continue
        axis = 0 if n == 2 else None  # each measure is one of its own
        # The dual variable is a difference of numbers as large as the rows.
        largest = abs(exact if n == 2 else expected[0]).max(axis)
        differences = np.abs([other[n] - exact for other in disturbed]).max(axis=0)
        bound = 10 * (differences.max(axis) + unit * largest)
        if n == 2:  # a measure may be the square of what rounding leaves of each element
            bound = bound + found[0].size * (unit * abs(expected[0]).max()) ** 2
        assert (abs(found[n] - exact) <= bound).all()
        assert np.max(bound) <= 0.1 * np.max(largest)  # it allows little


@EVERY_RULE
@pytest.mark.parametrize("rank", [7, 130])
def test_nan_stays_in_its_row(rule, rank):
    inputs = draw_integers(rule, 200, rank, np.float32)
    inputs[0][3] = np.nan
    with np.errstate(invalid="ignore"):
        expected, _, _ = state(rule, inputs, 1)
    found, _, _ = run(rule, inputs, 1)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_more_steps_than_a_launch_takes(rule):
    inputs = draw_real(rule, 1000, 5, np.float64)
    most = tuning.MAX_ROW_STEPS
    whole, _, measures = run(rule, inputs, most + 2)
    targets, _, _, _, matrix = inputs
    part, _, first = run(rule, inputs, most)
    rest, _, last = run(rule, (targets, part, None, None, matrix), 2)
    assert_same([whole, measures], [rest, np.concatenate([first, last])])


@pytest.mark.parametrize("rank", [16, 64, 130])
def test_the_host_waits_for_nothing(rank):
    rule = RowRule(Method.ADMM, Operator.NON_NEGATIVE)
    rows = cupy.ones((2**25 // rank, rank), np.float32)
    penalty, matrix = cupy.ones(()), cupy.eye(rank) / 2
    for num_steps in (1, 40):  # the first compiles
        CUDA.update_rows(rule, rows, rows, rows, num_steps, penalty, matrix)
        done = cupy.cuda.get_current_stream().record()
    assert not done.done
    done.synchronize()


@DTYPES
@pytest.mark.parametrize("rank", [7, 32, 130])
@pytest.mark.parametrize("tolerance", [1e9, 1.0, 1e-3, 0.0])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.method is not Method.MULTIPLY])
def test_the_gpu_stops_where_the_host_would(rule, tolerance, rank, dtype):
    """The same steps, to the bit; the first is enough, or some, or never one."""
    num_steps = NUM_STEPS[rule.method]
    inputs = draw_real(rule, 1000, rank, dtype)
    targets, rows, dual, penalty, matrix = [copy_to_gpu(array) for array in inputs]
    rows *= 50  # so that the first sweep of HALS moves far

    def take_steps(rows, dual, count):
        return CUDA.update_rows(rule, targets, rows, dual, count, penalty, matrix)

    expected = run_steps(
        take_steps,
        rows,
        num_steps,
        partial(stops_after, rule.method, tolerance),
        dual,
        is_final=partial(changes_nothing, rule.method),
    )
    for _ in range(2):
        found_rows, found_dual, read = CUDA.update_rows_until(
            rule, targets, rows, dual, num_steps, penalty, matrix, tolerance, True
        )
        assert_same(fetch([found_rows, found_dual]), fetch([expected.rows, expected.dual]))
        assert read() == expected.measures
    if tolerance == 0:
        assert len(expected.measures) == num_steps


def test_the_host_waits_for_no_decision():
    rule = RowRule(Method.ADMM, Operator.NON_NEGATIVE)
    rows = cupy.ones((2**22, 64), np.float32)
    penalty, matrix = cupy.ones(()), cupy.eye(64) / 2
    for _ in range(2):  # the first compiles
        arguments = (rule, rows, rows, rows, 10, penalty, matrix, 1e-8, True)
        _, _, read = CUDA.update_rows_until(*arguments)
        done = cupy.cuda.get_current_stream().record()
    assert not done.done
    read()
    done.synchronize()


@DTYPES
@pytest.mark.parametrize("rank", [1, 7, 32, 128, 130])
def test_the_inverse_of_admm(rank, dtype):
    """Its error is that of a backward-stable solver times the condition number, rank + 1."""
    factor = np.random.default_rng(0).random((rank + 5, rank)).astype(dtype)
    gram = factor.T @ factor
    expected, expected_penalty = CPU.invert_penalized(gram)
    inverse, penalty = CUDA.invert_penalized(cupy.asarray(gram))
    assert (inverse.dtype, penalty.dtype, penalty.shape) == (np.float64, np.float64, ())
    eps = np.finfo(np.float64).eps
    np.testing.assert_allclose(penalty.get(), expected_penalty, rtol=rank * eps)
    atol = 10 * rank * (rank + 1) * eps * np.linalg.norm(expected, 2)
    np.testing.assert_allclose(inverse.get(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("rank", [3, 130])
def test_the_inverse_of_zeros_is_zero(rank):
    inverse, penalty = CUDA.invert_penalized(cupy.zeros((rank, rank)))
    assert float(penalty) == 0
    assert not inverse.any()


def levelled(*levels):
    """Return a rule with a level of each step, or nan."""
    return RowRule(Method.ADMM, Operator.NON_NEGATIVE, levels=levels)


def compare_levels(rule, inputs):
    """Return what the GPU's kernels find, and its arrays in float64: also the peaks, at the end."""
    targets, rows, dual, penalty, matrix = on_gpu = [copy_to_gpu(array) for array in inputs]
    peaks = CUDA.find_peaks(rule, targets, rows, dual, penalty, matrix)
    assert_same(
        fetch([peaks]), fetch([CUDA.find_peaks(rule, targets, rows, dual, penalty, matrix)])
    )
    num_steps = len(rule.levels)
    found = [*run(rule, inputs, num_steps), peaks.get()]
    targets, rows, dual, penalty, matrix = [array.astype(np.float64) for array in on_gpu]
    expected = step_by_arrays(rule, targets, rows, dual, num_steps, penalty, matrix)
    return found, fetch(expected)


@DTYPES
@pytest.mark.parametrize("rank", [rank for rank in RANKS if rank <= tuning.MAX_TALL_RANK])
@pytest.mark.parametrize("num_rows", [0, 1, 1000, 40_001])
@pytest.mark.parametrize("levels", [(-2.0, math.nan), (math.nan, -3.0), (-1.0, -2.0)], ids=str)
def test_levels_of_small_integers(levels, num_rows, rank, dtype):
    if num_rows * rank > 10**6:
        num_rows //= 8
    rule = levelled(*levels)
    inputs = draw_integers(rule, num_rows, rank, dtype)
    (*found, peaks), (*expected, expected_peaks) = compare_levels(rule, inputs)
    check_integers(rule, found, expected, dtype)
    np.testing.assert_array_equal(peaks, expected_peaks)


@DTYPES
@pytest.mark.parametrize("rank", [5, 32, 33, 100])
@pytest.mark.parametrize("num_steps", [6, tuning.MAX_ROW_STEPS + 3])
def test_levels_of_real_numbers(num_steps, rank, dtype):
    """Also of more steps than a launch takes."""
    targets, rows, dual, gram = draw_problem(5000, rank, dtype)
    inverse = np.linalg.inv(gram + np.eye(rank))
    inputs = (targets - dtype(3), rows, dual, np.array(1.0), inverse)
    levels = [math.nan, -0.5, -0.25, math.nan, -1.5, math.nan, -2.0]
    rule = levelled(*(levels * 3)[:num_steps])
    found, expected = compare_levels(rule, inputs)
    *pairs, measured, peaks = zip(found, expected, strict=True)
    size = max(abs(array).max() for array in (inputs[0], dual, *expected[:2]))
    bound = find_bound(num_steps, rank, dtype, size)
    for result, other in [*pairs, peaks]:
        assert np.abs(result - other).max() <= bound
    roots = np.sqrt(measured[0]) - np.sqrt(measured[1])
    assert np.abs(roots).max() <= 3 * bound * math.sqrt(rows.size)


@pytest.mark.parametrize("rank", [7, 130])
def test_peaks_of_nan(rank):
    rule = levelled(math.nan, -1.0)
    targets, rows, dual, penalty, matrix = draw_integers(rule, 200, rank, np.float32)
    targets[3, 2] = np.nan
    on_gpu = [copy_to_gpu(array) for array in (targets, rows, dual, penalty, matrix)]
    assert cupy.isnan(CUDA.find_peaks(rule, *on_gpu)).all()


def test_the_host_waits_for_no_peaks():
    rule = levelled(*[math.nan, -1.0] * 5)
    rows = cupy.ones((2**22, 64), np.float32)
    penalty, matrix = cupy.ones(()), cupy.eye(64) / 2
    for _ in range(2):  # the first compiles
        CUDA.find_peaks(rule, rows, rows, rows, penalty, matrix)
        CUDA.update_rows(rule, rows, rows, rows, 10, penalty, matrix)
        done = cupy.cuda.get_current_stream().record()
    assert not done.done
    done.synchronize()
