"""Looking up entries and fibres of a sparse tensor."""

import numpy as np
import pytest

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.ops.sampling import find_chances, make_sampler
from tensorly_flycoo.testing import random_tensor

_SHAPE = (6, 5, 7, 4)
_BY_LAYOUT = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])


def _make(layout="remap", dtype=np.float64, nnz=200):
    x = random_tensor(_SHAPE, nnz, random_state=0, layout=layout, dtype=dtype)
    return x, x.to_coo().todense()


def _draw(count, without=None):
    rng = np.random.RandomState(1)
    modes = enumerate(_SHAPE)
    return {mode: rng.randint(0, size, count) for mode, size in modes if mode != without}


def _look_up(dense, mode, coords):
    """Return fibres of a dense array as columns: (I_mode, count)."""
    index = tuple(coords.get(n, slice(None)) for n in range(dense.ndim))
    return dense[index] if mode == 0 else dense[index].T


def _fill(sampler, mode, coords):
    """Return the fibres that a sampler finds as columns: (I_mode, count)."""
    fibres, rows, values = sampler.fibres(mode, coords)
    columns = np.zeros((_SHAPE[mode], len(next(iter(coords.values())))), values.dtype)
    columns[rows, fibres] = values
    return columns


@_BY_LAYOUT
def test_entries(layout):
    x, dense = _make(layout)
    coords = list(_draw(300).values())
    entries = make_sampler(x).entries(coords)
    np.testing.assert_array_equal(entries, dense[tuple(coords)])
    assert 0 < np.count_nonzero(entries) < entries.size  # zeros and nonzeros were sampled


@_BY_LAYOUT
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("mode", range(4))
def test_fibres(mode, dtype, layout):
    x, dense = _make(layout, dtype)
    coords = _draw(50, without=mode)
    fibres = _fill(make_sampler(x), mode, coords)
    assert fibres.dtype == dtype
    np.testing.assert_array_equal(fibres, _look_up(dense, mode, coords))


@_BY_LAYOUT
def test_samples_do_not_depend_on_the_order_of_records(layout):
    x, dense = _make(layout)
    sampler, coords = make_sampler(x), _draw(50, without=1)
    for mode in range(4):
        mttkrp(x, [np.ones((size, 2)) for size in _SHAPE], mode)
        fibres = _fill(sampler, 1, coords)
        np.testing.assert_array_equal(fibres, _look_up(dense, 1, coords))


def test_no_sample_and_no_nonzero():
    empty = make_sampler(FlycooTensor(np.zeros((4, 0), int), np.zeros(0), _SHAPE))
    np.testing.assert_array_equal(empty.entries(list(_draw(9).values())), np.zeros(9))
    np.testing.assert_array_equal(_fill(empty, 2, _draw(9, without=2)), np.zeros((7, 9)))
    sampler = make_sampler(_make()[0])
    assert sampler.entries(list(_draw(0).values())).shape == (0,)
    assert _fill(sampler, 1, _draw(0, without=1)).shape == (5, 0)


def test_more_than_2_to_63_cells():
    """No linear index is formed."""
    shape = (2**22,) * 3
    coords = np.array([[0, 5, 2**22 - 1], [7, 7, 2**22 - 1], [1, 2**21, 2**22 - 1]])
    sampler = make_sampler(FlycooTensor(coords, [1.0, 2.0, 3.0], shape))
    np.testing.assert_array_equal(sampler.entries(coords), [1, 2, 3])


def test_chances_of_cells():
    x = FlycooTensor([[0, 1, 1], [0, 0, 2]], [1.0, 1.0, 1.0], (2, 3))
    found = find_chances(x, np.array([[0, 1], [1, 0]]))
    np.testing.assert_allclose(found, [0, 4 / 9])
