"""Rounding errors of a GPU's kernels take no more of their bounds than is recorded."""

import pytest
from error_ratios import CASES, find_limit, measure


@pytest.mark.parametrize("case", CASES)
def test_errors_are_as_small_as_recorded(case):
    assert measure(case, "cuda") <= find_limit(case, "cuda")
