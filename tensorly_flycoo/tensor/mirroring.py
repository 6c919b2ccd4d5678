"""Results mirror the input: NumPy's for a tensor that the caller holds on the host.

A `sparse.COO` or a `LabelledTensor` is the caller's own, in host memory: what is computed from it
comes back as NumPy arrays, whichever device computed it. So it is with a tensor that TensorLy's
functions make of one, such as `tl.tensor`. Any other `FlycooTensor` is on a device, and so are its
results. Arrays beside a tensor, such as an initial guess or a mask, go to the device that
computes; CuPy's beside a tensor on the host make the results CuPy's.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from tensorly._factorized_tensor import FactorizedTensor

from ..base.array_modules import Array, array_module, is_cupy, move
from ..base.reporting import span
from ..engines import select_engine
from ..spread.row_shards import RowShards
from .coo_cache import is_raw_sparse, is_sparse, library_of, unwrap
from .labelled import LabelledTensor
from .tensor import FlycooTensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


def mirror(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function of a sparse tensor take arrays from any device, and mirror the tensor's side.

    A callback gets models whose arrays come over when it looks at them.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args, kwargs
        x = _find_tensor(given)
        is_on_host = is_callers(x)
        if x is None or not (is_on_host or "cupy" in sys.modules):
            return function(*args, **kwargs)
        own = unwrap(x)
        engine = select_engine() if is_raw_sparse(own) else own._engine
        if engine.xp is np and engine.devices is None and "cupy" not in sys.modules:
            return function(*args, **kwargs)
        has_cupy = False

        def bring(array: Array) -> Array:
            nonlocal has_cupy
            if isinstance(array, FlycooTensor):
                return lend(array, is_callers=False)
            has_cupy = has_cupy or is_cupy(array) or isinstance(array, RowShards)
            return move(array, engine.xp) if _is_companion(array) else array

        out = kwargs.get("out")
        args, kwargs = map_arrays(bring, given)
        give_back = _to_gpu if has_cupy else _to_host
        callback = kwargs.get("callback")
        if is_on_host and callable(callback):
            kwargs["callback"] = lambda model, *error: callback(
                _Held.of(model, give_back), *map_arrays(give_back, error)
            )
        result = function(*args, **kwargs)
        if is_on_host:
            with span("way back"):
                result = map_arrays(give_back, result)
        if out is None or kwargs["out"] is out:
            return result
        out[...] = move(result, array_module(out))
        return out

    return call


def is_callers(x: Any) -> bool:
    """Return whether the caller has a tensor on the host, wherever it is computed."""
    return isinstance(x, LabelledTensor) or is_raw_sparse(x) or getattr(x, "_is_callers", False)


def lend(x: FlycooTensor, *, is_callers: bool = True) -> FlycooTensor:
    """Return a tensor on a device as one that the caller has on the host, or the reverse."""
    if x._is_callers == is_callers or x.device == "cpu":
        return x
    twin = object.__new__(type(x))  # a copy is the tensor itself
    vars(twin).update(vars(x), _is_callers=is_callers)
    return twin


def map_arrays(change: Callable[[Array], Array], x: Any) -> Any:
    """Return `x` with its arrays and tensors changed: those in lists, tuples, dicts and models.

    An object in which nothing changes is returned itself.
    """
    kind: type = type(x)
    if isinstance(x, np.ndarray | RowShards | FlycooTensor) or is_cupy(x):
        return change(x)
    if kind is dict or _is_model(kind):
        parts = x if kind is dict else vars(x)
        new = {name: map_arrays(change, part) for name, part in parts.items()}
        if all(new[name] is part for name, part in parts.items()):
            return x
        if kind is dict:
            return new
        other = copy.copy(x)
        vars(other).update(new)
        return other
    if isinstance(x, list | tuple):
        items = [map_arrays(change, item) for item in x]
        if all(item is old for item, old in zip(items, x, strict=True)):
            return x
        if hasattr(kind, "_fields"):  # a named tuple, which may know more than its items
            named: Any = x
            return named._replace(**dict(zip(named._fields, items, strict=True)))
        return kind(items)
    return x


@functools.cache
def _is_model(kind: type) -> bool:
    """Return whether objects of a class hold results: TensorLy's models, and records of ours."""
    is_record = library_of(kind) == "tensorly_flycoo" and dataclasses.is_dataclass(kind)
    return issubclass(kind, FactorizedTensor) or (is_record and not hasattr(kind, "get_params"))


def _find_tensor(given: Any) -> Any:
    """Return the first sparse tensor among arguments, also in lists, tuples and dicts.

    Of a view it is what the view was made of.
    """
    for x in given.values() if isinstance(given, dict) else given:
        x = getattr(x, "source", x)
        if is_sparse(x) or hasattr(x, "_is_callers"):
            return x
        if isinstance(x, list | tuple | dict) and (found := _find_tensor(x)) is not None:
            return found
    return None


def _is_companion(array: Array) -> bool:
    """Return whether an array belongs on the device: numbers of an option and modes do not."""
    is_plain = isinstance(array, np.ndarray) or is_cupy(array)
    return is_plain and array.ndim > 0 and (array.dtype.kind in "fb" or array.ndim > 1)


def _to_host(array: Array) -> Array:
    """Return an array in host memory, whole, or a tensor; a scalar as NumPy's."""
    if isinstance(array, FlycooTensor):
        return lend(array)
    if isinstance(array, RowShards):
        return array.to_numpy()
    return move(array, np)[()] if is_cupy(array) and array.ndim == 0 else move(array, np)


def _to_gpu(array: Array) -> Array:
    return move(array, sys.modules["cupy"]) if _is_companion(array) else array


class _Held:
    """Part of a class of models: attributes of the model that is shown move on first use."""

    _shown: Any
    _give_back: Callable[[Array], Array]

    @classmethod
    def of(cls, model: Any, give_back: Callable[[Array], Array]) -> Any:
        if isinstance(model, cls):  # by a function inside
            return model
        own: type = type(model)
        bases: Any = (cls, own)
        kind: Any = type(own.__name__, bases, {"__module__": own.__module__})
        shown: Any = kind.__new__(kind)
        vars(shown).update(_shown=model, _give_back=give_back)
        return shown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = map_arrays(self._give_back, getattr(self._shown, name))
        vars(self)[name] = value
        return value

    def __reduce__(self) -> Any:
        """Copy and pickle as the model itself, on the host."""
        return copy.copy, (map_arrays(self._give_back, self._shown),)
