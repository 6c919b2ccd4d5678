"""What a user gives to workers, pickled before anything is sent.

Dask would never answer a call that it cannot pickle, and would drop the connection to a worker that
cannot unpickle one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
from distributed.protocol import pickle

from .messages import Ref

#: Types that can always be sent; those of most arguments, which are found in less time.
_PLAIN = (int, float, str, bytes, slice, range, np.ndarray, np.dtype, np.generic, np.ufunc)
_USUAL = frozenset([Ref, int, float, bool, str, type(None), np.ndarray, np.ufunc])

#: Packages that all workers have.
_PACKAGES = ("tensorly_flycoo", "numpy", "operator", "_operator", "builtins")

#: Functions of these packages that have been sent: a look at their names takes longer.
_known: set[FunctionType] = set()


class Sealed(NamedTuple):
    """A pickled object."""

    pickled: bytes


def seal(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """Return a call with the same result that can surely be sent; refuse what cannot be pickled."""
    if all(map(_is_plain, (function, *args, *kwargs.values()))):
        return function, args, kwargs
    named = {name: _seal(x) for name, x in kwargs.items()}
    return call_sealed, [_seal(function), *map(_seal, args)], named


def call_sealed(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Unpickle the function and the arguments that are sealed, and call it, on a worker."""
    named = {name: _open(x) for name, x in kwargs.items()}
    return _open(function)(*map(_open, args), **named)


def _is_plain(x: Any) -> bool:
    """Return whether it is surely sent: data, and functions that have a name in our packages."""
    if type(x) in _USUAL or (type(x) is FunctionType and x in _known):
        return True
    if isinstance(x, tuple | list):
        return all(map(_is_plain, x))
    if isinstance(x, _PLAIN):
        return True
    if isinstance(x, partial):
        return all(map(_is_plain, (x.func, *x.args, *x.keywords.values())))
    if isinstance(x, MethodType):
        return False
    package = (getattr(x, "__module__", None) or "").partition(".")[0]
    is_plain = package in _PACKAGES and "<" not in getattr(x, "__qualname__", "<")
    if is_plain and type(x) is FunctionType:
        _known.add(x)
    return is_plain


def _seal(x: Any) -> Any:
    if _is_plain(x):
        return x
    if isinstance(x, list):
        return [_seal(item) for item in x]
    try:
        return Sealed(pickle.dumps(x))
    except Exception as error:
        raise TypeError(f"{x!r:.200} cannot be sent to workers: {error}") from None


def _open(x: Any) -> Any:
    if isinstance(x, list):
        return [_open(item) for item in x]
    return pickle.loads(x.pickled) if isinstance(x, Sealed) else x
