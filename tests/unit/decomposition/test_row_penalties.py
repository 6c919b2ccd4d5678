"""Updates of penalised rows: the steps in NumPy, the minimum, and an objective that never rises."""

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from row_penalty_statements import OPERATORS, find_excess, measure_rows, update_densely
from strategies import quick, seeds

from tensorly_flycoo.decomposition import row_penalties
from tensorly_flycoo.decomposition.row_penalties import (
    RowPenalty,
    read_row_penalties,
    update_rows,
)

EACH_PENALTY = pytest.mark.parametrize("name", OPERATORS)
EPS = np.finfo(float).eps


def make_problem(seed=0, num_rows=40, rank=5, noise=3.0):
    """Draw rows, targets, and a Gram matrix of a condition of about 20."""
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((30, rank)) * rng.uniform(0.5, 2, rank)
    gram = basis.T @ basis
    true = rng.standard_normal((num_rows, rank)) * (rng.random((num_rows, rank)) < 0.5)
    targets = true @ gram + noise * rng.standard_normal((num_rows, 30)) @ basis
    return rng.standard_normal((num_rows, rank)), targets, gram


@EACH_PENALTY
def test_an_update_takes_the_steps_of_admm(name):
    rows, targets, gram = make_problem()
    found = update_rows(RowPenalty(OPERATORS[name], 20.0), rows, targets, gram)
    expected = update_densely(name, 20.0, rows, targets, gram)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * abs(expected).max())
    np.testing.assert_array_equal(found == 0, expected == 0)


def test_the_order_in_memory_does_not_matter():
    rows, targets, gram = make_problem()
    penalty = RowPenalty(OPERATORS["l1_reg"], 20.0)
    expected = update_rows(penalty, rows, targets, gram)
    for order in ("C", "F"):
        for other in ("C", "F"):
            found = update_rows(
                penalty, np.asarray(rows, order=order), np.asarray(targets, order=other), gram
            )
            np.testing.assert_array_equal(found, expected)


@EACH_PENALTY
def test_updates_end_in_the_minimum(name):
    rows, targets, gram = make_problem()
    strength = 20.0
    for _ in range(60):
        rows = update_rows(RowPenalty(OPERATORS[name], strength), rows, targets, gram)
    unit = abs(targets).max()
    assert find_excess(name, strength, rows, rows @ gram - targets) <= 1e-9 * unit
    again = update_rows(RowPenalty(OPERATORS[name], strength), rows, targets, gram)
    np.testing.assert_allclose(again, rows, rtol=0, atol=1e-10 * abs(rows).max())


def test_the_minimum_is_that_of_another_solver():
    """Bounded variables, one for each sign, make an l1 penalty smooth."""
    start, targets, gram = make_problem(num_rows=6)
    strength = 20.0
    rows = start
    for _ in range(60):
        rows = update_rows(RowPenalty(OPERATORS["l1_reg"], strength), rows, targets, gram)

    def find_loss_and_slope(parts):
        above, below = parts.reshape(2, *targets.shape)
        x = above - below
        slope = x @ gram - targets
        loss = ((x @ gram / 2 - targets) * x).sum() + strength * parts.sum()
        return loss, np.concatenate([slope + strength, strength - slope]).ravel()

    other = scipy.optimize.minimize(
        find_loss_and_slope,
        np.ones(2 * targets.size),
        jac=True,
        bounds=[(0, None)] * (2 * targets.size),
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 10_000},
    )
    found = measure_rows("l1_reg", strength, rows, targets, gram)
    assert found == pytest.approx(other.fun, rel=1e-10)
    above, below = other.x.reshape(2, *targets.shape)
    # The loss grows at least with half the least eigenvalue times the squared distance.
    least = np.linalg.eigvalsh(gram)[0]
    distance = np.linalg.norm(above - below - rows)
    assert distance <= 2 * np.sqrt(2 * 1e-10 * abs(found) / least)


@quick
@given(seeds, st.sampled_from([*OPERATORS]), st.integers(1, 9), st.floats(-3, 3), st.floats(0, 1))
def test_an_update_never_raises_the_objective(seed, name, rank, digits, likeness):
    """Whatever the scales of rows, targets, strength and columns, and how alike columns are."""
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((rank + 2, rank)) * 10 ** rng.uniform(-1.5, 1.5, rank)
    basis = (1 - likeness) * basis + likeness * basis[:, :1]
    gram = basis.T @ basis
    targets = 10 ** rng.uniform(-2, 3) * rng.standard_normal((7, rank + 2)) @ basis
    rows = 10 ** rng.uniform(-3, 3) * rng.standard_normal((7, rank))
    strength = 10.0**digits
    for _ in range(3):
        updated = update_rows(RowPenalty(OPERATORS[name], strength), rows, targets, gram)
        before, after = (measure_rows(name, strength, x, targets, gram) for x in (rows, updated))
        # Sums of as many products as there are, all rounded, of the largest that occur.
        sizes = [abs(x) @ abs(gram) * abs(x) + abs(targets * x) for x in (rows, updated)]
        rounding = 4 * (rank + 7) * EPS * (sizes[0].sum() + sizes[1].sum())
        assert after <= before + rounding
        rows = updated


def test_steps_that_raise_the_objective_give_way_to_one_that_does_not(monkeypatch):
    """One step of ADMM is too long where one eigenvalue of twenty is nearly the whole trace."""
    monkeypatch.setattr(row_penalties, "_NUM_STEPS", 1)
    rng = np.random.default_rng(3)
    rank = 20
    gram = np.ones((rank, rank)) + 1e-3 * np.eye(rank)
    rows = rng.standard_normal((1, rank))
    rows -= rows.mean()
    targets = (rows + 0.01 * rng.standard_normal((1, rank))) @ gram
    targets += 0.1 * rng.choice([-1.0, 1.0], (1, rank))
    penalty = RowPenalty(OPERATORS["l1_reg"], 0.1)
    before = measure_rows("l1_reg", 0.1, rows, targets, gram)

    updated = update_rows(penalty, rows, targets, gram)
    assert measure_rows("l1_reg", 0.1, updated, targets, gram) < before
    gradient = rows @ gram - targets
    trace = np.trace(gram)
    expected = penalty.project(rows - gradient / trace, 1 / trace)
    np.testing.assert_allclose(updated, expected, rtol=1e-12)


@EACH_PENALTY
def test_rows_that_nothing_holds_become_zero(name):
    """The Gram matrix is zero, as if another factor of the model were."""
    penalty = RowPenalty(OPERATORS[name], 0.5)
    found = update_rows(penalty, np.ones((3, 2)), np.zeros((3, 2)), np.zeros((2, 2)))
    np.testing.assert_array_equal(found, np.zeros((3, 2)))


BAD = {
    "two": ({"l1_reg": 1.0, "group_lasso": {1: 1.0}}, ValueError, "both given for mode 1"),
    "negative": (
        {"l1_reg": {0: -1.0}},
        ValueError,
        r"l1_reg\[0\] is -1.0, expected a finite number, 0",
    ),
    "nan": ({"group_lasso": np.nan}, ValueError, "group_lasso is nan, expected a finite number"),
    "mode": ({"l1_reg": {3: 1.0}}, ValueError, "a mode of l1_reg is 3, expected 0 to 2"),
    "few": ({"l1_reg": [1.0]}, ValueError, "l1_reg has 1 numbers, expected 3"),
    "text": ({"group_lasso": {0: "x"}}, TypeError, r"group_lasso\[0\] is 'x', expected a number"),
    "bool": ({"l1_reg": True}, TypeError, "l1_reg is True, expected a number"),
}


@pytest.mark.parametrize(("options", "error", "words"), BAD.values(), ids=BAD)
def test_strengths_are_checked(options, error, words):
    with pytest.raises(error, match=words):
        read_row_penalties(options, 3)


def test_strengths_of_zero_are_none():
    assert read_row_penalties({"l1_reg": [0.0, None, 0], "group_lasso": {1: 0}}, 3) == [None] * 3
