"""Take what a user has, a FlycooTensor or a raw `sparse.COO`, as a FlycooTensor.

The FlycooTensor of a raw COO is built once and remembered as long as the COO lives. A COO can be
written to, so its values are looked at each time, and its coordinates wherever a computation
starts; what has changed is built anew.
"""

import threading
import weakref

import numpy as np

from ..engines import select_engine
from .tensor import FlycooTensor

_lock = threading.Lock()
_plans: dict[int, "_Plan"] = {}


def is_raw_sparse(x):
    """Say whether `x` is an array of pydata/sparse, without importing that package.

    Examples
    --------
    >>> import sparse
    >>> is_raw_sparse(sparse.eye(2)), is_raw_sparse([[1, 0], [0, 1]])
    (True, False)
    """
    return type(x).__module__.partition(".")[0] == "sparse" and hasattr(x, "fill_value")


def is_sparse(x):
    """Say whether `x` is a tensor that this package computes with."""
    return isinstance(x, FlycooTensor) or is_raw_sparse(x)


def as_flycoo(x, *, check_coords=False):
    """Return `x` as a FlycooTensor; that of a raw COO is built once, on the chosen device.

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
    check_coords : bool
        Whether to look for changes in the coordinates of a raw COO too, not only in its values.

    Raises
    ------
    TypeError
        If `x` is something else.
    """
    if isinstance(x, FlycooTensor):
        return x
    if not is_raw_sparse(x):
        raise TypeError(f"x is a {type(x).__name__}, expected a FlycooTensor or a sparse.COO")
    if not hasattr(x, "coords"):  # GCXS, DOK: nothing to hold a plan against
        return FlycooTensor.from_coo(x)
    with _lock:
        plan = _plans.get(id(x))
        if plan is None or not plan.holds(x, check_coords):
            plan = _plans[id(x)] = _Plan(x)
        return plan.tensor


class _Plan:
    """The FlycooTensor of one COO, and what that COO looked like."""

    def __init__(self, coo):
        self.tensor = FlycooTensor.from_coo(coo)
        self.arrays = (id(coo.coords), id(coo.data), coo.shape)
        self.values_print = _fingerprint(coo.data)
        self.coords_print = _fingerprint(coo.coords)
        key = id(coo)
        self.reference = weakref.ref(coo, lambda _: _plans.pop(key, None))

    def holds(self, coo, check_coords):
        return (
            self.reference() is coo
            and self.tensor.device == select_engine().name
            and self.arrays == (id(coo.coords), id(coo.data), coo.shape)
            and self.values_print == _fingerprint(coo.data)
            and not (check_coords and self.coords_print != _fingerprint(coo.coords))
        )


def _fingerprint(array):
    """Hash the bits of a host array; two arrays that differ in one element differ."""
    words = np.ascontiguousarray(array).reshape(-1)
    return select_engine("cpu").hash_words(words.view(f"u{array.dtype.itemsize}"))
