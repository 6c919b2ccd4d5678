"""Functions, reductions, transposes and parts of any tensor equal those of its dense twin."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dtypes, nonzeros, quick

from tensorly_flycoo import FlycooTensor, mttkrp

few = settings(quick, max_examples=30)
layouts = st.sampled_from(["remap", "replicated", "indexed"])


@st.composite
def tensors(draw):
    """Draw a tensor of integers, whose sums are exact, in any resident mode, and its dense twin."""
    drawn, dtype = draw(nonzeros(exact=True)), draw(dtypes)
    x = FlycooTensor(
        drawn.coords, drawn.values, drawn.shape, dtype=dtype, layout=draw(layouts), device="cpu"
    )
    for mode in range(draw(st.integers(0, x.ndim - 1))):
        mttkrp(x, [factor.astype(dtype) for factor in drawn.factors], mode)
    return x, to_dense(x)


def to_dense(x):
    if not isinstance(x, FlycooTensor):
        return x
    coords, values = x.nonzeros()
    dense = np.zeros(x.shape, x.dtype)
    dense[tuple(coords)] = values
    return dense


def draw_axes(data, ndim):
    return tuple(data.draw(st.lists(st.integers(0, ndim - 1), unique=True)))


@few
@given(tensors(), st.data(), st.sampled_from([np.sum, np.max, np.min]))
def test_reductions(tensor, data, reduce):
    x, dense = tensor
    axes = None
    if reduce is np.sum:  # extremes are over all modes
        axes = data.draw(st.none() | st.just(draw_axes(data, x.ndim)))
    found, expected = reduce(x, axis=axes), reduce(dense, axis=axes)
    np.testing.assert_array_equal(to_dense(found), expected)
    assert found.dtype == x.dtype


@few
@given(tensors(), st.sampled_from([np.cbrt, np.sign, np.arctan, lambda x: np.minimum(x, 0)]))
def test_functions(tensor, function):
    x, dense = tensor
    found, expected = function(x), function(dense)
    np.testing.assert_array_equal(to_dense(found), expected)
    assert found.nnz == np.count_nonzero(expected)
    assert abs(found.norm() - np.linalg.norm(expected)) <= 4 * np.finfo(x.dtype).eps * found.norm()


@few
@given(tensors(), st.data())
def test_transposes(tensor, data):
    x, dense = tensor
    axes = data.draw(st.permutations(range(x.ndim)))
    np.testing.assert_array_equal(to_dense(x.transpose(axes)), dense.transpose(axes))
    np.testing.assert_array_equal(to_dense(x.T), dense.T)


@few
@given(tensors(), st.data())
def test_parts(tensor, data):
    """One list among integers and slices, with repeats and negative numbers."""
    x, dense = tensor
    place = data.draw(st.integers(0, x.ndim - 1))
    index = []
    for mode, size in enumerate(x.shape):
        numbers = st.integers(-size, size - 1)
        others = numbers | st.sampled_from([slice(None), slice(None, None, -2)])
        index.append(data.draw(st.lists(numbers, min_size=1) if mode == place else others))
    np.testing.assert_array_equal(to_dense(x[tuple(index)]), dense[tuple(index)])
