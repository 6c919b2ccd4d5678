"""One MTTKRP of TensorLy's loop on a GPU is a short walk, as `tests/conformance/test_walk.py`."""

import pytest
from walks import check_walks, list_walks

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.testing import random_tensor


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_walk(layout, dtype):
    x = random_tensor((30, 40, 50), 3000, random_state=0)
    x = FlycooTensor(*x.nonzeros(), x.shape, device="cuda", layout=layout, dtype=dtype)
    check_walks(list_walks(x), most_files=12, most_calls=45)
