"""Memory that runs out: one error for all libraries, and more slabs for a tensor that is built.

Dense results of a CP model that exceed the free memory are refused before they are computed.
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ..base.array_modules import Array, is_cupy
from ..base.checks import SURELY_FREE_NBYTES, num_cells
from ..base.reporting import log_compilation
from ..engines import Engine, engine_of, select_engine
from ..format.groups import find_groups
from ..spread import choosing
from ..spread.slab_layout import AnyLayout

_Result = TypeVar("_Result")

_logger = logging.getLogger("tensorly_flycoo")

#: The last sentence of each error, in parts.
_GAPS = "indices without gaps (as from_dataframe numbers them)"
_PLACES = "keep='host' or device='cpu' instead of a GPU's memory, or more GPUs or workers"
_SMALLER = "layout='indexed', dtype='float32'"
_WAYS_OUT = f"Ways out: {_SMALLER}, init='random', a smaller rank, more slabs=, {_GAPS}, {_PLACES}"

#: How the errors of CUDA's libraries say that memory ran out; they are RuntimeErrors.
_CUDA_SIGNS = ("ALLOC_FAILED", "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")

#: The most slabs that are tried, as a multiple of the fewest ones.
_MOST = 64


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
    free = format_nbytes(select_engine("cuda" if is_of_gpu else "cpu").count_free_nbytes())
    facts = f"{text.rstrip('.')}; {free} is free" if text else f"{free} is free"
    raise out_of_memory(task, "the GPU" if is_of_gpu else "the host", facts, ways_out)


def out_of_memory(task: str, place: str, facts: str, ways_out: str = _WAYS_OUT) -> MemoryError:
    """Build the MemoryError of a task; the facts are what was asked for, and what is free."""
    error: Any = MemoryError(f"{task} needs more memory than {place} has: {facts}. {ways_out}")
    error.is_explained = True
    return error


def check_room(engine: Engine, nbytes: int) -> None:
    """Raise a MemoryError before bytes are used that the host does not have.

    Linux hands out more memory than there is, and kills the process that uses it.
    """
    if engine.name == "cpu" and nbytes > SURELY_FREE_NBYTES:
        free = engine.count_free_nbytes()
        if free is not None and nbytes > free:
            raise MemoryError(f"about {format_nbytes(nbytes)}")


def build_layout(
    engine: Engine,
    layout: str,
    coords: Array,
    values: Array,
    shape: Sequence[int],
    groups: object,
    num_slabs: int | None = None,
    keep: str = "device",
) -> AnyLayout:
    """Build a layout on the device of `engine` from checked coords and values on any device.

    Without `num_slabs` there are as few as the engine chooses; if memory runs out, twice as many
    are tried, and so on. An error tells the least need. `groups` are as a user gives them.
    """
    found, _ = find_groups(groups, shape, values.size)
    sizes = choosing.TensorSizes(values.size, shape, values.dtype, found)
    given = 0 if is_cupy(coords) else values.size * (8 * len(shape) + values.dtype.itemsize)

    def build(count: int) -> AnyLayout:
        found = find_groups(groups, shape, values.size, count)
        if engine.name == "cpu":  # else arrays on another GPU are refused first
            # Prefixes, which are not counted yet, may change an "auto" layout.
            own = sizes._replace(groups=found[0])
            name = choosing.choose_layout(engine, layout, own)
            check_room(engine, choosing.estimate_layout(engine, name, own, count)[1] - given)
        with log_compilation():
            return choosing.build_layout(engine, layout, coords, values, shape, *found, count, keep)

    num_devices = engine.num_devices if engine.spreads(values.size) else 1
    count = num_slabs or choosing.choose_num_slabs(values.size, num_devices)
    if num_slabs is None and num_devices < engine.num_devices:
        _logger.debug("one of %d devices is as fast for so few nonzeros", engine.num_devices)
    if not num_slabs and keep == "host" and engine.make_stager is not None:
        count, _ = choosing.plan_streaming(engine, layout, sizes)
    most = num_slabs or _MOST * count
    task = f"building a FlycooTensor of {values.size:,} nonzeros"
    smaller = [_GAPS, _SMALLER] if max(shape) > values.size else [_SMALLER, _GAPS]
    ways_out = f"Ways out: {', '.join(smaller)}, {_PLACES}"
    errors: dict[int, MemoryError] = {}  # by the need of an attempt
    while count <= most:
        if errors:
            _logger.info("memory ran out: building the tensor in %d slabs", count)
        try:
            slabs = f" in {count} slabs" if count > 1 else ""
            return attempt(task + slabs, functools.partial(build, count), ways_out)
        except MemoryError as error:
            name = choosing.choose_layout(engine, layout, sizes)
            need = choosing.estimate_layout(engine, name, sizes, count)[1]
            errors[need] = error.with_traceback(None)  # which would hold arrays
        count *= 2
    raise errors[min(errors)]


def check_khatri_rao_fits(
    matrices: Sequence[Array],
    weights: Array | None = None,
    skip_matrix: int | None = None,
    mask: Any = None,
) -> None:
    """Refuse a Khatri-Rao product that is too large, given the arguments of TensorLy's function."""
    multiplied = [matrix for n, matrix in enumerate(matrices) if n != skip_matrix]
    if len(multiplied) > 1 and all(np.ndim(matrix) == 2 for matrix in matrices):
        shape = (num_cells(matrix.shape[0] for matrix in multiplied), matrices[0].shape[1])
        _check_fits("tl.tenalg.khatri_rao", shape, matrices[0])


def check_product_fits(a: Any, b: Any) -> None:
    """Refuse a matrix product, as of `tl.cp_to_tensor`, that is larger than both and too large."""
    is_dense = (isinstance(a, np.ndarray) or is_cupy(a)) and a.ndim == np.ndim(b) == 2
    if is_dense and a.shape[1] < min(a.shape[0], b.shape[1]):
        _check_fits("tl.dot", (a.shape[0], b.shape[1]), a)


def _check_fits(operation: str, shape: tuple[int, int], array: Array) -> None:
    """Refuse a result in the dtype and on the device of `array`."""
    nbytes = num_cells(shape) * array.dtype.itemsize
    free = engine_of(array).count_free_nbytes() if nbytes > SURELY_FREE_NBYTES else None
    if free is not None and nbytes > free:
        place = "the GPU" if is_cupy(array) else "the host"
        facts = f"{format_nbytes(nbytes)}; {format_nbytes(free)} is free"
        ways_out = (
            "tensorly_flycoo.cp_to_entries(cp_tensor, coords) gives the elements that you need, a "
            "sparse mask= those at its nonzeros"
        )
        raise out_of_memory(f"{operation} of shape {shape}", place, facts, ways_out)


def format_nbytes(nbytes: int | None) -> str:
    """Format a number of bytes with three digits; None is an unknown number."""
    if nbytes is None:
        return "an unknown amount"
    size, unit = (1e9, "GB") if nbytes >= 1e9 else (1e6, "MB")
    return f"{nbytes / size:.3g} {unit}"
