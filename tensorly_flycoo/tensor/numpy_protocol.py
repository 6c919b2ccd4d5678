"""NumPy's own functions of a sparse tensor: `numpy.log1p(x)`, `numpy.sum(x, axis=0)`.

Elementwise ones that keep zeros, sums and extremes work; all others are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from inspect import signature
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..array_modules import Array
from ..checks import densify_error
from .arithmetic import map_elements
from .reductions import average_modes, find_largest, find_smallest, sum_modes
from .transposing import transpose

if TYPE_CHECKING:
    from .tensor import FlycooTensor

USE_NONZEROS = "use x.to_coo() for the nonzeros"

#: Also for differences, which most often are residuals.
USE_FIT = f"{USE_NONZEROS}, and tensorly_flycoo.cp_fit(x, cp) for the error of a CP model"

#: What to use instead of attributes that arrays have.
_INSTEAD = {
    "coords": "x.nonzeros()[0]",
    "data": "x.nonzeros()[1]",
    "values": "x.nonzeros()[1]",
    "todense": "x.to_coo().todense()",
    "toarray": "x.to_coo().todense()",
    "size": "x.nnz, or math.prod(x.shape)",
    "std": "x.to_coo().std()",
    "var": "x.to_coo().var()",
}


def refuse_attribute(x: FlycooTensor, name: str) -> NoReturn:
    """Raise the AttributeError of what a tensor lacks, with what to use instead."""
    hint = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
    message = f"{type(x).__name__!r} object has no attribute {name!r}{hint}"
    raise AttributeError(message, name=name, obj=x)


def apply_ufunc(
    x: FlycooTensor, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
) -> FlycooTensor:
    """Apply a ufunc to one tensor and numbers, or add or subtract two tensors.

    Raises
    ------
    DensifyError
        If the ufunc does not keep zeros zero, takes another array, or has options.
    """
    # Convert NumPy scalars to Python's, or the operators would call NumPy again. The item of a
    # longdouble is another one.
    operands = [x.item() if getattr(x, "ndim", None) == 0 else x for x in inputs]
    operands = [float(x) if isinstance(x, np.longdouble) else x for x in operands]
    is_tensor = [isinstance(operand, type(x)) for operand in operands]
    is_ours = all(n or isinstance(a, Real) for n, a in zip(is_tensor, operands, strict=True))
    name = f"numpy.{ufunc.__name__}"
    if method != "__call__" or kwargs or not is_ours:
        instead = USE_FIT if ufunc is np.subtract else USE_NONZEROS
        raise densify_error(name, x.shape, instead)
    if ufunc in _OPERATORS:
        return _OPERATORS[ufunc](*operands)
    if sum(is_tensor) != 1 or ufunc.nout != 1:
        raise densify_error(name, x.shape, USE_NONZEROS)

    numbers = [None if n else operand for n, operand in zip(is_tensor, operands, strict=True)]

    def function(values: Array) -> Array:  # without `x`, as it may be sent to other processes
        return ufunc(*(values if number is None else number for number in numbers))

    return map_elements(x, function, name)


def apply_function(
    x: FlycooTensor, function: Callable, types: Any, args: tuple, kwargs: dict
) -> Any:
    """Call our twin of a function of NumPy that is no ufunc.

    Raises
    ------
    DensifyError
        If there is none.
    TypeError
        If it lacks an option, such as ``keepdims``.
    """
    ours = _FUNCTIONS.get(function)
    if not args and "a" in kwargs:
        args = (kwargs.pop("a"),)
    if ours is None or not args or not isinstance(args[0], type(x)):
        name = f"{function.__module__}.{function.__name__}"
        instead = "x.map(function) does if it keeps zeros, and x.to_coo() gives the nonzeros"
        raise densify_error(name, x.shape, instead)
    options = [option for option in kwargs if option not in signature(ours).parameters]
    if options:
        name = f"numpy.{function.__name__}"
        raise TypeError(f"{name} of a FlycooTensor has no option {options[0]!r}")
    return ours(*args, **kwargs)


def _clip(
    x: FlycooTensor, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> FlycooTensor:
    low, high = (min if a_min is None else a_min), (max if a_max is None else a_max)
    return map_elements(x, lambda values: np.clip(values, low, high), "numpy.clip")


def _round(x: FlycooTensor, decimals: int = 0) -> FlycooTensor:
    return map_elements(x, lambda values: np.round(values, decimals), "numpy.round")


_OPERATORS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.power: operator.pow,
    np.square: lambda x: x**2,
    np.negative: operator.neg,
    np.positive: operator.pos,
    np.absolute: operator.abs,
}

_FUNCTIONS: dict[Callable, Callable[..., Any]] = {
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.sum: sum_modes,
    np.mean: average_modes,
    np.max: find_largest,
    np.amax: find_largest,
    np.min: find_smallest,
    np.amin: find_smallest,
    np.transpose: lambda x, axes=None: x.T if axes is None else transpose(x, axes),
    np.clip: _clip,
    np.round: _round,
    np.around: _round,
    np.linalg.norm: lambda x: x.norm(),
}
