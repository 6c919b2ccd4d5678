"""The indices of a mode that have nonzeros."""

import numpy as np
import pytest
from problems import make_problem

from tensorly_flycoo.ops.nonempty_rows import count_nonempty_rows, find_nonempty_rows


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("nnz", [0, 1, 40])
def test_some_rows_are_empty(nnz, layout):
    problem = make_problem((50, 60, 7), nnz)
    x = problem.tensor(layout=layout)
    for mode in range(2):
        expected = np.unique(problem.coords[mode])
        assert count_nonempty_rows(x, mode) == expected.size
        numbers, slots = find_nonempty_rows(x, mode)
        np.testing.assert_array_equal(numbers, expected)
        np.testing.assert_array_equal(slots[numbers], np.arange(expected.size))
        assert slots.shape == (x.shape[mode],)


def test_no_row_is_empty():
    x = make_problem((5, 4, 3), 500).tensor()
    assert count_nonempty_rows(x, 0) == 5
    assert find_nonempty_rows(x, 0) == (slice(None), None)


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_slots_of_a_given_type(dtype):
    x = make_problem((50, 4, 3), 10).tensor()
    assert find_nonempty_rows(x, 0, dtype)[1].dtype == dtype
