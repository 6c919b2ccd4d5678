"""All layouts: known ids, the order of records in every mode, and steps."""

import numpy as np
import pytest
from numpy_primitives import NumpyPrimitives, pack

from tensorly_flycoo.base import checks
from tensorly_flycoo.format.indexed import IndexedLayout
from tensorly_flycoo.format.layouts import LAYOUT_CLASSES
from tensorly_flycoo.format.packing import Cut, RecordFormat
from tensorly_flycoo.format.remap import RemapLayout
from tensorly_flycoo.format.replicated import ReplicatedLayout

# Six nonzeros, numbered by their values in the order of mode 0. Sorted by mode 1 they are
# 2 5 | 3 6 | 1 4 (their rows in mode 1 are 2 0 1 2 0 1).
COORDS = np.array([[0, 1, 1, 2, 3, 3], [2, 0, 1, 2, 0, 1]])
VALUES = np.arange(1.0, 7.0)
SHAPE = (5, 3)


def build(cls, coords=COORDS, values=VALUES, shape=SHAPE, tile_size=2, bucket_size=4):
    record_format = RecordFormat.of(shape, values.dtype, "uint64")
    return cls.build(coords, values, Cut(record_format, tile_size, bucket_size), NumpyPrimitives())


def read_values(layout, records):
    return layout.record_format.values(records).tolist()


def remap_once(layout):
    """Take a step that only remaps."""
    layout.spare[...] = 0
    mode, primitives = layout.mode, NumpyPrimitives()
    with layout.step(mode, primitives) as step:
        primitives.remap(step, layout.cut)
    assert layout.mode == (mode + 1) % layout.record_format.ndim


def find_positions(layout):
    """Return the position in memory of each place of the resident mode's order."""
    pull_ids = layout.plans[layout.mode].pull_ids
    places = np.arange(pull_ids.size)
    return places // layout.cut.bucket_size * layout.cut.bucket_size + pull_ids.astype(np.int64)


def test_known_remap_layout():
    layout = build(RemapLayout)
    assert layout.mode == 0
    # Storage 0: the bucket of nonzeros 1 to 4, then that of 5 and 6, each in the order of mode 1.
    assert read_values(layout, layout.records) == [2, 3, 1, 4, 5, 6]
    assert layout.plans[0].pull_ids.tolist() == [2, 0, 1, 3, 0, 1]
    assert layout.plans[0].remap_ids.tolist() == [4, 0, 1, 5, 2, 3]
    assert read_values(layout, layout.records[find_positions(layout)]) == [1, 2, 3, 4, 5, 6]
    remap_once(layout)
    # Storage 1: the bucket of 2 5 3 6, then that of 1 4, each in the order of mode 0.
    assert read_values(layout, layout.records) == [2, 3, 5, 6, 1, 4]
    assert layout.plans[1].pull_ids.tolist() == [0, 2, 1, 3, 0, 1]
    assert layout.plans[1].remap_ids.tolist() == [0, 4, 1, 5, 2, 3]
    assert read_values(layout, layout.records[find_positions(layout)]) == [2, 5, 3, 6, 1, 4]
    remap_once(layout)
    assert layout.mode == 0
    assert read_values(layout, layout.records) == [2, 3, 1, 4, 5, 6]


def test_a_fork_has_the_arrays_but_moves_by_itself():
    layout = build(RemapLayout)
    remap_once(layout)
    fork = layout.fork()
    assert fork.get_state() == layout.get_state()
    state = layout.get_state()
    remap_once(fork)
    assert layout.get_state() == state
    assert fork.get_state() == {"records": layout.spare, "spare": layout.records, "mode": 0}


@pytest.mark.parametrize("cls", [ReplicatedLayout, IndexedLayout])
def test_a_layout_that_stays_as_it_is_is_its_own_fork(cls):
    layout = build(cls)
    assert layout.fork() is layout
    assert layout.get_state() == {}


def test_known_replicated_layout():
    layout = build(ReplicatedLayout)
    assert [read_values(layout, copy) for copy in layout.copies] == [
        [1, 2, 3, 4, 5, 6],
        [2, 5, 3, 6, 1, 4],
    ]


@pytest.mark.parametrize("cls", [RemapLayout, ReplicatedLayout, IndexedLayout])
def test_known_tilings(cls):
    layout = build(cls, tile_size=4)
    assert [tiling.carry_rows.tolist() for tiling in layout.tilings] == [[-1, -1], [-1, -1]]
    assert [tiling.empty_rows.tolist() for tiling in layout.tilings] == [[4], []]
    layout = build(cls, tile_size=1)
    assert layout.tilings[1].carry_rows.tolist() == [-1, 0, -1, 1, -1, 2]


def test_known_indexed_layout():
    layout = build(IndexedLayout)
    assert read_values(layout, layout.records) == [1, 2, 3, 4, 5, 6]
    assert layout.pull_ids[0] is None
    assert layout.pull_ids[1].tolist() == [1, 4, 2, 5, 0, 3]
    assert layout.nbytes == 6 * (16 + 4) + sum(tiling.nbytes for tiling in layout.tilings)


@pytest.mark.parametrize("shape", [(5,), (3, 4, 2, 5), (30, 7, 30, 2, 9)])
def test_an_index_pulls_the_orders_of_the_replicated_copies(shape):
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 60) for size in shape])
    arguments = (coords, rng.standard_normal(60), shape, 2)
    layout, replicated = build(IndexedLayout, *arguments), build(ReplicatedLayout, *arguments)
    np.testing.assert_array_equal(layout.records, replicated.copies[0])
    for mode in range(1, len(shape)):
        pulled = layout.records[layout.pull_ids[mode]]
        np.testing.assert_array_equal(pulled, replicated.copies[mode])


@pytest.mark.parametrize("bucket_size", [2, 4, 8, 64])
@pytest.mark.parametrize("shape", [(5,), (1, 7, 1), (3, 4, 2, 5), (2**32, 50), (40, 2**32, 3)])
def test_remapping_walks_through_the_orders_of_the_replicated_copies(
    shape, bucket_size, monkeypatch
):
    # Listing the empty rows of a mode of size 2**32 takes gigabytes; it is not tested here.
    monkeypatch.setattr(NumpyPrimitives, "find_empty_rows", lambda *_: np.zeros(0, np.uint32))
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 60) for size in shape])
    arguments = (coords, rng.standard_normal(60), shape, 2)
    layout = build(RemapLayout, *arguments, bucket_size)
    replicated = build(ReplicatedLayout, *arguments)
    for mode in [*range(len(shape)), 0]:
        assert layout.mode == mode
        ordered = layout.records[find_positions(layout)]
        np.testing.assert_array_equal(ordered, replicated.copies[mode])
        rows = layout.record_format.rows(ordered, mode).astype(np.int64)
        assert (np.diff(rows) >= 0).all()
        remap_once(layout)


@pytest.mark.usual_limits("index")
def test_side_arrays_are_compact():
    """Six bytes per nonzero and mode, besides the two copies."""
    layout = build(RemapLayout)
    assert layout.plans[0].pull_ids.dtype == np.uint16
    assert layout.plans[0].remap_ids.dtype == np.uint32
    assert layout.plans[0].nbytes == 6 * 6
    wide = build(RemapLayout, bucket_size=2**17)
    assert wide.plans[0].pull_ids.dtype == np.uint32


def test_nbytes_is_exact():
    layout = build(RemapLayout)
    arrays = [layout.records, layout.spare]
    for plan, tiling in zip(layout.plans, layout.tilings, strict=True):
        arrays += [plan.pull_ids, plan.remap_ids, tiling.carry_rows, tiling.empty_rows]
    assert layout.nbytes == sum(array.nbytes for array in arrays)
    replicated = build(ReplicatedLayout)
    arrays = list(replicated.copies)
    for tiling in replicated.tilings:
        arrays += [tiling.carry_rows, tiling.empty_rows]
    assert replicated.nbytes == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize("mode", [0, -1])
@pytest.mark.parametrize("shape", [(9,), (9, 8), (9, 8, 7), (4, 5, 3, 2)])
@pytest.mark.parametrize("name", ["remap", "replicated", "indexed"])
def test_orders_are_held_in_any_resident_mode(name, shape, mode):
    rng = np.random.default_rng(0)
    coords = np.unique(np.stack([rng.integers(0, size, 60) for size in shape]), axis=1)
    record_format = RecordFormat.of(shape, "float64", "uint64")
    values = np.arange(1.0, coords.shape[1] + 1)
    layout = LAYOUT_CLASSES[name].build(coords, values, Cut(record_format, 4, 8), NumpyPrimitives())
    keys = coords[::-1] if mode == 0 else coords  # the last key is the first to sort by
    expected = pack(record_format, coords, values)[np.lexsort(keys)]
    hold_order = layout.hold_first_order if mode == 0 else layout.hold_last_order
    for _ in shape:
        with hold_order(NumpyPrimitives()) as (records, places):
            ordered = records if places is None else records[places]
            np.testing.assert_array_equal(ordered, expected)
            assert name != "remap" or layout.lock.locked()
        if name == "remap":
            remap_once(layout)


@pytest.mark.parametrize("num_remaps", [0, 1])
def test_map_values_of_a_remap_layout(num_remaps):
    layout = build(RemapLayout)
    for _ in range(num_remaps):
        remap_once(layout)
    mapped = layout.map_values(np.negative, 1.0)
    assert mapped.mode == layout.mode == num_remaps
    assert not np.shares_memory(mapped.records, layout.records)
    assert not np.shares_memory(mapped.spare, layout.spare)
    assert read_values(mapped, mapped.records) == [-v for v in read_values(layout, layout.records)]
    remap_once(mapped)
    remap_once(layout)
    assert read_values(mapped, mapped.records) == [-v for v in read_values(layout, layout.records)]


def test_map_values_of_a_replicated_layout():
    layout = build(ReplicatedLayout)
    mapped = layout.map_values(np.negative, 1.0)
    for copy, original in zip(mapped.copies, layout.copies, strict=True):
        assert read_values(mapped, copy) == [-value for value in read_values(layout, original)]


@pytest.mark.parametrize("cls", [RemapLayout, ReplicatedLayout, IndexedLayout])
def test_no_nonzeros(cls):
    layout = build(cls, np.zeros((2, 0), np.int64), np.zeros(0))
    assert [tiling.carry_rows.size for tiling in layout.tilings] == [0, 0]
    assert [tiling.empty_rows.tolist() for tiling in layout.tilings] == [[0, 1, 2, 3, 4], [0, 1, 2]]
    assert layout.records.shape == (0, 2)


@pytest.mark.parametrize("bucket_size", [5, 7, 1])
def test_a_bucket_is_whole_tiles(bucket_size):
    with pytest.raises(ValueError, match=f"bucket_size is {bucket_size}, expected a multiple of"):
        build(RemapLayout, bucket_size=bucket_size)


def test_the_layouts_are_the_documented_ones():
    assert tuple(LAYOUT_CLASSES) == checks.LAYOUTS


@pytest.mark.parametrize("name", ["replicated", "indexed"])
def test_a_layout_is_rebuilt_from_its_arrays(name):
    layout = build(LAYOUT_CLASSES[name])
    arrays = dict(layout.iterate_arrays())
    same = type(layout).from_arrays(arrays, layout.cut, layout.norm)
    assert (same.norm, same.nbytes) == (layout.norm, layout.nbytes)
    assert [(key, id(array)) for key, array in same.iterate_arrays()] == [
        (key, id(array)) for key, array in arrays.items()
    ]
    assert [key for key in arrays if "ids" in key] == layout.name_ids(2)


class Boxed:
    """Ids in a form of which each takes a byte."""

    def __init__(self, ids, limit):
        assert ids.max() < limit
        self.ids, self.nbytes = ids, ids.size


class Boxing(NumpyPrimitives):
    """An engine that keeps ids in a form of its own, as the one for GPUs does."""

    def compact_pull(self, pull_ids, cut):
        return Boxed(pull_ids, cut.bucket_size)

    def compact_push(self, remap_ids, cut):
        return Boxed(remap_ids, remap_ids.size), None

    def count_plan_nbytes(self, nnz, cut):
        return 2 * nnz


def test_an_engine_may_keep_ids_in_a_form_of_its_own():
    plain = build(RemapLayout)
    layout = RemapLayout.build(COORDS, VALUES, plain.cut, Boxing())
    assert layout.nbytes == plain.nbytes - 2 * 6 * 6 + 2 * 2 * 6
    for own, expected in zip(layout.plans, plain.plans, strict=True):
        np.testing.assert_array_equal(own.pull_ids.ids, expected.pull_ids)
        np.testing.assert_array_equal(own.remap_ids.ids, expected.remap_ids)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1, 2])
@pytest.mark.parametrize("name", LAYOUT_CLASSES)
def test_a_step_finds_the_order_of_any_mode(name, first, second):
    """A computing step leaves the next mode resident, or its own mode if the layout stays."""
    rng, shape, primitives = np.random.default_rng(0), (9, 8, 7), NumpyPrimitives()
    coords = np.stack([rng.integers(0, size, 60) for size in shape])
    arguments = (coords, np.ones(60), shape)
    layout, replicated = (
        build(LAYOUT_CLASSES[name], *arguments),
        build(ReplicatedLayout, *arguments),
    )

    def read(step):
        places = np.arange(step.records.shape[0])
        if step.pull_ids is None:
            return step.records[places]
        return step.records[places // step.bucket_size * step.bucket_size + step.pull_ids]

    with layout.step(first, primitives) as step:
        np.testing.assert_array_equal(read(step), replicated.copies[first])
        if step.spare is not None:
            primitives.remap(step, layout.cut)
    assert layout.mode == ((first + 1) % 3 if name == "remap" else 0)
    with layout.step(second, primitives, stays=True) as step:
        np.testing.assert_array_equal(read(step), replicated.copies[second])
        assert step.spare is None
    assert layout.mode == (second if name == "remap" else 0)


@pytest.mark.parametrize("fails_after", [False, True])
def test_a_step_that_fails_leaves_the_layout(fails_after):
    layout, primitives = build(RemapLayout), NumpyPrimitives()
    before = layout.records.copy()

    def fail():
        with layout.step(0, primitives) as step:
            if fails_after:
                primitives.remap(step, layout.cut)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (layout.mode, layout.lock.locked()) == (0, False)
    np.testing.assert_array_equal(layout.records, before)
