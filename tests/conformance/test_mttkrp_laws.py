"""Known answers and laws of MTTKRP and parafac on the CPU, also with each limit lowered."""

import functools

import mttkrp_laws
import numpy as np
import pytest
from lowered_limits import LOWERED, lower_limit
from mttkrp_laws import CHECKS

from tensorly_flycoo import FlycooTensor

LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
EACH_CHECK = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@LAYOUTS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@EACH_CHECK
def test_law(check, dtype, layout):
    check("cpu", layout, dtype)


@pytest.mark.slow
@LAYOUTS
@pytest.mark.parametrize("limit", LOWERED)
@EACH_CHECK
def test_law_with_a_limit_lowered(check, limit, layout, monkeypatch):
    lower_limit(limit, monkeypatch)
    check("cpu", layout, "float64")


def make_without(lost, coords, values, shape, **options):
    """Make a tensor without one of its nonzeros."""
    return FlycooTensor(np.delete(coords, lost, axis=1), np.delete(values, lost), shape, **options)


@pytest.mark.parametrize(
    ("nnz", "lost"),
    [
        (1_000, 0),
        (1_000, 567),
        (1_000, -1),
        pytest.param(1_000_000, 567, marks=pytest.mark.slow),
    ],
)
def test_a_lost_nonzero_breaks_the_laws(nnz, lost, monkeypatch):
    """Of whole numbers in float32, and in float64 the bound of a row of half a million."""
    monkeypatch.setattr(mttkrp_laws, "FlycooTensor", functools.partial(make_without, lost))
    with pytest.raises(AssertionError, match="not equal"):
        mttkrp_laws.check_whole_numbers("cpu", "indexed", "float32", nnz)
    with pytest.raises(AssertionError):
        mttkrp_laws.check_long_rows("cpu", "indexed", "float64", nnz)
