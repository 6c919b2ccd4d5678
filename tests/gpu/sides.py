"""Where the results of a tensor on a GPU are: see `tensorly_flycoo.tensor.entrance`."""

import cupy
import numpy as np

from tensorly_flycoo import FlycooTensor


def fetch(array, x=None):
    """Return a result as a NumPy array; fail if it is not on the side of its tensor.

    That is the GPU for a FlycooTensor, and by default.
    """
    on_gpu = x is None or isinstance(x, FlycooTensor)
    assert isinstance(array, cupy.ndarray) == on_gpu
    return array.get() if on_gpu else np.asarray(array)


def check_runs(found, again, dtype):
    """Fail unless two runs on a GPU left factors there, of the same bits, in a dtype."""
    for own, same in zip(found.factors, again.factors, strict=True):
        assert isinstance(own, cupy.ndarray)
        assert own.dtype == dtype
        assert own.tobytes() == same.tobytes()
