"""The loop that decompositions share: start or resume, iterate, stop."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..base.array_modules import Array
from ..base.checks import warn
from ..base.reporting import span
from ..io.checkpoint import Origin, Resumed, ResumedTucker, find_digest, mark_origin
from ..tensor.tensor import FlycooTensor
from .cp_model import make_cp_tensor, normalize
from .initial_guess import make_initial_guess, spread_factors
from .masks import ImputedTensor, MissingEntries
from .whole_tensor import WholeTensor

#: Called with a model and its error; returns True to stop.
Callback: TypeAlias = Callable[..., bool | None]

#: Weights (R,), None for ones, and factors (I_n, R); or a core and factors.
Model: TypeAlias = tuple[Array | None, list[Array]]

#: One iteration: takes its number, the weights (or core), the factors and the errors so far;
#: returns the new weights and factors, in any list, and what `Measure` takes.
Update: TypeAlias = Callable[
    [int, Any, list[Array], list[Any]], tuple[Array | None, list[Array], Any]
]

#: Takes the three results of `Update`; returns the error of the new model, None if not needed.
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
    svd_mask_repeats: int = 5,  # TensorLy's
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
        with span("start"):
            weights, factors = make_initial_guess(
                x, rank, init, svd, random_state, unfold=unfold,
                non_negative=non_negative, normalize_factors=normalize_factors,
            )  # fmt: skip
    return weights, spread_factors(x, factors) if by_blocks else factors


def restore(
    init: Any, x: FlycooTensor, rank: int | tuple[int, ...], solver: str,
    dtype: np.dtype | None = None,
) -> tuple[Array, list[Array]]:  # fmt: skip
    """Return the weights, or core, and factors of a checkpoint on the device of `x`.

    Refuse one of another solver, tensor, rank or, if given, dtype; one that does not name its
    tensor or solver is checked only for shape, rank and dtype.
    """
    is_tucker = isinstance(init, ResumedTucker)
    if init.saved.solver not in ("", solver) or is_tucker != ("tucker" in solver):
        written_by = init.saved.solver or ("tucker" if is_tucker else "a CP decomposition")
        raise ValueError(
            f"the checkpoint was written by {written_by}, expected {solver}: resume it there, or "
            "pass a tuple of its weights and factors as an initial guess"
        )
    found = (init.shape, init.rank, init.factors[0].dtype)
    expected = (x.shape, rank, found[2] if dtype is None else dtype)
    if found != expected:
        raise ValueError(
            f"the checkpoint has shape {found[0]}, rank {found[1]} and dtype {found[2]}, expected "
            f"{expected[0]}, rank {expected[1]} and {expected[2]}"
        )
    if init.saved.digest not in ("", find_digest(x)):
        raise ValueError(
            f"the checkpoint is of another tensor of shape {x.shape}: its nonzeros differ from "
            f"those of x, {x!r}; resume with the original tensor, or pass another checkpoint="
        )
    xp, (first, factors) = x._engine.xp, init
    return xp.asarray(first), [xp.asarray(factor) for factor in factors]


def pack_random(random: np.random.RandomState, name: str = "random") -> dict[str, np.ndarray]:
    """Return the state of a Mersenne Twister for a checkpoint; {} for another generator."""
    state: Any = random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return {}
    key, position = state["state"]["key"], state["state"]["pos"]
    return {f"{name}_key": key, f"{name}_position": np.asarray(position)}


def unpack_random(state: Mapping[str, Array], name: str = "random") -> np.random.RandomState:
    """Return the generator of which `pack_random` returned the state."""
    if f"{name}_key" not in state:
        raise ValueError(
            "the checkpoint has no random state: it is of another decomposition, or of a "
            "random_state other than NumPy's Mersenne Twister"
        )
    random, position = np.random.RandomState(), int(state[f"{name}_position"])
    random.set_state(("MT19937", state[f"{name}_key"], position, 0, 0.0))
    return random


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
        warn(
            f"fixed_modes has mode {ndim - 1}, the last one, which cannot be fixed and is updated: "
            "transpose the tensor to fix it"
        )
    return [mode for mode in range(ndim) if mode not in fixed or mode == ndim - 1]


def iterate(
    model: Model, update: Update, measure: Measure, *, solver: str, tensor: FlycooTensor,
    n_iter_max: int, is_over: Callable[[list[Any]], bool], init: Any = None,
    callback: Callback | None = None, start_error: Callable[[], Any] | None = None,
    save_state: Callable[[], Mapping[str, Array]] = dict, normalize_factors: bool = False,
    verbose: int = 0, make: Callable[[Any, list[Array]], Any] = make_cp_tensor,
    normalize: Callable[[Any, list[Array]], Any] = normalize,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Update a model until it has converged; return it and its errors.

    `model` is the initial guess, or the state in the checkpoint `init`, whose errors count for
    `is_over` but are not returned. Its list is emptied, so that each factor is freed as soon as
    there is a new one. `callback` gets a model that `make` makes, with `solver` and `tensor` as its
    origin and the arrays of `save_state`, and its error: before the first iteration that of
    `start_error` or the checkpoint, if there is one. Each call gets a new list of arrays that never
    change. `normalize` takes and returns weights and factors, if `normalize_factors`.
    """
    weights, factors = model
    past: list[Any] = init.errors[1:] if isinstance(init, Resumed) else []
    errors = list(past)

    def call(*error: Any) -> bool:
        if callback is None:
            return False
        origin = Origin(solver, tensor, save_state())
        return callback(mark_origin(make(weights, factors), origin), *error) is True

    if callback is not None:
        call(*(past[-1:] if past or start_error is None else [start_error()]))
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


def has_converged(errors: Sequence[float], tol: float, criterion: str) -> bool:
    """Return whether the last error changed by less than `tol`; False if there is only one.

    With "abs_rec_error" the absolute change counts, with "rec_error" the decrease: then an increase
    stops the loop too. A `tol` of 0 never stops.
    """
    if not tol or len(errors) < 2:
        return False
    decrease = float(errors[-2]) - float(errors[-1])
    if criterion == "abs_rec_error":
        return bool(abs(decrease) < tol)
    if criterion == "rec_error":
        return bool(decrease < tol)
    raise TypeError(f"cvg_criterion is {criterion!r}, expected 'abs_rec_error' or 'rec_error'")


def has_settled(losses: Sequence[float], tol: float) -> bool:
    """Return whether the last loss decreased by less than `tol`, relative to itself."""
    if not tol or len(losses) < 2:
        return False
    return bool(losses[-2] - losses[-1] < tol * abs(losses[-1]))
