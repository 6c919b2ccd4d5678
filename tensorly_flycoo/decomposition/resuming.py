"""What a checkpoint of parafac needs, to go on as if it had not stopped."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorly as tl
from tensorly.cp_tensor import CPTensor, cp_normalize

from ..io.checkpoint import ResumedCP
from .stopping import has_converged

Callback: TypeAlias = Callable[[CPTensor, Any], bool | None]


class State(ResumedCP):
    """A checkpoint on its way into parafac, where it is the state; elsewhere it is a guess."""


#: Options of parafac whose state is more than the factors, and is not in a checkpoint.
_NOT_RESUMED = ("linesearch", "orthogonalise", "mask")


def resume_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return parafac's options so that it goes on from a checkpoint, its `init`, to the same end.

    Raises
    ------
    ValueError
        If `options` has a mask, linesearch or orthogonalise: their state is not in a checkpoint.
    """
    init: ResumedCP = options["init"]
    for name in _NOT_RESUMED:
        if options[name] is not None and options[name] is not False:
            raise ValueError(f"{name}= cannot go on from a checkpoint: begin anew, or leave it out")
    tol, criterion = options["tol"], options["cvg_criterion"]
    changes: dict[str, Any] = {"init": State(init, init.errors)}
    if init.iteration > 1 and has_converged(init.errors, tol, criterion):
        # It had converged, before it normalised: there is nothing left to do.
        changes |= {"n_iter_max": 0, "normalize_factors": False}
    elif init.iteration > 0 and tol:
        changes["callback"] = _compare_to_last(options["callback"], init.errors[-1], tol, criterion)
    return options | changes


def _compare_to_last(
    callback: Callback | None, last: float, tol: float, criterion: str
) -> Callback:
    """Let a callback compare the first new error with the last one before the break too.

    TensorLy calls it once before the first iteration.
    """
    num_calls = 0

    def compare_to_last(cp_tensor: CPTensor, error: Any) -> bool:
        nonlocal num_calls
        num_calls += 1
        is_over = callback is not None and callback(cp_tensor, error) is True
        return is_over or (num_calls == 2 and has_converged([last, error], tol, criterion))

    return compare_to_last


def parafac(original):
    """Let parafac stop where it would have stopped without the break."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def parafac(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        options = bound.arguments
        init, tol, criterion = options["init"], options["tol"], options["cvg_criterion"]
        if not isinstance(init, ResumedCP):
            return original(*args, **kwargs)
        for name in _NOT_RESUMED:
            if options[name] is not None and options[name] is not False:
                raise ValueError(
                    f"{name}= cannot go on from a checkpoint: begin anew, or leave it out"
                )
        options["init"] = State(init, init.errors)
        if tol:
            _stop_as_before(options, init, functools.partial(_is_small, tol, criterion))
        return original(*bound.args, **bound.kwargs)

    return parafac


def _is_small(tol, criterion, previous, error):
    """Say whether TensorLy would stop at an error after the previous one."""
    decrease = previous - error
    # A bool of Python's: TensorLy looks whether what a callback returns `is True`.
    return bool((abs(decrease) if criterion == "abs_rec_error" else decrease) < tol)


def _stop_as_before(options, init, is_small):
    """Compare the errors around the break, which TensorLy cannot."""
    if init.iteration > 1 and is_small(*init.errors[-2:]):
        # It stopped by itself, before normalising: there is nothing left to do.
        options.update(n_iter_max=0, normalize_factors=False)
    elif init.iteration > 0:
        options["callback"] = _compare_first(options["callback"], init.errors[-1], is_small)


def _compare_first(callback, previous, is_small):
    """Add the comparison to a callback; its first call is before the first iteration."""
    num_calls = 0

    def compare_first(cp_tensor, error):
        nonlocal num_calls
        num_calls += 1
        is_over = callback is not None and callback(cp_tensor, error) is True
        return is_over or (num_calls == 2 and is_small(previous, float(error)))

    return compare_first


def take_up(init, tensor, rank, normalize_factors):
    """Return the state of a checkpoint as parafac has it at the start of the next iteration.

    It is the state, not a guess: its weights are not multiplied into a factor.
    """
    context = tl.context(tensor)
    dtype = init.factors[0].dtype
    if init.shape != tuple(tensor.shape) or init.rank != rank or dtype != context["dtype"]:
        raise ValueError(
            f"the checkpoint is of shape {init.shape}, rank {init.rank} and {dtype}, expected "
            f"{tuple(tensor.shape)}, rank {rank} and {context['dtype']}"
        )
    weights, *factors = (tl.tensor(a, **context) for a in (init.weights, *init.factors))
    state = CPTensor((weights, factors))
    # TensorLy normalises after its callback, which wrote the checkpoint.
    return cp_normalize(state) if normalize_factors else state
