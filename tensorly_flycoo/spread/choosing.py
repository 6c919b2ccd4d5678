"""Build a tensor's layout: in one piece, or in slabs on one or several devices."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.array_modules import Array
from ..base.checks import check_finite, check_inside
from ..base.devices import OneDevice, assign_homes
from ..engines import Engine
from ..format.layout import Layout
from ..format.layouts import LAYOUT_CLASSES
from ..format.ordering import count_canonical_nbytes, order_records
from ..format.packing import Cut, Groups, RecordFormat
from ..format.primitives import index_dtype
from ..format.replicated import estimate_prefixes
from .building import BLOCK_NNZ, MemoryBuilder, arrange_slab, find_slab_shape
from .slab_layout import AnyLayout, Slab, SlabLayout
from .spread_layout import SpreadLayout
from .streamed import KeepAside, make_keep_aside

_logger = logging.getLogger("tensorly_flycoo")

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


def build_layout(
    engine: Engine,
    name: str,
    coords: Array,
    values: Array,
    shape: Sequence[int],
    groups: Groups,
    num_numbered: int | None,
    num_slabs: int,
    keep: str = "device",
) -> AnyLayout:
    """Build the layout `name` from coords (ndim, nnz) and values (nnz,) on any device.

    `name` may be "auto". `groups` and `num_numbered` are as `format.groups.find_groups` returns
    them. With ``keep="host"``, `plan_streaming` says how many slabs stay on each device.
    """
    coords, values = engine.receive(coords, values)
    cut = engine.choose_cut(shape, values.dtype, groups)._replace(num_numbered=num_numbered)
    tensor = TensorSizes(values.shape[0], shape, values.dtype, groups)
    keep_aside = None
    if keep == "host" and engine.make_stager is not None:
        _, num_resident = plan_streaming(engine, name, tensor, num_slabs)
        keep_aside = make_keep_aside(engine.make_stager, num_resident)
    sizes: dict[str, Any] = {"tile_size": cut.tile_size, "bucket_size": cut.bucket_size}
    if len(groups) < len(shape):
        sizes["groups"] = groups
    if num_slabs > 1:
        sizes["slabs"] = num_slabs
    if num_slabs == 1 and not engine.spreads(tensor.nnz) and keep_aside is None:
        records, cut = order_records(coords, values, cut, engine)
        name = choose_common(engine, name, tensor._replace(nnz=records.shape[0]), [cut])
        engine.log("build", name, shape=tuple(shape), nnz=tensor.nnz, **sizes)
        return arrange_slab((records, cut), name, engine)
    layout = build_slabs(engine, name, coords, values, cut, num_slabs, keep_aside)
    engine.log("build", layout.name, shape=tuple(shape), nnz=tensor.nnz, **sizes)
    share = -(-layout.nnz // layout.num_slabs)
    longest = max(slab.layout.nnz for slab in layout.slabs)
    if longest > 2 * share:
        _logger.warning(
            "a slab has %s nonzeros where its share is %s: a row of mode %d, which is not split, "
            "is longer than a slab; fewer slabs do as well",
            *(f"{longest:,}", f"{share:,}", layout.cut_mode),
        )
    if layout.num_streamed:
        _logger.info("the records of %d slabs stay on the host", layout.num_streamed)
    return layout


def build_slabs(
    engine: Engine,
    name: str,
    coords: Array,
    values: Array,
    cut: Cut,
    num_slabs: int,
    keep_aside: KeepAside | None = None,
) -> SlabLayout:
    """Build slabs, whose records wait on the devices, or on the host if these are too small."""
    devices = engine.devices or OneDevice(engine.xp)
    shape = cut.record_format.shape
    tensor = TensorSizes(values.shape[0], shape, values.dtype, cut.record_format.groups)
    guess = choose_layout(engine, name, tensor)
    sizes = (tensor.nnz, cut.record_format, num_slabs)
    *_, waits_on_host = _estimate_slabs(engine, guess, *sizes)
    builder = MemoryBuilder(coords, values, cut, waits_on_host, num_slabs, engine, devices)
    try:
        rows = builder.sort()
    except ValueError:  # which may give a place in a block
        check_inside(coords, shape)
        check_finite(values)
        raise
    ordered = devices.map(builder.order, assign_homes(len(rows), devices.count), rows)
    builder.buckets.clear()
    name = choose_common(engine, name, tensor, [cut for _, cut in ordered])

    def arrange(number: int) -> Layout:
        own = ordered[number]
        ordered[number] = None
        return arrange_slab(own, name, engine)

    return place_slabs(engine, builder.record_format, num_slabs, rows, arrange, keep_aside)


def place_slabs(
    engine: Engine,
    record_format: RecordFormat,
    num_slabs: int,
    rows: Sequence[range],
    make_layout: Callable[[int], Layout],
    keep_aside: KeepAside | None = None,
) -> SlabLayout:
    """Call a function of a slab's number on the slab's device, for each slab; keep the layouts."""
    devices = engine.devices or OneDevice(engine.xp)

    def place(home: int, number: int, own: range) -> Slab:
        layout = make_layout(number)
        if keep_aside is not None:
            layout = keep_aside(layout, home)
        return Slab(slice(own.start, own.stop), layout, home)

    homes = assign_homes(len(rows), devices.count)
    slabs = devices.map(place, homes, range(len(rows)), rows)
    slab_class = SlabLayout if engine.devices is None else SpreadLayout
    return slab_class(record_format, num_slabs, slabs, engine, devices)


def choose_common(engine: Engine, name: str, tensor: TensorSizes, cuts: Sequence[Cut]) -> str:
    """Choose the layout of all slabs, or of one piece: by the cut with the most groups."""
    formats = [cut.record_format for cut in cuts]
    most = max(formats, key=lambda own: (len(own.groups), own.num_prefixes))
    return choose_layout(engine, name, tensor._replace(groups=most.groups), most.num_prefixes)


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
    options = (tensor.nnz, engine.choose_cut(*tensor[1:], num_prefixes), engine)
    names = ("replicated", "remap")
    replicated, remap = (LAYOUT_CLASSES[name].estimate(*options)[0] for name in names)
    return "replicated" if replicated <= remap else "indexed"


def choose_num_slabs(nnz: int, num_devices: int = 1, streamed_nbytes: int | None = None) -> int:
    """Choose as few slabs as `MAX_SLAB_NNZ` allows, but one for each device.

    If records of `streamed_nbytes` are streamed, a slab has at most `STREAMED_NBYTES` of them, and
    there are at least two, so that one is copied while the other is computed.
    """
    num_slabs = max(num_devices, -(-nnz // MAX_SLAB_NNZ))
    if streamed_nbytes is None:
        return num_slabs
    return max(2, num_slabs, -(-nnz * streamed_nbytes // STREAMED_NBYTES))


def count_resident_slabs(
    nbytes: int, peak_nbytes: int, num_slabs: int, free_nbytes: int | None
) -> int:
    """Count the slabs, of `nbytes` in all, that fit in half of the free memory, with building."""
    if free_nbytes is None:
        return 0
    building_nbytes = peak_nbytes - nbytes
    return max(0, (free_nbytes // 2 - building_nbytes) * num_slabs // max(nbytes, 1))


def plan_streaming(
    engine: Engine, name: str, tensor: TensorSizes, num_slabs: int | None = None
) -> tuple[int, int]:
    """Return the number of slabs with ``keep="host"``, and how many stay on each device."""
    record_nbytes = engine.choose_cut(*tensor[1:]).record_format.record_nbytes
    num_slabs = num_slabs or choose_num_slabs(tensor.nnz, engine.num_devices, record_nbytes)
    estimate = estimate_layout(engine, name, tensor, num_slabs)
    return num_slabs, count_resident_slabs(*estimate, num_slabs, engine.count_free_nbytes())


def estimate_layout(
    engine: Engine, name: str, tensor: TensorSizes, num_slabs: int, num_prefixes: int = 0
) -> tuple[int, int]:
    """Return the bytes of a layout, and the most bytes in use on a device while it is built.

    `num_prefixes` of the first group, if it is not 0, are numbered; then both are bounds.
    """
    cut = engine.choose_cut(*tensor[1:], num_prefixes)
    if num_slabs > 1:
        return _estimate_slabs(engine, name, tensor.nnz, cut.record_format, num_slabs)[:2]
    estimate = LAYOUT_CLASSES[name].estimate(tensor.nnz, cut, engine)
    if not num_prefixes:
        return estimate
    nbytes, peak_nbytes = estimate_prefixes(cut.record_format, engine)
    return estimate[0] + nbytes, estimate[1] + peak_nbytes


def _estimate_slabs(
    engine: Engine, name: str, nnz: int, record_format: RecordFormat, num_slabs: int
) -> tuple[int, int, bool]:
    """Estimate a layout of equal slabs, as `estimate_layout` does; the peak is of one device.

    Return also whether the records must wait on the host while others are built.
    """
    shape = record_format.shape
    longest = max(record_format.shape)
    num_held = max(1, min(num_slabs, nnz, longest))
    shares = Counter(zip(_share(nnz, num_held), _share(longest, num_held), strict=True))
    kept = peak_nbytes = 0
    for (slab_nnz, num_rows), count in shares.items():
        slab_shape = find_slab_shape(shape, num_rows)
        cut = engine.choose_cut(slab_shape, record_format.dtype, record_format.groups)
        nbytes, slab_peak_nbytes = LAYOUT_CLASSES[name].estimate(slab_nnz, cut, engine)
        kept += count * nbytes
        peak_nbytes = max(peak_nbytes, slab_peak_nbytes)
    record_nbytes = record_format.record_nbytes
    per_slab = max(_share(nnz, num_held))
    given = 8 * record_format.ndim + record_format.dtype.itemsize
    on_device = engine.staging_size is None  # the nonzeros
    own = 1 if on_device else -(-num_held // engine.num_devices) / num_held  # one device's share
    own_nnz = math.ceil(own * nnz)
    # Counts of rows; a block's records in two orders, numbers of buckets and their order.
    distributing, small = (
        48 * longest + min(size, BLOCK_NNZ) * (2 * record_nbytes + 48)
        for size in (own_nnz, per_slab)
    )
    sorting = per_slab * record_nbytes
    sorting += count_canonical_nbytes(per_slab, record_format, engine)
    # All slabs' lists of empty rows may be longer; a slab's records and their numbers.
    sizes = record_format.merged.shape
    lists = sum(index_dtype(size).itemsize * min(per_slab, size) for size in sizes)
    building = math.ceil(own * (kept + num_held * lists)) + peak_nbytes
    building += per_slab * (3 * record_nbytes + 24)
    waiting = own_nnz * record_nbytes
    others = max(sorting, building)
    peak_nbytes = waiting + max(distributing, others)
    if on_device:
        return kept, nnz * given + peak_nbytes, False
    free = engine.count_free_nbytes()
    if free is not None and peak_nbytes > free:
        return kept, max(small, others), True
    return kept, peak_nbytes, False


def _share(count: int, num_slabs: int) -> list[int]:
    """Divide a number into nearly equal ones."""
    return [(n + 1) * count // num_slabs - n * count // num_slabs for n in range(num_slabs)]
