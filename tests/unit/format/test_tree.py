"""Trees of additions: other forms of them give the same sums."""

import numpy as np

from tensorly_flycoo.format.tree import add_parts, express, renumber


def test_the_numbers_of_a_tree_become_places():
    assert renumber(((0, 3), 5), (0, 3, 5)) == ((0, 1), 2)


def test_parts_of_a_matrix_are_added():
    assert add_parts(np.array([1, 2, 10, 20, 100, 200]), ((0, 1), 2)).tolist() == [111, 222]


def test_a_sum_in_c():
    assert express(((0, 1), 2), "PART") == "((PART(0)+PART(1))+PART(2))"
