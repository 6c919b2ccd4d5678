"""The `FitRecord` of a model, from the options of the decomposition that makes it."""

from collections.abc import Mapping
from typing import Any

from ..base.checks import spread_numbers
from ..base.fit_record import FitRecord
from ..loop.constraints import name_constraints
from ..loop.losses import find_loss
from ..loop.masks import copy_mask
from ..loop.shared_factors import SHARING, read_groups
from ..loop.smoothness import read_smoothness
from .non_negative_parafac_hals import find_constrained
from .row_penalties import name_row_penalties

#: Decompositions whose factors are all non-negative, whatever their options.
_NON_NEGATIVE = ("non_negative_parafac", "non_negative_tucker", "non_negative_tucker_hals")


def describe_fit(function: str, options: Mapping[str, Any], x: Any) -> FitRecord:
    """Return the record of a decomposition's model, from all options of the call, which are valid.

    What the run itself finds, such as a ridge that is chosen and the scale of the values, the
    decomposition adds; labels bring the column of the values.
    """
    ndim = x.ndim
    if function == "parafac2":
        ndim = 3  # x may be one of its slices
    loss = options.get("loss", "gaussian")
    mask = options.get("mask")
    if mask is not None:
        mask = copy_mask(mask)
    absent, unobserved = _read_absent(function, options, loss)
    return FitRecord(
        method=function,
        loss=loss if isinstance(loss, str) else "custom",
        absent=absent,
        unobserved=unobserved,
        is_weighted=options.get("confidence") is not None,
        mask=mask,
        l2_reg=_read_ridge(function, options),
        non_negative=_list_non_negative(function, options, loss, ndim),
        constraints=_list_constraints(function, options, x.shape, ndim),
        is_centred=bool(options.get("center")),
        dtype=str(x.dtype),
    )


def _read_absent(function: str, options: Mapping[str, Any], loss: Any) -> tuple[str, float]:
    """Return how a decomposition treats cells without a row (see `ABSENT`), and their weight."""
    unobserved = float(options.get("unobserved") or 0)
    if unobserved:
        return "weighted", unobserved
    if function == "observed_parafac" or loss == "zero_truncated_poisson":
        return "unknown", 0.0
    return "zero", 0.0


def _read_ridge(function: str, options: Mapping[str, Any]) -> float:
    """Return the ridge; 0 where the decomposition chooses it, and where it is a constraint."""
    l2_reg = options.get("l2_reg", 0)
    if isinstance(l2_reg, str) or function == "constrained_parafac":
        return 0.0
    return float(l2_reg)


def _list_non_negative(
    function: str, options: Mapping[str, Any], loss: Any, ndim: int
) -> tuple[int, ...]:
    """List the modes whose factors a decomposition keeps non-negative."""
    all_modes = tuple(range(ndim))
    if function in _NON_NEGATIVE or options.get("non_negative") is True:
        return all_modes
    if function == "generalized_parafac" and find_loss(loss).lower_bound >= 0:
        return all_modes
    if function == "constrained_parafac":
        names = name_constraints(options, ndim)
        return tuple(mode for mode in all_modes if names[mode] == ("non_negative", True))
    if "nn_modes" in options:
        return tuple(sorted(find_constrained(options["nn_modes"], all_modes)))
    return ()


def _list_constraints(
    function: str, options: Mapping[str, Any], shape: tuple[int, ...], ndim: int
) -> dict[int, dict[str, float]]:
    """Return the constraints and penalties of each mode that has some, but non-negativity."""
    constraints: dict[int, dict[str, float]] = {mode: {} for mode in range(ndim)}
    if function in SHARING:
        for group in read_groups(options["modes"], shape):
            for mode in group:
                if len(group) > 1:
                    constraints[mode]["shared_factor"] = 1.0
    if function == "constrained_parafac":
        for mode, (name, strength) in enumerate(name_constraints(options, ndim)):
            if strength and name != "non_negative":
                is_number = not callable(strength)
                constraints[mode][name] = float(strength) if is_number else 1.0
    else:
        for mode, strength in enumerate(read_smoothness(options.get("smoothness"), ndim)):
            if strength:
                constraints[mode]["smoothness"] = float(strength)
    if function in ("tucker", "parafac2"):
        for mode, strengths in enumerate(name_row_penalties(function, options, ndim)):
            constraints[mode] |= strengths
    coefficients = options.get("sparsity_coefficients")
    for mode, penalty in enumerate(spread_numbers(coefficients, ndim, "sparsity_coefficients")):
        if penalty:
            constraints[mode]["sparsity"] = float(penalty)
    return {mode: of_mode for mode, of_mode in constraints.items() if of_mode}
