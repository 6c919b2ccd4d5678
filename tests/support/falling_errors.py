"""Errors of decompositions that promise never to raise them."""

import numpy as np


def assert_never_rise(errors, dtype):
    """Assert that errors never rise; each is the root of a difference of squares, all rounded."""
    assert (np.diff(np.square(errors)) <= 16 * np.finfo(dtype).eps).all()
