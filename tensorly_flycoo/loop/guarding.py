"""The guard around a decomposition: dense tensors, labels, logs, MemoryError, docstrings."""

from __future__ import annotations

import functools
import inspect
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import tensorly.decomposition
from tensorly._factorized_tensor import FactorizedTensor
from tensorly.backend import BackendManager
from tensorly.cp_tensor import CPTensor

from ..base.checks import check_count, check_modes, check_real
from ..base.fit_record import FitRecord, attach, current_record, find_record, recording
from ..base.reporting import log_compilation, span
from ..engines.out_of_memory import attempt
from ..ops.views import find_sparse
from ..tensor.coo_cache import find_instead, not_sparse_error
from ..tensor.labelled import LabelledTensor, check_same_labels, drop_labels, number_modes
from ..tensor.mirroring import mirror
from .cp_model import warn_of_zeros
from .model_uses import check_guess, match_guess
from .unknown_cells import obey_unknown

_P = ParamSpec("_P")
_R = TypeVar("_R")
_F = TypeVar("_F", bound=Callable[..., Any])


#: Options that several decompositions have: the least of integers, finite numbers, and modes. A
#: `tol` below 0 never stops a run, but computes the errors.
_INTEGERS = dict.fromkeys(("n_iter_max", "svd_mask_repeats"), 0)
_INTEGERS |= dict.fromkeys(("n_iter_max_inner", "n_iter_parafac"), 1)
_NUMBERS = ("tol", "tol_inner", "tol_outer")
_MODES = ("fixed_modes", "fixed_factors")
_OPTIONAL = ("tol", *_MODES)


def check_options(given: Mapping[str, Any], ndim: int) -> None:
    """Refuse options of the wrong type, or out of range; `ndim` is the tensor's."""
    known = {name: of for name, of in given.items() if of is not None or name not in _OPTIONAL}
    for name in filter(known.__contains__, _INTEGERS):
        check_count(known[name], name, _INTEGERS[name])
    for name in filter(known.__contains__, _NUMBERS):
        check_real(known[name], name)
    for name in filter(known.__contains__, _MODES):
        check_modes(known[name], ndim, name)
    init = known.get("init", "")
    if isinstance(init, str) or hasattr(init, "factors") or hasattr(init, "factor_matrices"):
        return
    if not isinstance(init, tuple | list):
        kind = f"init is a {type(init).__name__}"
        raise TypeError(f"{kind}, expected the name of a start or (weights, factors)")
    # Tucker takes its factors alone.
    factors = init[1] if len(init) == 2 and isinstance(init[1], tuple | list) else init
    for n, factor in enumerate(factors):
        if getattr(factor, "ndim", None) != 2:
            raise TypeError(f"factors[{n}] of init is a {type(factor).__name__}, expected a matrix")
    if len(factors) != ndim and "modes" not in given:
        raise ValueError(f"init has {len(factors)} factors, expected {ndim}")


def guard(
    function: Callable[_P, _R],
    dense: Callable[_P, _R] | None = None,
    label: Callable[[_R, Any], _R] = lambda result, data: result,
    describe: Callable[[str, Mapping[str, Any], Any], FitRecord] | None = None,
) -> Callable[_P, _R]:
    """Let a function log all that it compiles in one line, and explain a MemoryError.

    A CP model with components that are zero is returned with a warning. Calls without a sparse
    tensor go to `dense`, by default TensorLy's function of that name, if any; a table is refused.
    The function gets the tensor of a `LabelledTensor`, and modes by number; `label` gives its
    result the labels. Arrays go where `mirror` says.
    """
    dense = dense or _find_dense(function)
    parameters = list(inspect.signature(function).parameters)
    defaults = {name: own.default for name, own in inspect.signature(function).parameters.items()}

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        x = find_sparse((*args, *kwargs.values()), function.__name__)
        if x is not None:
            return call_sparse(*args, **kwargs)
        for table in filter(find_instead, args[:1] or [kwargs.get("tensor")]):
            raise not_sparse_error(table)
        with log_compilation():
            return dense(*args, **kwargs)

    @mirror
    def call_sparse(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        given: dict[str, Any] = dict(zip(parameters, args, strict=False)) | kwargs
        if len(given) < len(args) + len(kwargs):
            return function(*args, **kwargs)  # a TypeError
        for labelled in given.values():
            if isinstance(labelled, LabelledTensor):
                for name, other in given.items():
                    check_same_labels(other, labelled, names=(name, "the tensor"))
                numbered = number_modes(labelled, given)
                if isinstance(tensor := given.get(parameters[0]), LabelledTensor):
                    numbered = obey_unknown(tensor, function.__name__, defaults, numbered)
                    if "init" in numbered:
                        numbered["init"] = match_guess(numbered["init"], tensor)
                plain = {name: drop_labels(argument) for name, argument in numbered.items()}
                return label(call(**plain), labelled)  # type: ignore[call-arg]
        for name in _MODES:
            if isinstance(given.get(name), Iterable):  # an array or an iterator too
                given[name] = list(given[name])
        x = find_sparse(given.values(), function.__name__)
        ndim = 3 if function.__name__ == "parafac2" else x.ndim  # x may be its first slice
        check_options(given, ndim)
        name = function.__name__
        check_guess(name, given.get("init"), x.shape)
        record = functools.partial(describe or _name_only, name, defaults | given, x)
        with recording(name, record), span(name, x), log_compilation():
            result = attempt(name, functools.partial(function, **given))
            model = result[0] if isinstance(result, tuple) else result
            if find_record(model) is None and isinstance(model, FactorizedTensor):
                attach(model, current_record(name))  # of TensorLy's own loop
        if isinstance(model, CPTensor):
            warn_of_zeros(model)
        return label(result, x) if getattr(x, "labels", None) else result  # of a RaggedTensor

    return call


def _name_only(method: str, options: Mapping[str, Any], x: Any) -> FitRecord:
    return FitRecord(method=method)


def tensorly_loop(name: str) -> Callable[..., Any]:
    """Return TensorLy's decomposition of that name, as it was before our replacement."""
    function = getattr(tensorly.decomposition, name)
    return getattr(function, "_flycoo_original", function)


def _find_dense(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return TensorLy's function of that name, which gets a callback only if it takes one."""
    name = function.__name__
    if not hasattr(tensorly.decomposition, name):
        return function

    def dense(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        original = tensorly_loop(name)
        if "callback" in kwargs and "callback" not in inspect.signature(original).parameters:
            raise TypeError(
                f"callback= of {name} works for sparse tensors only: TensorLy's own function, "
                "which decomposes dense ones, has none; leave it out"
            )
        return original(*args, **kwargs)

    return dense


def require_flycoo_backend() -> None:
    """Refuse to run TensorLy's loop on a sparse tensor under another backend."""
    name = BackendManager.get_backend()
    if name != "flycoo":
        raise RuntimeError(f'TensorLy\'s backend is {name!r}, call tl.set_backend("flycoo")')


def describe_as(*known: Callable[..., Any]) -> Callable[[_F], _F]:
    """Add to a docstring the parameters that it leaves out, as the last of `known` has them.

    The parameters are in the order of the signature. One that none describes is a KeyError.
    """

    def describe(function: _F) -> _F:
        if function.__doc__:  # "python -OO" has none
            before, own, after = _split(function.__doc__)
            texts = ChainMap(own, *[_split(other.__doc__ or "")[1] for other in reversed(known)])
            names = inspect.signature(function).parameters
            listed = dict.fromkeys(texts[name] for name in names)  # some share a text
            function.__doc__ = before + "\n".join(listed) + after
        return function

    return describe


def _split(docstring: str) -> tuple[str, dict[str, str], str]:
    """Return a docstring's descriptions by parameter, and the text before and after them."""
    before, heading, rest = inspect.cleandoc(docstring).partition("Parameters\n----------\n")
    listed, returns, after = rest.partition("\n\nReturns\n")
    texts: dict[str, str] = {}
    for text in re.split(r"\n(?=\w)", listed):
        names = re.match(r"[\w, ]+", text)
        texts |= dict.fromkeys(names[0].strip().split(", "), text) if names else {}
    return before + heading, texts, returns + after
