"""Resume a decomposition from a checkpoint as if it had never stopped."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from tensorly.cp_tensor import CPTensor, cp_normalize

from ..base.array_modules import Array
from ..io.checkpoint import Origin, ResumedCP, ResumedTucker, mark_origin
from ..tensor.coo_cache import as_flycoo, is_sparse
from ..tensor.digest import find_digest
from ..tensor.tensor import FlycooTensor
from .initial_guess import spread_factors
from .ranks import find_cp_rank
from .stopping import has_converged

#: Called with a model and its error; returns True to stop.
Callback: TypeAlias = Callable[..., bool | None]


class State(ResumedCP):
    """A checkpoint that `initialize_cp` restores as it is, unlike an initial guess."""


def check_checkpoint(
    init: Any, x: FlycooTensor, rank: int | tuple[int, ...], solver: str, dtype: np.dtype | None
) -> None:
    """Refuse a checkpoint of another solver, tensor, rank or, if given, dtype.

    One that does not name its tensor or solver is checked only for shape, rank and dtype.
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


def restore(
    init: Any,
    x: FlycooTensor,
    rank: int | tuple[int, ...],
    solver: str,
    dtype: np.dtype | None = None,
) -> tuple[Array, list[Array]]:
    """Return the weights, or core, and factors of a checkpoint on the device of `x`.

    Checks it first: see `check_checkpoint`.
    """
    check_checkpoint(init, x, rank, solver, dtype)
    xp, (first, factors) = x._engine.xp, init
    return xp.asarray(first), [xp.asarray(factor) for factor in factors]


# TensorLy's own loop of parafac


#: Options of parafac with state that is not in a checkpoint.
_NOT_RESUMED = ("linesearch", "orthogonalise", "mask")


def prepare_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return parafac's options with the tensor converted, the rank checked and a callback wrapped.

    The callback gets models with an origin. With a callback, TensorLy computes errors only if it
    has a `tol`: 0 becomes one that never stops.
    """
    tensor, callback = options["tensor"], options.get("callback")
    rank = find_cp_rank(tensor, options["rank"])
    has_mask = options.get("mask") is not None  # then `find_missing` knows what to say
    x = tensor if has_mask and not is_sparse(tensor) else as_flycoo(tensor, check_coords=True)
    options = options | {"tensor": x, "rank": rank}
    if callback is None:
        return options
    origin = Origin("parafac", x)

    def call(cp_tensor: CPTensor, error: Any) -> bool | None:
        return callback(mark_origin(cp_tensor, origin), error)

    tol = {} if options.get("tol", True) else {"tol": -math.inf}
    return options | tol | {"callback": call}


def resume_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return parafac's options, changed to resume the checkpoint in `init` and stop as it would.

    A mask, linesearch and orthogonalise are refused: their state is not in a checkpoint.
    """
    init: Any = options["init"]
    x = options["tensor"]
    check_checkpoint(init, x, options["rank"], "parafac", x.dtype)
    for name in _NOT_RESUMED:
        if options[name] is not None and options[name] is not False:
            raise ValueError(f"{name}= cannot resume a checkpoint: start anew, or leave it out")
    tol, criterion = options["tol"], options["cvg_criterion"]
    changes: dict[str, Any] = {"init": State(init, init.saved)}
    if init.iteration > 1 and has_converged(init.errors, tol, criterion):
        # The run had converged, and stopped before normalising: nothing is left to do.
        changes |= {"n_iter_max": 0, "normalize_factors": False}
    elif init.iteration > 0 and tol:
        changes["callback"] = _compare_to_last(options["callback"], init.errors[-1], tol, criterion)
    return options | changes


def _compare_to_last(
    callback: Callback | None, last: float, tol: float, criterion: str
) -> Callback:
    """Make a callback that also compares the first new error with the last saved one.

    TensorLy's first call of a callback is before the first iteration.
    """
    num_calls = 0

    def compare_to_last(cp_tensor: CPTensor, error: Any) -> bool:
        nonlocal num_calls
        num_calls += 1
        is_over = callback is not None and callback(cp_tensor, error) is True
        return is_over or (num_calls == 2 and has_converged([last, error], tol, criterion))

    return compare_to_last


def take_up(init: State, tensor: Any, rank: int, normalize_factors: bool) -> CPTensor:
    """Return the state of parafac at the start of the iteration after a checkpoint.

    Unlike an initial guess's, its weights are not multiplied into a factor.
    """
    x = as_flycoo(tensor, check_coords=True)
    weights, factors = restore(init, x, rank, "parafac", x.dtype)
    state = CPTensor((weights, spread_factors(x, factors)))
    # TensorLy normalises after its callback has written the checkpoint.
    return cp_normalize(state) if normalize_factors else state
