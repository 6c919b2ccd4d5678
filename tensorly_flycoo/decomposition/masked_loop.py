"""The initial guess and the loop shared by the decompositions of tensors with missing values.

Each iteration updates the factors of a CP model and then imputes the missing entries from it.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from tensorly.cp_tensor import CPTensor

from ..array_modules import Array
from .cp_model import make_cp_tensor, normalize
from .initial_guess import make_initial_guess
from .masks import ImputedTensor, MissingEntries
from .stopping import has_converged

#: Weights (R,), None for ones, and factors (I_n, R).
Model: TypeAlias = tuple[Array | None, list[Array]]


class Update(Protocol):
    """One iteration of a decomposition."""

    def __call__(
        self, iteration: int, weights: Array | None, factors: list[Array], errors: list[float]
    ) -> tuple[Array | None, list[Array], Array | None]:
        """Return the new weights and factors, and the MTTKRP of the last mode.

        The MTTKRP is None if the missing entries are already imputed from the new model.
        """


def start(
    missing: MissingEntries,
    rank: int,
    init: Any,
    svd: str,
    random_state: Any,
    svd_mask_repeats: int,
    *,
    non_negative: bool = False,
    normalize_factors: bool = False,
) -> Model:
    """Make the initial guess for a tensor with missing entries."""
    unfold = functools.partial(missing.unfold_imputed, rank=rank, num_repeats=svd_mask_repeats)
    return make_initial_guess(
        missing.tensor, rank, init, svd, random_state, unfold=unfold,
        non_negative=non_negative, normalize_factors=normalize_factors,
    )  # fmt: skip


def list_free_modes(ndim: int, fixed_modes: Sequence[int] | None) -> list[int]:
    """List the modes whose factors are updated: those not fixed, and always the last."""
    fixed = list(fixed_modes or [])
    if ndim - 1 in fixed:
        warnings.warn(
            f"fixed_modes has mode {ndim - 1}, the last one, which cannot be fixed and is updated: "
            "transpose the tensor to fix it",
            stacklevel=4,
        )
    return [mode for mode in range(ndim) if mode not in fixed or mode == ndim - 1]


def iterate(
    x: ImputedTensor,
    model: Model,
    update: Update,
    *,
    n_iter_max: int,
    tol: float,
    cvg_criterion: str,
    normalize_factors: bool,
    wants_errors: bool,
    verbose: int,
    callback: Callable[[CPTensor, Any], Any] | None = None,
) -> tuple[CPTensor, list[float]]:
    """Update a model until it has converged; return it and its errors."""
    weights, factors = model
    errors: list[float] = []
    for iteration in range(n_iter_max):
        if verbose > 1:
            print(f"iteration {iteration} begins")
        weights, factors, last_mttkrp = update(iteration, weights, factors, errors)
        if last_mttkrp is not None and wants_errors:
            error, x.values = x.measure(weights, factors, last_mttkrp)
            errors.append(error)
            if verbose:
                print(f"iteration {iteration}, reconstruction error: {error}")
        elif last_mttkrp is not None:
            x.impute(weights, factors)
        if callback is not None and callback(make_cp_tensor(weights, factors), errors[-1]) is True:
            break
        if has_converged(errors, tol, cvg_criterion):
            break
        if normalize_factors:
            weights, factors = normalize(weights, factors)
    return make_cp_tensor(weights, factors), errors
