"""Functions accept or refuse a sparse tensor on the GPU as they do on the CPU."""

import pytest
import supported_table

from tensorly_flycoo import set_device


@pytest.mark.filterwarnings("ignore::RuntimeWarning:tensorly")
@pytest.mark.parametrize("kind", supported_table.KINDS)
@pytest.mark.parametrize("row", supported_table.ROWS, ids=lambda row: next(iter(row.uses)))
def test_as_on_the_cpu(row, kind):
    """Results are finite and on the tensor's device."""
    found = {}
    for device in ("cuda", "cpu"):
        set_device(device)
        found[device] = [supported_table.is_refused(row, name, kind) for name in row.uses]
        for text in row.limits:
            supported_table.check_limit(row, text, kind)
    assert found["cuda"] == found["cpu"]
