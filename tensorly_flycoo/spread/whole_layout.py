"""Build a tensor's layout: in one piece, or in slabs on one or several devices.

If memory runs out, in more slabs. `memory` says how many there are at first, and in which layout.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ..base.array_modules import Array, is_cupy
from ..base.checks import check_finite, check_inside
from ..base.devices import Devices, assign_homes
from ..base.reporting import log_compilation
from ..engines import Engine
from ..engines.out_of_memory import GAPS, PLACES, SMALLER, attempt, check_room
from ..format.groups import find_groups
from ..format.layout import Layout
from ..format.ordering import order_records
from ..format.packing import Cut, Groups, RecordFormat
from . import memory
from .building import MemoryBuilder, arrange_slab
from .memory import TensorSizes
from .slab_layout import AnyLayout, Slab, SlabLayout
from .spread_layout import SpreadLayout
from .streamed import KeepAside, make_keep_aside

_logger = logging.getLogger("tensorly_flycoo")

#: The most slabs that are tried, as a multiple of the fewest ones.
_MOST = 64


def build_layout(
    engine: Engine,
    name: str,
    coords: Array,
    values: Array,
    shape: Sequence[int],
    groups: object,
    num_slabs: int | None = None,
    keep: str = "device",
) -> AnyLayout:
    """Build the layout `name` on the engine's device from checked coords and values on any device.

    Without `num_slabs` there are as few as the engine chooses; if memory runs out, twice as many
    are tried, and so on. An error tells the least need. `groups` are as a user gives them.
    """
    nnz = values.size
    groups_of_one_piece, _ = find_groups(groups, shape, nnz)
    tensor = TensorSizes(nnz, shape, values.dtype, groups_of_one_piece)

    def build(count: int) -> AnyLayout:
        division, num_numbered = find_groups(groups, shape, nnz, count)
        if engine.name == "cpu":  # else arrays on another GPU are refused first
            # Prefixes, which are not counted yet, may change an "auto" layout.
            divided = tensor._replace(groups=division)
            estimate = _estimate(engine, name, divided, count)
            check_room(engine, estimate.peak_nbytes - _count_given_nbytes(coords, values))
        with log_compilation():
            return build_in_slabs(
                engine, name, coords, values, shape, division, num_numbered, count, keep
            )

    count = num_slabs or _choose_fewest(engine, name, tensor, keep)
    most = num_slabs or _MOST * count
    first_ways = [SMALLER, GAPS]
    if max(shape) > nnz:  # there are gaps, which matter more than the layout and dtype
        first_ways = [GAPS, SMALLER]
    ways_out = f"Ways out: {', '.join(first_ways)}, {PLACES}"
    errors: dict[int, MemoryError] = {}  # by the need of an attempt
    while count <= most:
        if errors:
            _logger.info("memory ran out: building the tensor in %d slabs", count)
        task = f"building a FlycooTensor of {nnz:,} nonzeros"
        if count > 1:
            task += f" in {count} slabs"
        try:
            return attempt(task, functools.partial(build, count), ways_out)
        except MemoryError as error:
            need = _estimate(engine, name, tensor, count).peak_nbytes
            errors[need] = error.with_traceback(None)  # which would hold arrays
        count *= 2
    raise errors[min(errors)]


def _choose_fewest(engine: Engine, name: str, tensor: TensorSizes, keep: str) -> int:
    """Choose the number of slabs that is tried first."""
    num_devices = 1
    if engine.spreads(tensor.nnz):
        num_devices = engine.num_devices
    elif engine.num_devices > 1:
        _logger.debug("one of %d devices is as fast for so few nonzeros", engine.num_devices)
    if keep == "host" and engine.make_stager is not None:
        num_slabs, _ = memory.plan_streaming(engine, name, tensor)
        return num_slabs
    return memory.choose_num_slabs(tensor.nnz, num_devices)


def _estimate(engine: Engine, name: str, tensor: TensorSizes, num_slabs: int) -> memory.Estimate:
    chosen = memory.choose_layout(engine, name, tensor)
    return memory.estimate_layout(engine, chosen, tensor, num_slabs)


def _count_given_nbytes(coords: Array, values: Array) -> int:
    """Count the bytes of a tensor's nonzeros on the host, which are in use before it is built."""
    if is_cupy(coords):
        return 0
    return values.size * (8 * coords.shape[0] + values.dtype.itemsize)


def build_in_slabs(
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
    """Build the layout `name` in so many slabs, or in one piece.

    `name` may be "auto". `groups` and `num_numbered` are as `format.groups.find_groups` returns
    them. With ``keep="host"``, `memory.plan_streaming` says how many slabs stay on each device.
    """
    coords, values = engine.receive(coords, values)
    cut = engine.choose_cut(shape, values.dtype, groups)._replace(num_numbered=num_numbered)
    tensor = TensorSizes(values.shape[0], shape, values.dtype, groups)
    keep_aside = None
    if keep == "host" and engine.make_stager is not None:
        _, num_resident = memory.plan_streaming(engine, name, tensor, num_slabs)
        keep_aside = make_keep_aside(engine.make_stager, num_resident)
    facts: dict[str, Any] = {"tile_size": cut.tile_size, "bucket_size": cut.bucket_size}
    if len(groups) < len(shape):
        facts["groups"] = groups
    if num_slabs > 1:
        facts["slabs"] = num_slabs
    if num_slabs == 1 and not engine.spreads(tensor.nnz) and keep_aside is None:
        records, cut = order_records(coords, values, cut, engine)
        canonical = tensor._replace(nnz=records.shape[0])
        name = memory.choose_common(engine, name, canonical, [cut])
        engine.log("build", name, shape=tuple(shape), nnz=tensor.nnz, **facts)
        return arrange_slab((records, cut), name, engine)
    layout = build_slabs(engine, name, coords, values, cut, num_slabs, keep_aside)
    engine.log("build", layout.name, shape=tuple(shape), nnz=tensor.nnz, **facts)
    _report_slabs(layout)
    return layout


def _report_slabs(layout: SlabLayout) -> None:
    """Warn of a slab that is much longer than others; tell how many are streamed."""
    share = -(-layout.nnz // layout.num_slabs)
    longest = max(slab.layout.nnz for slab in layout.slabs)
    if longest > 2 * share:
        _logger.warning(
            "a slab has %s nonzeros where its share is %s: a row of mode %d, which is not split, "
            "is longer than a slab; fewer slabs do as well",
            f"{longest:,}",
            f"{share:,}",
            layout.cut_mode,
        )
    if layout.num_streamed:
        _logger.info("the records of %d slabs stay on the host", layout.num_streamed)


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
    devices = engine.choose_builders(num_slabs)
    record_format = cut.record_format
    tensor = TensorSizes(values.shape[0], record_format.shape, values.dtype, record_format.groups)
    likely_name = memory.choose_layout(engine, name, tensor)  # prefixes may change it
    waits_on_host = memory.waits_on_host(engine, likely_name, tensor, num_slabs)
    builder = MemoryBuilder(coords, values, cut, waits_on_host, num_slabs, engine, devices)
    try:
        rows = builder.sort()
    except ValueError:  # which may give a place in a block
        check_inside(coords, record_format.shape)
        check_finite(values)
        raise
    ordered = devices.map(builder.order, assign_homes(len(rows), devices.count), rows)
    builder.buckets.clear()
    common_name = memory.choose_common(engine, name, tensor, [cut for _, cut in ordered])

    def arrange(number: int) -> Layout:
        slab = ordered[number]
        ordered[number] = None  # so that its records are freed once they are arranged
        return arrange_slab(slab, common_name, engine)

    record_format = builder.record_format
    return place_slabs(engine, devices, record_format, num_slabs, rows, arrange, keep_aside)


def place_slabs(
    engine: Engine,
    devices: Devices,
    record_format: RecordFormat,
    num_slabs: int,
    rows: Sequence[range],
    make_layout: Callable[[int], Layout],
    keep_aside: KeepAside | None = None,
) -> SlabLayout:
    """Call a function of a slab's number on the slab's device, for each slab; keep the layouts."""

    def place(home: int, number: int, slab_rows: range) -> Slab:
        layout = make_layout(number)
        if keep_aside is not None:
            layout = keep_aside(layout, home)
        return Slab(slice(slab_rows.start, slab_rows.stop), layout, home)

    homes = assign_homes(len(rows), devices.count)
    slabs = devices.map(place, homes, range(len(rows)), rows)
    slab_class = SlabLayout if engine.devices is None else SpreadLayout
    return slab_class(record_format, num_slabs, slabs, engine, devices)
