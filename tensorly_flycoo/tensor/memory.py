"""What a tensor will take, known beforehand, and what to do where there is not that much."""

from dataclasses import dataclass

import numpy as np

from ..array_modules import is_cupy
from ..checks import LAYOUTS, check_dtype, check_layout, check_nnz, check_shape
from ..engines import select_engine

#: Of values, the widest first.
_DTYPES = [np.dtype(np.float64), np.dtype(np.float32)]


@dataclass(frozen=True)
class MemoryEstimate:
    """Say how much memory a `FlycooTensor` takes, in bytes.

    Attributes
    ----------
    nbytes : int
        What `FlycooTensor.nbytes` will be where each mode has as few empty rows (indices without a
        nonzero) as `nnz` allows, so exactly where none is empty. Each further one takes 4 bytes.
    peak_nbytes : int
        What is there at once on the device while the tensor is built from arrays in the host's
        memory: an upper bound, whatever rows are empty and in whatever order the nonzeros come.
    """

    nbytes: int
    peak_nbytes: int


def estimate_memory(shape, nnz, *, dtype="float64", layout="remap", device=None):
    """Say how much memory a `FlycooTensor` will take, without making one.

    Parameters
    ----------
    shape : sequence of int
    nnz : int
        Nonzeros that are handed in; if there are duplicates, fewer are kept.
    dtype : {float32, float64}
    layout : {"remap", "replicated", "indexed"}
    device : {"auto", "cpu", "cuda"}, optional
        As of `FlycooTensor`.

    Returns
    -------
    MemoryEstimate
        With the attributes `nbytes` and `peak_nbytes`. On the CPU the peak includes coords, as
        int64, and values, which are there all the while. A GPU gets them from the host in small
        parts; those that are on it already come on top. The peak does not include a copy that is
        made where coords or values are of another type or not contiguous, or some values are zeros.

    Raises
    ------
    TypeError
        If a size or `nnz` is not an integer, or `dtype` is not one that values may have.
    ValueError
        If a size or `nnz` is out of range, or `layout` or `device` is unknown.
    ImportError, RuntimeError
        If `device` is "cuda" and it cannot be used: how a tensor is cut depends on the GPU.

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


def attempt(function, explain):
    """Return ``function()``; where memory runs out, raise a MemoryError that says `explain()`."""
    try:
        return function()
    except MemoryError:
        pass
    # Not while the error is handled: it, and with it the calls that failed, would live on in the
    # new one, and so would their arrays. They are gone before `explain` asks what is free.
    raise MemoryError(explain())


def build_layout(engine, layout, coords, values, shape):
    """Build a layout of checked coords and values, wherever they are, on the device of `engine`."""

    def build():
        return engine.build_layout(layout, coords, values, shape)

    is_on_gpu = is_cupy(coords)
    held = coords.nbytes + values.nbytes if is_on_gpu == (engine.xp is not np) else 0

    def count(layout, dtype):
        needed = engine.estimate_layout(layout, values.size, shape, dtype)[1]
        return needed + held if is_on_gpu else needed

    def explain():
        task, dtype = f"building a FlycooTensor of {values.size:,} nonzeros", values.dtype
        return _explain(task, engine, layout, dtype, count(layout, dtype), held, count)

    return attempt(build, explain)


def explain_mttkrp(x, mode, rank, work_nbytes):
    """Say why there was no room for the `work_nbytes` of an MTTKRP beside the tensor `x`."""

    def count(layout, dtype):
        nbytes, peak_nbytes = x._engine.estimate_layout(layout, x.nnz, x.shape, dtype)
        return max(peak_nbytes, nbytes + work_nbytes * dtype.itemsize // x.dtype.itemsize)

    task = f"mttkrp of mode {mode} and rank {rank}"
    needed = x.nbytes + work_nbytes
    return _explain(task, x._engine, x.layout, x.dtype, needed, x.nbytes, count)


def _explain(task, engine, layout, dtype, needed_nbytes, held_nbytes, count):
    """Say what was needed and free, and what would fit, which `count` says the needs of."""
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
        f"{engine.name!r}, {_format(held_nbytes)} of which are there; free is {free}. "
        + (f"What would fit: {', or '.join(fits)}" if fits else "Nothing that needs less would fit")
    )


def _format(nbytes):
    size, unit = (1e9, "GB") if nbytes >= 1e9 else (1e6, "MB")
    return f"{nbytes / size:.3g} {unit}"
