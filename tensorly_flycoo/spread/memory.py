"""Predict the memory of a tensor and an iteration from sizes, and choose layouts and slabs by it.

The whole sum, from the outside in:

`estimate_memory`
    What users call: chooses a layout and slabs as `FlycooTensor` does, and estimates those.
`estimate_layout`
    A layout in one piece, with its numbered prefixes, or in slabs.
`_estimate_slabs`
    The slabs, and what building them together takes: distributing, sorting, arranging.
`estimate_piece`
    One layout. What it keeps: its copies of the records (`Layout.count_copies`), its ids
    (`Layout.count_ids_nbytes`) and its tilings (`_count_tiling_nbytes`). What building adds: the
    canonical order (`format.ordering.count_canonical_nbytes`), then the arrangement
    (`Layout.count_build_nbytes`, of which an engine bounds the sorts: `Primitives.sort_nbytes` and
    the other ``*_nbytes``).
`count_iteration_nbytes`
    What an iteration of a decomposition adds: factors and results.

By these estimates are chosen the default layout (`choose_layout`) and the slabs that stay on a
device (`plan_streaming`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..base.checks import check_count, check_dtype, check_keep, check_shape
from ..base.devices import assign_homes
from ..engines import Engine, select_engine
from ..engines.out_of_memory import format_nbytes
from ..format.groups import find_groups, list_rest
from ..format.layout import Layout
from ..format.layouts import LAYOUT_CLASSES
from ..format.ordering import count_canonical_nbytes
from ..format.packing import Cut, Groups, RecordFormat, round_up
from ..format.primitives import Primitives, index_dtype
from ..format.replicated import ReplicatedLayout, cut_prefixes
from ..format.tree import count_waiting
from .building import BLOCK_NNZ, find_slab_shape
from .slab_layout import AnyLayout, SlabLayout

#: A tensor with more nonzeros is cut into slabs, so that 4 bytes number those of each.
MAX_SLAB_NNZ = 2**32

#: Bytes of the records, of one mode, of a slab that is streamed: enough that they are copied as
#: fast as the link allows, and so few that two slabs take little of the device.
STREAMED_NBYTES = 2**30


class TensorSizes(NamedTuple):
    """The sizes by which layouts and their memory are chosen."""

    nnz: int
    shape: Sequence[int]
    dtype: np.dtype
    groups: Groups

    def choose_cut(self, primitives: Primitives, num_prefixes: int = 0) -> Cut:
        """Choose the cut for an engine; the first group has so many numbered prefixes, if any."""
        return primitives.choose_cut(self.shape, self.dtype, self.groups, num_prefixes)


class Estimate(NamedTuple):
    """The bytes of a layout, and the most bytes in use on a device while it is built."""

    nbytes: int
    peak_nbytes: int


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
        The part of `nbytes` that stays in host memory, with ``keep="host"``: an upper bound, since
        records are packed there, depending on their values.
    """

    nbytes: int
    peak_nbytes: int
    host_nbytes: int = 0

    def __repr__(self) -> str:
        nonzero_sizes = {name: nbytes for name, nbytes in vars(self).items() if nbytes}
        texts = [f"{name}={format_nbytes(nbytes)}" for name, nbytes in nonzero_sizes.items()]
        return f"MemoryEstimate({', '.join(texts)})"


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
    if slabs is not None:
        slabs = check_count(slabs, "slabs")
    engine = select_engine(device)

    # How the tensor is divided: into slabs, and its modes into groups.
    is_spread = engine.spreads(nnz)
    is_streamed = keep == "host" and engine.make_stager is not None
    num_devices = 1
    if is_spread:
        num_devices = engine.num_devices
    num_slabs = slabs or choose_num_slabs(nnz, num_devices)
    division, num_numbered = find_groups(groups, shape, nnz, num_slabs)
    tensor = TensorSizes(nnz, shape, dtype, division)

    # The same with its first modes as a group of numbered prefixes, if any.
    numbered = tensor
    num_prefixes = 0
    if num_numbered and nnz:
        num_combinations = math.prod(shape[:num_numbered])
        num_prefixes = min(nnz, num_combinations)
        numbered_modes = tuple(range(num_numbered))
        other_groups = list_rest(division, num_numbered)
        numbered = tensor._replace(groups=(numbered_modes, *other_groups))
    name = choose_layout(engine, layout, numbered, num_prefixes)

    is_in_slabs = num_slabs > 1 or is_spread or is_streamed
    if not is_in_slabs:
        nbytes, peak_nbytes = estimate_layout(engine, name, numbered, 1, num_prefixes)
        return MemoryEstimate(nbytes, peak_nbytes)

    # In slabs. Each numbers its own prefixes, which are not counted.
    if not is_streamed:
        return MemoryEstimate(*estimate_layout(engine, name, tensor, num_slabs))
    num_slabs, num_resident = plan_streaming(engine, name, tensor, slabs)
    nbytes, peak_nbytes = estimate_layout(engine, name, tensor, num_slabs)
    record_format = tensor.choose_cut(engine).record_format
    copy_nbytes = nnz * record_format.record_nbytes // num_slabs  # of a slab, for one mode
    slab_nbytes = len(division) * copy_nbytes  # it has a copy for each group of modes
    slabs_of_devices = Counter(assign_homes(num_slabs, engine.num_devices)).values()
    streamed = [max(0, count - num_resident) for count in slabs_of_devices]
    return MemoryEstimate(
        nbytes,
        peak_nbytes=peak_nbytes - max(streamed) * slab_nbytes,
        host_nbytes=sum(streamed) * slab_nbytes,
    )


# The sum


def estimate_layout(
    engine: Engine, name: str, tensor: TensorSizes, num_slabs: int, num_prefixes: int = 0
) -> Estimate:
    """Estimate the layout `name` of a tensor, in one piece or in slabs.

    `num_prefixes` of the first group, if it is not 0, are numbered; then both sizes are bounds.
    """
    cut = tensor.choose_cut(engine, num_prefixes)
    if num_slabs > 1:
        estimate, _ = _estimate_slabs(engine, name, tensor.nnz, cut.record_format, num_slabs)
        return estimate
    piece = estimate_piece(LAYOUT_CLASSES[name], tensor.nnz, cut, engine)
    if num_prefixes == 0:
        return piece
    prefixes = _estimate_prefixes(cut.record_format, engine)
    nbytes = piece.nbytes + prefixes.nbytes
    peak_nbytes = piece.peak_nbytes + prefixes.peak_nbytes
    return Estimate(nbytes, peak_nbytes)


def estimate_piece(
    layout_class: type[Layout], nnz: int, cut: Cut, primitives: Primitives
) -> Estimate:
    """Estimate a layout of `nnz` distinct nonzeros.

    Its bytes are those if each mode has as few empty rows as `nnz` allows. The peak is a bound,
    whichever rows are empty and however the nonzeros are ordered; it includes the part of the
    host's coords (int64) and values that is on the device.
    """
    record_format = cut.record_format.merged  # in whose modes records are ordered
    records_nbytes = nnz * record_format.record_nbytes

    # What the layout keeps.
    num_copies = layout_class.count_copies(record_format.ndim)
    copies_and_ids = num_copies * records_nbytes
    copies_and_ids += layout_class.count_ids_nbytes(nnz, cut.merged, primitives)
    least_tilings, most_tilings = _count_tiling_nbytes(nnz, cut.record_format, cut.tile_size)
    nbytes = copies_and_ids + least_tilings

    # Building it: first records are brought into canonical order, then they are arranged.
    ordering = count_canonical_nbytes(nnz, record_format, primitives)
    buffers = layout_class.count_build_nbytes(nnz, cut.merged, primitives)
    arranging = copies_and_ids + most_tilings + buffers
    building = max(ordering, arranging)

    # Before that, coords and values are packed.
    nonzero_nbytes = _count_nonzero_nbytes(cut.record_format)
    if primitives.staging_size is None:  # coords and values are on the device all the time
        given_nbytes = nnz * nonzero_nbytes
        return Estimate(nbytes, given_nbytes + building)
    num_staged = min(nnz, primitives.staging_size + 1)  # copied from the host at a time
    packing = records_nbytes + num_staged * nonzero_nbytes
    return Estimate(nbytes, max(packing, building))


def _count_nonzero_nbytes(record_format: RecordFormat) -> int:
    """Count the bytes of a nonzero's int64 coordinates and its value, before it is packed."""
    coords_nbytes = 8 * record_format.ndim
    value_nbytes = record_format.dtype.itemsize
    return coords_nbytes + value_nbytes


def _count_tiling_nbytes(nnz: int, record_format: RecordFormat, tile_size: int) -> tuple[int, int]:
    """Count the bytes of the tilings of all groups, with the fewest and the most empty rows.

    The most includes the temporary arrays of `tile_rows`: the records at the edges of tiles, and
    five arrays of their numbers or rows.
    """
    num_tiles = -(-nnz // tile_size)
    num_groups = len(record_format.groups)
    carry_rows = num_groups * num_tiles * 8  # int64, one for each tile
    least_empty_rows = most_empty_rows = 0
    for group, num_rows in zip(record_format.groups, record_format.merged.shape, strict=True):
        itemsize = index_dtype(num_rows).itemsize
        # The merged mode of a group can have more rows than there are combinations of indices, as
        # the sizes of all but its first mode are rounded up to powers of two. Those stay empty.
        num_combinations = math.prod(record_format.shape[mode] for mode in group)
        most_used = min(num_combinations, nnz)  # if each nonzero has a row of its own
        least_used = min(1, nnz)  # if all nonzeros are in one row
        least_empty_rows += (num_rows - most_used) * itemsize
        most_empty_rows += (num_rows - least_used) * itemsize
    edge_nbytes = record_format.record_nbytes + 5 * 8
    buffers = num_tiles * edge_nbytes
    least = carry_rows + least_empty_rows
    most = carry_rows + most_empty_rows + buffers
    return least, most


def _estimate_prefixes(record_format: RecordFormat, primitives: Primitives) -> Estimate:
    """Estimate the tensor of prefixes, with a nonzero for each, that `number_prefixes` builds."""
    cut = cut_prefixes(record_format, primitives)
    num_prefixes = record_format.num_prefixes
    nbytes, peak_nbytes = estimate_piece(ReplicatedLayout, num_prefixes, cut, primitives)
    coords_and_values = num_prefixes * _count_nonzero_nbytes(cut.record_format)
    return Estimate(nbytes, peak_nbytes + coords_and_values)


def waits_on_host(engine: Engine, name: str, tensor: TensorSizes, num_slabs: int) -> bool:
    """Return whether records wait on the host while slabs are built: devices are too small."""
    record_format = tensor.choose_cut(engine).record_format
    _, has_to_wait = _estimate_slabs(engine, name, tensor.nnz, record_format, num_slabs)
    return has_to_wait


def _estimate_slabs(
    engine: Engine, name: str, nnz: int, record_format: RecordFormat, num_slabs: int
) -> tuple[Estimate, bool]:
    """Estimate a layout of equal slabs; the peak is of one device.

    Returns also whether the records must wait on the host while others are built.
    """
    record_nbytes = record_format.record_nbytes
    longest = max(record_format.shape)
    num_built = max(1, min(num_slabs, nnz, longest))  # slabs without rows are not kept
    kept, slab_peak = _add_slabs(engine, name, nnz, record_format, num_built)
    slab_nnz = max(_share(nnz, num_built))

    # The part of the slabs, and of the nonzeros, that one device has.
    is_on_device = engine.staging_size is None  # the tensor's coords and values
    share: float = 1
    if not is_on_device:
        slabs_of_device = -(-num_built // engine.num_devices)
        share = slabs_of_device / num_built
    device_nnz = math.ceil(share * nnz)

    # First all records of a device are distributed to its slabs, then these are built, one or a few
    # at a time: each is sorted, then arranged beside those that are ready.
    num_at_once = engine.choose_builders(num_built).num_at_once
    distributing = _count_distributing_nbytes(device_nnz, record_format)
    slab_records = slab_nnz * record_nbytes
    sorting = slab_records + count_canonical_nbytes(slab_nnz, record_format, engine)
    # `kept` assumes the shortest lists of empty rows; add what they may take beyond that.
    list_nbytes = 0
    for num_rows in record_format.merged.shape:
        list_nbytes += index_dtype(num_rows).itemsize * min(slab_nnz, num_rows)
    most_kept = kept + num_built * list_nbytes
    kept_by_device = math.ceil(share * most_kept)
    numbering = slab_nnz * (3 * record_nbytes + 24)  # a slab's records and their numbers
    arranging = kept_by_device + num_at_once * (slab_peak + numbering)
    building = max(num_at_once * sorting, arranging)

    # The records of a device are there all the time, unless they must wait on the host.
    device_records = device_nnz * record_nbytes
    peak = device_records + max(distributing, building)
    if is_on_device:
        given_nbytes = nnz * _count_nonzero_nbytes(record_format)
        return Estimate(kept, given_nbytes + peak), False
    free_nbytes = engine.count_free_nbytes()
    if free_nbytes is None or peak <= free_nbytes:
        return Estimate(kept, peak), False
    # Else a device has a slab's share of the records at a time.
    distributing_share = _count_distributing_nbytes(slab_nnz, record_format)
    return Estimate(kept, max(distributing_share, building)), True


def _count_distributing_nbytes(nnz: int, record_format: RecordFormat) -> int:
    """Bound the counts of rows, a block in two orders, its buckets and their order."""
    longest = max(record_format.shape)
    counts_nbytes = 48 * longest
    block_nnz = min(nnz, BLOCK_NNZ)
    block_nbytes = block_nnz * (2 * record_format.record_nbytes + 48)
    return counts_nbytes + block_nbytes


def _add_slabs(
    engine: Engine, name: str, nnz: int, record_format: RecordFormat, num_slabs: int
) -> Estimate:
    """Add the bytes of equal slabs; the peak is that of building the largest."""
    longest = max(record_format.shape)
    nnz_of_slabs = _share(nnz, num_slabs)
    rows_of_slabs = _share(longest, num_slabs)
    # Sizes differ by one at most, so few kinds of slabs are estimated.
    kinds = Counter(zip(nnz_of_slabs, rows_of_slabs, strict=True))
    nbytes = peak_nbytes = 0
    for (slab_nnz, num_rows), count in kinds.items():
        slab_shape = find_slab_shape(record_format.shape, num_rows)
        cut = engine.choose_cut(slab_shape, record_format.dtype, record_format.groups)
        slab = estimate_piece(LAYOUT_CLASSES[name], slab_nnz, cut, engine)
        nbytes += count * slab.nbytes
        peak_nbytes = max(peak_nbytes, slab.peak_nbytes)
    return Estimate(nbytes, peak_nbytes)


def _share(count: int, num_slabs: int) -> list[int]:
    """Divide a number into nearly equal ones.

    >>> _share(10, 4)
    [2, 3, 2, 3]
    """
    edges = [number * count // num_slabs for number in range(num_slabs + 1)]
    return [stop - start for start, stop in pairwise(edges)]


def count_iteration_nbytes(engine: Engine, layout: AnyLayout, rank: int) -> int:
    """Count the factors, and what the update of one adds: its MTTKRP and the solution.

    Factors and MTTKRPs of a slab's groups have a row for each combination of indices, or nonzero.
    Results of slabs wait to be added. For a tensor on several devices, counts one as if it had all.
    """
    shape = layout.record_format.shape
    row_nbytes = rank * layout.record_format.dtype.itemsize
    if engine.tall is not None:  # solutions have rows aligned for the next MTTKRP
        row_nbytes = engine.tall.choose_row_nbytes(row_nbytes)
    if isinstance(layout, SlabLayout):
        group_rows = sum(_count_group_rows(slab.layout) for slab in layout.slabs)
    else:
        group_rows = _count_group_rows(layout)
    factor_rows = sum(shape)
    num_results = 2 + count_waiting(layout.num_slabs)  # the MTTKRP, the solution, those of slabs
    result_rows = num_results * max(shape)
    num_rows = factor_rows + result_rows + 2 * group_rows  # groups have factors and MTTKRPs
    return num_rows * row_nbytes


def _count_group_rows(layout: Layout) -> int:
    """Count the rows of the factors of a layout's groups, at most one for each nonzero."""
    num_rows = 0
    for size, group in zip(layout.merged.shape, layout.groups, strict=True):
        if len(group) > 1:  # a single mode has the factor itself
            num_rows += min(size, layout.nnz)
    return num_rows


# Choices


def choose_common(engine: Engine, name: str, tensor: TensorSizes, cuts: Sequence[Cut]) -> str:
    """Choose the layout of all slabs, or of one piece: by the cut with the most groups."""
    formats = [cut.record_format for cut in cuts]
    most = max(formats, key=lambda record: (len(record.groups), record.num_prefixes))
    tensor_in_groups = tensor._replace(groups=most.groups)
    return choose_layout(engine, name, tensor_in_groups, most.num_prefixes)


def choose_layout(engine: Engine, name: str, tensor: TensorSizes, num_prefixes: int = 0) -> str:
    """Return the name of a layout, if it is "auto" the default one.

    `FlycooTensor` says which. Measured on real tensors: on 1 and 16 cores a sweep takes 1.3 to 2.5
    times as long with "remap", 1.1 to 1.7 times with "indexed"; on an H200 with two groups 1.1 to
    1.5 times with "remap".
    """
    if name != "auto":
        return name
    if len(tensor.groups) <= 2:
        return "replicated"
    if engine.name != "cpu":
        return "remap"
    cut = tensor.choose_cut(engine, num_prefixes)
    replicated = estimate_piece(LAYOUT_CLASSES["replicated"], tensor.nnz, cut, engine)
    remap = estimate_piece(LAYOUT_CLASSES["remap"], tensor.nnz, cut, engine)
    if replicated.nbytes <= remap.nbytes:  # the faster one needs no more than the default on GPUs
        return "replicated"
    return "indexed"


def choose_num_slabs(nnz: int, num_devices: int = 1, streamed_nbytes: int | None = None) -> int:
    """Choose as few slabs as `MAX_SLAB_NNZ` allows, but equally many for each device.

    If records of `streamed_nbytes` are streamed, a slab has at most `STREAMED_NBYTES` of them, and
    a device has at least two, so that one is copied while the other is computed.

    >>> choose_num_slabs(100), choose_num_slabs(100, 3), choose_num_slabs(2**33 + 1, 2)
    (1, 3, 4)
    """
    least_of_device = 1
    num_slabs = -(-nnz // MAX_SLAB_NNZ)
    if streamed_nbytes is not None:
        least_of_device = 2
        num_slabs = max(num_slabs, -(-nnz * streamed_nbytes // STREAMED_NBYTES))
    return max(least_of_device * num_devices, round_up(num_slabs, num_devices))


def plan_streaming(
    engine: Engine, name: str, tensor: TensorSizes, num_slabs: int | None = None
) -> tuple[int, int]:
    """Return the number of slabs with ``keep="host"``, and how many stay on each device.

    `name` is that of the layout.
    """
    record_format = tensor.choose_cut(engine).record_format
    if num_slabs is None:
        record_nbytes = record_format.record_nbytes
        num_slabs = choose_num_slabs(tensor.nnz, engine.num_devices, record_nbytes)
    nbytes, peak_nbytes = estimate_layout(engine, name, tensor, num_slabs)
    free_nbytes = engine.count_free_nbytes()
    most_slabs = -(-num_slabs // engine.num_devices)  # of a device
    device_nbytes = -(-nbytes * most_slabs // num_slabs)
    num_resident = count_resident_slabs(device_nbytes, peak_nbytes, most_slabs, free_nbytes)
    return num_slabs, num_resident


def count_resident_slabs(
    nbytes: int, peak_nbytes: int, num_slabs: int, free_nbytes: int | None
) -> int:
    """Count the slabs of a device, of `nbytes` in all, that fit in half of its free memory.

    What building adds to them fits there too.
    """
    if free_nbytes is None:
        return 0
    building_nbytes = peak_nbytes - nbytes
    usable_nbytes = free_nbytes // 2 - building_nbytes  # below 0 if not even building fits
    # Not by nbytes // num_slabs: a slab's size, rounded down, would let one too many stay.
    num_fitting = usable_nbytes * num_slabs // max(nbytes, 1)
    return max(0, num_fitting)
