"""Steps in passes: as if they were taken, and looked at, one by one."""

import numpy as np
import pytest

from tensorly_flycoo.loop.row_updates import run_steps


class Halving:
    """A rule that halves its rows, and measures them; it counts passes and steps."""

    def __init__(self):
        self.passes = []

    def take_steps(self, rows, dual, num_steps):
        self.passes.append(num_steps)
        measures = []
        for _ in range(num_steps):
            rows = rows / 2
            measures.append(rows.copy())
        return rows, dual, np.array(measures)


@pytest.mark.parametrize("batch_size", [1, 3, 10])
@pytest.mark.parametrize("num_needed", [1, 2, 3, 4, 9, 10, 11, 20, 25])
def test_it_stops_after_the_first_step_that_is_enough(num_needed, batch_size):
    rule = Halving()
    result = run_steps(
        rule.take_steps,
        np.array([1.0]),
        num_steps=20,
        is_enough=lambda first, last: last[0] <= 0.5**num_needed,
        batch_size=batch_size,
    )
    num_steps = min(num_needed, 20)
    assert result.rows == 0.5**num_steps
    assert [float(rows[0]) for rows in result.measures] == [0.5**n for n in range(1, num_steps + 1)]
    # Passes double, and one is done again at most.
    assert sum(rule.passes) <= 3 * max(num_steps, batch_size)
    if batch_size == 1:
        assert sum(rule.passes) == num_steps


def test_each_step_is_looked_at_once_beside_the_first():
    seen = []

    def is_enough(first, last):
        assert first == [0.5]
        seen.append(last)
        return False

    run_steps(Halving().take_steps, np.array([1.0]), 45, is_enough)
    assert seen == [[0.5**n] for n in range(1, 46)]


def test_no_steps():
    rows = np.array([1.0])
    result = run_steps(Halving().take_steps, rows, 0, lambda first, last: True, dual=3)
    assert (result.rows, result.dual, result.measures) == (rows, 3, [])


def test_steps_after_a_final_one_are_not_taken_back():
    rule = Halving()
    result = run_steps(
        rule.take_steps,
        np.array([1.0]),
        num_steps=20,
        is_enough=lambda first, last: False,
        is_final=lambda measures: measures[0] == 0.5**4,
    )
    assert rule.passes == [10]
    assert len(result.measures) == 4
