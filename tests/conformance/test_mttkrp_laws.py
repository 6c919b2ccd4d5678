"""Known answers and laws of MTTKRP and parafac on the CPU, also with each limit lowered."""

import pytest
from lowered_limits import LOWERED, lower_limit
from mttkrp_laws import CHECKS

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
