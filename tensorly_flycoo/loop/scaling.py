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
from ..base.checks import read_strengths
from ..base.fit_record import attach, find_record
from ..base.value_dtypes import VALUE_DTYPES
from ..io.checkpoint import Resumed, digests, find_digest
from ..ops.ragged import RaggedTensor
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import is_sparse
from ..tensor.tensor import FlycooTensor
from .constraints import CONES, name_constraints
from .masks import MissingEntries
from .shared_factors import read_groups

#: Narrower than `safe_exponents`: for non-negative models, whose updates and start have TensorLy's
#: absolute constants; and for conjugate gradients in float32, whose steps have higher powers.
_NON_NEGATIVE = (-4, 16)
_OBSERVED = (-8, 8)

#: Options that penalise rows of Tucker and PARAFAC2 factors.
_ROW_PENALTIES = ("l1_reg", "group_lasso")


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
        core_or_weights = model[0]
        factors_and_shares = zip(model[1], self.shares, strict=True)
        factors = [_shift(factor, share, sign) for factor, share in factors_and_shares]
        takes_rest = self.has_core
        if not self.has_core and core_or_weights is not None:
            takes_rest = has_true(core_or_weights != 1)
        if takes_rest:
            core_or_weights = _shift(core_or_weights, self.rest, sign)
        else:
            factors[self.carrier] = _shift(factors[self.carrier], self.rest, sign)
        if isinstance(model, tuple | list):
            return core_or_weights, factors

        scaled = copy.copy(model)  # with its record
        if self.has_core:
            scaled.core = core_or_weights
        else:
            scaled.weights = core_or_weights
        scaled.factors = factors
        record = find_record(model)
        if record is not None and record.scale is not None:
            # It grows with the values, as the mean does, which is in the last column.
            exponent = sign * int(self.shares[-1, -1])
            scale = record.scale * 2.0**exponent
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
    rank = array.shape[1]
    powers = 2.0 ** (sign * exponents[:rank])
    xp = array_module(array)
    return array * xp.asarray(powers, array.dtype)


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
    exponent_of_factor = held_exponent // ndim
    return exponent_of_factor * ndim


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
    if isinstance(x, RaggedTensor):
        tensor = x.matrix  # the slices, one below the other
    else:
        tensor = x
    layout = tensor._layout
    dtype = layout.record_format.dtype
    exponent = find_exponent(layout.norm, layout.nnz, dtype, x.ndim, interval)
    if exponent == 0:
        return None
    scaling = find_scaling(options, x.ndim, exponent)
    if scaling is None:
        return None

    shifted = shift_values(x, -exponent)
    options[first] = shifted
    held_out = options.get("validation")
    if is_sparse(held_out):
        held_out_tensor = as_flycoo(held_out, check_coords=True)
        options["validation"] = shift_values(held_out_tensor, -exponent)
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
    is_resumed = isinstance(init, Resumed)
    if is_model and not are_factors and len(init[1]) == x.ndim:
        if scaling.rest and not scaling.has_core and not is_resumed:
            scaling = _share_among_factors(scaling, init[1], x.dtype)
        options["init"] = scaling.scale(init, -1)

    if callback is not None:

        def call_with_scaled(model: Any, *error: Any) -> Any:
            """Call the user's callback with the model of the values themselves."""
            scaled = scaling.scale(model, 1)
            return callback(scaled, *error)

        options["callback"] = call_with_scaled

    has_checkpoint = callback is not None or is_resumed
    if has_checkpoint and isinstance(x, FlycooTensor):
        digests[shifted] = find_digest(x)  # by which a checkpoint knows its tensor: the caller's
    if isinstance(mask, MissingEntries):
        options["mask"] = mask.of(shifted)
    return scaling


def _share_among_factors(scaling: Scaling, factors: Any, dtype: np.dtype) -> Scaling:
    """Give each factor of a guess the exponent of its largest entry, if that is far from 1."""
    exponents = []
    for factor in factors:
        largest = float(np.max(np.abs(factor)))
        exponents.append(find_exponent(largest, 1, dtype, interval=_OBSERVED))
    rest = scaling.rest - sum(exponents)
    return scaling._replace(shares=exponents, rest=rest)


def _shift_coefficients(options: dict[str, Any], name: str, exponent: int) -> None:
    """Multiply a coefficient, or one for each mode, by a power of two, as far as float32 goes."""
    limit = float(np.finfo(np.float32).max) ** 0.5  # its square is finite in float32

    def shift(coefficient: Any) -> Any:
        if not coefficient:
            return coefficient
        with np.errstate(over="ignore"):
            shifted = float(np.ldexp(coefficient, exponent))
        return min(shifted, limit)

    coefficients = options.get(name)
    if isinstance(coefficients, float | int | np.number):
        options[name] = shift(coefficients)
    elif isinstance(coefficients, Mapping):
        options[name] = {mode: shift(number) for mode, number in coefficients.items()}
    elif coefficients is not None:
        options[name] = [shift(coefficient) for coefficient in coefficients]


def _scale_cp(options: dict[str, Any], ndim: int, exponent: int) -> Scaling:
    """Scale the weights or the factor that is updated first, as least squares do.

    With coefficients of penalties, which are of the squared residual, all factors alike.
    """
    fixed_modes = [*(options.get("fixed_modes") or ())]
    updated_modes = [mode for mode in range(ndim) if mode not in fixed_modes]
    carrier = ndim - 1
    if updated_modes:
        carrier = updated_modes[0]
    has_penalty = options.get("l2_reg") or options.get("sparsity_coefficients") is not None
    share = 0
    if has_penalty and not options.get("normalize_factors"):
        share = exponent // ndim
    # A penalty must shrink as the squared residual does, by twice the exponent, but its factors
    # shrink themselves: their squares by twice the share, their absolute values by the share.
    if share:
        _shift_coefficients(options, "l2_reg", 2 * (share - exponent))
    _shift_coefficients(options, "sparsity_coefficients", share - 2 * exponent)
    rest = exponent - ndim * share
    return Scaling([share] * ndim, rest, carrier)


def _scale_constrained(options: dict[str, Any], ndim: int, exponent: int) -> Scaling | None:
    """Scale the first factor whose constraint holds for multiples too; None without one."""
    fixed_modes = [*(options.get("fixed_modes") or ())]
    for mode, (constraint, _) in enumerate(name_constraints(options, ndim)):
        holds_for_multiples = constraint is None or constraint in CONES
        if holds_for_multiples and mode not in fixed_modes:
            return Scaling([0] * ndim, exponent, mode)
    dtype = options["tensor"].dtype
    limit = np.finfo(dtype).maxexp - 32  # of sums of squares
    if 2 * abs(exponent) > limit:
        raise ValueError(
            f"tensor has values of about 2**{exponent}, and each mode a constraint or penalty with "
            f"a number, which says how large its factor is: pass tensor * 2.0**{-exponent}"
        )
    return None


def _scale_observed(options: dict[str, Any], ndim: int, exponent: int) -> Scaling:
    """Scale all factors alike, but for biases: each in one factor, beside ones in the others."""
    rank = options["rank"]
    # Columns: the components, a bias of each mode, and the mean, which is in the last factor.
    num_columns = rank + ndim + 1
    shares = np.zeros((ndim, num_columns), int)
    shares[:, :rank] = exponent // ndim
    for mode in range(ndim):
        bias = rank + mode
        shares[mode, bias] = exponent
    shares[-1, -1] = exponent
    return Scaling(shares, 0)


def _scale_shared(options: dict[str, Any], ndim: int, exponent: int) -> Scaling:
    """Scale all factors alike, so that those of modes that share stay the same."""
    share = exponent // ndim
    _shift_coefficients(options, "l2_reg", 2 * (share - exponent))
    return Scaling([share] * ndim, 0)


def _scale_rescal(options: dict[str, Any], ndim: int, exponent: int) -> Scaling:
    """Scale the core and the factor that two modes share alike, not the identity of the third."""
    share = exponent // ndim
    _shift_coefficients(options, "l2_reg", 2 * (share - exponent))
    pair, *_ = read_groups(options.get("modes", (0, 2)), options["tensor"].shape)
    shares = [share if mode in pair else 0 for mode in range(ndim)]
    return Scaling(shares, share, has_core=True)


def _scale_parafac2(options: dict[str, Any], ndim: int, exponent: int) -> Scaling:
    """Scale as `_scale_cp` does; with penalties of rows, so that ridges keep their weight.

    The squares of the other factors then grow as the squared residual does, and the penalised ones
    take what is left.
    """
    penalties = [read_strengths(options.get(name), ndim, name) for name in _ROW_PENALTIES]
    is_penalized = np.any(penalties, axis=0)
    num_penalized = int(is_penalized.sum())
    if num_penalized == 0:
        return _scale_cp(options, ndim, exponent)
    num_ridges = ndim - num_penalized
    share = (1 - num_ridges) * exponent // num_penalized
    for name in _ROW_PENALTIES:
        _shift_coefficients(options, name, share - 2 * exponent)
    shares = np.where(is_penalized, share, exponent)
    return Scaling(shares.tolist(), 0)


def _scale_core(options: dict[str, Any], ndim: int, exponent: int) -> Scaling:
    """Scale the core alone."""
    for name in ("sparsity_coefficients", *_ROW_PENALTIES):
        _shift_coefficients(options, name, -2 * exponent)
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
    "parafac2": (_scale_parafac2, None),
    "shared_parafac": (_scale_shared, None),
    "shared_tucker": (_scale_rescal, None),
    "tucker": (_scale_core, None),
}
