"""The table of value dtypes: rows are consistent, and what takes a dtype reads them."""

import numpy as np
import pytest

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.base.checks import check_dtype
from tensorly_flycoo.base.value_dtypes import FLOAT_CHARS, FLOATS, VALUE_DTYPES
from tensorly_flycoo.engines.cuda.source import express


@pytest.mark.parametrize("name", VALUE_DTYPES)
def test_a_row(name):
    row = VALUE_DTYPES[name]
    assert row.dtype.name == name
    assert row.dtype in FLOATS
    assert row.dtype.char in FLOAT_CHARS
    least, most = row.safe_exponents
    limits = np.finfo(row.dtype)
    assert limits.minexp < 2 * least < 2 * most < limits.maxexp


@pytest.mark.parametrize("name", VALUE_DTYPES)
def test_everything_takes_it(name):
    row = VALUE_DTYPES[name]
    assert check_dtype(name) == row.dtype
    assert express(row.dtype) == row.c_type
    assert FlycooTensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2), dtype=name).dtype == row.dtype


@pytest.mark.parametrize("dtype", ["float16", "longdouble", "complex64", ">f8"])
def test_no_other_dtype(dtype):
    assert np.dtype(dtype) not in FLOATS
    with pytest.raises(TypeError, match="expected float32, float64, an integer type or bool"):
        check_dtype(dtype)
