"""Memory that runs out: one error for all libraries, which says what needed it and ways out."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from ..base.checks import SURELY_FREE_NBYTES
from . import Engine, select_engine

_Result = TypeVar("_Result")

#: The last sentence of each error, in parts.
GAPS = "indices without gaps (as from_dataframe numbers them)"
PLACES = "keep='host' or device='cpu' instead of a GPU's memory, or more GPUs or workers"
SMALLER = "layout='indexed', dtype='float32'"
_WAYS_OUT = f"Ways out: {SMALLER}, init='random', a smaller rank, more slabs=, {GAPS}, {PLACES}"

#: How the errors of CUDA's libraries say that memory ran out; they are RuntimeErrors.
_CUDA_SIGNS = ("ALLOC_FAILED", "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")


def attempt(task: str, function: Callable[[], _Result], ways_out: str = _WAYS_OUT) -> _Result:
    """Return ``function()``; if memory runs out, raise a MemoryError that says what needed it.

    Inside another attempt the inner one explains; the outer one only frees its frames' arrays.
    """
    try:
        return function()
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if not isinstance(error, MemoryError) and not any(sign in text for sign in _CUDA_SIGNS):
            raise
        if hasattr(error, "is_explained"):
            traceback.clear_frames(error.__traceback__)
            raise
        # The C++ libraries below CuPy raise a plain MemoryError.
        is_of_gpu = type(error).__module__.startswith("cupy") or text == "std::bad_alloc"
    # Not inside the except clause: there the new error would keep the old one alive, and with it
    # the arrays of its frames, which must be freed before the free memory is counted.
    device, place = ("cuda", "the GPU") if is_of_gpu else ("cpu", "the host")
    facts = f"{format_nbytes(select_engine(device).count_free_nbytes())} is free"
    if text:
        facts = f"{text.rstrip('.')}; {facts}"
    raise out_of_memory(task, place, facts, ways_out)


def out_of_memory(task: str, place: str, facts: str, ways_out: str = _WAYS_OUT) -> MemoryError:
    """Build the MemoryError of a task; `facts` are the requested and the free memory, as text."""
    error: Any = MemoryError(f"{task} needs more memory than {place} has: {facts}. {ways_out}")
    error.is_explained = True
    return error


def check_room(engine: Engine, nbytes: int) -> None:
    """Raise a MemoryError before bytes are used that the host does not have.

    Linux hands out more memory than there is, and kills the process that uses it.
    """
    if engine.name == "cpu" and nbytes > SURELY_FREE_NBYTES:
        free_nbytes = engine.count_free_nbytes()
        if free_nbytes is not None and nbytes > free_nbytes:
            raise MemoryError(f"about {format_nbytes(nbytes)}")


def format_nbytes(nbytes: int | None) -> str:
    """Format a number of bytes with three digits; None is an unknown number.

    >>> format_nbytes(1_234_567_890), format_nbytes(500_000)
    ('1.23 GB', '0.5 MB')
    """
    if nbytes is None:
        return "an unknown amount"
    if nbytes >= 1e9:
        return f"{nbytes / 1e9:.3g} GB"
    return f"{nbytes / 1e6:.3g} MB"
