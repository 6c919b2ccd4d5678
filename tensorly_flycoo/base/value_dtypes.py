"""The dtypes that values of a tensor, and its factors, may have: one table, which all rooms read.

What else a dtype needs is work, not a fact: the sizes into which work is cut for CUDA kernels
(`engines/cuda/tuning.py`) depend on the bytes of a value, and have to be measured; cuBLAS has a
function for each (`engines/cuda/tall.py`).
"""

from typing import NamedTuple

import numpy as np


class ValueDtype(NamedTuple):
    """A dtype of values, and the facts that depend on it."""

    dtype: np.dtype
    c_type: str  # in CUDA sources
    # The exponents of the root mean square of values, least and most, between which fourth powers
    # of values, or squares in float32, times sums over nonzeros neither over- nor underflow.
    safe_exponents: tuple[int, int]


#: By the names that users give, and that files and folders hold.
VALUE_DTYPES = {
    "float32": ValueDtype(np.dtype(np.float32), c_type="float", safe_exponents=(-32, 32)),
    "float64": ValueDtype(np.dtype(np.float64), c_type="double", safe_exponents=(-128, 128)),
}

#: The dtypes alone.
FLOATS = tuple([row.dtype for row in VALUE_DTYPES.values()])

#: The codes of the dtypes, `numpy.dtype.char`, in whatever byte order they are.
FLOAT_CHARS = "".join([dtype.char for dtype in FLOATS])
