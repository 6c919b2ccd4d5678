"""What surrounds a whole call: labels, one log line for all kernels, a useful MemoryError."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tensorly.cp_tensor import CPTensor

from ..base.reporting import log_compilation
from ..ops.views import find_sparse
from ..tensor.coo_cache import is_table, not_sparse_error
from ..tensor.labelled import LabelledTensor
from ..tensor.memory import attempt
from .cp_model import warn_of_zeros
from .labelled_cp import label_result

_P = ParamSpec("_P")
_R = TypeVar("_R")


def guard(function: Callable[_P, _R], dense: Callable[_P, _R] | None = None) -> Callable[_P, _R]:
    """Let a function log all that it compiles in one line, and explain a MemoryError.

    A CP model with components that are zero is returned with a warning. Calls without a sparse
    tensor go to `dense`, by default `function`, and raise what it raises; but a table is refused.
    The function gets the tensor of a `LabelledTensor`; `label_result` gives its result the labels.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        x = find_sparse((*args, *kwargs.values()), function.__name__)
        if x is None:
            for table in filter(is_table, args[:1] or [kwargs.get("tensor")]):
                raise not_sparse_error(table)
            with log_compilation():
                return (dense or function)(*args, **kwargs)
        for labelled in (*args, *kwargs.values()):
            if isinstance(labelled, LabelledTensor):
                plain = [_drop_labels(argument) for argument in args]
                named = {name: _drop_labels(argument) for name, argument in kwargs.items()}
                return label_result(call(*plain, **named), labelled.labels)
        with log_compilation():
            result = attempt(function.__name__, lambda: function(*args, **kwargs))
        model = result[0] if isinstance(result, tuple) else result
        if isinstance(model, CPTensor):
            warn_of_zeros(model)
        return result

    return call


def _drop_labels(argument: Any) -> Any:
    return argument.tensor if isinstance(argument, LabelledTensor) else argument
