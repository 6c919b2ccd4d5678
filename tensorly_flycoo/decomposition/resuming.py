"""Resume parafac from a checkpoint as if it had never stopped."""

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorly as tl
from tensorly.cp_tensor import CPTensor, cp_normalize

from ..io.checkpoint import ResumedCP
from .stopping import has_converged

Callback: TypeAlias = Callable[[CPTensor, Any], bool | None]


class State(ResumedCP):
    """A checkpoint that `initialize_cp` restores as it is, unlike an initial guess."""


#: Options of parafac with state that is not in a checkpoint.
_NOT_RESUMED = ("linesearch", "orthogonalise", "mask")


def resume_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return parafac's options, changed to resume the checkpoint in `init` and stop as it would.

    Raises
    ------
    ValueError
        If `options` has a mask, linesearch or orthogonalise: their state is not in a checkpoint.
    """
    init: ResumedCP = options["init"]
    for name in _NOT_RESUMED:
        if options[name] is not None and options[name] is not False:
            raise ValueError(f"{name}= cannot resume a checkpoint: start anew, or leave it out")
    tol, criterion = options["tol"], options["cvg_criterion"]
    changes: dict[str, Any] = {"init": State(init, init.errors)}
    if init.iteration > 1 and has_converged(init.errors, tol, criterion):
        # It had converged, and stopped before normalising: nothing is left to do.
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

    Raises
    ------
    ValueError
        If the checkpoint's shape, rank or dtype does not match `tensor` and `rank`.
    """
    context = tl.context(tensor)
    dtype = init.factors[0].dtype
    if init.shape != tuple(tensor.shape) or init.rank != rank or dtype != context["dtype"]:
        raise ValueError(
            f"the checkpoint has shape {init.shape}, rank {init.rank} and dtype {dtype}, expected "
            f"{tuple(tensor.shape)}, rank {rank} and {context['dtype']}"
        )
    weights, *factors = (tl.tensor(a, **context) for a in (init.weights, *init.factors))
    state = CPTensor((weights, factors))
    # TensorLy normalises after its callback has written the checkpoint.
    return cp_normalize(state) if normalize_factors else state
