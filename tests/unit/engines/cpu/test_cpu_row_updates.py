"""Row-separable updates on the CPU, against the rules stated in NumPy."""

import numba
import numpy as np
import pytest
from row_rule_statements import (
    NUM_STEPS,
    RULES,
    draw_problem,
    find_bound,
    name_rule,
    update_rows,
)

from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.engines.row_rules import NUM_MEASURES, Method, Operator, RowRule

EACH_RULE = pytest.mark.parametrize("rule", RULES, ids=name_rule)
BOTH_DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])

#: Each compiles kernels of its own, so that a rank has one dtype by default.
RANKS = [
    (1, np.float64),
    (3, np.float64),
    (16, np.float32),
    (33, np.float64),
    *[
        pytest.param(*pair, marks=pytest.mark.slow)
        for pair in [(1, np.float32), (3, np.float32), (16, np.float64), (33, np.float32)]
    ],
]


def make_arguments(rule, num_rows, rank, dtype):
    """Return the arguments of `Engine.update_rows` after the rule."""
    targets, rows, dual, gram = draw_problem(num_rows, rank, dtype)
    num_steps = NUM_STEPS[rule.method]
    if rule.method is not Method.ADMM:
        return targets, rows, None, num_steps, None, gram
    inverse, penalty = CPU.invert_penalized(gram)
    return targets, rows, dual, num_steps, penalty, inverse


@pytest.mark.parametrize(("rank", "dtype"), RANKS)
@EACH_RULE
@pytest.mark.parametrize("num_rows", [1, 65, 3201])  # of the last a part has several blocks
def test_rules(rule, rank, num_rows, dtype):
    arguments = make_arguments(rule, num_rows, rank, dtype)
    expected = update_rows(rule, *arguments)
    found = CPU.update_rows(rule, *arguments)
    targets = arguments[0]
    size = max(1, np.abs(targets).max(), np.abs(expected[0]).max())
    bound = find_bound(NUM_STEPS[rule.method], rank, dtype, size)
    assert np.abs(found[0] - expected[0]).max() <= bound
    assert found[0].dtype == dtype
    if expected[1] is None:
        assert found[1] is None
    else:
        assert np.abs(found[1] - expected[1]).max() <= bound
    assert found[2].dtype == np.float64
    assert (
        found[2].shape == expected[2].shape == (NUM_STEPS[rule.method], NUM_MEASURES[rule.method])
    )
    if rule.method is Method.ADMM:
        # Norms of numbers, each off by the bound.
        roots = np.sqrt(found[2]) - np.sqrt(expected[2])
        assert np.abs(roots).max() <= 3 * bound * np.sqrt(num_rows * rank)
    elif rule.method is Method.HALS:
        distances = np.sqrt(found[2][:, 0]) - np.sqrt(expected[2][:, 0])
        # With a sum and a sum of squares a small distance keeps half of its digits.
        scale = size * rank * np.sqrt(num_rows)
        assert np.abs(distances).max() <= scale * (bound + np.sqrt(10 * rank * np.finfo(dtype).eps))


@EACH_RULE
def test_no_rows(rule):
    rows, _, measures = CPU.update_rows(rule, *make_arguments(rule, 0, 3, np.float64))
    assert rows.shape == (0, 3)
    assert not measures.any()


@EACH_RULE
def test_arguments_stay_and_may_be_views(rule):
    arguments = make_arguments(rule, 300, 5, np.float64)
    expected = CPU.update_rows(rule, *arguments)
    views = []
    for argument in arguments:
        view = argument
        if isinstance(argument, np.ndarray) and argument.ndim == 2:
            padded = np.full((argument.shape[0], argument.shape[1] + 2), np.nan)
            padded[:, 1:-1] = argument
            view = padded[:, 1:-1]
        views.append(view)
    copies = [np.copy(view) for view in views[:2]]
    found = CPU.update_rows(rule, *views)
    for first, second in zip(found, expected, strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(views[:2], copies)


@EACH_RULE
def test_the_same_bits_for_any_number_of_threads(rule):
    arguments = make_arguments(rule, 30_000, 5, np.float32)
    num_threads = numba.get_num_threads()
    results = []
    try:
        for count in (1, num_threads):
            numba.set_num_threads(count)
            results.append(CPU.update_rows(rule, *arguments))
    finally:
        numba.set_num_threads(num_threads)
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@EACH_RULE
def test_a_row_depends_on_no_other(rule):
    arguments = make_arguments(rule, 200, 4, np.float64)
    all_rows, _, _ = CPU.update_rows(rule, *arguments)
    targets, rows, dual, *rest = arguments
    some = slice(70, 130)
    some_dual = None if dual is None else dual[some]
    found, _, _ = CPU.update_rows(rule, targets[some], rows[some], some_dual, *rest)
    np.testing.assert_array_equal(found, all_rows[some])


@EACH_RULE
def test_nan_stays_in_its_row(rule):
    targets, *rest = make_arguments(rule, 100, 3, np.float64)
    targets[40, 1] = np.nan
    rows, _, _ = CPU.update_rows(rule, targets, *rest)
    assert np.isnan(rows[40]).any()
    assert not np.isnan(np.delete(rows, 40, axis=0)).any()


def test_a_sweep_that_changes_nothing_is_measured_as_each_later_one():
    """Rows that are minimal stay; the distances between their elements are still added up."""
    rule = RowRule(Method.HALS)
    targets = np.tile([[2.0, 4.0]], (70, 1))
    rows, _, measures = CPU.update_rows(rule, targets, targets / 2, None, 4, None, 2 * np.eye(2))
    np.testing.assert_array_equal(rows, targets / 2)
    np.testing.assert_array_equal(measures, [[70 * 2.0, 0]] * 4)


@BOTH_DTYPES
def test_elements_that_shrink_become_zero_and_never_subnormal(dtype):
    tiny = np.finfo(dtype).tiny
    rows = np.full((100, 4), 4 * tiny, dtype)
    targets = np.ones((100, 4), dtype)
    rule = RowRule(Method.MULTIPLY, strength=0.5)
    found, _, _ = CPU.update_rows(rule, targets, rows, None, 1, None, np.eye(4))
    assert found.max() > tiny
    rule = RowRule(Method.MULTIPLY, strength=1e-3)
    large = 0.25 / float(tiny) * np.eye(4)  # so the rows become a thousandth
    shrunk, _, _ = CPU.update_rows(rule, 0 * targets, rows, None, 1, None, large)
    assert not shrunk.any()
    assert tiny * dtype(0.5) > 0  # the thread computes as before


def test_the_inverse_for_admm():
    rng = np.random.default_rng(0)
    left = rng.standard_normal((20, 6))
    gram = left.T @ left
    inverse, penalty = CPU.invert_penalized(gram)
    assert penalty == gram.trace() / 6
    product = inverse @ (gram + penalty * np.eye(6))
    # The condition number is at most 7.
    assert np.abs(product - np.eye(6)).max() <= 6 * 7 * 6 * np.finfo(float).eps
    inverse, penalty = CPU.invert_penalized(np.zeros((3, 3)))
    assert (inverse == 0).all()
    assert penalty == 0


def test_soft_thresholds_meet_zero_exactly():
    rule = RowRule(Method.ADMM, Operator.L1, 10.0)
    targets, rows, dual, gram = draw_problem(50, 3, np.float64)
    inverse, penalty = CPU.invert_penalized(gram)
    found, _, _ = CPU.update_rows(rule, targets, rows, 0 * dual, 3, penalty, inverse)
    assert (found == 0).all()
