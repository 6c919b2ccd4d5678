"""Rows of factors at half the width of a tensor's values: fewer bytes for MTTKRP to read.

Each column of a factor has a scale, a power of two. A factor is rounded to numbers that, divided by
the scale of their column, fit

- float32, for float64 tensors; the scale is mostly 1;
- 16-bit fixed point, for float32 tensors: u stands for (u - 2**15) / 2**15. The scale is the least
  that exceeds the largest magnitude of the column.

Narrow rows store these. Kernels widen what they read, and multiply and add as ever; the product of
all factors' scales then multiplies each column of the result. Multiplying by powers of two rounds
nothing, so the result has the bits that whole rows of the rounded factors give.
"""

from typing import Any, NamedTuple

import numpy as np

from ..base.array_modules import Array


class NarrowFormat(NamedTuple):
    """How the rows of a factor are narrowed."""

    dtype: np.dtype  # of narrow rows
    rounding: float  # the most by which a number is changed, in largest magnitudes of its column
    least_exponent: int  # of scales: with smaller ones, rounded numbers would be subnormal
    usual_exponents: range  # of scales for which 1 does as well


#: By the dtype of a tensor's values.
NARROW_FORMATS = {
    np.dtype(np.float64): NarrowFormat(np.dtype(np.float32), 2.0**-24, -900, range(-64, 65)),
    np.dtype(np.float32): NarrowFormat(np.dtype(np.uint16), 2.0**-15, -100, range(0)),
}

#: In fixed point, u stands for ``(u - FIXED_POINT_ONE) / FIXED_POINT_ONE``.
FIXED_POINT_ONE = 2**15


class NarrowRows(NamedTuple):
    """The narrow copy of a rounded factor (I, R)."""

    rows: Any  # (I, R), an array in the narrow dtype, or `RowShards` of such
    scales: Array  # (R,), in the dtype of the factor
