"""Build a tensor's layout: in one piece, or in slabs on one or several devices."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.array_modules import Array
from ..base.devices import OneDevice
from ..format.layouts import LAYOUT_CLASSES
from ..format.ordering import order_records
from ..format.packing import Groups
from ..format.replicated import estimate_prefixes, number_prefixes
from .slab_layout import AnyLayout, SlabLayout
from .spread_layout import SpreadLayout
from .streamed import make_keep_aside

if TYPE_CHECKING:
    from ..engines.protocol import Engine

_logger = logging.getLogger("tensorly_flycoo")

#: A tensor with more nonzeros is cut into slabs, so that 4 bytes number those of each.
MAX_SLAB_NNZ = 2**32

#: Bytes of the records, of one mode, of a slab that is streamed: enough that they are copied as
#: fast as the link allows, and so few that two slabs take little of the device.
STREAMED_NBYTES = 2**30


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

    `groups` and `num_numbered` are as `format.groups.find_groups` returns them; prefixes are not
    numbered in slabs. With ``keep="host"``, `plan_streaming` says how many slabs stay on each
    device. The layout "auto" of a tensor in one piece is chosen when its final groups are known.
    """
    coords, values = engine.receive(coords, values)
    cut = engine.choose_cut(shape, values.dtype, groups)
    nnz, dtype, num_prefixes, records, keep_aside = values.size, values.dtype, 0, None, None
    make_stager = engine.make_stager if keep == "host" else None
    if num_slabs == 1 and engine.devices is None and make_stager is None:
        cut = cut._replace(num_numbered=num_numbered)
        records, cut = order_records(coords, values, cut, engine)
        nnz, groups = records.shape[0], cut.record_format.groups
        num_prefixes = cut.record_format.num_prefixes
    name = choose_layout(engine, name, nnz, shape, dtype, groups, num_prefixes)
    sizes: dict[str, Any] = {"tile_size": cut.tile_size, "bucket_size": cut.bucket_size}
    if len(groups) < len(shape):
        sizes["groups"] = groups
    if num_slabs > 1:
        sizes["slabs"] = num_slabs
    engine.log("build", name, shape=tuple(shape), nnz=values.size, **sizes)
    cls = LAYOUT_CLASSES[name]
    if records is not None:
        piece = cls.build_ordered(records, cut, engine)
        number_prefixes(piece, engine)
        return piece
    if make_stager is not None:
        _, num_resident = plan_streaming(engine, name, nnz, shape, dtype, groups, num_slabs)
        keep_aside = make_keep_aside(make_stager, num_resident)
    slab_class = SlabLayout if engine.devices is None else SpreadLayout
    devices = engine.devices or OneDevice(engine.xp)
    options = (cut.record_format, num_slabs, engine, devices)
    layout = slab_class.build(cls, coords, values, *options, keep_aside)
    warn_of_long_slabs(layout)
    if layout.num_streamed:
        _logger.info("the records of %d slabs stay on the host", layout.num_streamed)
    return layout


def choose_layout(
    engine: Engine,
    name: str,
    nnz: int,
    shape: Sequence[int],
    dtype: np.dtype,
    groups: Groups,
    num_prefixes: int = 0,
) -> str:
    """Return the name of a layout, if it is "auto" the default one.

    That is "remap" on a GPU; on a CPU "replicated" where its copies take no more memory than
    remap's two copies and ids would, else "indexed". Measured on real tensors, 1 and 16 cores: a
    sweep takes 1.3 to 2.5 times as long with "remap", 1.1 to 1.7 times with "indexed".
    """
    if name != "auto":
        return name
    if engine.name != "cpu":
        return "remap"
    cut = engine.choose_cut(shape, dtype, groups, num_prefixes)
    names = ("replicated", "remap")
    replicated, remap = (LAYOUT_CLASSES[name].estimate(nnz, cut, engine)[0] for name in names)
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
    """Count the slabs that fit in half of the free memory; the rest is for factors.

    `nbytes` and `peak_nbytes` are those of all slabs, and while they are built.
    """
    if free_nbytes is None:
        return 0
    building_nbytes = peak_nbytes - nbytes
    return max(0, (free_nbytes // 2 - building_nbytes) * num_slabs // max(nbytes, 1))


def plan_streaming(
    engine: Engine,
    name: str,
    nnz: int,
    shape: Sequence[int],
    dtype: np.dtype,
    groups: Groups,
    num_slabs: int | None = None,
) -> tuple[int, int]:
    """Return the number of slabs with ``keep="host"``, and how many stay on each device."""
    record_nbytes = engine.choose_cut(shape, dtype, groups).record_format.record_nbytes
    num_slabs = num_slabs or choose_num_slabs(nnz, engine.num_devices, record_nbytes)
    estimate = estimate_layout(engine, name, nnz, shape, dtype, groups, num_slabs)
    return num_slabs, count_resident_slabs(*estimate, num_slabs, engine.count_free_nbytes())


def estimate_layout(
    engine: Engine,
    name: str,
    nnz: int,
    shape: Sequence[int],
    dtype: np.dtype,
    groups: Groups,
    num_slabs: int,
    num_prefixes: int = 0,
) -> tuple[int, int]:
    """Return the bytes of a layout, and the most bytes in use on a device while it is built.

    `num_prefixes` of the first group, if it is not 0, are numbered; then both are bounds.
    """
    cls, cut = LAYOUT_CLASSES[name], engine.choose_cut(shape, dtype, groups, num_prefixes)
    if num_prefixes:
        nbytes, peak_nbytes = cls.estimate(nnz, cut, engine)
        own_nbytes, own_peak_nbytes = estimate_prefixes(cut.record_format, engine)
        return nbytes + own_nbytes, peak_nbytes + own_peak_nbytes
    if num_slabs == 1:
        return cls.estimate(nnz, cut, engine)
    options = (cut.record_format, num_slabs, engine)
    return SlabLayout.estimate(cls, nnz, *options, engine.num_devices)


def warn_of_long_slabs(layout: SlabLayout) -> None:
    """Warn if a row is so long that its slab has more than twice its share."""
    share = -(-layout.nnz // layout.num_slabs)
    longest = max(slab.layout.nnz for slab in layout.slabs)
    if longest > 2 * share:
        _logger.warning(
            "a slab has %s nonzeros where its share is %s: a row of mode %d, which is not split, "
            "is longer than a slab; fewer slabs do as well",
            *(f"{longest:,}", f"{share:,}", layout.cut_mode),
        )
