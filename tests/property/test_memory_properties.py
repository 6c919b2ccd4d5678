"""Laws of memory estimates: tensors take the estimated memory, whatever their nonzeros."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy_primitives import NumpyPrimitives
from strategies import build_layout, dtypes, nonzeros, quick, sizes, tilings, word_dtypes

from tensorly_flycoo import FlycooTensor, estimate_memory
from tensorly_flycoo.base.checks import LAYOUTS
from tensorly_flycoo.format.groups import choose_groups
from tensorly_flycoo.format.packing import Cut, RecordFormat
from tensorly_flycoo.spread.memory import choose_num_slabs, estimate_piece

layout_names = st.sampled_from(LAYOUTS)


def count_more_empty_rows(record_format, nnz, tilings):
    """Count the empty rows beyond the fewest that `nnz` nonzeros can leave."""
    used = [math.prod(record_format.shape[n] for n in group) for group in record_format.groups]
    pairs = zip(record_format.merged.shape, used, strict=True)
    least = [size - min(nnz, most) for size, most in pairs]
    return sum(tiling.empty_rows.size for tiling in tilings) - sum(least)


@pytest.mark.usual_limits("prefixes", "slabs")
@quick
@given(nonzeros(), layout_names, dtypes)
def test_a_tensor_takes_the_estimated_memory(drawn, name, dtype):
    x = FlycooTensor(drawn.coords, drawn.values, drawn.shape, dtype=dtype, layout=name)
    estimate = estimate_memory(drawn.shape, x.nnz, dtype=dtype, layout=name)
    more = count_more_empty_rows(x._layout.record_format, x.nnz, x._layout.tilings)
    assert x.nbytes == estimate.nbytes + 4 * more
    assert x.nbytes <= estimate.peak_nbytes


@quick
@given(nonzeros(), layout_names, tilings, dtypes, word_dtypes)
def test_a_layout_takes_the_estimated_memory(drawn, name, tiling, dtype, word_dtype):
    layout = build_layout(name, drawn, tiling, dtype, word_dtype)
    record_format = RecordFormat.of(drawn.shape, dtype, word_dtype)
    cut = Cut(record_format, tiling[0], tiling[0] * tiling[1])
    nbytes, peak_nbytes = estimate_piece(type(layout), layout.nnz, cut, NumpyPrimitives())
    more = count_more_empty_rows(record_format, layout.records.shape[0], layout.tilings)
    assert layout.nbytes == nbytes + 4 * more
    assert layout.nbytes <= peak_nbytes


@quick
@given(
    st.lists(st.one_of(sizes, st.integers(1, 2**32)), min_size=1, max_size=6),
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    layout_names,
)
@example([1, 1, 1], 26_984, 5_784, "remap")
@example([2], 2_486_745_893, 1_808_221_404, "remap")
def test_more_nonzeros_take_more_and_float32_no_more_than_float64(shape, nnz, more, name):
    # With more nonzeros, modes could go in larger groups, and slabs have fewer rows, whose numbers
    # take fewer bits: so groups and slabs are the same.
    options = {"layout": name, "device": "cpu", "groups": choose_groups(shape, nnz)}
    options |= {"slabs": choose_num_slabs(nnz + more)}
    small, large, narrow = (
        estimate_memory(shape, count, dtype=dtype, **options)
        for count, dtype in [(nnz, "float64"), (nnz + more, "float64"), (nnz, "float32")]
    )
    # Each row that gets a nonzero is no longer listed as empty, which saves 4 bytes.
    assert large.nbytes >= small.nbytes - 4 * np.sum(np.minimum(shape, more))
    assert narrow.nbytes <= small.nbytes <= small.peak_nbytes
    assert narrow.peak_nbytes <= small.peak_nbytes
