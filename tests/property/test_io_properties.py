"""Reading a file gives what was written to it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import dtypes, nonzeros, quick

from tensorly_flycoo import FlycooTensor, load, mttkrp, read_tns, save, write_tns
from tensorly_flycoo.base.checks import LAYOUTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def assert_same(x, y):
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    for array, expected in zip(y.nonzeros(), x.nonzeros(), strict=True):
        np.testing.assert_array_equal(array, expected)


@quick
@given(nonzeros(), dtypes, st.sampled_from([0, 1]), st.sampled_from(["", ".gz"]))
def test_tns(folder, drawn, dtype, index_base, suffix):
    x = FlycooTensor(drawn.coords, drawn.values, drawn.shape, dtype=dtype, device="cpu")
    path = folder / f"x.tns{suffix}"
    write_tns(path, x, index_base=index_base)
    assert_same(x, read_tns(path, index_base=index_base, dtype=dtype, device="cpu"))


@pytest.mark.usual_limits("slabs")
@quick
@given(nonzeros(), dtypes, st.sampled_from(LAYOUTS))
def test_saved(folder, drawn, dtype, layout):
    options = {"dtype": dtype, "layout": layout, "device": "cpu"}
    x = FlycooTensor(drawn.coords, drawn.values, drawn.shape, **options)
    save(folder / "x.npz", x)
    y = load(folder / "x.npz", device="cpu")
    assert_same(x, y)
    factors = [factor.astype(dtype) for factor in drawn.factors]
    for mode in range(x.ndim):
        np.testing.assert_array_equal(mttkrp(y, factors, mode), mttkrp(x, factors, mode))


@quick
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_floats(folder, numbers):
    path = folder / "floats.tns"
    path.write_text("".join(f"{row} {number!r}\n" for row, number in enumerate(numbers, 1)))
    coords, values = read_tns(path, shape=(50,), device="cpu").nonzeros()
    expected = np.array(numbers)[coords[0]]
    np.testing.assert_array_equal(values.view(np.uint64), expected.view(np.uint64))
    assert values.size == np.count_nonzero(numbers)
