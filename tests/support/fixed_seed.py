"""Pytest plugin for TensorLy's tests: seed NumPy's global generator before each of them.

Many of them draw from it without a seed, and a few draws fail under numpy too: fitting rank 4 to a
tensor of rank 3 gives singular systems, whose solutions are occasionally far off.
"""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _fixed_seed():
    np.random.seed(1234)
