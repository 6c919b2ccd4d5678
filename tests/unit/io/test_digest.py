"""The digest of a tensor: which tensors have the same one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.io import checkpoint as digest
from tensorly_flycoo.io.checkpoint import find_digest

SHAPE = (5, 7, 40)


def make_parts(seed=0, size=200):
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(0, n, size) for n in SHAPE])
    return coords, rng.standard_normal(size)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layout_order_and_remapping_do_not_matter(dtype):
    coords, values = make_parts()
    order = np.random.default_rng(1).permutation(200)
    coords, first = np.unique(coords, axis=1, return_index=True)
    values, order = values[first], order[order < first.size]
    x = FlycooTensor(coords, values, SHAPE, dtype=dtype)
    expected = find_digest(x)
    assert len(expected) == 32
    for layout in ("remap", "replicated", "indexed"):
        y = FlycooTensor(coords[:, order], values[order], SHAPE, dtype=dtype, layout=layout)
        mttkrp(y, [np.ones((size, 2), dtype) for size in SHAPE], 1)  # moves the records
        assert find_digest(y) == expected


def test_more_nonzeros_than_a_block(monkeypatch):
    coords, values = make_parts()
    expected = find_digest(FlycooTensor(coords, values, SHAPE, layout="indexed"))
    monkeypatch.setattr(digest, "_CPU_BLOCK", 7)
    assert find_digest(FlycooTensor(coords, values, SHAPE, layout="indexed")) == expected


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.integers(0, 199))
def test_any_change_changes_it(row, place):
    coords, values = make_parts()
    coords, first = np.unique(coords, axis=1, return_index=True)
    values, place = values[first], place % first.size
    x = FlycooTensor(coords, values, SHAPE, layout="indexed")
    if row == 3:
        values[place] = np.nextafter(values[place], 9)
    else:
        coords[row, place] = (coords[row, place] + 1) % SHAPE[row]
    y = FlycooTensor(coords, values, SHAPE, layout="indexed")
    assert find_digest(x) != find_digest(y)


def test_shape_and_dtype_matter():
    x = FlycooTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3))
    others = [x.astype("float32"), FlycooTensor(*x.nonzeros(), (3, 4)), -x, x[0:2]]
    assert len({find_digest(y) for y in [x, *others]}) == 5


def test_exchanged_values_and_modes_matter():
    x = FlycooTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3))
    exchanged = FlycooTensor([[0, 1], [2, 0]], [2.0, 1.0], (3, 3))
    transposed = FlycooTensor([[2, 0], [0, 1]], [1.0, 2.0], (3, 3))
    assert len({find_digest(y) for y in (x, exchanged, transposed)}) == 3


def test_it_is_computed_once(monkeypatch):
    x = FlycooTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3))
    expected = find_digest(x)
    monkeypatch.setattr(digest, "_hash_piece", None)
    assert find_digest(x) == expected


def test_a_tensor_without_nonzeros():
    x = FlycooTensor(np.zeros((2, 0), int), np.zeros(0), (3, 3))
    assert find_digest(x) != find_digest(FlycooTensor([[0], [0]], [1.0], (3, 3)))
