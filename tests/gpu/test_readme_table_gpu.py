"""What takes a sparse tensor on the CPU takes it on the GPU; what refuses it refuses it there."""

import pytest
import readme_table

from tensorly_flycoo import set_device


@pytest.mark.filterwarnings("ignore::RuntimeWarning:tensorly")
@pytest.mark.parametrize("kind", readme_table.KINDS)
@pytest.mark.parametrize("row", readme_table.ROWS, ids=lambda row: next(iter(row.uses)))
def test_as_on_the_cpu(row, kind):
    """And what comes back is finite and on the device of the tensor."""
    found = {}
    for device in ("cuda", "cpu"):
        set_device(device)
        found[device] = [readme_table.find_reason(row, name, kind) for name in row.uses]
        for text in row.limits:
            readme_table.check_limit(row, text, kind)
    assert found["cuda"] == found["cpu"]
