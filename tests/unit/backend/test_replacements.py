"""Arguments that Tucker decompositions of sparse tensors refuse immediately."""

import numpy as np
import pytest
import tensorly as tl
from sparse_problems import BOTH_KINDS, random_coo
from tensorly.decomposition import _tucker

from tensorly_flycoo import DensifyError


@BOTH_KINDS
def test_a_mask_and_a_large_core_are_refused(kind):
    x = kind(random_coo((6, 7, 8), 40))
    with tl.backend_context("flycoo"):
        _tucker.initialize_tucker(x, [2, 2, 2], [0, 1, 2], 0)
        _tucker.initialize_tucker(x, [2, 2], [0, 2], 0)
        with pytest.raises(DensifyError, match="all modes but 1 and 2"):
            _tucker.initialize_tucker(x, [2], [0], 0)
        with pytest.raises(DensifyError, match=r"masks work in .*\.tucker"):
            _tucker.initialize_tucker(x, [2, 2, 2], [0, 1, 2], 0, mask=np.ones((6, 7, 8)))
