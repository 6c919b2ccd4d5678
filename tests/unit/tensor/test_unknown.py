"""What a LabelledTensor knows of cells without a row: they are zeros, or unknown."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import sparse
import tensorly as tl

from tensorly_flycoo import FlycooTensor, LabelledTensor, load, open_slabs, save, save_slabs
from tensorly_flycoo.tensor.entrance import map_arrays
from tensorly_flycoo.testing import random_tensor

SHAPE = (4, 5, 6)
pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty slice")  # NumPy's

LABELS = {"gene": list("wxyz"), "donor": np.arange(5), "type": list("uvwxyz")}


def make_mask(cells, shape):
    return sparse.COO(cells, np.zeros(len(cells[0])), shape, fill_value=1.0)


BLOCKS = make_mask([[0, 0, 0, 0, 0], [0, 3, 4, 4, 4], [2, 2, 0, 1, 5]], (1, 5, 6))
SLICES = make_mask([[0, 0], [1, 4], [0, 0]], (1, 5, 1))
CELLS = make_mask([[0, 1, 2, 3, 3], [2, 2, 2, 2, 0], [1, 1, 1, 1, 0]], SHAPE)
MASKS = {"blocks": BLOCKS, "slices": SLICES, "cells": CELLS}


@pytest.fixture
def tensor():
    return random_tensor(SHAPE, 90, random_state=0)


@pytest.fixture(params=[*MASKS])
def x(request, tensor):
    """A tensor that stores some values at unknown cells, which nothing may take."""
    return LabelledTensor(tensor, LABELS, MASKS[request.param])


@pytest.fixture
def all_unknown(tensor):
    return LabelledTensor(tensor, LABELS, "all")


def as_dense(x):
    """Return what a tensor knows, nan elsewhere."""
    dense = x.tensor.to_coo().todense()
    if isinstance(x.unknown, str):
        return np.where(dense == 0, np.nan, dense)
    if x.unknown is None:
        return dense
    return np.where(np.broadcast_to(x.unknown.todense(), x.shape) == 0, np.nan, dense)


def assert_same(found, expected):
    assert isinstance(found, LabelledTensor)
    np.testing.assert_allclose(as_dense(found), expected, rtol=1e-14)


def reduce_known(name, dense, axis):
    """Reduce as pandas does, but let a sum of nothing be unknown."""
    found = np.asarray(getattr(np, f"nan{name}")(dense, axis=axis))
    return np.where(np.isnan(dense).all(axis=axis), np.nan, found)


def test_what_it_shows(tensor):
    assert LabelledTensor(tensor, LABELS).unknown is None
    assert "unknown" not in repr(LabelledTensor(tensor, LABELS))
    for unknown, text in [
        ("all", "all cells without a row"), (BLOCKS, "5 blocks of donor x type"),
        (SLICES, "2 slices of donor"), (CELLS, "5 cells"),
        (make_mask([[0], [1], [2]], SHAPE), "1 cell"),
    ]:  # fmt: skip
        shown = repr(LabelledTensor(tensor, LABELS, unknown))
        assert shown.endswith(f"nnz={tensor.nnz}; unknown: {text}>")


def test_it_stays_a_pair(x):
    tensor, labels = x
    assert tensor is x.tensor
    assert labels is x.labels
    assert "unknown" in dir(x)
    for name in ("unknown", "labels", "mask"):
        with pytest.raises(
            AttributeError, match=rf"no new '{name}': make another, LabelledTensor\("
        ):
            setattr(x, name, None)
    assert LabelledTensor._make(x).unknown is None


@pytest.mark.parametrize(
    "use",
    [
        lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy,
        lambda x: x._replace(tensor=x.tensor), lambda x: x._replace(labels=x.labels),
        lambda x: map_arrays(lambda of: of * 1, x),
        lambda x: map_arrays(lambda of: of * 1, (x,))[0],
        lambda x: x.astype(np.float64), lambda x: x.map(np.positive), lambda x: x * 2 / 2,
        lambda x: np.multiply(x, 1), lambda x: x.T.T, lambda x: x.take("gene", slice(None)),
        lambda x: x.transpose("type", "gene", "donor").transpose("gene", "donor", "type"),
        lambda x: (x + x) / 2,
    ],
)  # fmt: skip
@pytest.mark.parametrize("unknown", [*MASKS, "all", None])
def test_it_is_kept(use, unknown, tensor):
    x = LabelledTensor(tensor, LABELS, MASKS.get(unknown, unknown))
    found = use(x)
    assert_same(found, as_dense(x))
    assert repr(found) == repr(x)


def test_other_tensors_need_the_same(tensor, x, all_unknown):
    assert_same(x + LabelledTensor(tensor, LABELS, copy.deepcopy(x.unknown)), 2 * as_dense(x))
    for one, other in [(x, all_unknown), (all_unknown, x), (x, LabelledTensor(tensor, LABELS))]:
        with pytest.raises(ValueError, match=r"unknown are .* and .*, expected the same in both"):
            one + other
    part = LabelledTensor(random_tensor(SHAPE, 80, random_state=1), LABELS, "all")
    for other in (part, part.tensor):
        with pytest.raises(ValueError, match="known"):
            all_unknown - other
    same = LabelledTensor(tensor * 2, LABELS, "all")
    assert_same(same - all_unknown, as_dense(all_unknown))


def test_a_known_cell_must_not_be_lost(all_unknown):
    for use in (lambda x: x > 0.5, lambda x: x * 0, lambda x: x - x):
        with pytest.raises(ValueError, match=r"no known cell may become 0.*x\.tensor"):
            use(all_unknown)
    signed = FlycooTensor([[0, 1, 0], [0, 0, 1], [2, 2, 2]], [2.0, -2.0, 1.0], (2, 2, 3))
    x = LabelledTensor(signed, [range(2), range(2), range(3)], "all")
    with pytest.raises(ValueError, match="stores 1 cells, but 2 are known"):
        x.sum(0)
    np.testing.assert_array_equal(x.sum((0, 2)), [0, 1])


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_take_cuts_it(mode, x, all_unknown):
    for rows in ([3, 0, 2], [1], slice(1, 3)):
        for of in (x, all_unknown):
            name = [*LABELS][mode]
            labels = np.asarray(LABELS[name])[rows]
            assert_same(of.take(name, labels), as_dense(of)[(*[slice(None)] * mode, rows)])


AXES = [0, 1, 2, (0, 1), (0, 2), (1, 2), None]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_sums_and_means_skip_it(name, axis, x, all_unknown):
    for of in (x, all_unknown):
        expected = reduce_known(name, as_dense(of), axis)
        found = getattr(of, name)(axis)
        if isinstance(axis, int):
            assert_same(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_functions_of_tensorly_skip_it(x, all_unknown):
    with tl.backend_context("flycoo"):
        for of in (x, all_unknown):
            np.testing.assert_array_equal(tl.mean(of, (0, 2)), of.mean((0, 2)))
            assert_same(tl.sum(of, 1), reduce_known("sum", as_dense(of), 1))
            assert (tl.min(of), tl.max(of)) == (np.nanmin(as_dense(of)), np.nanmax(as_dense(of)))


def test_sums_in_slabs_and_float32_skip_it(x):
    expected = reduce_known("mean", as_dense(x), 0)
    options = {"slabs": 2, "dtype": np.float32}
    cut = x._replace(tensor=FlycooTensor(*x.nonzeros(), SHAPE, **options))
    found = cut.mean("gene")
    assert found.dtype == np.float32
    np.testing.assert_allclose(as_dense(found), expected, rtol=1e-6)
    assert cut.mean(("gene", "type")).dtype == np.float32


def test_a_mask_of_whole_modes_leaves_no_unknown_cell(tensor):
    x = LabelledTensor(tensor, LABELS, SLICES)
    assert x.sum("donor").unknown is None
    assert x.sum("gene").unknown.shape == (5, 1)
    assert np.isnan(x.sum(("gene", "type"))).tolist() == [False, True, False, False, True]


def test_extremes_skip_it(x, all_unknown):
    dense = as_dense(x)
    assert (x.max(), x.min()) == (np.nanmax(dense), np.nanmin(dense))
    assert (all_unknown.max(), all_unknown.min()) == (
        all_unknown.nonzeros()[1].max(),
        all_unknown.nonzeros()[1].min(),
    )
    with pytest.raises(ValueError, match="expected all modes"):
        x.max("gene")
    full = FlycooTensor([[0, 0, 1], [0, 1, 0]], [1.0, 2.0, 3.0], (2, 2))
    labels = [range(2), range(2)]
    assert LabelledTensor(full, labels, make_mask([[1], [1]], (2, 2))).min() == 1
    assert LabelledTensor(full, labels, make_mask([[0], [0]], (2, 2))).min() == 0
    assert np.isnan(LabelledTensor(full * 0, labels, "all").max())
    assert np.isnan(LabelledTensor(full * 0, labels, "all").sum())


def test_arrays_of_xarray_have_nan(x, all_unknown):
    np.testing.assert_array_equal(x.to_xarray().data.todense(), as_dense(x))
    with pytest.raises(ValueError, match="too many to store nan for each"):
        all_unknown.to_xarray()


@pytest.mark.parametrize("layout", ["remap", "indexed"])
@pytest.mark.parametrize("unknown", [*MASKS, "all", None])
def test_files_keep_it(unknown, layout, tensor, tmp_path):
    tensor = FlycooTensor(*tensor.nonzeros(), SHAPE, layout=layout)
    x = LabelledTensor(tensor, LABELS, MASKS.get(unknown, unknown))
    save(tmp_path / "x.npz", x)
    found = load(tmp_path / "x.npz")
    assert_same(found, as_dense(x))
    assert repr(found) == repr(x)
    save_slabs(tmp_path / "x.flycoo", x, slabs=2)
    assert_same(open_slabs(tmp_path / "x.flycoo"), as_dense(x))
    save_slabs(tmp_path / "y.flycoo", open_slabs(tmp_path / "x.flycoo"), slabs=3)
    assert_same(open_slabs(tmp_path / "y.flycoo"), as_dense(x))


def test_a_damaged_mask_in_a_file_is_refused(tensor, tmp_path):
    save(tmp_path / "x.npz", LabelledTensor(tensor, LABELS, BLOCKS))
    with np.load(tmp_path / "x.npz") as arrays:
        arrays = dict(arrays)
    for cells in (arrays["unknown"] + 5, -arrays["unknown"], arrays["unknown"][:2]):
        np.savez(tmp_path / "bad.npz", **(arrays | {"unknown": cells}))
        with pytest.raises(ValueError, match="damaged"):
            load(tmp_path / "bad.npz")
    for sizes in ("[1, 5, 7]", "[1, 5]", '"some"', "3", "[2, 5, 6]"):
        header = str(arrays["header"]).replace('"unknown": [1, 5, 6]', f'"unknown": {sizes}')
        np.savez(tmp_path / "bad.npz", **(arrays | {"header": np.array(header)}))
        with pytest.raises(ValueError, match="damaged"):
            load(tmp_path / "bad.npz")


def test_what_is_no_mask(tensor):
    for unknown, match in [
        (sparse.COO(CELLS.coords, np.zeros(5), SHAPE), "fill_value 0.0, expected None"),
        (sparse.COO(CELLS.coords, np.ones(5) / 2, SHAPE, fill_value=1.0), "stores 0.5, expected"),
        (make_mask([[0], [0], [0]], (1, 5, 7)), r"shape \(1, 5, 7\), expected \(4, 5, 6\)"),
        (make_mask([[0], [0]], (4, 5)), r"shape \(4, 5\)"),
        ("none", "unknown is 'none', expected None, \"all\""),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=match):
            LabelledTensor(tensor, LABELS, unknown)
    for unknown in (np.ones(SHAPE), True, pd.Series([1])):
        with pytest.raises(TypeError, match=r"unknown is a .*, expected None"):
            LabelledTensor(tensor, LABELS, unknown)
    nothing = make_mask([[], [], []], SHAPE)
    assert LabelledTensor(tensor, LABELS, nothing).unknown is None
