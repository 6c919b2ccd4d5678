"""The dtypes that values of a tensor, and its factors, may have: one table, which all rooms read.

What else a dtype needs is work, not a fact. These assume values of 4 or 8 bytes:

- `engines/cuda/tuning.py`: the sizes into which work is cut depend on the bytes of a value, and
  have to be measured; `engines/cuda/tall.py`: cuBLAS has a function for each dtype;
- `engines/cuda/kernels/`: `operands.cuh` asserts it; `nonzeros.cuh` counts words of 4
  bytes; `mttkrp.cuh` and `ratios.cuh` overload arithmetic; `products.cu` has the rounding unit of
  each, and `update_rows.cu` copies 4 or 8 bytes, and refines where they are 8;
- `engines/cuda/gpus.py` (`_suits_kernel`: words of 4 bytes) and `loop/gram_products.py`
  (`suits_tensor_cores` of `RowShards`: float32);
- `models/batch.py` refines float64 only, and `loop/scaling.py` limits coefficients in float32;
- `engines/cpu/`: numba compiles each kernel for the dtype, and has no float16 on a CPU; BLAS and
  LAPACK (`engines/tall.py`) have none either.

An MTTKRP adds in the dtype of the values, so a narrow one loses digits: most rounding errors are
bounded by its `numpy.finfo`, but constants that were measured are not. Of the tests,
`scale_laws.LARGEST`, `rounding.py`, `determinism.py` and `unit/engines/cuda/test_kernels.py` list
the dtypes, as do many parametrised tests (search for "float32"); refusals of float16 are in
`conformance/test_bad_input.py`. Docstrings name them where users pass ``dtype=``.
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
