"""Arguments that Tucker decompositions of sparse tensors refuse immediately."""

import numpy as np
import pytest
from sparse_problems import BOTH_KINDS, random_coo

from tensorly_flycoo import DensifyError
from tensorly_flycoo.decomposition.tucker_checks import check_tucker


@BOTH_KINDS
def test_a_mask_and_a_large_core_are_refused(kind):
    x = kind(random_coo((6, 7, 8), 40))
    check_tucker(x, [0, 1, 2])
    check_tucker(x, [0, 2])
    with pytest.raises(DensifyError, match="all modes but 1 and 2"):
        check_tucker(x, [0])
    with pytest.raises(DensifyError, match="mask= of tucker"):
        check_tucker(x, [0, 1, 2], np.ones((6, 7, 8)))
