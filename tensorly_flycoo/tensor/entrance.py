"""The entrance: what happens to arguments before the first product, and to the result after it.

A `Call` is one call of a function that takes sparse tensors. Its methods are the steps, in their
order:

1. `Call(args, kwargs)` finds the sparse tensor among the arguments, once.
2. `refuse_foreign`, if there is a `foreign` array, names the constructor that converts it.
3. `name_arguments` gives each argument its name.
4. `drop_labels` takes the tensor out of a `LabelledTensor`, and turns names of modes into numbers.
5. `replace_tensor` puts the `FlycooTensor` of a `sparse.COO` in its place.
6. `move_to_device` brings the other arrays to the device that computes.
7. `give_back` brings the result to the caller's side.

Most functions take steps 1, 6 and 7: they are decorated with `mirror`. A decomposition takes all of
them, and more between them: `loop/guarding.py`.

Results mirror the input. A `sparse.COO` or a `LabelledTensor` is the caller's own, in host memory:
what is computed from it comes back as NumPy arrays, whichever device computed it. So it is with a
tensor that TensorLy's functions make of one, such as `tl.tensor`. Any other `FlycooTensor` is on a
device, and so are its results. Arrays beside a tensor, such as an initial guess or a mask, go to
the device that computes; CuPy's beside a tensor on the host make the results CuPy's.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np
from tensorly._factorized_tensor import FactorizedTensor

from ..base.array_modules import Array, array_module, is_cupy, move
from ..base.checks import current_backend
from ..base.reporting import span
from ..base.watching import watch
from ..engines import select_engine
from ..spread.row_shards import RowShards
from .converters import CONVERTERS, find_converter, is_raw_kind, library_of, not_sparse_error
from .coo_cache import unwrap
from .labelled import LabelledTensor, check_same_labels, drop_labels, number_modes
from .lazy_array import LazyArray
from .tensor import FlycooTensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


# Which argument is the sparse tensor


def is_sparse(x: object) -> bool:
    """Return whether `x` is a sparse tensor of this package or of pydata/sparse."""
    kind: type = type(x)
    return isinstance(x, (FlycooTensor, LabelledTensor)) or is_raw_kind(kind)


def is_lazy_or_sparse(x: object) -> bool:
    """Return whether `x` is a sparse tensor or a lazy array, such as a view of one."""
    kind: type = type(x)
    return _is_ours(kind) or is_raw_kind(kind)


@functools.cache
def _is_ours(kind: type) -> bool:
    return issubclass(kind, (FlycooTensor, LabelledTensor, LazyArray))


@functools.cache
def _may_be_sparse(kind: type) -> bool:
    """Return whether a class may be one of sparse tensors, of any library, or of lazy arrays.

    Nearly every argument is of a class that is not: one look-up tells.
    """
    return _is_ours(kind) or library_of(kind) in ("sparse", *CONVERTERS)


def _search(arguments: Iterable[Any]) -> tuple[Any, Any]:
    """Find the first sparse tensor or lazy array, also in lists, tuples and dicts; else None.

    Return with it the first argument before it that is, or contains, a sparse array of another
    library.
    """
    foreign = None
    for argument in arguments:
        kind: type = type(argument)
        if _may_be_sparse(kind):
            if _is_ours(kind) or is_raw_kind(kind):
                return argument, foreign
            if foreign is None and find_converter(argument):
                foreign = argument
        elif isinstance(argument, (list, tuple, dict)):
            items = argument.values() if isinstance(argument, dict) else argument
            tensor, foreign_item = _search(items)
            if foreign is None and foreign_item is not None:
                foreign = argument
            if tensor is not None:
                return tensor, foreign
    return None, foreign


def find_sparse(arguments: Iterable[Any]) -> Any:
    """Return the first argument that is sparse or a lazy view of a sparse tensor, or None.

    The items of lists, tuples and dicts count as well. Under the backend "flycoo" raises a
    TypeError if a sparse array of a library in `CONVERTERS` comes first.
    """
    tensor, foreign = _search(arguments)
    if foreign is not None:
        refuse_foreign(foreign)
    return tensor


def refuse_foreign(argument: Any) -> None:
    """Refuse a sparse array of another library under "flycoo"; say what converts it."""
    if current_backend() == "flycoo":
        raise not_sparse_error(argument)


# The steps


class Call:
    """One call of a function that takes sparse tensors; the module's head lists its steps.

    Attributes
    ----------
    args, kwargs : tuple and dict
        The arguments, changed by each step.
    tensor : FlycooTensor, LabelledTensor, sparse.SparseArray, LazyArray or None
        The first of these among the arguments, or in a list, tuple or dict.
    foreign : object
        The first argument before it that is, or contains, a sparse array of another library.
    is_on_host : bool
        Whether the caller has the tensor on the host, wherever it is computed.
    """

    def __init__(self, args: tuple, kwargs: Mapping[str, Any]) -> None:
        self.args = args
        self.kwargs: dict[str, Any] = dict(kwargs)
        self.tensor, self.foreign = _search((*args, *kwargs.values()))
        # What the caller has decides where results go; a view knows of what it was made.
        self._source = self.tensor
        if isinstance(self.tensor, LazyArray):
            self._source = self.tensor.source
        self.is_on_host = self._source is not None and is_callers(self._source)
        self._has_cupy = False  # whether an array beside the tensor is on a GPU
        self._bring_back: Callable[[Array], Array] | None = None  # None if nothing has moved
        self._out: Any = None  # the caller's array for the result

    def accept_scipy_slices(self) -> None:
        """Accept a list of SciPy's matrices, which `parafac2` takes, in place of the tensor."""
        if not isinstance(self.foreign, list | tuple):
            return
        first = next((item for item in self.foreign if find_converter(item)), None)
        if find_converter(first) == "from_scipy":
            self.foreign = None
            if self.tensor is None:
                self.tensor = first

    def name_arguments(
        self,
        signature: inspect.Signature,
        function: str,
        explain: Callable[[Mapping[str, Any]], str],
    ) -> None:
        """Give each argument its name, in the order of the signature.

        A TypeError for a wrong argument ends with what `explain` says of the keywords.
        """
        try:
            self.kwargs = signature.bind(*self.args, **self.kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{function} {error}{explain(self.kwargs)}") from None
        self.args = ()

    def drop_labels(self) -> LabelledTensor | None:
        """Replace tensors with labels by those without, and names of modes by numbers.

        Return the first one with labels, which all others have to share; None if there is none.
        """
        types = [*map(type, self.kwargs.values())]
        if LabelledTensor not in types:
            return None
        labelled: LabelledTensor = [*self.kwargs.values()][types.index(LabelledTensor)]
        for name, argument in self.kwargs.items():
            check_same_labels(argument, labelled, names=(name, "the tensor"))
        numbered = number_modes(labelled, self.kwargs)
        self.kwargs = {name: drop_labels(argument) for name, argument in numbered.items()}
        self.tensor = drop_labels(self.tensor)
        return labelled

    def replace_tensor(self, name: str, tensor: Any) -> None:
        """Pass another tensor as argument `name`: one that is converted."""
        self.kwargs[name] = tensor
        self.tensor = tensor
        self._source = tensor

    def move_to_device(self) -> None:
        """Bring the arrays beside the tensor to its device.

        A callback gets models whose arrays come over when it looks at them.
        """
        has_gpu = "cupy" in sys.modules
        if self._source is None or not (self.is_on_host or has_gpu):
            return
        # A COO goes to the chosen device when it is converted, which may be later.
        engine = getattr(unwrap(self._source), "_engine", None) or select_engine()
        if engine.xp is np and engine.devices is None and not has_gpu:
            return
        self._out = self.kwargs.get("out")
        bring = functools.partial(self._bring, engine.xp)
        self.args, self.kwargs = map_arrays(bring, (self.args, self.kwargs))
        self._bring_back = _to_gpu if self._has_cupy else _to_host
        callback = self.kwargs.get("callback")
        if self.is_on_host and callable(callback):
            self.kwargs["callback"] = functools.partial(_call_back, callback, self._bring_back)

    def _bring(self, xp: Any, array: Array) -> Array:
        """Bring an array, or a tensor that the caller has on the host, to the device."""
        if isinstance(array, FlycooTensor):
            return lend(array, is_callers=False)
        self._has_cupy = self._has_cupy or is_cupy(array) or isinstance(array, RowShards)
        return move(array, xp) if _is_companion(array) else array

    def give_back(self, result: Any) -> Any:
        """Return the function's result on the caller's side, in the caller's `out` if given."""
        if self._bring_back is None:
            return result
        if self.is_on_host:
            with span("way back"):
                result = map_arrays(self._bring_back, result)
        if self._out is None or self.kwargs["out"] is self._out:
            return result
        self._out[...] = move(result, array_module(self._out))
        return self._out


def mirror(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function of a sparse tensor take arrays from any device, and mirror the tensor's side.

    The function gets the tensor as the caller passed it. A call that takes long is watched.
    """
    name = function.__name__.strip("_")

    @functools.wraps(function)
    def receive(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        call = Call(args, kwargs)
        with watch(name, kwargs):
            call.move_to_device()
            result: _R = call.give_back(function(*call.args, **call.kwargs))
        return result

    return receive


# The caller's side and the device


def is_callers(x: Any) -> bool:
    """Return whether the caller has a tensor on the host, wherever it is computed."""
    kind: type = type(x)
    is_always = isinstance(x, LabelledTensor) or is_raw_kind(kind)
    return is_always or getattr(x, "_is_callers", False)


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

    >>> map_arrays(lambda array: array + 1, {"a": (np.zeros(2), "text")})
    {'a': (array([1., 1.]), 'text')}
    """
    kind: type = type(x)
    if isinstance(x, np.ndarray | RowShards | FlycooTensor) or is_cupy(x):
        return change(x)
    if kind is dict:
        return _map_items(change, x)
    if _is_model(kind):
        parts = vars(x)
        changed = _map_items(change, parts)
        if changed is parts:
            return x
        twin = copy.copy(x)
        vars(twin).update(changed)
        return twin
    if isinstance(x, list | tuple):
        items = [map_arrays(change, item) for item in x]
        if all(item is old for item, old in zip(items, x, strict=True)):
            return x
        if hasattr(kind, "_fields"):  # a named tuple, which may know more than its items
            named: Any = x
            return named._replace(**dict(zip(named._fields, items, strict=True)))
        return kind(items)
    return x


def _map_items(change: Callable[[Array], Array], parts: dict[str, Any]) -> dict[str, Any]:
    """Return a dict with changed arrays, or the dict itself if none changes."""
    changed = {name: map_arrays(change, part) for name, part in parts.items()}
    is_same = all(changed[name] is part for name, part in parts.items())
    return parts if is_same else changed


@functools.cache
def _is_model(kind: type) -> bool:
    """Return whether objects of a class hold results: TensorLy's models, and records of ours."""
    is_record = library_of(kind) == "tensorly_flycoo" and dataclasses.is_dataclass(kind)
    return issubclass(kind, FactorizedTensor) or (is_record and not hasattr(kind, "get_params"))


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
    if is_cupy(array) and array.ndim == 0:
        return move(array, np)[()]
    return move(array, np)


def _to_gpu(array: Array) -> Array:
    return move(array, sys.modules["cupy"]) if _is_companion(array) else array


def _call_back(
    callback: Callable[..., Any], bring_back: Callable[[Array], Array], model: Any, *error: Any
) -> Any:
    """Call the caller's callback with a model and its error, on the caller's side."""
    return callback(_ShownModel.show(model, bring_back), *map_arrays(bring_back, error))


class _ShownModel:
    """Part of a class of models: attributes of the model that is shown move on first use."""

    _shown: Any
    _bring_back: Callable[[Array], Array]

    @classmethod
    def show(cls, model: Any, bring_back: Callable[[Array], Array]) -> Any:
        """Return a model of the same class, whose arrays are brought back when it is looked at."""
        if isinstance(model, cls):  # by a function inside
            return model
        model_class: type = type(model)
        bases: Any = (cls, model_class)
        # A class of its own has no instance attributes yet: each first look is a `__getattr__`.
        kind: Any = type(model_class.__name__, bases, {"__module__": model_class.__module__})
        shown: Any = kind.__new__(kind)
        vars(shown).update(_shown=model, _bring_back=bring_back)
        return shown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = map_arrays(self._bring_back, getattr(self._shown, name))
        vars(self)[name] = value
        return value

    def __reduce__(self) -> Any:
        """Copy and pickle as the model itself, on the host."""
        return copy.copy, (map_arrays(self._bring_back, self._shown),)
