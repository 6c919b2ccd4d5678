"""Arithmetic that keeps zeros zero: scaling, functions of one element, addition, subtraction."""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..array_modules import Array, is_cupy
from ..checks import densify_error
from .pieces import has_zeros, measure_values, read_nonzeros, rebuild

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
    norm_scale = abs(operation(1.0, float(number)))

    def apply(x: FlycooTensor) -> FlycooTensor:
        scaled = map_values(x, lambda values: operation(values, factor), norm_scale)
        # Drop the explicit zeros that a factor of 0, or underflow, leaves.
        stores_zeros = has_zeros(scaled._layout, scaled._engine)
        return rebuild(scaled._layout, scaled, read_nonzeros) if stores_zeros else scaled

    return x._derive(apply)


def map_values(
    x: FlycooTensor, function: Callable[[Array], Array], scale: float = 1.0
) -> FlycooTensor:
    """Apply `function`, which multiplies the norm by `scale`; zeros that it gives are stored."""
    return x._derive(lambda x: x._replace_layout(x._layout.map_values(function, scale)))


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
    power = x.dtype.type(number)
    return map_nonzeros(x, lambda values: values**power)


def map_elements(
    x: FlycooTensor, function: Callable[[Array], Array], name: str | None = None
) -> FlycooTensor:
    """Apply an elementwise function that keeps zero to all elements.

    NumPy's own functions do this too: ``numpy.log1p(x)`` is ``x.map(numpy.log1p)``.

    Parameters
    ----------
    function : callable
        Takes the values of some nonzeros, an array (count,) in any order, NumPy's or CuPy's, and
        returns as many real numbers. ``function(0)`` must be 0, which is checked.
    name : str, optional
        The function's name in error messages.

    Returns
    -------
    FlycooTensor
        With this one's layout, device and dtype. Elements that have become zero are not stored.

    Raises
    ------
    DensifyError
        If ``function(0)`` is not 0.
    TypeError
        If the function returns anything but an array (count,) of real numbers.
    ValueError
        If a result is not finite.

    Notes
    -----
    Copies the records, and sorts nothing unless some elements become zero. The result is the same
    in every run if the function's is.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1], [2, 0]], [3.0, 8.0], shape=(3, 3))
    >>> x.map(lambda values: np.minimum(values, 5)).nonzeros()[1], np.sqrt(x * 3).max()
    (array([3., 5.]), np.float64(4.898979485566356))
    """
    if name is None:
        name = str(getattr(function, "__name__", function))

    def apply(values: Array) -> Array:
        with np.errstate(all="ignore"):  # what is not finite is an error below
            mapped = function(values)
            dtype = getattr(mapped, "dtype", None)
            if dtype is None or dtype.kind not in "biuf" or mapped.shape != values.shape:
                got = type(mapped).__name__ if dtype is None else f"{dtype} array of {mapped.shape}"
                raise TypeError(
                    f"{name} returned a {got}, expected an array of real numbers of "
                    f"{values.shape}: it must be elementwise"
                )
            return mapped.astype(values.dtype, copy=False)

    zero = apply(x._engine.xp.zeros(1, x.dtype))[0]
    if zero != 0:
        instead = (
            f"{name}(0) is {zero}, not 0; for the stored nonzeros alone take coords, values = "
            "x.nonzeros() and make FlycooTensor(coords, function(values), x.shape)"
        )
        raise densify_error(name, x.shape, instead)
    return map_nonzeros(x, apply)


def map_nonzeros(x: FlycooTensor, function: Callable[[Array], Array]) -> FlycooTensor:
    """Apply a function to the values (count,) of nonzeros, and drop the zeros that it gives.

    Raises
    ------
    ValueError
        If a result is not finite.
    """

    def apply(x: FlycooTensor) -> FlycooTensor:
        layout = x._layout.map_values(function, 0.0)
        layout.norm, stores_zeros = measure_values(layout, x._engine)
        mapped = x._replace_layout(layout)
        return rebuild(layout, mapped, read_nonzeros) if stores_zeros else mapped

    return x._derive(apply)


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
