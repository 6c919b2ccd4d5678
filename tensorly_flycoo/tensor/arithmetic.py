"""Arithmetic that keeps zeros zero: scaling, positive powers, addition and subtraction."""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..array_modules import is_cupy
from ..checks import densify_error

if TYPE_CHECKING:
    from .tensor import FlycooTensor


def scale(x: FlycooTensor, operation: Callable[[Any, Any], Any], scalar: object) -> FlycooTensor:
    """Multiply or divide by a number: `operation` is ``operator.mul`` or ``operator.truediv``.

    Returns
    -------
    FlycooTensor
        Or NotImplemented if `scalar` is not a number.

    Raises
    ------
    ZeroDivisionError
        If `x` is divided by zero.
    """
    number = _as_real(scalar)
    if number is None:
        return NotImplemented
    if operation is operator.truediv and number == 0:
        raise ZeroDivisionError("FlycooTensor / 0 would make every stored value infinite")
    factor = x.dtype.type(number)
    scaled = x._map_values(
        lambda values: operation(values, factor), abs(operation(1.0, float(number)))
    )
    # Drop the explicit zeros that a factor of 0, or underflow, leaves.
    if np.any(scaled._layout.record_format.values(scaled._layout.records) == 0):
        return x._rebuild(*scaled._sorted_nonzeros())
    return scaled


def raise_to(x: FlycooTensor, exponent: object) -> FlycooTensor:
    """Raise each element to a positive power.

    Returns
    -------
    FlycooTensor
        Or NotImplemented if `exponent` is not a number.

    Raises
    ------
    DensifyError
        If the exponent is not positive: zeros would become ones or infinite.
    ValueError
        If a power is not finite.
    """
    number = _as_real(exponent)
    if number is None:
        return NotImplemented
    if not number > 0:
        instead = "only positive exponents keep zeros zero"
        raise densify_error(f"FlycooTensor ** {number}", x.shape, instead)
    coords, values = x._sorted_nonzeros()
    return x._rebuild(coords, values ** x.dtype.type(number))


def add(x: FlycooTensor, other: FlycooTensor, sign: int, operation: str) -> FlycooTensor:
    """Compute ``x + sign * other``; errors name the `operation`.

    Raises
    ------
    TypeError, ValueError
        If the devices or shapes differ.
    """
    if other.shape != x.shape:
        try:
            shape = np.broadcast_shapes(x.shape, other.shape)
        except ValueError:
            raise ValueError(f"{operation}: shapes {x.shape} and {other.shape} differ") from None
        raise densify_error(f"{operation}, broadcast,", shape, "give both one shape")
    if other.device != x.device:
        raise TypeError(f"{operation}: devices {x.device!r} and {other.device!r} differ")
    xp, (coords, values) = x._engine.xp, x._sorted_nonzeros()
    coords2, values2 = other._sorted_nonzeros()
    return x._rebuild(
        xp.concatenate([coords, coords2], axis=1), xp.concatenate([values, sign * values2])
    )


def _as_real(scalar: Any) -> Any:
    """Return `scalar`, or the item of a 0-dimensional CuPy array, if it is real; else None."""
    if is_cupy(scalar) and scalar.ndim == 0:
        scalar = scalar.item()
    return scalar if isinstance(scalar, Real) else None
