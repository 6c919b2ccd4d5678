"""When to stop: TensorLy's criterion of alternating least squares, and that of other losses."""

from collections.abc import Sequence


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
