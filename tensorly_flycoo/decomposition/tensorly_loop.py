"""TensorLy's own decompositions: for dense tensors, and for sparse ones if their loop suits."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tensorly.backend import BackendManager

from ..ops.views import find_sparse
from .running_out import explain_memory

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: The TensorLy module that defines each decomposition.
_MODULES = {
    "parafac": "_cp",
    "randomised_parafac": "_cp",
    "non_negative_parafac": "_nn_cp",
    "non_negative_parafac_hals": "_nn_cp",
    "constrained_parafac": "_constrained_cp",
    "parafac2": "_parafac2",
    "tensor_train": "_tt",
    "tensor_train_matrix": "_tt",
    "tensor_ring": "_tr_svd",
}


def tensorly_loop(name: str) -> Callable[..., Any]:
    """Return TensorLy's own decomposition of that name, without our replacement around it.

    Examples
    --------
    >>> tensorly_loop("parafac").__module__
    'tensorly.decomposition._cp'
    """
    module = importlib.import_module(f"tensorly.decomposition.{_MODULES[name]}")
    return inspect.unwrap(getattr(module, name))


def dense_to_tensorly(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Hand calls without a sparse tensor straight to TensorLy's function of the same name."""

    ours = explain_memory(function)

    @functools.wraps(function)
    def decompose(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if find_sparse((*args, *kwargs.values())) is not None:
            return ours(*args, **kwargs)
        return tensorly_loop(function.__name__)(*args, **kwargs)

    return decompose


def require_flycoo_backend() -> None:
    """Refuse to run TensorLy's loop on a sparse tensor under another backend.

    Raises
    ------
    RuntimeError
        If TensorLy's current backend is not "flycoo".

    Examples
    --------
    >>> require_flycoo_backend()
    Traceback (most recent call last):
        ...
    RuntimeError: TensorLy's backend is 'numpy', call tl.set_backend("flycoo")
    """
    name = BackendManager.get_backend()
    if name != "flycoo":
        raise RuntimeError(f'TensorLy\'s backend is {name!r}, call tl.set_backend("flycoo")')
