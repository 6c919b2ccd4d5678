"""NumPy's own functions of a sparse tensor: `numpy.log1p(x)`, `numpy.sum(x, axis=0)`.

Elementwise ones that keep zeros, sums and extremes work; all others are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..array_modules import Array
from ..checks import densify_error
from .arithmetic import map_elements
from .reductions import average_modes, find_largest, find_smallest, sum_modes
from .transposing import transpose

if TYPE_CHECKING:
    from .tensor import FlycooTensor

USE_NONZEROS = "use x.to_coo() for the nonzeros"


def apply_ufunc(
    x: FlycooTensor, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
) -> FlycooTensor:
    """Apply a ufunc to one tensor and numbers, or add or subtract two tensors.

    Raises
    ------
    DensifyError
        If the ufunc does not keep zeros zero, takes another array, or has options.
    """
    # Convert NumPy scalars to Python's, or the operators would call NumPy again.
    operands = [x.item() if getattr(x, "ndim", None) == 0 else x for x in inputs]
    is_tensor = [isinstance(operand, type(x)) for operand in operands]
    is_ours = all(n or isinstance(a, Real) for n, a in zip(is_tensor, operands, strict=True))
    name = f"numpy.{ufunc.__name__}"
    if method != "__call__" or kwargs or not is_ours:
        raise densify_error(name, x.shape, USE_NONZEROS)
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
    if ours is None or not args or not isinstance(args[0], type(x)):
        name = f"{function.__module__}.{function.__name__}"
        instead = "x.map(function) does if it keeps zeros, and x.to_coo() gives the nonzeros"
        raise densify_error(name, x.shape, instead)
    options = [option for option in kwargs if option not in ("axis", "axes", "a")]
    if options:
        name = f"numpy.{function.__name__}"
        raise TypeError(f"{name} of a FlycooTensor has no option {options[0]!r}")
    return ours(*args, **kwargs)


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
    np.transpose: transpose,
}
