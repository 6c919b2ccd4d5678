"""Whether a call is ours: it is if it has a sparse tensor and TensorLy's backend is "flycoo"."""

from collections.abc import Mapping
from typing import Any

from tensorly.backend import BackendManager

from ..ops.views import find_sparse
from ..tensor.coo_cache import is_raw_sparse


def is_ours(name: str, args: tuple, kwargs: Mapping[str, Any]) -> bool:
    """Say whether a call of TensorLy's function `name` has a sparse tensor, under "flycoo".

    Refuse a `FlycooTensor` under another backend; a raw `sparse.COO` is left to that backend.
    """
    x = find_sparse((*args, *kwargs.values()))
    if x is None:
        return False
    backend = BackendManager.get_backend()
    if backend == "flycoo":
        return True
    if is_raw_sparse(x):
        return False
    raise RuntimeError(
        f"{name} has a {type(x).__name__}, but TensorLy's backend is {backend!r}: "
        'call tl.set_backend("flycoo") first'
    )
