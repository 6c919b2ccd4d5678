"""Out-of-memory errors that say what would fit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..array_modules import Array, is_cupy
from ..checks import LAYOUTS, SURELY_FREE_NBYTES
from ..format.slab_layout import SlabLayout
from ..reporting import log_compilation
from ..spread import building

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.slab_layout import AnyLayout
    from .tensor import FlycooTensor

_Result = TypeVar("_Result")


class RefusedMemory(MemoryError):
    """A MemoryError that explains itself, raised before anything was allocated."""


#: Dtypes of values, the widest first.
DTYPES: list[np.dtype] = [np.dtype(np.float64), np.dtype(np.float32)]


#: The outermost `attempt` that is running: it knows what the user called, and explains. A reference
#: that dies with its frame, since Ctrl-C may come before the end of a `finally` clause.
_outermost: ContextVar[Callable[[], object]] = ContextVar("outermost", default=lambda: None)


class _Attempt:
    """Stands for a running `attempt`."""


#: How the errors of CUDA's libraries say that memory ran out; they are RuntimeErrors.
_CUDA_SIGNS = ("ALLOC_FAILED", "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")


def attempt(function: Callable[[], _Result], explain: Callable[[], str]) -> _Result:
    """Return ``function()``; if memory runs out, raise a MemoryError with ``explain()``.

    Inside another attempt only the outer one explains.
    """
    if _outermost.get()() is not None:
        return function()
    running = _Attempt()
    try:
        _outermost.set(weakref.ref(running))
        return function()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RefusedMemory) or not _is_out_of_memory(error):
            raise
    finally:
        del running
    # Not inside the except clause: there the new error would keep the old one alive, and with it
    # the arrays of its frames, which must be freed before `explain` asks what is free.
    raise MemoryError(explain())


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _CUDA_SIGNS)


def build_layout(
    engine: Engine,
    layout: str,
    coords: Array,
    values: Array,
    shape: Sequence[int],
    num_slabs: int | None = None,
    keep: str = "device",
) -> AnyLayout:
    """Build a layout on the device of `engine` from checked coords and values on any device."""
    nnz, dtype, is_host = values.size, values.dtype, engine.make_stager is None
    if is_host and not num_slabs:
        num_slabs = engine.fit_num_slabs(layout, nnz, shape, dtype)

    def build() -> AnyLayout:
        with log_compilation():
            return building.build_layout(engine, layout, coords, values, shape, num_slabs, keep)

    is_on_gpu = is_cupy(coords)
    held = coords.nbytes + values.nbytes if is_on_gpu == (engine.xp is not np) else 0

    def count(layout: str, dtype: np.dtype) -> int:
        needed = engine.estimate_layout(layout, nnz, shape, dtype, num_slabs)[1]
        return needed + held if is_on_gpu else needed

    def explain() -> str:
        task = f"building a FlycooTensor of {nnz:,} nonzeros"
        text = _explain(task, engine, layout, dtype, count(layout, dtype), held, count)
        if max(shape) <= nnz:
            return text
        return (
            f"{text}. Mode {np.argmax(shape)} has {max(shape):,} indices: if the data use few of "
            "them, number those from 0, as from_dataframe does"
        )

    if is_host:
        refuse_excess_on_host(engine, count(layout, dtype) - held, explain)
    return attempt(build, explain)


def refuse_excess_on_host(engine: Engine, nbytes: int, explain: Callable[[], str]) -> None:
    """Raise a MemoryError with ``explain()``, before bytes are used that the host does not have.

    Linux hands out more memory than there is, and kills the process that uses it.
    """
    if nbytes > SURELY_FREE_NBYTES:
        free = engine.count_free_nbytes()
        if free is not None and nbytes > free:
            raise RefusedMemory(explain())


def explain_work(x: FlycooTensor, task: str, work_nbytes: int) -> str:
    """Explain why the arrays of a task, `work_nbytes`, did not fit beside the tensor `x`."""

    def count(layout: str, dtype: np.dtype) -> int:
        nbytes, peak_nbytes = x._engine.estimate_layout(layout, x.nnz, x.shape, dtype, x.slabs)
        nbytes = x._engine.share_nbytes(nbytes, x.slabs)
        return max(peak_nbytes, nbytes + work_nbytes * dtype.itemsize // x.dtype.itemsize)

    held = count_own_nbytes(x)
    return _explain(task, x._engine, x.layout, x.dtype, held + work_nbytes, held, count)


def count_own_nbytes(x: FlycooTensor) -> int:
    """Count the bytes of a tensor on the first of its devices."""
    layout = x._layout
    if not isinstance(layout, SlabLayout):
        return layout.nbytes
    return sum(slab.layout.nbytes for slab in layout.slabs if slab.home == 0)


def _explain(
    task: str,
    engine: Engine,
    layout: str,
    dtype: np.dtype,
    needed_nbytes: int,
    held_nbytes: int,
    count: Callable[[str, np.dtype], int],
) -> str:
    """Say what was needed, what is free and what would fit; `count` sizes an alternative."""
    free_nbytes = engine.count_free_nbytes()
    room = needed_nbytes if free_nbytes is None else free_nbytes + held_nbytes
    fits = []
    for other in DTYPES[DTYPES.index(dtype) :]:
        for name in LAYOUTS:
            nbytes = count(name, other)
            if nbytes <= room and nbytes < needed_nbytes:
                option = f"layout={name!r}" + ("" if other == dtype else f" and dtype='{other}'")
                fits.append(f"{option} ({format_nbytes(nbytes)})")
    task = f"{task} with layout={layout!r} and dtype='{dtype}'"
    needs = f"needs {format_nbytes(needed_nbytes)}"
    return describe(f"{task} {needs}", engine, held_nbytes, free_nbytes, fits)


def describe(
    needs: str,
    engine: Engine,
    held_nbytes: int,
    free_nbytes: int | None,
    fits: Sequence[str],
    would: str = "would fit",
) -> str:
    """Put the message together: what was needed, is in use, is free, and what would fit."""
    free = "an unknown amount" if free_nbytes is None else format_nbytes(free_nbytes)
    return (
        f"{needs} on {engine.name!r}, of which {format_nbytes(held_nbytes)} is in use already; "
        f"{free} is free. "
        + (f"These {would}: {', or '.join(fits)}" if fits else f"No alternative {would}")
    )


def format_nbytes(nbytes: int) -> str:
    """Format a number of bytes with three digits.

    Examples
    --------
    >>> format_nbytes(12_345_678_901), format_nbytes(12_345)
    ('12.3 GB', '0.0123 MB')
    """
    size, unit = (1e9, "GB") if nbytes >= 1e9 else (1e6, "MB")
    return f"{nbytes / size:.3g} {unit}"
