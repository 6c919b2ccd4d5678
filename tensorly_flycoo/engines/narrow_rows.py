"""Rows of factors at half the width of a tensor's values: fewer bytes for MTTKRP to read.

Each column of a factor has a scale, no less than its largest magnitude. Divided by it, the numbers
of the column lie in [-1, 1]. They are stored

- of a float64 tensor as float32; the scale is a power of two, so that only storing rounds;
- of a float32 tensor as 16-bit fixed point: u stands for (u - 2**15) / 2**15.

Kernels widen the numbers that they read. They multiply and add them as those of whole rows, and so
compute the MTTKRP of factors without scales; the scales of all factors scale its columns.
"""

from typing import NamedTuple

import numpy as np

from ..base.array_modules import Array

#: The dtypes of narrow rows, by that of a tensor's values.
NARROW_DTYPES: dict[np.dtype, np.dtype] = {
    np.dtype("f8"): np.dtype("f4"),
    np.dtype("f4"): np.dtype("u2"),
}

#: A number u in fixed point stands for ``(u - FIXED_POINT_ONE) / FIXED_POINT_ONE``.
FIXED_POINT_ONE = 2**15

#: How far a number of a column may be from the stored one, in scales, by the dtype of the values.
ROUNDINGS = {np.dtype("f8"): 2.0**-25, np.dtype("f4"): 2.0**-16}


class NarrowRows(NamedTuple):
    """The narrow copy of a factor (I, R), or of some of its rows."""

    rows: Array  # (I, R), in the narrow dtype
    scales: Array  # (R,), in the dtype of the factor
