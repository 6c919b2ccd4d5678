"""TensorLy's own decompositions: for dense tensors, and for sparse ones if their loop suits."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import tensorly.decomposition
from tensorly.backend import BackendManager

from .guarding import guard

_P = ParamSpec("_P")
_R = TypeVar("_R")


def tensorly_loop(name: str) -> Callable[..., Any]:
    """Return TensorLy's decomposition of that name, as it was before our replacement.

    Examples
    --------
    >>> tensorly_loop("parafac").__module__
    'tensorly.decomposition._cp'
    """
    function = getattr(tensorly.decomposition, name)
    return getattr(function, "_flycoo_original", function)


def dense_to_tensorly(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Hand calls without a sparse tensor straight to TensorLy's function of the same name.

    A callback is refused if that function takes none.
    """

    def dense(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        original = tensorly_loop(function.__name__)
        if "callback" in kwargs and "callback" not in inspect.signature(original).parameters:
            raise TypeError(
                f"callback= of {function.__name__} works for sparse tensors only: TensorLy's own "
                "function, which decomposes dense ones, has none; leave it out"
            )
        return original(*args, **kwargs)

    return guard(function, dense)


def require_flycoo_backend() -> None:
    """Refuse to run TensorLy's loop on a sparse tensor under another backend.

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
