"""Known answers and laws of MTTKRP and parafac on the GPU: the same checks as on the CPU."""

import pytest
from mttkrp_laws import CHECKS


@pytest.mark.usefixtures("each_limit_lowered")
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_law(check, dtype, layout):
    check("cuda", layout, dtype)
