"""Slices of sparse tensors, against NumPy's of dense arrays."""

import numpy as np
import pytest
from problems import make_exact_problem

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.tensor import indexing
from tensorly_flycoo.tensor.indexing import parse_index

SHAPE = (6, 7, 8)
LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])

INDICES = [
    3, -1, np.int64(2), slice(2, 5), (slice(None), slice(1, 5)), (..., 0), (2, ...), (1, 2, 3),
    (-6, -7, -8), (slice(None, None, -1),), (slice(None, None, -2), 2),
    (slice(5, None, -3), ..., 7),
    (2, ..., slice(-1, 0, -3)), (slice(4, 1, -1), slice(2, 7, 2), 1), (slice(-100, 100), 0),
    (slice(None), 3, slice(2, 3)), (0, 0, ..., 0),
    [1, 2], [5, -6, 5, 0], (..., [7]), np.array([3, 1], np.int8), (range(3),), ([4, 4, 1], 2),
    (slice(1, 4), (2, 0)), ([1, 2], slice(None), -1), (3, slice(None, None, -2), [0, 5, 5]),
    (1, [2, 6], 3), (0, slice(None), np.array([7, 0, 7])), (slice(None), 0, [1, 1]),
]  # fmt: skip


def make_dense(x):
    coords, values = x.nonzeros()
    dense = np.zeros(x.shape, x.dtype)
    dense[tuple(coords)] = values
    return dense


@pytest.mark.parametrize("index", INDICES, ids=str)
@LAYOUTS
def test_against_numpy(layout, index):
    x = make_exact_problem(SHAPE, 120).tensor(layout=layout)
    expected = make_dense(x)[index]
    for mode in (0, 1):  # mttkrp reorders the nonzeros of a remap layout
        found = x[index]
        if expected.ndim == 0:
            assert type(found) is np.float64
            assert found == expected
        else:
            assert (found.layout, found.device, found.dtype) == (layout, "cpu", x.dtype)
            np.testing.assert_array_equal(make_dense(found), expected)
        tensorly_flycoo.mttkrp(x, [np.ones((size, 2)) for size in SHAPE], mode)


@pytest.mark.parametrize("index", [..., slice(None), (), (slice(None), ...), slice(0, 6)], ids=str)
def test_a_full_slice_is_the_tensor_itself(index):
    x = make_exact_problem(SHAPE, 120).tensor()
    assert x[index] is x


@pytest.mark.parametrize(
    "index",
    [6, -7, (0, 0, 0, 0), (..., ...), (0, 9), "a", True, None, 1.0, [1.0], [True, False]],
    ids=repr,
)
def test_errors_are_index_errors(index):
    x = make_exact_problem(SHAPE, 120).tensor()
    with pytest.raises(IndexError) as caught:
        x[index]
    if isinstance(index, int | tuple) and index is not True:
        with pytest.raises(IndexError) as expected:
            make_dense(x)[index]
        assert str(caught.value) == str(expected.value)
    else:
        assert "valid indices" in str(caught.value)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (([0], [1]), "got 2 lists; index one mode after the other"),
        ([0, 6], "index 6 is out of bounds for axis 0 with size 6"),
        ((0, [-8]), "index -8 is out of bounds for axis 1 with size 7"),
        ([[0, 1]], "got a list"),
    ],
    ids=str,
)
def test_wrong_lists(index, message):
    with pytest.raises(IndexError, match=message):
        make_exact_problem(SHAPE, 120).tensor()[index]
    with pytest.raises(ValueError, match="an empty list selects nothing from mode 0"):
        make_exact_problem(SHAPE, 120).tensor()[[]]


def test_an_empty_slice_is_an_error():
    with pytest.raises(ValueError, match=r"selects nothing from mode 1, which has size 7"):
        make_exact_problem(SHAPE, 120).tensor()[:, 5:5]


def test_a_slice_without_nonzeros():
    x = FlycooTensor([[1], [1]], [2.0], (3, 4), dtype="float32")
    assert x[0].nnz == 0
    assert x[0].shape == (4,)
    assert x[2, 2] == 0
    assert x[2, 2].dtype == np.float32


def test_more_than_2_to_63_cells():
    size = 2**22
    x = FlycooTensor([[0, 5, size - 1]] * 3, [1.0, 2.0, 3.0], (size,) * 3)
    assert x[-1, -1, -1] == 3
    assert x[5].nonzeros()[0].tolist() == [[5], [5]]
    assert x[::-5, 1:].nonzeros()[0].tolist() == [[0], [size - 2], [size - 1]]
    assert parse_index((..., slice(None, None, 3)), (2, size))[1] == range(0, size, 3)


@LAYOUTS
@pytest.mark.parametrize("shape", [SHAPE, (9, 4)])
def test_iteration(layout, shape):
    x = make_exact_problem(shape, 20).tensor(layout=layout)
    tensorly_flycoo.mttkrp(x, [np.ones((size, 2)) for size in shape], 0)
    parts = list(x)
    assert len(parts) == len(x) == shape[0]
    for part, expected in zip(parts, make_dense(x), strict=True):
        assert part.layout == layout
        np.testing.assert_array_equal(make_dense(part), expected)


def test_iteration_over_one_mode():
    assert list(FlycooTensor([[1, 3]], [2.0, 4.0], (5,))) == [0, 2, 0, 4, 0]


def test_selectors_and_pairs():
    found = parse_index((-1, ..., slice(1, None, 2)), (3, 4, 5))
    assert found == [2, range(0, 4), range(1, 5, 2)]
    sources, places = indexing.match_sorted(np.array([5, 3]), np.array([3, 5, 5]), np)
    assert (sources.tolist(), places.tolist()) == ([0, 0, 1], [1, 2, 0])
