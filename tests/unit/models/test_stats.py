"""The statistics of a tensor."""

import math
from collections import Counter

import numpy as np
import pytest
import sparse
from problems import make_problem

from tensorly_flycoo import FlycooTensor, estimate_memory, stats
from tensorly_flycoo.format import groups

SHAPE = (30, 3, 400)


def gini(counts):
    """Compute the Gini coefficient: the mean difference of all pairs over twice the mean."""
    counts = np.array(counts, float)
    return np.abs(counts[:, None] - counts).mean() / (2 * counts.mean())


@pytest.mark.parametrize("skew", [1, 4])
def test_modes(skew):
    x = make_problem(SHAPE, 500, skew=skew).tensor(device="cpu")
    found, (coords, _) = stats(x), x.nonzeros()
    assert (found.shape, found.dtype, found.nnz) == (x.shape, x.dtype, x.nnz)
    assert found.density == x.density
    for mode, (rows, size) in enumerate(zip(coords.tolist(), SHAPE, strict=True)):
        counts, described = list(Counter(rows).values()), found.modes[mode]
        assert described.size == size
        assert described.num_empty_rows == size - len(counts)
        assert (described.min_row_nnz, described.max_row_nnz) == (min(counts), max(counts))
        assert described.median_row_nnz == np.median(counts)
        assert math.isclose(described.gini, gini(counts), abs_tol=1e-12)


def test_memory():
    x = make_problem(SHAPE, 500, dtype="float32").tensor(device="cpu")
    for layout, nbytes in stats(x).nbytes.items():
        assert nbytes == estimate_memory(SHAPE, x.nnz, dtype="float32", layout=layout).nbytes


def test_a_coo_is_described_as_the_tensor_that_it_becomes():
    """Without its duplicates and zeros."""
    coords = np.array([[0, 1, 0, 0, 1], [2, 0, 2, 2, 0]])
    values = np.array([1, 2, 3, 0, 4])
    coo = sparse.COO(coords, values, (2, 3), has_duplicates=False, sorted=True)
    found = stats(coo)
    assert (found.nnz, found.dtype) == (2, np.float64)
    assert [mode.max_row_nnz for mode in found.modes] == [1, 1]
    assert stats(sparse.GCXS(sparse.eye(3))).nnz == 3


def test_few_nonzeros():
    found = stats(FlycooTensor(np.empty((2, 0), int), np.empty(0), (2, 3), device="cpu"))
    assert [mode.num_empty_rows for mode in found.modes] == [2, 3]
    assert [mode.gini for mode in found.modes] == [0, 0]
    found = stats(FlycooTensor([[1], [2]], [1.0], (2, 3), device="cpu"))
    assert [(mode.min_row_nnz, mode.median_row_nnz) for mode in found.modes] == [(1, 1), (1, 1)]


def test_more_cells_than_int64_counts():
    x = FlycooTensor([[2**17 - 1, 0]] * 4, [1.0, 2.0], (2**17,) * 4, device="cpu")
    assert stats(x).density == 2 / 2**68
    assert stats(x.to_coo()).nnz == 2


def test_text():
    found = stats(make_problem(SHAPE, 5000).tensor(device="cpu"))
    text = repr(found)
    assert text == str(found)
    for fact in ("30 x 3 x 400", "float64", f"{found.nnz:,}", "memory, remap", "Gini"):
        assert fact in text
    assert "rank" not in text  # zeros count too, so nonzeros bound no rank
    assert len(text.splitlines()) == 8 + 4


@pytest.mark.usual_limits("groups", "prefixes", "slabs")
@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        ((30, 3, 400), {}, "((0, 1), (2,))"),
        ((30, 400), {}, "none: fewer than 3 modes"),
        ((30, 3, 400), {"slabs": 9}, "none: fewer than 500 nonzeros in a slab"),
        ((30, 3, 400), {"groups": None}, "none: groups= leaves them apart"),
        ((90,) * 13, {}, "none: more than 12 modes, the first with too many combinations"),
        ((60, 50, 300), {}, "none: too many combinations of neighbouring indices"),
    ],
)
def test_why_modes_are_apart(monkeypatch, shape, options, expected):
    monkeypatch.setattr(groups, "_LEAST_NNZ", 500)
    x = make_problem(shape, 4000).tensor(device="cpu", **options)
    assert stats(x).groups.startswith(expected)
    assert f"groups of modes     {expected}" in str(stats(x))


@pytest.mark.usual_limits("groups", "prefixes", "slabs")
def test_why_a_slab_numbers_no_prefixes(monkeypatch):
    monkeypatch.setattr(groups, "_LEAST_NNZ", 500)
    problem = make_problem((60, 50, 300), 4000, seed=3)
    problem.coords[:2, problem.coords[2] < 150] %= 10  # in the first slab
    found = stats(problem.tensor(slabs=2, device="cpu")).groups
    assert found.startswith("((0, 1), (2,)), none in 1 of 2 slabs: too many combinations")
    problem.coords[:2] %= 10  # few pairs, but coordinates of 60 bits leave no room for a number
    x = FlycooTensor(problem.coords, problem.values, (2**20,) * 3, device="cpu")
    assert stats(x).groups.endswith("or numbers would lengthen records")


def test_other_types_are_refused():
    with pytest.raises(
        TypeError, match=r"x is a ndarray, expected a FlycooTensor or a sparse\.COO"
    ):
        stats(np.ones((2, 2)))
    with pytest.raises(ValueError, match="fill_value is 1"):
        stats(sparse.COO([[0], [1]], [1.0], (2, 2), fill_value=1.0))
