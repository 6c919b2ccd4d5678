"""Hypothesis strategies for tensors and formats, shared by the property tests.

Shapes are small, often with modes of size 1 and 2, to produce repeats, empty rows, full rows and
rows over many tiles; tiles and buckets are smaller still.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy_primitives import NumpyPrimitives

from tensorly_flycoo.format.layouts import LAYOUT_CLASSES
from tensorly_flycoo.format.packing import Cut, RecordFormat

#: No deadline, because a first example may compile; no files in the working tree.
quick = settings(max_examples=60, deadline=None, database=None)

dtypes = st.sampled_from(["float32", "float64"])
word_dtypes = st.sampled_from(["uint32", "uint64"])
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Nonzeros:
    """Coordinates (repeats allowed), values, and factors for all modes."""

    coords: np.ndarray
    values: np.ndarray
    shape: tuple
    factors: list

    @property
    def nnz(self):
        return self.values.size


@st.composite
def nonzeros(draw, min_ndim=1, max_ndim=4, max_nnz=60, unique=False, exact=False, rank=3):
    """Draw nonzeros of a small tensor; `exact` ones are integers, whose sums are exact."""
    shape = tuple(draw(st.lists(sizes, min_size=min_ndim, max_size=max_ndim)))
    place = st.tuples(*[st.integers(0, size - 1) for size in shape])
    places = draw(st.lists(place, max_size=max_nnz, unique=unique))
    coords = np.array(places, np.int64).reshape(-1, len(shape)).T
    random = np.random.default_rng(draw(seeds))
    if exact:
        # No value is zero, and halves and quarters are exact too.
        values = random.choice([-4.0, -2.0, 1.0, 3.0, 8.0], coords.shape[1])
        factors = [random.integers(-3, 4, (size, rank)).astype(float) for size in shape]
    else:
        values = random.standard_normal(coords.shape[1])
        factors = [random.standard_normal((size, rank)) for size in shape]
    return Nonzeros(coords, values, shape, factors)


@st.composite
def huge_nonzeros(draw):
    """Draw coordinates in shapes of up to 9 modes of up to 2**32 rows."""
    size = st.one_of(st.integers(1, 5), st.integers(1, 2**32), st.sampled_from([2**31, 2**32]))
    shape = tuple(draw(st.lists(size, min_size=1, max_size=9)))
    index = [st.one_of(st.integers(0, n - 1), st.sampled_from([0, n - 1])) for n in shape]
    places = draw(st.lists(st.tuples(*index), max_size=12))
    coords = np.array(places, np.int64).reshape(-1, len(shape)).T
    values = np.random.default_rng(draw(seeds)).standard_normal(coords.shape[1])
    return coords, values, shape


#: Tile size, and tiles per bucket.
tilings = st.tuples(st.sampled_from([1, 2, 3, 8]), st.sampled_from([1, 2, 3, 4]))


def build_layout(name, drawn, tiling=(4, 2), dtype="float64", word_dtype="uint64"):
    """Build a layout with NumPy's primitives."""
    record_format = RecordFormat.of(drawn.shape, dtype, word_dtype)
    values, sizes = drawn.values.astype(dtype), (tiling[0], tiling[0] * tiling[1])
    cut = Cut(record_format, *sizes)
    return LAYOUT_CLASSES[name].build(drawn.coords, values, cut, NumpyPrimitives())
