"""The memory of a tensor, and of an iteration, predicted from the sizes of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import DTypeLike

from ..base.checks import check_count, check_dtype, check_keep, check_shape
from ..engines import select_engine
from ..format.groups import find_groups, list_rest
from ..format.tree import count_waiting
from ..spread import choosing
from ..tensor.memory import format_nbytes
from ..tensor.tensor import FlycooTensor


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory that a `FlycooTensor` takes, in bytes.

    Attributes
    ----------
    nbytes : int
        `FlycooTensor.nbytes` if each mode has as few empty rows (indices without nonzeros) as
        `nnz` allows, and no combinations of indices are numbered. Each empty row beyond those adds
        4 bytes.
    peak_nbytes : int
        Peak use of the device's memory while the tensor is built from arrays on the host: an upper
        bound for any empty rows and any order of the nonzeros. With several devices, this is of
        the device that uses most.
    host_nbytes : int
        The part of `nbytes` that stays in host memory, with ``keep="host"``.
    """

    nbytes: int
    peak_nbytes: int
    host_nbytes: int = 0

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={format_nbytes(n)}" for name, n in vars(self).items() if n)
        return f"MemoryEstimate({sizes})"


def estimate_memory(
    shape: Sequence[int],
    nnz: int,
    *,
    dtype: DTypeLike = "float64",
    layout: str | None = None,
    device: str | None = None,
    slabs: int | None = None,
    keep: str = "device",
    groups: Sequence[Sequence[int]] | str | None = "auto",
) -> MemoryEstimate:
    """Predict how much memory a `FlycooTensor` takes.

    Parameters
    ----------
    shape : sequence of int
    nnz : int
        Nonzeros passed to the constructor, including duplicates.
    dtype : {float32, float64}
    layout, device
        As for `FlycooTensor`.
    slabs : int, optional
        Assumed to have equally many nonzeros. By default 1, or one for each 2**32 nonzeros
        and for each GPU: what is free now does not count.
    keep : {"device", "host"}
        As for `FlycooTensor`: with "host" what is free now decides what stays on the GPU.
    groups : {"auto"}, None or sequence of sequences of int
        As for `FlycooTensor`. With "auto" the estimate is that without numbered combinations of
        indices; the tensor numbers them only if that takes less. If `groups` has a group that will
        be numbered, all results are upper bounds, for as many combinations as there can be.

    Returns
    -------
    MemoryEstimate
        On the CPU the peak of building includes coords (int64) and values. Host arrays are copied
        to a GPU in small parts; arrays already on the GPU add to its peak. The peak excludes the
        copies made if coords or values have another type or are not contiguous, or if some values
        are zeros.

    Raises
    ------
    TypeError
        If a size, `nnz` or `slabs` is not an integer, or `dtype` is not a dtype for values.
    ValueError
        If a size, `nnz` or `slabs` is out of range, `layout` or `device` is unknown, or
        `FlycooTensor` refuses the groups.
    ImportError, RuntimeError
        If `device` is "cuda" and cannot be used: tile sizes depend on the GPU.

    Notes
    -----
    An iteration of a decomposition takes the factors and twice the longest one beside the tensor.
    The start with ``init="svd"`` takes at least 21 bytes per nonzero for a while, and more for rows
    of an unfolding that share a column.

    Examples
    --------
    >>> from tensorly_flycoo import estimate_memory
    >>> nell1 = (2902330, 2143368, 25495389)
    >>> estimate = estimate_memory(nell1, 143599552, layout="indexed", device="cpu")
    >>> f"{estimate.nbytes / 1e9:.1f} GB"
    '4.6 GB'
    """
    shape = check_shape(shape)
    nnz = check_count(nnz, "nnz", 0)
    dtype = check_dtype(dtype)
    layout = check_keep(keep, layout)
    slabs = None if slabs is None else check_count(slabs, "slabs")
    engine = select_engine(device)
    is_spread = engine.spreads(nnz)
    num_slabs = slabs or choosing.choose_num_slabs(nnz, engine.num_devices if is_spread else 1)
    found, num_numbered = find_groups(groups, shape, nnz, num_slabs)
    is_streamed = keep == "host" and engine.make_stager is not None
    num_prefixes = 0
    sizes = choosing.TensorSizes(nnz, shape, dtype, found)
    if num_numbered and nnz:
        num_prefixes = min(nnz, math.prod(shape[:num_numbered]))
        found = (tuple(range(num_numbered)), *list_rest(found, num_numbered))
    layout = choosing.choose_layout(engine, layout, sizes._replace(groups=found), num_prefixes)
    if num_slabs > 1 or is_spread or is_streamed:  # each slab numbers its own
        num_prefixes = 0
        found = sizes.groups
    sizes = sizes._replace(groups=found)
    host_nbytes = 0
    if is_streamed:
        num_slabs, num_resident = choosing.plan_streaming(engine, layout, sizes, slabs)
        record_nbytes = engine.choose_cut(shape, dtype, found).record_format.record_nbytes
        copy_nbytes = nnz * record_nbytes // num_slabs  # of a slab
        host_nbytes = max(0, num_slabs - num_resident) * len(found) * copy_nbytes
    nbytes, peak_nbytes = choosing.estimate_layout(engine, layout, sizes, num_slabs, num_prefixes)
    return MemoryEstimate(nbytes, peak_nbytes - host_nbytes, host_nbytes)


def count_iteration_nbytes(x: FlycooTensor, rank: int) -> int:
    """Count the factors, and what the update of one adds: its MTTKRP and the solution.

    Factors and MTTKRPs of a slab's groups have a row for each combination of indices, or nonzero.
    Results of slabs wait to be added. For a tensor on several devices, counts one as if it had all.
    """
    engine = x._engine
    layout = x._layout
    row_nbytes = rank * x.dtype.itemsize
    if engine.tall is not None:  # solutions have rows aligned for the next MTTKRP
        row_nbytes = engine.tall.choose_row_nbytes(row_nbytes)
    of_groups = 0
    for own in [slab.layout for slab in getattr(layout, "slabs", ())] or [layout]:
        sizes = zip(own.record_format.merged.shape, own.groups, strict=True)
        of_groups += sum(min(size, own.nnz) for size, group in sizes if len(group) > 1)
    results = (2 + count_waiting(x.slabs)) * max(x.shape)
    return (sum(x.shape) + results + 2 * of_groups) * row_nbytes
