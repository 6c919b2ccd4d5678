"""Rounding errors of the CPU's kernels take no more of their bounds than is recorded."""

import pytest
from error_ratios import CASES, find_limit, measure


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[] if case.endswith("float32, rank 16") else pytest.mark.slow)
    for case in CASES
])  # fmt: skip
def test_errors_are_as_small_as_recorded(case):
    assert measure(case, "cpu") <= find_limit(case, "cpu")
