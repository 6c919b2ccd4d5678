"""Build a tensor's layout: in one piece, or in slabs on one or several devices."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..array_modules import Array
from ..devices import OneDevice
from ..engines import slab_plan
from ..format.layouts import LAYOUT_CLASSES
from ..format.slab_layout import AnyLayout, SlabLayout
from ..format.streamed import make_keep_aside
from .spread_layout import SpreadLayout

if TYPE_CHECKING:
    from ..engines.protocol import Engine

_logger = logging.getLogger("tensorly_flycoo")


def build_layout(
    engine: Engine,
    name: str,
    coords: Array,
    values: Array,
    shape: Sequence[int],
    num_slabs: int | None = None,
    keep: str = "device",
) -> AnyLayout:
    """Build the layout `name` from coords (ndim, nnz) and values (nnz,) on any device.

    By default there are as few slabs as `MAX_SLAB_NNZ` allows, and one for each of
    `devices`; with ``keep="host"`` see `plan_streaming`.
    """
    coords, values = engine.receive(coords, values)
    cut = engine.choose_cut(shape, values.dtype)
    nnz, dtype, keep_aside = values.shape[0], values.dtype, None
    if keep == "host" and engine.make_stager is not None:
        num_slabs, num_resident = engine.plan_streaming(name, nnz, shape, dtype, num_slabs)
        keep_aside = make_keep_aside(engine.make_stager, num_resident)
    elif not num_slabs:
        num_slabs = engine.choose_num_slabs(nnz)
    sizes = {"tile_size": cut.tile_size, "bucket_size": cut.bucket_size}
    if num_slabs > 1:
        sizes["slabs"] = num_slabs
    engine.log("build", name, shape=tuple(shape), nnz=values.size, **sizes)
    cls = LAYOUT_CLASSES[name]
    if num_slabs == 1 and engine.devices is None and keep_aside is None:
        return cls.build(coords, values, cut, engine)
    slab_class = SlabLayout if engine.devices is None else SpreadLayout
    devices = engine.devices or OneDevice(engine.xp)
    options = (cut.record_format, num_slabs, engine, devices)
    layout = slab_class.build(cls, coords, values, *options, keep_aside)
    slab_plan.warn_of_long_slabs(layout)
    if layout.num_streamed:
        _logger.info("the records of %d slabs stay on the host", layout.num_streamed)
    return layout
