"""The loop that the decompositions of this package share.

An iteration updates a model, measures its error, and calls the callback.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..base.array_modules import Array
from ..io.checkpoint import Origin, Resumed, mark_origin
from ..tensor.tensor import FlycooTensor
from .cp_model import make_cp_tensor, normalize
from .initial_guess import make_initial_guess, spread_factors
from .masks import ImputedTensor, MissingEntries
from .resuming import Callback, restore
from .whole_tensor import WholeTensor

#: Weights (R,), None for ones, and factors (I_n, R); or a core and factors.
Model: TypeAlias = tuple[Array | None, list[Array]]

#: One iteration: takes its number, the weights (or core), the factors and the errors so far;
#: returns the new weights and factors, in any list, and what `Measure` takes.
Update: TypeAlias = Callable[
    [int, Any, list[Array], list[Any]], tuple[Array | None, list[Array], Any]
]

#: Takes the three results of `Update`; returns the error of the new model, or None if nobody needs
#: it.
Measure: TypeAlias = Callable[[Any, list[Array], Any], Any]


def start(
    x: FlycooTensor,
    missing: MissingEntries | None,
    rank: int,
    init: Any,
    svd: str,
    random_state: Any,
    *,
    solver: str,
    svd_mask_repeats: int = 0,
    non_negative: bool = False,
    normalize_factors: bool = False,
    by_blocks: bool = False,
) -> Model:
    """Make the initial guess of a CP model, or restore the checkpoint in `init`.

    With `by_blocks` the factors are row-sharded if `x` is on several devices.
    """
    if isinstance(init, Resumed):
        weights, factors = restore(init, x, rank, solver, x.dtype)
    else:
        unfold = None
        if missing is not None:
            options = {"rank": rank, "num_repeats": svd_mask_repeats}
            unfold = functools.partial(missing.unfold_imputed, **options)
        weights, factors = make_initial_guess(
            x, rank, init, svd, random_state, unfold=unfold,
            non_negative=non_negative, normalize_factors=normalize_factors,
        )  # fmt: skip
    return weights, spread_factors(x, factors) if by_blocks else factors


def measure_by(x: WholeTensor | ImputedTensor, wants_errors: bool) -> Measure:
    """Return a `Measure` that takes the MTTKRP of the last mode, and imputes missing entries.

    The MTTKRP is None if they are already imputed from the new model.
    """

    def measure(weights: Array | None, factors: list[Array], last_mttkrp: Array | None) -> Any:
        if last_mttkrp is None:
            return None
        if not wants_errors:
            return x.impute(weights, factors)
        error, x.values = x.measure(weights, factors, last_mttkrp)
        return error

    return measure


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
    model: Model,
    update: Update,
    measure: Measure,
    *,
    solver: str,
    tensor: FlycooTensor,
    n_iter_max: int,
    is_over: Callable[[list[Any]], bool],
    init: Any = None,
    callback: Callback | None = None,
    start_error: Callable[[], Any] | None = None,
    save_state: Callable[[], Mapping[str, Array]] = dict,
    normalize_factors: bool = False,
    verbose: int = 0,
    make: Callable[[Any, list[Array]], Any] = make_cp_tensor,
    normalize: Callable[[Any, list[Array]], Any] = normalize,
) -> tuple[Any, list[Any]]:
    """Update a model until it has converged; return it and its errors.

    Parameters
    ----------
    model : tuple
        The initial guess, or the state in the checkpoint `init`. Its list is emptied, so that each
        factor is freed as soon as there is a new one.
    solver, tensor
        The origin of the models that the callback gets.
    is_over : callable
        Takes the errors after each iteration, including those of the checkpoint.
    init : Resumed, optional
        The checkpoint to resume. The errors in it count for `is_over`, but are not returned.
    callback : callable, optional
        Called with the model and its error before the first and after each iteration. Each call
        gets a new list of arrays that never change.
    start_error : callable, optional
        Computes the error of a model that is not resumed; without it, the first call gets none.
    save_state : callable, optional
        Returns the arrays, besides the model, that a resumed run needs.
    make : callable, optional
        Makes the model for the callback and the result.
    normalize : callable, optional
        Takes and returns weights and factors, if `normalize_factors`.
    """
    weights, factors = model
    past: list[Any] = init.errors[1:] if isinstance(init, Resumed) else []
    errors = list(past)

    def call(*error: Any) -> bool:
        if callback is None:
            return False
        origin = Origin(solver, tensor, save_state())
        return callback(mark_origin(make(weights, factors), origin), *error) is True

    if callback is not None and (past or start_error is None):
        call(*past[-1:])
    elif callback is not None and start_error is not None:
        call(start_error())
    factors = list(factors)
    model[1].clear()
    if past and is_over(errors):
        return make(weights, factors), []
    if past and normalize_factors:
        weights, factors = normalize(weights, factors)
    for iteration in range(n_iter_max):
        if verbose > 1:
            print(f"iteration {iteration} begins")
        weights, factors, result = update(iteration, weights, factors, errors)
        error = measure(weights, factors, result)
        del result  # an MTTKRP, which the next iteration need not hold
        if error is not None:
            errors.append(error)
            if verbose:
                print(f"iteration {iteration}, reconstruction error: {error}")
        if call(*errors[-1:]) or is_over(errors):
            break
        if normalize_factors:
            weights, factors = normalize(weights, factors)
    return make(weights, factors), errors[len(past) :]
