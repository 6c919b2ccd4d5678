"""Values far from 1, whose squares and products over- or underflow: decomposed near 1 instead.

A solver gets ``2**-k x`` in place of x, with a guess, held-out entries and coefficients to match;
what it returns, or passes to its callback, is multiplied by powers of two in turn. All that is
exact. Values in a solver's range are left alone.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..base.array_modules import Array, array_module, has_true
from ..base.fit_record import attach, find_record
from ..base.value_dtypes import VALUE_DTYPES
from ..io.checkpoint import Resumed, digests, find_digest
from ..ops.ragged import RaggedTensor
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import is_sparse
from ..tensor.tensor import FlycooTensor
from .constraints import CONES, name_constraints
from .masks import MissingEntries

#: Narrower than `safe_exponents`: for non-negative models, whose updates and start have TensorLy's
#: absolute constants; and for conjugate gradients in float32, whose steps have higher powers.
_NON_NEGATIVE = (-4, 16)
_OBSERVED = (-8, 8)


class Scaling(NamedTuple):
    """The change of a model's parts if the values are multiplied by a power of two.

    `shares` has an exponent for each factor, or for each of its columns. `rest` is that of the core
    or of weights that are not ones, else of the factor of mode `carrier`.
    """

    shares: Any
    rest: int
    carrier: int = 0
    has_core: bool = False

    def scale(self, model: Any, sign: int) -> Any:
        """Return the model for the values themselves (1), or for those near 1 (-1)."""
        first = model[0]  # the core, or weights
        factors = [
            _shift(factor, share, sign) for factor, share in zip(model[1], self.shares, strict=True)
        ]
        if self.has_core or (first is not None and has_true(first != 1)):
            first = _shift(first, self.rest, sign)
        else:
            factors[self.carrier] = _shift(factors[self.carrier], self.rest, sign)
        if isinstance(model, tuple | list):
            return first, factors
        scaled = copy.copy(model)  # with its record
        if self.has_core:
            scaled.core = first
        else:
            scaled.weights = first
        scaled.factors = factors
        record = find_record(model)
        if record is not None and record.scale is not None:
            scale = record.scale * 2.0 ** (sign * int(self.shares[-1, -1]))
            attach(scaled, record.replace(scale=scale))
        return scaled

    def scale_result(self, result: Any) -> Any:
        """Return a decomposition's result, a model or a tuple that begins with it, for `scale`."""
        if isinstance(result, tuple):
            model, *errors = result
            return (self.scale(model, 1), *errors)
        return self.scale(result, 1)


def _shift(array: Array, exponents: Any, sign: int) -> Array:
    """Multiply by powers of two: one, or one for each of the columns."""
    if array is None or not np.any(exponents):
        return array
    if np.ndim(exponents) == 0:
        power = 2.0 ** (sign * exponents)
        return array * array.dtype.type(power)
    powers = 2.0 ** (sign * exponents[: array.shape[1]])
    return array * array_module(array).asarray(powers, array.dtype)


def find_exponent(
    norm: float, nnz: int, dtype: np.dtype, ndim: int = 1, interval: tuple[int, int] | None = None
) -> int:
    """Return the exponent of the root mean square of nonzeros, a multiple of the number of modes.

    0 if it is in the interval, by default that of the dtype.
    """
    root_mean_square = norm / max(nnz, 1) ** 0.5
    _, exponent = math.frexp(root_mean_square)
    least, most = interval or VALUE_DTYPES[dtype.name].safe_exponents
    if least <= exponent <= most:
        return 0
    limit = np.finfo(dtype).maxexp - 2 - ndim  # of powers that the dtype holds
    held_exponent = max(-limit, min(limit, exponent))
    return held_exponent // ndim * ndim


def shift_values(x: Any, exponent: int) -> Any:
    """Return a tensor, or the slices of a `RaggedTensor`, times a power of two."""
    if not isinstance(x, RaggedTensor):
        return x * 2.0**exponent
    shifted = copy.copy(x)
    shifted.matrix = x.matrix * 2.0**exponent
    return shifted


def bring_near_one(function: str, options: dict[str, Any], first: str) -> Scaling | None:
    """Replace a tensor, the option `first`, whose values are out of a decomposition's range.

    What else among the options depends on the values changes with them. Return how to scale the
    model back; None if nothing has changed.
    """
    x: Any = options.get(first)
    if function not in _RULES or not isinstance(x, FlycooTensor | RaggedTensor):
        return None
    find_scaling, interval = _RULES[function]
    matrix_or_tensor = x.matrix if isinstance(x, RaggedTensor) else x
    layout = matrix_or_tensor._layout
    dtype = layout.record_format.dtype
    exponent = find_exponent(layout.norm, layout.nnz, dtype, x.ndim, interval)
    scaling = None if exponent == 0 else find_scaling(options, x.ndim, exponent)
    if scaling is None:
        return None
    shifted = shift_values(x, -exponent)
    options[first] = shifted
    held_out = options.get("validation")
    if is_sparse(held_out):
        options["validation"] = shift_values(as_flycoo(held_out, check_coords=True), -exponent)
    return _shift_companions(options, x, shifted, scaling)


def _shift_companions(options: dict[str, Any], x: Any, shifted: Any, scaling: Scaling) -> Scaling:
    """Change the guess, the callback and the mask of a tensor for the shifted one.

    Return the scaling. If factors of a guess are far from 1 themselves, each has its own exponent
    there, and `rest` is less by their sum.
    """
    init: Any = options.get("init")
    callback = options.get("callback")
    mask = options.get("mask")
    # Any other guess is a name, such as "svd", or is refused later.
    is_model = isinstance(init, tuple | list | Mapping) and len(init) > 1
    are_factors = scaling.has_core and isinstance(init, list)  # of a Tucker model, without its core
    if is_model and not are_factors and len(init[1]) == x.ndim:
        if scaling.rest and not scaling.has_core and not isinstance(init, Resumed):
            sizes = [float(np.max(np.abs(factor))) for factor in init[1]]
            exponents = [
                find_exponent(size, nnz=1, dtype=x.dtype, interval=_OBSERVED) for size in sizes
            ]
            scaling = scaling._replace(shares=exponents, rest=scaling.rest - sum(exponents))
        options["init"] = scaling.scale(init, -1)
    if callback is not None:
        options["callback"] = lambda model, *error: callback(scaling.scale(model, 1), *error)
    has_checkpoint = callback is not None or isinstance(init, Resumed)
    if has_checkpoint and isinstance(x, FlycooTensor):
        digests[shifted] = find_digest(x)  # by which a checkpoint knows its tensor: the caller's
    if isinstance(mask, MissingEntries):
        options["mask"] = mask.of(shifted)
    return scaling


def _shift_coefficients(options: dict[str, Any], name: str, exponent: int) -> None:
    """Multiply a coefficient, or one for each mode, by a power of two, as far as float32 goes."""
    limit = float(np.finfo(np.float32).max) ** 0.5

    def shift(coefficient: Any) -> Any:
        if not coefficient:
            return coefficient
        with np.errstate(over="ignore"):
            return min(float(np.ldexp(coefficient, exponent)), limit)

    coefficients = options.get(name)
    if isinstance(coefficients, float | int | np.number):
        options[name] = shift(coefficients)
    elif coefficients is not None:
        options[name] = [shift(coefficient) for coefficient in coefficients]


def _scale_cp(options: dict[str, Any], ndim: int, exponent: int) -> Scaling:
    """Scale the weights or the factor that is updated first, as least squares do.

    With coefficients of penalties, which are of the squared residual, all factors alike.
    """
    fixed = [*(options.get("fixed_modes") or ())]
    carrier = next((mode for mode in range(ndim) if mode not in fixed), ndim - 1)
    has_penalty = options.get("l2_reg") or options.get("sparsity_coefficients") is not None
    share = 0
    if has_penalty and not options.get("normalize_factors"):
        share = exponent // ndim
    if share:
        _shift_coefficients(options, "l2_reg", 2 * (share - exponent))
    _shift_coefficients(options, "sparsity_coefficients", share - 2 * exponent)
    return Scaling([share] * ndim, exponent - ndim * share, carrier)


def _scale_constrained(options: dict[str, Any], ndim: int, exponent: int) -> Scaling | None:
    """Scale the first factor whose constraint holds for multiples too; None without one."""
    fixed = [*(options.get("fixed_modes") or ())]
    for mode, (constraint, _) in enumerate(name_constraints(options, ndim)):
        if mode not in fixed and (constraint is None or constraint in CONES):
            return Scaling([0] * ndim, exponent, mode)
    if 2 * abs(exponent) > np.finfo(options["tensor"].dtype).maxexp - 32:  # of sums of squares
        raise ValueError(
            f"tensor has values of about 2**{exponent}, and each mode a constraint or penalty with "
            f"a number, which says how large its factor is: pass tensor * 2.0**{-exponent}"
        )
    return None


def _scale_observed(options: dict[str, Any], ndim: int, exponent: int) -> Scaling:
    """Scale all factors alike, but for biases: each in one factor, beside ones in the others."""
    rank = options["rank"]
    # Columns: the components, a bias of each mode, and the mean, which is in the last factor.
    shares = np.full((ndim, rank + ndim + 1), exponent // ndim)
    shares[:, rank:] = 0
    shares[range(ndim), range(rank, rank + ndim)] = exponent
    shares[-1, -1] = exponent
    return Scaling(shares, 0)


def _scale_core(options: dict[str, Any], ndim: int, exponent: int) -> Scaling:
    """Scale the core alone."""
    _shift_coefficients(options, "sparsity_coefficients", -2 * exponent)
    _shift_coefficients(options, "core_sparsity_coefficient", -exponent)
    return Scaling([0] * ndim, exponent, has_core=True)


#: For each decomposition how its models are scaled, and from which exponents on.
_RULES: dict[str, tuple[Callable[..., Scaling | None], tuple[int, int] | None]] = {
    "constrained_parafac": (_scale_constrained, None),
    "non_negative_parafac": (_scale_cp, _NON_NEGATIVE),
    "non_negative_parafac_hals": (_scale_cp, _NON_NEGATIVE),
    "non_negative_tucker": (_scale_core, _NON_NEGATIVE),
    "non_negative_tucker_hals": (_scale_core, _NON_NEGATIVE),
    "observed_parafac": (_scale_observed, _OBSERVED),
    "parafac": (_scale_cp, None),
    "parafac2": (_scale_cp, None),
    "tucker": (_scale_core, None),
}
