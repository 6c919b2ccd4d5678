"""Memory estimates for tensors, and out-of-memory errors that say what would fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..array_modules import Array, is_cupy
from ..checks import LAYOUTS, check_dtype, check_layout, check_nnz, check_shape
from ..engines import select_engine
from ..reporting import log_compilation

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.layout import Layout
    from .tensor import FlycooTensor

_Result = TypeVar("_Result")

#: Dtypes of values, the widest first.
_DTYPES: list[np.dtype] = [np.dtype(np.float64), np.dtype(np.float32)]


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory that a `FlycooTensor` takes, in bytes.

    Attributes
    ----------
    nbytes : int
        `FlycooTensor.nbytes` if each mode has as few empty rows (indices without nonzeros) as
        `nnz` allows. Each empty row beyond those adds 4 bytes.
    peak_nbytes : int
        Peak use of the device's memory while the tensor is built from arrays on the host: an upper
        bound for any empty rows and any order of the nonzeros.
    """

    nbytes: int
    peak_nbytes: int


def estimate_memory(
    shape: Sequence[int],
    nnz: int,
    *,
    dtype: DTypeLike = "float64",
    layout: str = "remap",
    device: str | None = None,
) -> MemoryEstimate:
    """Predict how much memory a `FlycooTensor` takes, without making one.

    Parameters
    ----------
    shape : sequence of int
    nnz : int
        Nonzeros passed to the constructor, including duplicates.
    dtype : {float32, float64}
    layout : {"remap", "replicated", "indexed"}
    device : {"auto", "cpu", "cuda"}, optional
        As for `FlycooTensor`.

    Returns
    -------
    MemoryEstimate
        With the attributes `nbytes` and `peak_nbytes`. On the CPU the peak includes coords (int64)
        and values. Host arrays are copied to a GPU in small parts; arrays already on the GPU add to
        its peak. The peak excludes the copies made if coords or values have another type or are not
        contiguous, or if some values are zeros.

    Raises
    ------
    TypeError
        If a size or `nnz` is not an integer, or `dtype` is not a dtype for values.
    ValueError
        If a size or `nnz` is out of range, or `layout` or `device` is unknown.
    ImportError, RuntimeError
        If `device` is "cuda" and cannot be used: tile sizes depend on the GPU.

    Examples
    --------
    >>> from tensorly_flycoo import estimate_memory
    >>> nell1 = (2902330, 2143368, 25495389)
    >>> for layout in ("remap", "replicated", "indexed"):
    ...     estimate = estimate_memory(nell1, 143599552, layout=layout, device="cpu")
    ...     print(f"{layout:10}  {estimate.nbytes / 1e9:.1f} GB")
    remap       9.5 GB
    replicated  10.3 GB
    indexed     4.6 GB
    """
    shape, nnz, dtype = check_shape(shape), check_nnz(nnz), check_dtype(dtype)
    check_layout(layout)
    return MemoryEstimate(*select_engine(device).estimate_layout(layout, nnz, shape, dtype))


def attempt(function: Callable[[], _Result], explain: Callable[[], str]) -> _Result:
    """Return ``function()``; if memory runs out, raise a MemoryError with ``explain()``."""
    try:
        return function()
    except MemoryError:
        pass
    # Not inside the except clause: there the new error would keep the old one alive, and with it
    # the arrays of its frames, which must be freed before `explain` asks what is free.
    raise MemoryError(explain())


def build_layout(
    engine: Engine, layout: str, coords: Array, values: Array, shape: Sequence[int]
) -> Layout:
    """Build a layout on the device of `engine` from checked coords and values on any device."""

    def build() -> Layout:
        with log_compilation():
            return engine.build_layout(layout, coords, values, shape)

    is_on_gpu = is_cupy(coords)
    held = coords.nbytes + values.nbytes if is_on_gpu == (engine.xp is not np) else 0

    def count(layout: str, dtype: np.dtype) -> int:
        needed = engine.estimate_layout(layout, values.size, shape, dtype)[1]
        return needed + held if is_on_gpu else needed

    def explain() -> str:
        task, dtype = f"building a FlycooTensor of {values.size:,} nonzeros", values.dtype
        return _explain(task, engine, layout, dtype, count(layout, dtype), held, count)

    return attempt(build, explain)


def explain_work(x: FlycooTensor, task: str, work_nbytes: int) -> str:
    """Explain why the arrays of a task, `work_nbytes`, did not fit beside the tensor `x`."""

    def count(layout: str, dtype: np.dtype) -> int:
        nbytes, peak_nbytes = x._engine.estimate_layout(layout, x.nnz, x.shape, dtype)
        return max(peak_nbytes, nbytes + work_nbytes * dtype.itemsize // x.dtype.itemsize)

    needed = x.nbytes + work_nbytes
    return _explain(task, x._engine, x.layout, x.dtype, needed, x.nbytes, count)


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
    for other in _DTYPES[_DTYPES.index(dtype) :]:
        for name in LAYOUTS:
            nbytes = count(name, other)
            if nbytes <= room and nbytes < needed_nbytes:
                option = f"layout={name!r}" + ("" if other == dtype else f" and dtype='{other}'")
                fits.append(f"{option} ({_format(nbytes)})")
    free = "an unknown amount" if free_nbytes is None else _format(free_nbytes)
    return (
        f"{task} with layout={layout!r} and dtype='{dtype}' needs {_format(needed_nbytes)} on "
        f"{engine.name!r}, of which {_format(held_nbytes)} is in use already; {free} is free. "
        + (f"These would fit: {', or '.join(fits)}" if fits else "No alternative would fit")
    )


def _format(nbytes: int) -> str:
    size, unit = (1e9, "GB") if nbytes >= 1e9 else (1e6, "MB")
    return f"{nbytes / size:.3g} {unit}"
