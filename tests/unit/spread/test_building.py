"""The steps from nonzeros to slabs."""

import numpy as np
import pytest
from numpy_devices import NumpyDevices
from numpy_primitives import pack

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.spread import building
from tensorly_flycoo.spread.building import (
    MemoryBuilder,
    arrange_slab,
    number_buckets,
    split_records,
    take_rows,
)

SHAPE = (3, 12)
CUT = CPU.choose_cut(SHAPE, np.dtype("float64"))
FORMAT = CUT.record_format


def draw(nnz=200):
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(0, size, nnz) for size in SHAPE]), rng.random(nnz)


def test_buckets_keep_the_given_sequence():
    (coords, values), buckets = draw(), [range(5), range(5, 6), range(6, 12)]
    records = pack(FORMAT, coords, values)
    parts = split_records(records, number_buckets(buckets), FORMAT)
    for rows, found in zip(buckets, parts, strict=True):
        is_own = np.isin(coords[1], rows)
        np.testing.assert_array_equal(FORMAT.coords(found), coords[:, is_own])
        np.testing.assert_array_equal(FORMAT.values(found), values[is_own])


def test_a_whole_bucket_is_not_copied():
    records = pack(FORMAT, *draw())
    assert take_rows(records, range(12), range(12), FORMAT) is records
    assert take_rows(records, range(12), range(7), FORMAT).shape[0] == (draw()[0][1] < 7).sum()


def test_slabs_are_cut_where_the_nonzeros_are_that_are_left():
    """Half of the given ones are at one place, so buckets are cut elsewhere."""
    rows = np.arange(12)
    coords = np.stack([0 * rows, rows])
    repeated = np.concatenate([coords, np.repeat(coords[:, 11:], 12, axis=1)], axis=1)
    options = (3, CPU, OneDevice())
    builder = MemoryBuilder(repeated, np.ones(24), CUT, False, *options)
    slabs = builder.sort()
    assert [own for own, _, _ in builder.buckets] == [range(8), range(8, 11), range(11, 12)]
    assert slabs == [range(4), range(4, 8), range(8, 12)]
    ordered = [builder.order(0, rows) for rows in slabs]
    layouts = [arrange_slab(own, "replicated", CPU) for own in ordered]
    assert [layout.nnz for layout in layouts] == [4, 4, 4]
    assert [float(layout.norm) for layout in layouts] == [2, 2, np.sqrt(3 + 13**2)]


@pytest.mark.parametrize("block_nnz", [1, 7, 1000])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_slabs_do_not_depend_on_blocks_and_on_the_devices_that_pack_them(
    block_nnz, count, monkeypatch
):
    coords, values = draw()  # each place is given five times

    def build(devices, block_nnz):
        monkeypatch.setattr(building, "BLOCK_NNZ", block_nnz)
        monkeypatch.setattr(CPU, "devices", devices)
        x = FlycooTensor(coords, values, SHAPE, slabs=4, device="cpu")
        slabs = [(slab.rows, slab.layout) for slab in x._layout.slabs]
        return [(rows, [(n, a.tobytes()) for n, a in own.iterate_arrays()]) for rows, own in slabs]

    assert build(NumpyDevices(count), block_nnz) == build(None, 10**6)


@pytest.mark.parametrize(
    ("place", "text"),
    [((1, 150), r"coords\[1, 150\] is 12 .nonzero 150, mode 1."), (None, r"values\[150\] is nan")],
)
def test_errors_name_the_place_among_all_nonzeros(place, text, monkeypatch):
    monkeypatch.setattr(building, "BLOCK_NNZ", 64)
    coords, values = draw()
    if place is None:
        values[150] = np.nan
    else:
        coords[place] = 12
    with pytest.raises(ValueError, match=text):
        FlycooTensor(coords, values, SHAPE, slabs=4, device="cpu")
