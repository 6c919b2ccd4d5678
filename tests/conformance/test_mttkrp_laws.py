"""Known answers and laws of MTTKRP and parafac on the CPU, in tiles of full size and tiny ones."""

import pytest
from mttkrp_laws import CHECKS

from tensorly_flycoo.engines import cpu


@pytest.fixture(params=[None, (4, 8)], ids=["full tiles", "tiny tiles"])
def tile_sizes(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(cpu, "TILE_SIZE", request.param[0])
        monkeypatch.setattr(cpu, "BUCKET_SIZE", request.param[1])


@pytest.mark.usefixtures("tile_sizes")
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_law(check, dtype, layout):
    check("cpu", layout, dtype)
