"""How a run begins: from an initial guess of a CP model, or from a checkpoint."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.checks import warn
from ..base.fit_record import current_record, find_record
from ..base.reporting import span
from ..io.checkpoint import Resumed, ResumedTucker, find_digest
from ..tensor.tensor import FlycooTensor
from .initial_guess import make_initial_guess, spread_factors
from .masks import MissingEntries, is_same_mask
from .run import RunModel

#: Facts of a checkpoint that a call has to share: with others its model would not be one.
_LASTING_FACTS = ("loss", "absent", "unobserved", "non_negative")


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
) -> RunModel:
    """Make the initial guess of a CP model, or restore the checkpoint in `init`.

    With `by_blocks` the factors are row-sharded if `x` is on several devices.
    """
    if isinstance(init, Resumed):
        model = restore(init, x, rank, solver, x.dtype)
    else:
        unfold = None  # that of `x`
        if missing is not None:
            unfold = functools.partial(
                missing.unfold_imputed, rank=rank, num_repeats=svd_mask_repeats
            )
        with span("start"):
            weights, factors = make_initial_guess(
                x,
                rank,
                init,
                svd,
                random_state,
                unfold=unfold,
                non_negative=non_negative,
                normalize_factors=normalize_factors,
            )
        model = RunModel(weights, factors)
    if by_blocks:
        model.factors = spread_factors(x, model.factors)
    return model


def restore(
    init: Any,
    x: FlycooTensor,
    rank: int | tuple[int, ...],
    solver: str,
    dtype: np.dtype | None = None,
) -> RunModel:
    """Return the model of a checkpoint, on the device of `x`, with its errors.

    Raises a ValueError if it is of another solver, tensor, rank or, if given, dtype. A checkpoint
    that does not name its tensor or solver is checked only for shape, rank and dtype.
    """
    _check_solver(init, solver)
    saved_dtype = init.factors[0].dtype
    expected_dtype = saved_dtype
    if dtype is not None:
        expected_dtype = dtype
    if (init.shape, init.rank, saved_dtype) != (x.shape, rank, expected_dtype):
        raise ValueError(
            f"the checkpoint has shape {init.shape}, rank {init.rank} and dtype {saved_dtype}, "
            f"expected {x.shape}, rank {rank} and {expected_dtype}"
        )
    if init.digest not in ("", find_digest(x)):
        raise ValueError(
            f"the checkpoint is of another tensor of shape {x.shape}: its nonzeros differ from "
            f"those of x, {x!r}; resume with the original tensor, or pass another checkpoint="
        )
    _check_resumed_facts(init, solver)
    xp = x._engine.xp
    weights_or_core, factors = init
    return RunModel(
        weights=xp.asarray(weights_or_core),
        factors=[xp.asarray(factor) for factor in factors],
        errors=init.errors[1:],  # the first is that of the start, which no iteration made
    )


def _check_solver(init: Any, solver: str) -> None:
    """Refuse a checkpoint that another decomposition wrote."""
    is_tucker = isinstance(init, ResumedTucker)
    if init.solver in ("", solver) and is_tucker == ("tucker" in solver):
        return
    written_by = init.solver
    if not written_by:
        written_by = "tucker" if is_tucker else "a CP decomposition"
    raise ValueError(
        f"the checkpoint was written by {written_by}, expected {solver}: resume it there, or "
        "pass a tuple of its weights and factors as an initial guess"
    )


def _check_resumed_facts(init: Any, solver: str) -> None:
    """Raise a ValueError if the options of a checkpoint and of this call differ, where known."""
    saved = find_record(init)
    record = current_record(solver)
    if saved is None or saved.method != solver or not record.dtype:
        return
    for name in _LASTING_FACTS:
        saved_fact = getattr(saved, name)
        fact = getattr(record, name)
        if saved_fact != fact:
            raise ValueError(
                f"the checkpoint was written with {name} {saved_fact!r}, and this call has "
                f"{fact!r}: resume with the options of the first run"
            )
    if not is_same_mask(saved.mask, record.mask):
        raise ValueError(
            "the checkpoint is of a run in which other cells were missing: resume with the same "
            "mask, or the same unknown cells of the tensor"
        )


def list_free_modes(ndim: int, fixed_modes: Sequence[int] | None) -> list[int]:
    """List the modes whose factors are updated: those not fixed, and always the last."""
    fixed = list(fixed_modes or [])
    last = ndim - 1
    if last in fixed:
        warn(
            f"fixed_modes has mode {last}, the last one, which cannot be fixed and is updated: "
            "transpose the tensor to fix it"
        )
    return [mode for mode in range(ndim) if mode not in fixed or mode == last]
