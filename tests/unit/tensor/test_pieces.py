"""What reads a tensor slab by slab, on one device and on NumPy "devices"."""

import numpy as np
import pytest
from numpy_devices import NumpyDevices

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.io.checkpoint import find_digest
from tensorly_flycoo.ops.sampling import split_entries
from tensorly_flycoo.spread.slab_layout import SlabLayout
from tensorly_flycoo.tensor.pieces import sum_values

SHAPE = (12, 30, 9)


@pytest.fixture(params=[None, 1, 3], ids="{} devices".format)
def pair(request, monkeypatch):
    """A tensor in one piece and in slabs, which are never merged."""
    rng = np.random.default_rng(0)
    places = rng.choice(np.prod(SHAPE), 500, replace=False)
    coords = np.stack(np.unravel_index(places, SHAPE))
    values = rng.standard_normal(500)
    whole = FlycooTensor(coords, values, SHAPE, slabs=1)
    if request.param:
        monkeypatch.setattr(CPU, "devices", NumpyDevices(request.param))
    x = FlycooTensor(coords, values, SHAPE, slabs=5)
    monkeypatch.setattr(CPU, "devices", None)
    monkeypatch.delattr(SlabLayout, "hold_first_order")
    return whole, x


def test_digest(pair):
    whole, x = pair
    assert find_digest(x) == find_digest(whole)


def test_sum_of_values(pair):
    """The sum has the same bits in pieces, and after the nonzeros have moved."""
    whole, x = pair
    first = sum_values(x._layout, CPU)
    mttkrp(x, [np.ones((size, 1)) for size in SHAPE], 0)
    assert sum_values(x._layout, CPU) == sum_values(whole._layout, CPU) == first
    assert first == pytest.approx(whole.nonzeros()[1].sum(), rel=1e-12)


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1.0, 1e300])
def test_sum_of_extreme_values(scale):
    x = FlycooTensor([[0, 1, 2], [2, 1, 0]], np.array([3, -1, 7]) * scale, (3, 3))
    assert sum_values(x._layout, CPU) == pytest.approx(9 * scale)


@pytest.mark.parametrize(
    "index",
    [
        3,
        (slice(None), 7),
        (slice(2, 10, 3), slice(25, 3, -4)),
        (Ellipsis, [1, 4, 4]),
        (slice(None), [29, 0, 7, 7]),
        (slice(None), slice(0, 1)),
        (slice(None), 29, 8),
    ],
    ids=str,
)
def test_parts(pair, index, monkeypatch):
    whole, x = pair
    monkeypatch.setattr(type(x), "slabs", 1)  # the parts are read below
    found, expected = x[index].nonzeros(), whole[index].nonzeros()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_elements(pair):
    whole, x = pair
    coords, _ = whole.nonzeros()
    for place in coords.T[::50]:
        assert x[tuple(place)] == whole[tuple(place)]
    assert mttkrp(x, [np.ones((size, 2)) for size in SHAPE], 0).shape == (12, 2)


def test_entries_are_found_in_the_first_row_of_each_slab(pair):
    """Few of them, which are looked up among the nonzeros of the slab."""
    whole, x = pair
    coords, values = whole.nonzeros()
    first_rows = [slab.rows.start for slab in x._layout.slabs]
    places = np.flatnonzero(np.isin(coords[1], first_rows))[::5]
    assert {*coords[1, places]} == {*first_rows}
    found, rest = split_entries(x, coords[:, places])
    np.testing.assert_array_equal(found, values[places])
    assert rest.nnz == x.nnz - places.size
